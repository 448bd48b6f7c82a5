"""HerReplayBuffer beside SB3's: the same transitions, goals and rewards from the same seeds, whatever was stored."""

import pickle

import jax
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3 import HerReplayBuffer as SB3s

from bridge.replay import HerReplayBuffer
from jaxenvs.learn.off_policy.store.episode_index import Episodes

NAMES = ("observation", "achieved_goal", "desired_goal")
SPACE = spaces.Dict({name: spaces.Box(-9, 9, (2,), np.float32) for name in NAMES})
ACTIONS = spaces.Box(-1, 1, (1,))
ROWS = 20


class Rewards:
    """Environment with what a buffer needs: its reward also depends on infos, if there are any."""

    def env_method(self, name, achieved, desired, infos, indices):
        assert (name, indices, len(infos)) == ("compute_reward", [0], len(achieved))
        more = np.array([info.get("number", 0) for info in infos])
        return [more - (np.abs(achieved - desired).sum(-1) > 1).astype(np.float64)]


def make(cls=HerReplayBuffer, n_envs=1, **settings):
    return cls(ROWS * n_envs, SPACE, ACTIONS, env=Rewards(), n_envs=n_envs, device="cpu", **settings)


def history(n_envs, steps, seed=0, ends=0.2, late=0.2):
    """Arguments of `add`, step by step. So likely an episode ends in a step, and in a late one."""
    rng = np.random.default_rng(seed)

    def observe():
        return {name: rng.normal(size=(n_envs, 2)).astype(np.float32) for name in NAMES}

    before = observe()
    for step in range(steps):
        after, done = observe(), rng.random(n_envs) < (ends if step < 0.7 * steps else late)
        timeout = rng.random(n_envs) < 0.5
        infos = [{"TimeLimit.truncated": bool(a and b), "number": step} for a, b in zip(done, timeout)]
        yield before, after, rng.normal(size=(n_envs, 1)).astype(np.float32), rng.normal(size=n_envs), done, infos
        fresh = observe()
        before = {name: np.where(done[:, None], fresh[name], after[name]) for name in NAMES}


def assert_same_samples(ours, theirs, seed):
    """Also that both have drawn as much, and that they refuse alike."""
    drawn = []
    for buffer in (theirs, ours):
        np.random.seed(seed)  # noqa: NPY002
        try:
            drawn.append(buffer.sample(16))
        except RuntimeError as error:
            drawn.append(str(error))
        drawn.append(np.random.random())  # noqa: NPY002
    expected, after_theirs, got, after_ours = drawn
    assert after_ours == after_theirs
    if isinstance(expected, str):
        assert got == expected
        return False
    for name in ("observations", "next_observations"):
        for key, values in getattr(expected, name).items():
            assert getattr(got, name)[key].dtype == values.dtype
            np.testing.assert_array_equal(getattr(got, name)[key], values)
    for name in ("actions", "dones", "rewards"):
        assert getattr(got, name).shape == getattr(expected, name).shape
        assert getattr(got, name).dtype == getattr(expected, name).dtype
        np.testing.assert_array_equal(getattr(got, name), getattr(expected, name))
    return True


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize(
    ("strategy", "settings"),
    [
        ("future", {}),
        ("final", {"n_sampled_goal": 1}),
        ("episode", {"copy_info_dict": True, "handle_timeout_termination": False}),
    ],
)
def test_samples_are_those_of_sb3s_from_the_same_seed(strategy, settings, n_envs):
    theirs, ours = (make(cls, n_envs, goal_selection_strategy=strategy, **settings) for cls in (SB3s, HerReplayBuffer))
    sampled = []
    for step, added in enumerate(history(n_envs, 200, late=0.03)):  # longer than the buffer
        theirs.add(*added)
        ours.add(*added)
        np.testing.assert_array_equal(ours.ep_length, theirs.ep_length)
        np.testing.assert_array_equal(ours._current_ep_start, theirs._current_ep_start)
        sampled.append(assert_same_samples(ours, theirs, step))
    assert True in sampled
    assert False in sampled


def test_what_sb3s_holds_goes_on_here_at_any_time():
    theirs, moved = make(SB3s, 2), 0
    for step, added in enumerate(history(2, 90, seed=3, late=0.03)):
        theirs.add(*added)
        if step % 11 == 10:
            ours, again = HerReplayBuffer.from_sb3(theirs), pickle.loads(pickle.dumps(theirs))
            again.set_env(Rewards())
            for number, more in enumerate(history(2, 12, seed=step, ends=0.3)):
                again.add(*more)
                ours.add(*more)
                moved += assert_same_samples(ours, again, number)
    assert moved > 50


def test_a_rollout_is_stored_as_by_adds():
    one, many, steps = make(n_envs=2), make(n_envs=2), list(history(2, 33))
    for step in steps:
        one.add(*step)
    before, after, actions, rewards, done, infos = zip(*steps)
    timeouts = np.array([[info["TimeLimit.truncated"] for info in step] for step in infos])
    before, after = ({name: np.stack([each[name] for each in steps]) for name in NAMES} for steps in (before, after))
    many.add_rollout(before, np.stack(actions), np.stack(rewards), np.array(done) & ~timeouts, timeouts, after)
    np.testing.assert_array_equal(many.ep_length, one.ep_length)
    assert assert_same_samples(many, one, 0)
    with pytest.raises(ValueError, match="needs copy_info_dict=False"):
        make(n_envs=2, copy_info_dict=True).add_rollout(before, actions, rewards, done, timeouts, after)


def test_a_pickle_has_no_environments_and_asks_for_them():
    buffer = make()
    for added in history(1, 15):
        buffer.add(*added)
    loaded = pickle.loads(pickle.dumps(buffer))
    with pytest.raises(AssertionError, match="You must initialize HerReplayBuffer with a VecEnv"):
        loaded.sample(8)
    loaded.set_env(buffer.env)
    assert assert_same_samples(loaded, buffer, 0)
    with pytest.raises(ValueError, match="already initialized"):
        loaded.set_env(buffer.env)


@pytest.mark.parametrize("steps", [9, 47])  # not yet full, and gone round
def test_lent_and_brought_back_it_is_the_same(steps):
    buffer, kept = make(n_envs=2), make(n_envs=2)
    for added in history(2, steps, seed=2, ends=0.4):
        buffer.add(*added)
        kept.add(*added)
    buffer.keep_on_device(buffer.to_device(1000))
    np.testing.assert_array_equal(buffer.ep_length, kept.ep_length)
    assert assert_same_samples(buffer, kept, 0)


@pytest.mark.thorough
@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
def test_a_program_draws_the_transitions_and_goals_that_the_host_draws(strategy):
    """Both draw each transition equally often, but never those in running episodes."""
    buffer = make(n_envs=2, goal_selection_strategy=strategy)
    for added in history(2, 47, seed=5):
        buffer.add(*added)
    np.random.seed(0)  # noqa: NPY002
    host = buffer.sample(40_000)
    replay = buffer.to_device(10)
    bits = jax.random.bits(jax.random.key(0), (2, 40_000))

    def compute_reward(achieved, desired, info):
        return -(abs(achieved - desired).sum(-1) > 1).astype(float)

    batch = jax.jit(lambda replay: buffer.hindsight.transitions(replay, bits, 0.9, compute_reward))(replay)
    relabelled = buffer.hindsight.num_relabelled(40_000)
    assert relabelled == 32_000

    def pairs(observations, part):
        """Return how often each transition was drawn with each goal."""
        rows = np.concatenate(
            [np.asarray(observations[name])[part] for name in ("observation", "desired_goal")], axis=1
        )
        values, counts = np.unique(rows, axis=0, return_counts=True)
        return {tuple(value): count for value, count in zip(values.tolist(), counts.tolist())}

    for on_host, in_program in ((slice(8000, None), slice(0, 32_000)), (slice(0, 8000), slice(32_000, None))):
        theirs, ours = pairs(host.observations, on_host), pairs(batch.observation, in_program)
        assert ours.keys() == theirs.keys()
        freedom = len(ours) - 1
        statistic = sum((ours[key] - theirs[key]) ** 2 / (ours[key] + theirs[key]) for key in ours)
        assert abs(statistic - freedom) < 4 * np.sqrt(2 * freedom) + 1  # chi-squared of two samples
    expected = compute_reward(
        np.asarray(batch.next_observation["achieved_goal"]), batch.next_observation["desired_goal"], {}
    )
    np.testing.assert_array_equal(batch.reward[:relabelled], expected[:relabelled])
    goals = batch.observation["desired_goal"], batch.next_observation["desired_goal"]
    np.testing.assert_array_equal(*(each[:relabelled] for each in goals))
    assert {*np.unique(batch.discount)} <= {np.float32(0), np.float32(0.9)}


def test_episodes_in_a_program_are_those_of_the_host():
    buffer, n_envs = make(n_envs=3), 3
    add = jax.jit(lambda episodes, row, done: episodes.add(row, done))
    episodes = Episodes.create(ROWS, n_envs)
    for step, added in enumerate(history(n_envs, 150, seed=7, late=0.03)):
        buffer.add(*added)
        episodes = add(episodes, np.int32(step % ROWS), added[4])
        extent, begin, first, count, oldest = buffer._index()
        stored = slice(0, buffer.size())
        for name, expected in {"extent": extent, "begin": begin, "count": count}.items():
            np.testing.assert_array_equal(np.asarray(getattr(episodes, name))[stored], expected[stored], err_msg=name)
        there = np.asarray(episodes.count) > 0
        np.testing.assert_array_equal(np.asarray(episodes.first)[there], first[there])
        np.testing.assert_array_equal(np.asarray(episodes.oldest)[there], oldest[there])
