"""Attributes and methods of a JaxVecEnv's environments, as SB3 asks for them, and pictures."""

import pickle
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.monitor import Monitor

import bridge
from bridge import JaxVecEnv, make_vec_env
from bridge.vec_env.base import MAX_IMAGES
from jaxenvs import ActionRepeat, CartPole, Environment, TimeLimit, TimeStep, environment
from tests.bridge.vec_env.test_jax_vec_env import counter, started
from tests.environments import Counter


def test_get_attr_reads_parameters_through_wrappers():
    venv = make_vec_env("CartPole-v1", 3)
    assert venv.get_attr("gravity") == [9.8, 9.8, 9.8]
    assert venv.get_attr("max_steps", -1) == [500]
    assert venv.get_attr("env", [0, 2]) == [venv.venv.env] * 2
    assert venv.get_attr("total_mass", 0) == [1.1]
    assert venv.has_attr("gravity")
    assert not venv.has_attr("gravty")
    with pytest.raises(AttributeError, match=r"no parameter 'gravty'\. Did you mean 'gravity'"):
        venv.get_attr("gravty")


def test_what_public_code_reads_of_gymnasiums_environments_is_there_or_says_where():
    venv = bridge.PPO("MlpPolicy", "CartPole-v1").get_env()
    assert venv.get_attr("spec")[0] == gymnasium.spec("CartPole-v1")
    assert venv.get_attr("_max_episode_steps") == [500]
    assert type(venv.get_attr("unwrapped")[0]).__name__ == "CartPole"
    assert venv.env_method("get_wrapper_attr", "gravity") == [9.8]
    assert not hasattr(venv, "envs")
    made = make_vec_env("Pendulum-v1", 2, env_kwargs={"max_episode_steps": 7, "gravity": 5.0})
    (spec,) = made.get_attr("spec", 1)
    assert (spec.id, spec.max_episode_steps, spec.kwargs) == ("Pendulum-v1", 7, {"gravity": 5.0})
    assert pickle.loads(pickle.dumps(made)).get_attr("spec")[0].id == "Pendulum-v1"
    assert make_vec_env("BitFlipping-v0").get_attr("spec")[0].id == "jaxenvs/BitFlipping-v0"
    assert counter().get_attr("spec") == [None] * 3
    for use in (
        lambda: venv.envs[0],
        lambda: venv.get_attr("np_random"),
        lambda: venv.env_method("fly"),
        lambda: venv.set_options({"low": 0}),
    ):
        with pytest.raises((AttributeError, ValueError), match=r"`gymnasium\.make\(id\)` makes Gymnasium's"):
            use()


def test_set_attr_takes_effect_without_compiling_again():
    venv, twin = started(make_vec_env("CartPole-v1", 3, seed=0)), started(make_vec_env("CartPole-v1", 3, seed=0))
    venv.step(np.ones(3, int))
    twin.step(np.ones(3, int))
    programs = venv.compiled
    compiled = programs.step._cache_size()
    venv.set_attr("force_magnitude", 50)  # an int where a float was
    assert venv.get_attr("force_magnitude") == [50.0] * 3
    np.testing.assert_array_equal(venv.step(np.ones(3, int))[0][:, 0], twin.step(np.ones(3, int))[0][:, 0])
    velocity, unchanged = venv.step(np.ones(3, int))[0][:, 1], twin.step(np.ones(3, int))[0][:, 1]
    assert (velocity > 3 * unchanged).all()
    assert venv.compiled is programs
    assert programs.step._cache_size() == compiled


def test_set_attr_of_some_environments_changes_only_those():
    venv = started(JaxVecEnv(Counter(length=5), 3, 0))
    venv.set_attr("length", 2, indices=[0, -1])
    assert venv.get_attr("length") == [2, 5, 2]
    dones = [venv.step(np.zeros(3, int))[2] for _ in range(5)]
    np.testing.assert_array_equal(np.sum(dones, axis=0), [2, 1, 2])
    compiled = venv.compiled.step._cache_size()
    venv.set_attr("length", 3, indices=1)
    venv.set_attr("length", 4)
    assert venv.get_attr("length") == [4, 4, 4]
    venv.step(np.zeros(3, int))
    assert venv.compiled.step._cache_size() == compiled


@pytest.mark.parametrize(
    ("name", "value", "error", "message"),
    [
        ("gravty", 1.0, AttributeError, "Did you mean 'gravity'"),
        ("max_steps", 3.5, ValueError, r"max_steps must be int32 with shape \(\), got 3.5"),
        ("semi_implicit_euler", True, ValueError, "CartPole.semi_implicit_euler is static"),
        ("env", CartPole(), ValueError, "TimeLimit.env is static"),
    ],
)
def test_a_bad_set_attr_is_named_and_changes_nothing(name, value, error, message):
    venv = make_vec_env("CartPole-v1", 3)
    before = venv.venv
    with pytest.raises(error, match=message):
        venv.set_attr(name, value)
    assert venv.venv == before


def test_env_method_passes_the_state_of_the_environment():
    venv = started(counter())
    venv.step(np.zeros(3, int))
    np.testing.assert_array_equal(venv.env_method("action_masks"), [[True, True, False]] * 3)
    (replaced,) = venv.env_method("replace", indices=0, length=9)
    assert replaced.length == 9
    with pytest.raises(AttributeError, match="no parameter 'fly'"):
        venv.env_method("fly")


def test_env_method_passes_to_an_environment_in_wrappers_its_own_state():
    venv = started(JaxVecEnv(ActionRepeat(TimeLimit(Counter(), 9), 1), 3, seed=0))
    np.testing.assert_array_equal(venv.env_method("action_masks"), [[True, False, False]] * 3)
    assert venv.env_method("replace", indices=0, length=9)[0].parameter("length") == 9


def test_env_is_wrapped_knows_monitor_alone():
    venv = counter()
    assert venv.env_is_wrapped(Monitor) == [True, True, True]
    assert venv.env_is_wrapped(type("Other", (Monitor.__mro__[1],), {}), indices=[0]) == [False]


@pytest.mark.thorough
def test_render_tiles_the_first_environments():
    venv = started(make_vec_env("CartPole-v1", 40, seed=0))
    (one, *_) = images = venv.get_images()
    assert len(images) == MAX_IMAGES
    assert venv.render_mode == "rgb_array"
    assert venv.render().shape == (4 * one.shape[0], 4 * one.shape[1], 3)


def test_render_says_where_there_is_no_picture_yet():
    venv = started(counter())
    assert venv.render_mode is None
    with pytest.raises(NotImplementedError, match="Counter has no picture yet: define draw"):
        venv.render()
    with pytest.raises(NotImplementedError, match="Counter has no picture yet"):
        venv.get_images()


@environment
class Weighted(Environment[jax.Array]):
    """Observes the sum of its weights, a dict of arrays."""

    weights: Any

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, key):
        return jnp.zeros(()), self._show()

    def step(self, state, action):
        return state, self._show()

    def _show(self):
        return TimeStep.create(jnp.sum(self.weights["a"])[None] + self.weights["b"])


def weighted(a=3):
    return Weighted({"a": np.ones(a, np.float32), "b": 1.0})


def test_set_attr_takes_a_dict_of_arrays_and_compiles_nothing_again():
    venv = JaxVecEnv(weighted(), 2, seed=0)
    np.testing.assert_array_equal(venv.reset(), [[4.0], [4.0]])
    venv.step(np.zeros(2, int))
    programs, compiled = venv.compiled, venv.compiled.step._cache_size()
    venv.set_attr("weights", {"a": np.full(3, 2), "b": 5})  # ints where floats were
    np.testing.assert_array_equal(venv.step(np.zeros(2, int))[0], [[11.0], [11.0]])
    assert venv.compiled is programs
    assert programs.step._cache_size() == compiled


def test_set_attr_of_a_dict_changes_some_environments_only():
    venv = started(JaxVecEnv(weighted(), 2, seed=0))
    venv.set_attr("weights", {"a": np.full(3, 2.0), "b": 5.0}, indices=1)
    np.testing.assert_array_equal(venv.step(np.zeros(2, int))[0], [[4.0], [11.0]])
    with pytest.raises(ValueError, match="weights must keep its structure"):
        venv.set_attr("weights", {"a": np.ones(4), "b": 5.0}, indices=1)


def test_a_dict_of_other_shapes_takes_effect_while_an_episode_runs():
    venv = started(JaxVecEnv(weighted(), 2, seed=0))
    venv.set_attr("weights", {"a": np.ones(9, np.float32), "b": 1.0})
    np.testing.assert_array_equal(venv.step(np.zeros(2, int))[0], [[10.0], [10.0]])


def test_a_bad_leaf_of_a_dict_is_named():
    venv = JaxVecEnv(weighted(), 2, seed=0)
    with pytest.raises(ValueError, match=r"weights\['a'\] must not be NaN"):
        venv.set_attr("weights", {"a": np.full(3, np.nan), "b": 1.0})


@environment
class Remembering(Weighted):
    """Has a state as large as its weights."""

    def reset(self, key):
        return jnp.zeros_like(self.weights["a"]), self._show()


def test_a_parameter_that_changes_the_states_shapes_is_refused():
    venv = started(JaxVecEnv(Remembering({"a": np.ones(3, np.float32), "b": 1.0}), 2, seed=0))
    with pytest.raises(ValueError, match="states of other shapes"):
        venv.set_attr("weights", {"a": np.ones(4, np.float32), "b": 1.0})
    assert venv.step(np.zeros(2, int))[0].shape == (2, 1)
