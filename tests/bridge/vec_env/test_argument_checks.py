"""Arguments that a JaxVecEnv refuses, without having changed anything. tests/fuzz has values of wrong types."""

import functools
import types

import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecMonitor

from bridge import JaxVecEnv, make_vec_env
from bridge.vec_env.argument_checks import require_memory
from jaxenvs import CartPole, Pendulum, VectorEnv, environment, static
from jaxenvs.arguments import as_numbers
from tests.bridge.vec_env.test_jax_vec_env import counter, started
from tests.environments import Counter

# --- How many, and which --------------------------------------------------------------------------------------------


def test_more_environments_than_memory_holds_are_refused_at_once():
    for make in (functools.partial(make_vec_env, "CartPole-v1"), functools.partial(JaxVecEnv, CartPole())):
        with pytest.raises(ValueError, match=r"num_envs = 2147483647 environments need .* GiB"):
            make(2**31 - 1)


@pytest.mark.parametrize("pages", [-1, AttributeError(), ValueError()], ids=repr)
def test_where_the_system_does_not_tell_its_memory_some_environments_fit(pages, monkeypatch):
    def sysconf(name):
        if isinstance(pages, Exception):
            raise pages
        return pages if name == "SC_PHYS_PAGES" else 4096

    monkeypatch.setattr("bridge.vec_env.argument_checks.os.sysconf", sysconf)
    require_memory(8, ())


def test_a_seed_may_be_an_int_of_numpy():
    assert counter().seed(np.int64(7)) == [7, 8, 9]


def test_set_attr_of_no_environments_changes_nothing():
    venv = counter()
    assert venv.get_attr("length", []) == venv.env_method("replace", indices=[]) == []
    venv.set_attr("length", 3, np.array([], int))
    assert venv.get_attr("length") == [5] * 3


@pytest.mark.thorough
def test_monitor_kwargs_are_used_without_a_folder():
    venv = make_vec_env(Counter, 3, monitor_kwargs={"info_keywords": ("count",)})
    assert isinstance(venv, VecMonitor)
    venv.reset()
    infos = [venv.step(np.zeros(3, int))[3] for _ in range(5)][-1]
    assert [info["episode"]["count"] for info in infos] == [5] * 3


# --- Environments that break the contract ---------------------------------------------------------------------------


@environment
class Broken(Counter):
    fault: str = static(default="")

    def step(self, state, action):
        state, timestep = super().step(state, action)
        changes = {
            "observation shape": {"observation": jnp.zeros(3)},
            "observation dtype": {"observation": jnp.zeros(2, jnp.int32)},
            "reward": {"reward": timestep.reward[None]},
            "structure": {"info": {}},
        }
        return state, timestep.replace(**changes[self.fault])


@pytest.mark.parametrize("fault", ["observation shape", "observation dtype", "reward", "structure"])
def test_an_environment_whose_step_gives_another_thing_than_its_reset_is_refused_where_it_is_made(fault):
    with pytest.raises(TypeError, match="reset and step must return the same structure and dtypes"):
        JaxVecEnv(Broken(fault=fault), 3)


# --- Spaces ---------------------------------------------------------------------------------------------------------


def pendulum():
    return JaxVecEnv(Pendulum(), 2, 0)


def test_what_would_change_the_action_space_is_refused():
    venv = pendulum()
    for indices in (None, 1):
        with pytest.raises(ValueError, match=r"max_torque = 4.0 would change .* Box\(-4.0.*must stay Box\(-2"):
            venv.set_attr("max_torque", 4.0, indices)
    other = started(JaxVecEnv(Pendulum(max_torque=4.0), 2, 0))
    with pytest.raises(ValueError, match="state would change the action space"):
        venv.set_state(other.get_state())
    assert venv.get_attr("max_torque") == [2.0, 2.0]


def test_bounds_of_observations_change_with_the_parameter_of_all_environments():
    venv = pendulum()
    venv.set_attr("max_speed", 5.0)
    assert venv.observation_space == spaces.Box(np.float32([-1, -1, -5]), np.float32([1, 1, 5]))
    venv.set_attr("gravity", 5.0, 0)
    venv.set_attr("max_speed", 6.0, [0, 1])
    assert venv.observation_space.high[2] == 6


def test_environments_with_different_observation_spaces_are_refused():
    venv = pendulum()
    with pytest.raises(
        ValueError, match=r"max_speed = 5.0 would change the .* of some environments to Box.*change all"
    ):
        venv.set_attr("max_speed", 5.0, 1)
    assert venv.get_attr("max_speed") == [8.0, 8.0]
    batch = Pendulum(**{name: np.full(2, getattr(Pendulum(), name)) for name in Pendulum().parameter_names})
    for name, kind in (("max_speed", "observation"), ("max_torque", "action")):
        differing = batch.replace(**{name: np.array([1.0, 2.0])})
        with pytest.raises(ValueError, match=f"one {kind} space .* but environment 0 has .* environment 1 has"):
            JaxVecEnv(VectorEnv(differing, 2, env_axis=0))


def test_a_state_of_bfloat16_may_hold_nan():
    numbers = np.array([1, np.nan, np.inf]).astype(jnp.bfloat16)
    kept = as_numbers("state", numbers, (3,), jnp.bfloat16)
    np.testing.assert_array_equal(kept.view(np.uint16), numbers.view(np.uint16))


# --- The state ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cartpole():
    venv = started(make_vec_env("CartPole-v1", 3, seed=0))
    return venv


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"parameters.max_steps": -5}, "max_steps must be a positive int"),
        ({"env_axis": 1}, r"state\['env_axis'\] must be -1 or 0, got 1"),
        ({"env_axis": 0}, r"state\['parameters.* must be float32 with shape \(3,\)"),
        ({"more": 1, "besides": 2}, "state must hold only what get_state returned, but it also holds more, besides"),
        ({"environment": None}, "state must come from the environment TimeLimit.*, got one from None"),
    ],
)
def test_a_state_that_get_state_did_not_write_is_refused(change, message, cartpole):
    before = cartpole.get_state()
    with pytest.raises(ValueError, match=message):
        cartpole.set_state(before | change)
    np.testing.assert_equal(cartpole.get_state(), before)


class Scheme:
    """Has no custom repr."""


@environment
class Static(Counter):
    scheme: object = static(default=None)
    function: object = static(default=None)


def test_the_address_of_a_static_field_is_not_part_of_a_state():
    def of_this_process():
        function = types.FunctionType((lambda: 0).__code__, {}, "function")  # another object at another place
        return JaxVecEnv(Static(scheme=Scheme(), function=(function, functools.partial(function, 1))), 3, 0)

    ours, theirs = started(of_this_process()), started(of_this_process())
    state = ours.get_state()
    assert "Scheme" in str(state["environment"])
    assert " at 0x" not in str(state["environment"])
    theirs.set_state(state)
    np.testing.assert_equal(theirs.get_state(), state)
