"""Trainings with hindsight as pure functions: what they refuse, and that they learn what chance never shows them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxenvs
from jaxenvs import learn
from jaxenvs.compilation import compiler_options
from jaxenvs.learn.off_policy.store.episode_index import Episodes


def training(n_bits=6, **settings):
    env = jaxenvs.make("BitFlipping-v0", n_bits=n_bits)
    policy = learn.DQNPolicy.of(env, (64,))
    algorithm = learn.DQN(
        learning_rate=1e-3, buffer_size=2000, batch_size=64, train_freq=1, target_update_interval=200, **settings
    )
    return learn.Training(jaxenvs.VectorEnv(env, 4), policy, algorithm, 8000)


def test_a_strategy_that_is_none_is_refused():
    with pytest.raises(ValueError, match="goal_selection_strategy"):
        learn.Hindsight(goal_selection_strategy="past")
    with pytest.raises(ValueError, match="n_sampled_goal must be"):
        learn.Hindsight(n_sampled_goal=-1)


def test_what_hindsight_cannot_go_with_is_refused():
    key = jax.random.key(0)
    with pytest.raises(ValueError, match="n_steps must be 1 with hindsight, got 3"):
        training(hindsight=learn.Hindsight(), n_steps=3).init(key)
    with pytest.raises(TypeError, match=r"hindsight must be None or a learn.Hindsight, got str"):
        training(hindsight="future").init(key)
    env = jaxenvs.make("CartPole-v1")
    policy = learn.DQNPolicy.of(env, (8,))
    with pytest.raises(TypeError, match=r"compute_reward\(achieved_goal, desired_goal, info\), but CartPole has none"):
        learn.Training(jaxenvs.VectorEnv(env, 2), policy, learn.DQN(hindsight=learn.Hindsight()), 100).init(key)


def success(**settings):
    """Of BitFlipping with more states than a short training sees, in the last fifth; and the number of updates."""
    begun = training(10, learning_starts=0, **settings).replace(total_timesteps=24_000)
    result = jax.jit(learn.train)(jax.random.key(0), begun)
    metrics = jax.tree.map(np.asarray, result.metrics)
    late = slice(-len(metrics["episodes"]) // 5, None)
    ended = metrics["episodes"][late].sum()
    failures = ((metrics["iteration_episode_return"] <= -10) * metrics["episodes"])[late].sum()
    return 1 - failures / ended, int(result.state.learner.num_updates)


@pytest.mark.thorough
def test_it_learns_as_soon_as_there_is_a_whole_episode():
    successes, num_updates = success(hindsight=learn.Hindsight())
    assert successes > 0.8
    assert num_updates == 6000 - 9  # the first episodes end with their tenth steps


@pytest.mark.thorough  # that the test before is one
def test_without_it_chance_shows_too_little():
    assert success()[0] < 0.3


@pytest.mark.thorough
def test_a_step_written_and_a_batch_drawn_copy_nothing_of_the_store():
    capacity, hindsight = 123_457, learn.Hindsight()
    observation = {name: jnp.zeros((1, 3)) for name in hindsight.NAMES}
    replay = learn.Replay.create(capacity, observation, jnp.zeros((1, 1)), whole=True)
    no = jnp.zeros(1, bool)

    def step(state, bits):
        seen, replay = jax.tree.map(lambda leaf: leaf + 1, state[0]), state[1]
        action, done = seen["observation"][:, :1], seen["observation"][:, 0] % 5 == 0
        replay = replay.add(seen, action, action[:, 0], no, done, seen)
        batch = hindsight.transitions(replay, bits, 0.99, lambda achieved, desired, info: achieved[:, 0])
        return (seen, replay), batch

    def run(replay, bits):
        return jax.lax.scan(step, (observation, replay), bits)

    jitted = jax.jit(run, donate_argnums=0, compiler_options=compiler_options())
    text = jitted.lower(replay, jnp.zeros((9, 2, 5), jnp.uint32)).compile().as_text()
    copies = [line for line in text.splitlines() if " copy(" in line and f"[{capacity}" in line.partition("copy(")[0]]
    assert not copies


@pytest.mark.thorough
def test_draws_are_uniform_over_whole_episodes():
    """One of three environments has whole episodes; the others have lost their first slots, or have none."""
    episodes, ends = Episodes.create(8, 3), {0: (2, 6), 1: (), 2: (5, 10)}
    for step in range(12):
        done = np.array([step in ends[index] for index in range(3)])
        episodes = jax.jit(Episodes.add)(episodes, np.int32(step % 8), done)
    # Steps 4 to 11 are in the ring.
    np.testing.assert_array_equal(episodes.count, [0, 0, 5])
    rows, env_indices = episodes.draw(jax.random.bits(jax.random.key(0), (5000,)))
    assert {*np.asarray(env_indices)} == {2}
    counts = np.bincount(np.asarray(rows), minlength=8)
    assert {*np.flatnonzero(counts)} == {6, 7, 0, 1, 2}
    assert ((counts[[6, 7, 0, 1, 2]] - 1000) ** 2 / 1000).sum() < 18.5  # chi-squared of 4 degrees, 0.1 %
