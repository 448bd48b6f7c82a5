"""navix's environments under our contract, beside its own stepping."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxenvs
from jaxenvs.third_party import from_navix
from tests.third_party.episodes import Shown, all_ids, assert_same_episodes

navix = pytest.importorskip("navix")

FORWARD, TURN_RIGHT = 2, 1


def assert_parity(name: str, **arguments) -> None:
    own = navix.make(name, max_steps=40, **arguments)

    def reset(key):
        timestep = own.reset(key)
        return timestep, timestep.observation

    def step(timestep, action, key, number):
        timestep = own._step(timestep, action)
        kind = timestep.step_type
        return timestep, Shown(timestep.observation, timestep.reward, kind == 2, kind == 1)

    shown = assert_same_episodes(jaxenvs.make(f"navix/{name}", max_steps=40, **arguments), reset, step, num_steps=40)
    assert (shown.terminated | shown.truncated).any(axis=0).all()


@pytest.mark.parametrize("id", all_ids("navix", "Navix-Empty-8x8-v0", "Navix-DoorKey-5x5-v0"))
def test_its_episodes_are_those_of_navix(id: str) -> None:
    assert_parity(id.partition("/")[2])


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
    _, penalty = env.parameter_names  # navix 4.0 spells it in another way
    _, timesteps = episode(env.replace(**{penalty: 0.9}), to_goal)
    np.testing.assert_allclose(timesteps.reward[-1], 1 - 0.9 * 5 / 20, rtol=1e-6)


def test_the_picture_is_navixs_own_at_its_size_and_scales(env) -> None:
    state, _ = env.reset(jax.random.key(0))
    own = navix.make("Navix-Empty-5x5-v0", observation_fn=navix.observations.rgb).reset(jax.random.key(0))
    np.testing.assert_array_equal(env.render(state), own.observation)
    assert jax.jit(lambda state: env.draw(state, 84, 60))(state).shape == (84, 60, 3)


def test_an_object_of_ones_own_is_adapted() -> None:
    env = from_navix(navix.make("Navix-Empty-5x5-v0", gamma=0.5))
    assert env.parameter_names in [("max_steps", "penalty_coeff"), ("max_steps", "penality_coeff")]


@pytest.mark.parametrize("id", all_ids("navix", "Navix-Empty-8x8-v0"))
def test_it_keeps_the_contract(id: str) -> None:
    jaxenvs.check_env(jaxenvs.make(id))


def test_it_keeps_the_contract_in_float64(x64: None) -> None:
    jaxenvs.check_env(jaxenvs.make("navix/Navix-Empty-8x8-v0"), num_steps=20)
