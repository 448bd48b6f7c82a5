"""rollout: a policy scanned through a VectorEnv."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxenvs
from jaxenvs import VectorEnv, evaluate, rollout, spaces
from tests.environments import Counter


def random_policy(space, num_envs):
    def policy(key, observation):
        return jax.vmap(lambda key: spaces.sample(space, key))(jax.random.split(key, num_envs))

    return policy


@pytest.mark.thorough
def test_the_trajectory_links_observations_actions_and_what_came_of_them():
    venv = VectorEnv(Counter(length=4), 3)
    policy = random_policy(venv.env.action_space, 3)
    (_, last), trajectory = rollout(venv, policy, jax.random.key(0), 10)
    assert trajectory.action.shape == (10, 3)
    np.testing.assert_array_equal(trajectory.observation[:, 0, 0], [0, 1, 2, 3, 0, 1, 2, 3, 0, 1])
    np.testing.assert_array_equal(trajectory.observation[1:], trajectory.timestep.observation[:-1])
    np.testing.assert_array_equal(trajectory.timestep.reward, trajectory.action)
    np.testing.assert_array_equal(last.observation, trajectory.timestep.observation[-1])


@pytest.mark.thorough
def test_rollouts_continue_where_the_one_before_ended():
    venv = VectorEnv(Counter(length=4), 3)

    def policy(key, observation):
        return (observation.sum(1) * 10 % 3).astype(jnp.int32)

    collect = jax.jit(chex.assert_max_traces(lambda key, start: rollout(venv, policy, key, 5, start), n=1))
    start = venv.reset(jax.random.key(1))
    _, whole = rollout(venv, policy, jax.random.key(0), 10, start)
    middle, first = collect(jax.random.key(2), start)
    _, second = collect(jax.random.key(3), middle)
    joined = jax.tree.map(lambda *parts: jnp.concatenate(parts), first.timestep, second.timestep)
    chex.assert_trees_all_equal(joined, whole.timestep)


def counting_policy(key, observation, count, episode_start):
    """Takes, as its action, the number of its steps since the episode began, up to 2."""
    count = jnp.where(episode_start, 0, count + 1)
    return jnp.minimum(count, 2), count


@pytest.mark.thorough
@pytest.mark.parametrize("autoreset", jaxenvs.AutoresetMode)
def test_a_policy_with_a_state_is_told_where_episodes_begin(autoreset):
    venv = VectorEnv(Counter(length=4), 3, autoreset)
    unknown = jnp.full(3, 100)
    (_, count), trajectory = rollout(venv, counting_policy, jax.random.key(0), 10, policy_state=unknown)
    # The step that only resets, with NEXT_STEP, ignores its action. Without a reset, the count goes on.
    expected = {"SAME_STEP": [0, 1, 2, 2] * 3, "NEXT_STEP": [0, 1, 2, 2, 2] * 2, "DISABLED": [0, 1, *[2] * 8]}
    np.testing.assert_array_equal(trajectory.action[:, 0], expected[autoreset.name][:10])
    assert count.shape == (3,)


@pytest.mark.thorough
def test_a_policy_with_a_state_continues_where_the_rollout_before_ended():
    venv = VectorEnv(Counter(length=4), 3)
    start = venv.reset(jax.random.key(1))
    _, whole = rollout(venv, counting_policy, jax.random.key(0), 10, start, jnp.zeros(3, int))
    (middle, count), first = rollout(venv, counting_policy, jax.random.key(0), 6, start, jnp.zeros(3, int))
    _, second = rollout(venv, counting_policy, jax.random.key(0), 4, middle, count)
    joined = jax.tree.map(lambda *parts: jnp.concatenate(parts), first, second)
    chex.assert_trees_all_equal(joined, whole)


@pytest.mark.thorough
def test_seeds_and_physical_parameters_are_swept_by_vmap():
    def mean_length(key, force):
        venv = jaxenvs.make_vec("CartPole-v1", 8, force_magnitude=force)
        _, trajectory = rollout(venv, random_policy(venv.env.action_space, 8), key, 60)
        return 480 / trajectory.timestep.done.sum()

    lengths = jax.jit(jax.vmap(mean_length))(jax.random.split(jax.random.key(0), 3), jnp.array([1.0, 10.0, 40.0]))
    assert lengths[0] > lengths[1] > lengths[2]


BAD_IN_BOTH = (
    ("venv", "CartPole-v1", r"must be a jaxenvs\.VectorEnv, got str"),
    ("policy", 0, "must be a function, got 0"),
    ("key", 0, r"must be a typed key, such as jax\.random\.key\(0\), got 0"),
)


@pytest.mark.parametrize(
    ("function", "name", "value", "message"),
    [
        *((rollout, *case) for case in BAD_IN_BOTH),
        *((evaluate, *case) for case in BAD_IN_BOTH),
        (rollout, "num_steps", -1, "must be a non-negative int, got -1"),
        (rollout, "num_steps", 1.5, r"must be a non-negative int, got 1\.5"),
        (rollout, "start", [], r"must be \(state, timestep\), as reset returns them, got \[\]"),
        (evaluate, "max_steps", 0, "must be a positive int, got 0"),
    ],
)
def test_a_wrong_argument_is_named(function, name, value, message):
    good = {"venv": VectorEnv(Counter(), 3), "policy": print, "key": jax.random.key(0)}
    good["num_steps" if function is rollout else "max_steps"] = 2
    with pytest.raises((TypeError, ValueError), match=f"^{name} {message}"):
        function(**{**good, name: value})


def test_a_policy_with_a_state_must_return_its_next_one():
    with pytest.raises(TypeError, match=r"policy must return the action and its next state, .*, got int32\[3\]"):
        evaluate(VectorEnv(Counter(), 3), lambda *_: jnp.zeros(3, jnp.int32), jax.random.key(0), 2, jnp.zeros(3))


def test_a_policy_without_an_action_is_refused():
    with pytest.raises(ValueError, match=r"action must have the structure of the action space, int32\[\], got None"):
        rollout(VectorEnv(Counter(), 3), lambda key, observation: None, jax.random.key(0), 2)
