"""MuJoCo Playground's environments under our contract, beside its own stepping. A program of MJX compiles slowly."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxenvs
from jaxenvs.foreign.playground import from_playground
from jaxenvs.wrappers import TimeLimit
from tests.foreign.own_stepping import assert_equal_to_own_stepping

pytest.importorskip("mujoco_playground")

from mujoco_playground import dm_control_suite, registry

JAX = {"impl": "jax"}


def assert_parity(name: str, num_steps: int) -> None:
    own = registry.load(name, config_overrides=JAX)
    assert_equal_to_own_stepping(
        jaxenvs.make(f"playground/{name}", max_episode_steps=-1),
        own.reset,
        lambda state, action, key: own.step(state, action),
        lambda state: (state.obs, state.reward, state.done == 1, False),
        num_steps=num_steps,
        num_episodes=2,
    )


def test_whole_episodes_are_those_of_the_librarys_own_stepping() -> None:
    assert_parity("PendulumSwingup", 1000)


@pytest.fixture(scope="module")
def env():
    return jaxenvs.make("playground/PendulumSwingup")


def test_make_puts_the_length_of_its_episodes_on_it(env) -> None:
    assert isinstance(env, TimeLimit)
    assert env.max_steps == registry.get_default_config("PendulumSwingup").episode_length


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
    with pytest.raises(ValueError, match="BraxAutoResetWrapper"):
        from_playground(wrapper.wrap_for_brax_training(own))


def test_an_unknown_name_has_a_hint() -> None:
    with pytest.raises(jaxenvs.UnknownEnvironment, match="playground/CartpoleBalance"):
        jaxenvs.make("playground/Cartpole")


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


def test_keeps_the_contract(env) -> None:
    jaxenvs.check_env(env)


def test_keeps_the_contract_in_float64(x64: None) -> None:
    jaxenvs.check_env(jaxenvs.make("playground/PendulumSwingup"), num_steps=20)


@pytest.mark.foreign
@pytest.mark.parametrize("name", dm_control_suite.ALL_ENVS)  # the others clone models
def test_every_name_keeps_the_contract_and_its_own_stepping(name: str) -> None:
    try:
        registry.load(name, config_overrides=JAX)
    except AttributeError as error:
        pytest.skip(f"{name} does not load: {error}")
    jaxenvs.check_env(jaxenvs.make(f"playground/{name}"), num_steps=50)
    assert_parity(name, 50)
