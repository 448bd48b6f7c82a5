"""episode_return: the mean of the last 100 episodes, as SB3's ep_rew_mean, however a training is cut, per seed, over
devices."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from stable_baselines3.common.utils import safe_mean

import jaxenvs
from jaxenvs import VectorEnv, learn
from jaxenvs.learn.training_state import RecentEpisodes
from jaxenvs.vector import VectorTimeStep
from tests.environments import Counter

STEPS, ENVS, PARTS = 30, 8, 2
add = jax.jit(RecentEpisodes.add)


def an_iteration(rng, share, num_steps=STEPS):
    """Steps of which such a share ends an episode, of random returns."""
    shape = (num_steps, ENVS)
    done, lengths = rng.random(shape) < share, rng.integers(1, 500, shape, np.int32)
    return VectorTimeStep(
        observation=(),
        reward=(),
        terminated=done,
        truncated=np.zeros(shape, bool),
        final_observation=(),
        episode_return=rng.normal(size=shape).astype(np.float32),
        episode_length=lengths,
        info={},
        final_info={},
    )


def of_sb3(buffer, steps):
    """What SB3 logs after these steps, whose episodes go to the buffer in the order of steps, then environments."""
    own = [
        (steps.episode_return[where], steps.episode_length[where])
        for where in np.ndindex(steps.terminated.shape)
        if steps.terminated[where]
    ]
    buffer.extend(own)
    means = [safe_mean([episode[i] for episode in episodes]) for episodes in (buffer, own) for i in (0, 1)]
    names = ("episode_return", "episode_length", "iteration_episode_return", "iteration_episode_length")
    return dict(zip(names, means)) | {"episodes": len(own)}


# More than 100 of the 240 steps of an iteration end an episode, some do, or none does.
@pytest.mark.parametrize("shares", [[0, 0.01, 0, 0.1, 0.1, 0.1, 0.1, 0.1], [0.9, 0, 0.02, 1, 0.5], [1 / 240] * 20])
def test_the_last_100_episodes_are_those_of_sb3(shares):
    rng, recent, buffer = np.random.default_rng(0), RecentEpisodes.none(), collections.deque(maxlen=100)
    for share in shares:
        steps = an_iteration(rng, share)
        recent, metrics = add(recent, steps)
        expected = of_sb3(buffer, steps)
        assert metrics.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_allclose(metrics[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


def test_devices_have_the_same_last_100_episodes_as_one_device():
    rng, recent = np.random.default_rng(1), RecentEpisodes.none()

    def add_part(recent, steps):
        return recent.add(steps, "data")

    add_parts = jax.jit(jax.vmap(add_part, (None, 1), axis_name="data"))
    for share in (0.1, 0.9, 0.2):
        steps = an_iteration(rng, share)
        parts = jax.tree.map(lambda leaf: leaf.reshape(STEPS, PARTS, ENVS // PARTS), steps)
        of_each = add_parts(recent, parts)
        recent, metrics = add(recent, steps)
        for part, whole in zip(jax.tree.leaves(of_each), jax.tree.leaves((recent, metrics)), strict=True):
            np.testing.assert_array_equal(part, np.stack([whole] * PARTS))


COUNTERS = VectorEnv(Counter(length=7), 2)
ROWS = 9
TRAININGS = {
    # Each iteration takes two steps of each environment: one in 3 or 4 ends an episode.
    "on-policy": learn.Training(
        COUNTERS, learn.ActorCritic.of(COUNTERS.env, actor=(), critic=()), learn.A2C(n_steps=2), ROWS * 4
    ),
    "off-policy": learn.Training(
        COUNTERS,
        learn.DQNPolicy.of(COUNTERS.env, ()),
        learn.DQN(train_freq=2, learning_starts=8, batch_size=4, buffer_size=100),
        ROWS * 4,
    ),
}


def mean_of_all(metrics):
    """The mean return after each iteration of a training with fewer than 100 episodes; NaN before the first."""
    episodes = np.asarray(metrics["episodes"])
    earned = np.where(episodes > 0, metrics["iteration_episode_return"], 0) * episodes
    count = episodes.cumsum(-1)
    return np.where(count > 0, earned.cumsum(-1) / np.maximum(count, 1), np.nan)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", TRAININGS)
def test_each_seed_carries_on_its_own_mean_where_no_episode_ended(kind):
    keys = jax.random.split(jax.random.key(0), 3)
    metrics = jax.jit(jax.vmap(learn.train, (0, None)))(keys, TRAININGS[kind]).metrics
    episodes = np.asarray(metrics["episodes"])
    assert episodes.tolist() == [[0, 0, 0, 2, 0, 0, 2, 0, 0]] * 3
    assert np.isnan(metrics["iteration_episode_return"][episodes == 0]).all()
    np.testing.assert_array_equal(metrics["episode_length"], [[np.nan] * 3 + [7] * 6] * 3)
    np.testing.assert_allclose(metrics["episode_return"], mean_of_all(metrics), rtol=1e-6)
    assert metrics["episode_return"][0, 3] != metrics["episode_return"][0, 6]
    assert len(set(metrics["episode_return"][:, -1].tolist())) > 1


@pytest.mark.thorough
@pytest.mark.parametrize("kind", TRAININGS)
def test_a_state_begins_with_arrays_of_its_own_that_can_be_donated(kind):
    leaves = jax.tree.leaves(TRAININGS[kind].init(jax.random.key(0)))
    leaves = [leaf for leaf in leaves if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)]
    assert len({leaf.unsafe_buffer_pointer() for leaf in leaves}) == len(leaves)


def test_with_64_bits_enabled_the_mean_has_them(x64):
    venv = jaxenvs.make_vec("CartPole-v1", 2)
    training = learn.Training(venv, learn.ActorCritic.of(venv.env), learn.A2C(n_steps=2), 4)
    result = jax.eval_shape(lambda key: learn.train(key, training), jax.random.key(0))
    assert result.metrics["episode_return"].dtype == jnp.float64
