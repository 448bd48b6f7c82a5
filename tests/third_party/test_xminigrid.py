"""xminigrid's environments under our contract, beside its own stepping."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxenvs
from jaxenvs.third_party import from_xminigrid
from tests.third_party.episodes import Shown, all_ids, assert_same_episodes

xminigrid = pytest.importorskip("xminigrid")

FORWARD, TURN_RIGHT = 0, 1


def assert_parity(name: str) -> None:
    own, params = xminigrid.make(name, max_steps=100)

    def reset(key):
        timestep = own.reset(params, key)
        return timestep, timestep.observation

    def step(timestep, action, key, number):
        timestep = own.step(params, timestep, action)
        last, lost = timestep.last(), timestep.discount == 0
        return timestep, Shown(timestep.observation, timestep.reward, last & lost, last & ~lost)

    shown = assert_same_episodes(jaxenvs.make(f"xminigrid/{name}", max_steps=100), reset, step, num_steps=100)
    assert (shown.terminated | shown.truncated).any(axis=0).all()


@pytest.mark.parametrize("id", all_ids("xminigrid", "MiniGrid-EmptyRandom-5x5", "XLand-MiniGrid-R1-9x9"))
def test_its_episodes_are_those_of_xminigrid(id: str) -> None:
    assert_parity(id.partition("/")[2])


@pytest.fixture(scope="module")
def env():
    return jaxenvs.make("xminigrid/MiniGrid-Empty-5x5")


@pytest.fixture(scope="module")
def walk():
    return jax.jit(lambda env, state, actions: jax.lax.scan(env.step, state, actions)[1])


def test_the_goal_terminates_and_does_not_truncate(env, walk) -> None:
    state, _ = env.reset(jax.random.key(0))  # it looks to the right, at the upper left
    timesteps = walk(env, state, jnp.array([FORWARD] * 2 + [TURN_RIGHT] + [FORWARD] * 2))
    np.testing.assert_array_equal(timesteps.terminated, [False] * 4 + [True])
    np.testing.assert_allclose(timesteps.reward, [0, 0, 0, 0, 1 - 0.9 * 5 / 100], rtol=1e-6)
    assert not timesteps.truncated.any()


def test_the_limit_truncates_and_is_a_parameter(env, walk) -> None:
    state, _ = env.reset(jax.random.key(0))
    for limit in (5, 3):
        timesteps = walk(env.replace(max_steps=limit), state, jnp.full(5, TURN_RIGHT))
        np.testing.assert_array_equal(timesteps.truncated, np.arange(1, 6) == limit)
        assert not timesteps.terminated.any()


def test_a_batch_of_environments_has_a_ruleset_each(walk) -> None:
    from xminigrid.core.goals import AgentHoldGoal

    env = jaxenvs.make("xminigrid/XLand-MiniGrid-R1-9x9")
    ruleset = env.parameter("ruleset")
    goals = [ruleset.goal, jnp.zeros_like(ruleset.goal).at[:3].set(AgentHoldGoal(jnp.array((3, 1))).encode()[:3])]
    rulesets = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), ruleset).replace(goal=jnp.stack(goals))
    state, _ = jax.vmap(lambda ruleset: env.replace(ruleset=ruleset).reset(jax.random.key(0)))(rulesets)
    np.testing.assert_array_equal(state.inner.state.goal_encoding, goals)


def test_wrappers_that_reset_are_refused() -> None:
    from xminigrid.wrappers import DirectionObservationWrapper, GymAutoResetWrapper

    own, params = xminigrid.make("MiniGrid-Empty-5x5")
    with pytest.raises(ValueError, match="GymAutoResetWrapper"):
        from_xminigrid(DirectionObservationWrapper(GymAutoResetWrapper(own)), params)


def test_a_wrapper_of_observations_makes_a_dict_of_them() -> None:
    from xminigrid.wrappers import DirectionObservationWrapper

    own, params = xminigrid.make("MiniGrid-Empty-5x5")
    env = from_xminigrid(DirectionObservationWrapper(own), params)
    _, timestep = env.reset(jax.random.key(0))
    assert env.observation_space.contains(jax.tree.map(np.asarray, timestep.observation))
    assert set(timestep.observation) == {"img", "direction"}


def test_the_picture_is_the_librarys_own(env) -> None:
    own, params = xminigrid.make("MiniGrid-Empty-5x5")
    state, _ = env.reset(jax.random.key(0))
    picture = env.render(state)
    np.testing.assert_array_equal(picture, own.render(params, own.reset(params, jax.random.key(0))))
    assert picture.shape == (*env.render_size, 3)


@pytest.mark.parametrize("id", all_ids("xminigrid", "MiniGrid-Empty-5x5"))
def test_it_keeps_the_contract(id: str) -> None:
    jaxenvs.check_env(jaxenvs.make(id))


def test_it_keeps_the_contract_in_float64(x64: None) -> None:
    jaxenvs.check_env(jaxenvs.make("xminigrid/MiniGrid-MemoryS8"), num_steps=20)
