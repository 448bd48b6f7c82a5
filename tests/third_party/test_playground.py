"""MuJoCo Playground's environments under our contract, beside its own stepping. A function with MJX compiles slowly."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxenvs
from jaxenvs.third_party import from_playground
from jaxenvs.wrappers import TimeLimit
from tests.third_party.episodes import Shown, all_ids, assert_same_episodes, assert_saturates

pytest.importorskip("mujoco_playground")

from mujoco_playground import registry

JAX = {"impl": "jax"}


@pytest.mark.parametrize("id", all_ids("playground", "PendulumSwingup"))
def test_its_episodes_are_those_of_playground(id: str) -> None:
    own = registry.load(id.partition("/")[2], config_overrides=JAX)

    def reset(key):
        state = own.reset(key)
        return state, state.obs

    def step(state, action, key, number):
        state = own.step(state, action)
        return state, Shown(state.obs, state.reward, state.done == 1, jnp.zeros((), bool))

    assert_same_episodes(jaxenvs.make(id), reset, step, num_steps=50, num_envs=2)


@pytest.fixture(scope="module")
def env():
    return jaxenvs.make("playground/PendulumSwingup")


def test_make_puts_the_length_of_its_episodes_on_it(env) -> None:
    assert isinstance(env, TimeLimit)
    assert env.max_steps == registry.get_default_config("PendulumSwingup").episode_length
    shorter = jaxenvs.make("playground/PendulumSwingup", config_overrides={"episode_length": 70})
    assert shorter.max_steps == 70
    assert jaxenvs.make("playground/PendulumSwingup", max_episode_steps=30).max_steps == 30


def test_a_step_leaves_the_state_that_it_is_given_as_it_was() -> None:
    env = jaxenvs.make("playground/CartpoleBalance").env

    def first_step(key, action):
        state, _ = env.reset(key)
        metrics = dict(state.inner.metrics)
        env.step(state, action)
        return all(state.inner.metrics[name] is leaf for name, leaf in metrics.items())

    untouched = []
    jax.eval_shape(lambda key, action: untouched.append(first_step(key, action)), jax.random.key(0), jnp.zeros(1))
    assert untouched == [True]


def test_an_environment_on_another_implementation_or_in_a_wrapper_is_refused() -> None:
    from mujoco_playground import wrapper

    own = registry.load("PendulumSwingup", config_overrides=JAX)
    with pytest.raises(ValueError, match="without wrappers, got BraxAutoResetWrapper around"):
        from_playground(wrapper.wrap_for_brax_training(own))


def test_actions_saturate_at_their_bounds(env) -> None:
    assert_saturates(env)


def test_nothing_is_printed() -> None:
    script = "import jaxenvs; jaxenvs.make('playground/PendulumSwingup')"
    assert not subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout


def test_the_picture_is_mujocos_of_the_state(env, monkeypatch) -> None:
    class Renderer:  # MuJoCo's needs OpenGL
        def __init__(self, model, height, width) -> None:
            self.size = height, width

        def update_scene(self, data, **_) -> None:
            self.angle = data.qpos[0]

        def render(self) -> np.ndarray:
            return np.full((*self.size, 3), 10 + 10 * self.angle, np.uint8)

        def close(self) -> None:
            pass

    monkeypatch.setattr("mujoco.Renderer", Renderer)
    state, _ = env.reset(jax.random.key(0))
    picture = env.render(state)
    assert picture.shape == (*env.render_size, 3)
    np.testing.assert_array_equal(picture, np.uint8(10 + 10 * state.inner.inner.data.qpos[0]))


@pytest.mark.parametrize("id", all_ids("playground", "PendulumSwingup"))
def test_it_keeps_the_contract(id: str) -> None:
    jaxenvs.check_env(jaxenvs.make(id), num_steps=50)


def test_it_keeps_the_contract_in_float64(x64: None) -> None:
    jaxenvs.check_env(jaxenvs.make("playground/PendulumSwingup"), num_steps=20)
