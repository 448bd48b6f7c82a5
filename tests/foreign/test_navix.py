"""navix's environments under our contract, beside its own stepping."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxenvs
from jaxenvs.foreign.navix import from_navix
from tests.foreign.own_stepping import assert_equal_to_own_stepping

navix = pytest.importorskip("navix")

SAMPLE = ["Navix-Empty-8x8-v0", "Navix-DoorKey-5x5-v0"]
FORWARD, TURN_RIGHT = 2, 1


def assert_parity(name: str, **arguments) -> None:
    own = navix.make(name, max_steps=40, **arguments)
    ended = assert_equal_to_own_stepping(
        jaxenvs.make(f"navix/{name}", max_steps=40, **arguments),
        own.reset,
        lambda timestep, action, key: own._step(timestep, action),
        lambda timestep: (timestep.observation, timestep.reward, timestep.step_type == 2, timestep.step_type == 1),
        num_steps=50,
    )
    assert ended.all()


@pytest.mark.parametrize("name", SAMPLE)
def test_whole_episodes_are_those_of_the_librarys_own_stepping(name: str) -> None:
    assert_parity(name)


@pytest.mark.parametrize("observe", ["rgb", "rgb_first_person", "categorical", "symbolic_first_person"])
def test_other_observations_are_the_librarys_own(observe: str) -> None:
    assert_parity("Navix-Empty-Random-5x5-v0", observation_fn=getattr(navix.observations, observe))


@pytest.fixture(scope="module")
def env():
    return jaxenvs.make("navix/Navix-Empty-5x5-v0", max_steps=20)


def episode(env, actions):
    state, _ = env.reset(jax.random.key(0))
    return jax.jit(lambda env, state, actions: jax.lax.scan(env.step, state, actions))(env, state, actions)


def test_the_goal_terminates_and_does_not_truncate(env) -> None:
    to_goal = jnp.array([FORWARD] * 2 + [TURN_RIGHT] + [FORWARD] * 2)
    _, timesteps = episode(env, to_goal)
    np.testing.assert_array_equal(timesteps.terminated, [False] * 4 + [True])
    np.testing.assert_array_equal(timesteps.reward, [0, 0, 0, 0, 1])
    assert not timesteps.truncated.any()


def test_the_limit_truncates_and_is_a_parameter(env) -> None:
    for limit in (20, 7):
        _, timesteps = episode(env.replace(max_steps=limit), jnp.full(25, TURN_RIGHT))
        np.testing.assert_array_equal(timesteps.truncated, np.arange(1, 26) >= limit)
        assert not timesteps.terminated.any()


def test_the_penalty_of_time_is_a_parameter(env) -> None:
    to_goal = jnp.array([FORWARD] * 2 + [TURN_RIGHT] + [FORWARD] * 2)
    _, timesteps = episode(env.replace(penality_coeff=0.9), to_goal)
    np.testing.assert_allclose(timesteps.reward[-1], 1 - 0.9 * 5 / 20, rtol=1e-6)


def test_the_picture_is_navixs_own_at_its_size_and_scales(env) -> None:
    state, _ = env.reset(jax.random.key(0))
    own = navix.make("Navix-Empty-5x5-v0", observation_fn=navix.observations.rgb).reset(jax.random.key(0))
    np.testing.assert_array_equal(env.render(state), own.observation)
    assert jax.jit(lambda state: env.draw(state, 84, 60))(state).shape == (84, 60, 3)


def test_an_object_of_ones_own_is_adapted() -> None:
    env = from_navix(navix.make("Navix-Empty-5x5-v0", gamma=0.5))
    assert env.parameter_names == ("max_steps", "penality_coeff")


def test_an_unknown_name_has_a_hint() -> None:
    with pytest.raises(jaxenvs.UnknownEnvironment, match="navix/Navix-Empty-8x8-v0"):
        jaxenvs.make("navix/Navix-Empty-8x8")


def test_keeps_the_contract() -> None:
    jaxenvs.check_env(jaxenvs.make("navix/Navix-Empty-8x8-v0"))


def test_keeps_the_contract_in_float64(x64: None) -> None:
    jaxenvs.check_env(jaxenvs.make("navix/Navix-Empty-8x8-v0"), num_steps=20)


@pytest.mark.foreign
@pytest.mark.parametrize("name", navix.registry())
def test_every_name_keeps_the_contract_and_its_own_stepping(name: str) -> None:
    jaxenvs.check_env(jaxenvs.make(f"navix/{name}"))
    assert_parity(name)
