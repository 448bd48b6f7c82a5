"""Environments of brax."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxenvs
from jaxenvs.third_party import from_brax
from jaxenvs.third_party.brax import NUM_FIRST_STATES
from tests.third_party.episodes import Shown, all_ids, assert_same_episodes, assert_saturates

envs = pytest.importorskip("brax.envs")

CHEAP = {"backend": "spring"}


@pytest.fixture(scope="module")
def pendulum():
    return jaxenvs.make("brax/inverted_pendulum", **CHEAP)


def test_it_keeps_the_contract(pendulum):
    jaxenvs.check_env(pendulum)


@pytest.mark.parametrize("id", all_ids("brax"))
def test_every_id_keeps_the_contract(id):
    jaxenvs.check_env(jaxenvs.make(id), num_steps=50)


def test_its_episodes_are_those_of_brax(pendulum):
    assert_parity(envs.get_environment("inverted_pendulum", **CHEAP), pendulum)


@pytest.mark.third_party
@pytest.mark.parametrize("name", ["ant", "fast"])
def test_the_episodes_of_others_are_those_of_brax(name):
    assert_parity(envs.get_environment(name), jaxenvs.make(f"brax/{name}"))


def assert_parity(library_env, env):
    def reset(key):
        state = library_env.reset(key)
        return state, state.obs

    def step(state, action, key, number):
        state = library_env.step(state, action)
        return state, Shown(state.obs, state.reward, state.done != 0, jnp.zeros((), bool))

    shown = assert_same_episodes(env, reset, step, rtol=1e-6)
    assert np.ptp(shown.observation) > 0


@pytest.mark.parametrize(
    ("arguments", "wrapper"), [({}, "AutoResetWrapper"), ({"batch_size": 2, "auto_reset": False}, "VmapWrapper")]
)
def test_what_resets_or_batches_by_itself_is_refused(arguments, wrapper):
    with pytest.raises(ValueError, match=f"without wrappers other than EpisodeWrapper, got {wrapper} around"):
        from_brax(envs.create("fast", **arguments))


def test_the_limit_of_an_episode_wrapper_truncates():
    env = from_brax(envs.create("inverted_pendulum", episode_length=8, auto_reset=False, **CHEAP))
    jaxenvs.check_env(env, num_steps=20)
    state, _ = env.reset(jax.random.key(0))
    walk = jax.jit(lambda actions: jax.lax.scan(env.step, state, actions)[1])
    kept, fallen = walk(jnp.zeros((8, 1))), walk(jnp.ones((8, 1)))
    np.testing.assert_array_equal(kept.truncated, [False] * 7 + [True])
    assert not kept.terminated.any()
    assert fallen.terminated.any()
    assert not (fallen.terminated & fallen.truncated).any()


class Direct(envs.get_environment("inverted_pendulum", **CHEAP).__class__):
    """It sends actions to the actuators, whose range is from -3 to 3, as they are."""

    def step(self, state, action):
        pipeline_state = self.pipeline_step(state.pipeline_state, action)
        return state.replace(pipeline_state=pipeline_state, obs=self._get_obs(pipeline_state))


def test_actions_are_within_the_range_of_the_actuators_where_a_step_does_not_scale_them(pendulum):
    direct = from_brax(Direct(**CHEAP))
    np.testing.assert_array_equal(direct.action_space.high, [3.0])
    assert_saturates(direct)
    np.testing.assert_array_equal(pendulum.action_space.high, [1.0])
    assert_saturates(pendulum)


MOVED_BY_FORCES = [name for name in envs._envs if name not in ("fast", "swimmer")]  # SKIPPED says why not swimmer


@pytest.mark.third_party
@pytest.mark.parametrize("name", MOVED_BY_FORCES)
def test_the_actions_of_every_environment_saturate_at_their_bounds(name):
    assert_saturates(jaxenvs.make(f"brax/{name}", **CHEAP))


def test_make_puts_braxs_customary_limit_on_an_episode(pendulum):
    assert pendulum.max_steps == 1000
    assert jaxenvs.make("brax/inverted_pendulum", max_episode_steps=-1, **CHEAP) == pendulum.unwrapped


def test_what_fell_stays_as_it_is(pendulum):
    env = pendulum.unwrapped
    state, _ = env.reset(jax.random.key(0))
    fallen = dataclasses.replace(state, inner=state.inner.replace(done=jnp.ones(())))
    after, timestep = jax.jit(env.step)(fallen, jnp.ones(1))
    assert bool(timestep.terminated)
    np.testing.assert_array_equal(after.inner.pipeline_state.q, state.inner.pipeline_state.q)


def test_episodes_may_begin_in_states_that_were_made_once(pendulum):
    env = jaxenvs.make("brax/inverted_pendulum", resets="first", **CHEAP)
    venv = jaxenvs.VectorEnv(env, 64)
    _, timestep = jax.jit(venv.reset)(jax.random.key(1))
    made = jax.vmap(pendulum.unwrapped.source.env.reset)(jax.random.split(jax.random.key(0), NUM_FIRST_STATES)).obs
    distance = np.abs(np.asarray(timestep.observation)[:, None] - np.asarray(made)).max(-1)
    assert distance.min(1).max() < 1e-6
    assert len(set(distance.argmin(1).tolist())) > 30  # drawn, and not one for all
    jaxenvs.check_env(env)
    with pytest.raises(ValueError, match="resets must be one of 'fresh', 'first', got 'last'"):
        jaxenvs.make("brax/inverted_pendulum", resets="last", **CHEAP)


def test_gravity_can_be_changed_while_it_is_traced(pendulum):
    def speed(gravity):
        env = pendulum.unwrapped.replace(gravity=jnp.array([0.0, 0.0, gravity]))
        state, _ = env.reset(jax.random.key(0))
        return env.step(state, jnp.zeros(1))[1].observation[3]

    slow, fast = jax.vmap(speed)(jnp.array([0.0, -9.81]))
    assert fast != slow


def test_an_object_can_be_adapted_and_its_state_is_not_written_into():
    env = from_brax(envs.get_environment("fast"))
    state, _ = env.reset(jax.random.key(0))
    before = jax.tree.leaves(state)
    env.step(state, jnp.zeros(1))
    assert all(map(lambda old, new: old is new, before, jax.tree.leaves(state)))
