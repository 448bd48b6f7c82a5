"""Slices: beside a plain list of all that was stored, over random histories."""

import collections
import itertools

import hypothesis.strategies as st
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from scipy import stats

from bridge import ReplayBuffer
from tests.bridge.replay.histories import ACTION, OBSERVATIONS, CountedArray

NUMBER = spaces.Box(-np.inf, np.inf, (1,), np.float64)


class Oracle:
    """All that a buffer should hold, one list of slots for each environment, beside the buffer."""

    def __init__(self, capacity, num_envs):
        self.buffer = ReplayBuffer(capacity * num_envs, NUMBER, ACTION, device="cpu", n_envs=num_envs)
        self.slots = [collections.deque(maxlen=capacity) for _ in range(num_envs)]
        self.num_envs, self.serial = num_envs, itertools.count()
        self.episode = [next(self.serial) for _ in range(num_envs)]
        self.step, self.observation = [0] * num_envs, [float(next(self.serial)) for _ in range(num_envs)]

    def rows(self, ends):
        """Step all environments. For each step and environment: 0 continues, 1 terminates, 2 truncates, 3 both."""
        columns = collections.defaultdict(list)
        for row in ends:
            for index, end in enumerate(row):
                after = float(next(self.serial))
                slot = {
                    "episode": self.episode[index],
                    "episode_steps": self.step[index],
                    "observations": self.observation[index],
                    "next_observations": after,
                    "terminated": bool(end & 1),
                    "truncated": end == 2,  # SB3's arrays cannot say that both hold
                    "rewards": float(next(self.serial)),
                }
                self.slots[index].append(slot)
                for name, value in slot.items():
                    columns[name].append(value)
                self.observation[index], self.step[index] = after, self.step[index] + 1
                if end:
                    self.begin(index)
        return {name: np.array(values).reshape(len(ends), self.num_envs) for name, values in columns.items()}

    def begin(self, index):
        self.episode[index], self.step[index] = next(self.serial), 0
        self.observation[index] = float(next(self.serial))

    def add(self, ends):
        """One `add` of a row."""
        rows = {name: column[0] for name, column in self.rows([ends]).items()}
        infos = [{"TimeLimit.truncated": bool(flag)} for flag in rows["truncated"] & ~rows["terminated"]]
        self.buffer.add(
            rows["observations"][:, None],
            rows["next_observations"][:, None],
            np.zeros((self.num_envs, 2)),
            rows["rewards"],
            rows["terminated"] | rows["truncated"],
            infos,
        )

    def extend(self, ends):
        """One `extend` of rows."""
        rows = self.rows(ends)
        names = ("rewards", "terminated", "truncated", "next_observations")
        self.buffer.add_rollout(
            rows["observations"], np.zeros((len(ends), self.num_envs, 2)), *(rows[n] for n in names)
        )

    def reset_by_hand(self, index):
        """Begin an episode without an end of the one before, which shows with the next row."""
        if self.slots[index] and self.step[index]:
            self.slots[index][-1]["truncated"] = True
        self.begin(index)

    def windows(self, length, strict=True):
        """All windows: lists of slots."""
        found = []
        for slots in self.slots:
            for _, episode in itertools.groupby(slots, key=lambda slot: slot["episode"]):
                slots = [dict(slot) for slot in episode]
                found += [slots[start : start + length] for start in range(len(slots) - length + 1)]
                if len(slots) < length and not strict:
                    found.append(slots)
        return {tuple(slot["rewards"] for slot in window): window for window in found}


def check(samples, windows, length, burn_in=0):
    """Every slice is a window; returns which ones."""
    drawn = []
    for i in range(len(samples.mask)):
        real = samples.mask[i, burn_in:].numpy()
        assert (np.sort(real)[::-1] == real).all()  # padding is at the end
        window = windows[tuple(samples.rewards[i, burn_in:].numpy()[real].tolist())]
        for name in ("observations", "next_observations", "terminated", "truncated"):
            values = getattr(samples, name)[i, burn_in:].numpy()
            assert values[real].reshape(-1).tolist() == [slot[name] for slot in window], name
            assert not values[~real].any(), name
        # Steps before the first draw of slices count from the oldest row that was stored then.
        steps = samples.episode_steps[i, burn_in:].numpy()
        expected = np.array([slot["episode_steps"] for slot in window])
        assert (np.diff(steps[real]) == 1).all()
        assert steps[0] <= expected[0]
        assert (steps[~real] == 0).all()
        drawn.append(tuple(slot["rewards"] for slot in window))
    return drawn


ROW = st.lists(st.sampled_from([0, 0, 0, 0, 1, 2, 3]), min_size=2, max_size=2)
ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), ROW),
        st.tuples(st.just("extend"), st.lists(ROW, min_size=1, max_size=12)),
        st.tuples(st.just("reset_by_hand"), st.integers(0, 1)),
        st.tuples(st.just("sample"), st.integers(1, 5)),
    ),
    min_size=5,
    max_size=30,
)


@settings(max_examples=40, deadline=None)
@given(capacity=st.integers(1, 9), acts=ACTS, strict=st.booleans(), by=st.sampled_from(["window", "trajectory"]))
def test_slices_are_windows_of_one_episode_and_every_window_is_drawn(capacity, acts, strict, by):
    oracle = Oracle(capacity, 2)
    pending = False
    for act, argument in [*acts, ("add", [0, 0]), ("sample", 2), ("sample", 1)]:
        if act != "sample":
            getattr(oracle, act)(argument)
            pending = act == "reset_by_hand"
            continue
        if pending or not oracle.slots[0]:  # that the episode was left is not known yet
            continue
        windows = oracle.windows(argument, strict)
        if not windows:
            with pytest.raises(ValueError, match="slice_len must be at most"):
                oracle.buffer.sample_slices(4, argument, by=by, strict_length=strict)
            continue
        samples = oracle.buffer.sample_slices(12 * len(windows), argument, by=by, strict_length=strict)
        drawn = check(samples, windows, argument)
        all_of_them = oracle.buffer.sample_slices(len(windows), argument, by, strict, replace=False)
        assert sorted(check(all_of_them, windows, argument)) == sorted(windows)
        if by == "window" and len(windows) < 6:
            assert set(drawn) == set(windows)
        with pytest.raises(ValueError, match=f"num_slices must be at most {len(windows)}"):
            oracle.buffer.sample_slices(len(windows) + 1, argument, by, strict, replace=False)


def filled(episode_length=None, rows=40, capacity=32, seed=0):
    """Return an oracle of two environments whose ring has wrapped."""
    oracle, rng = Oracle(capacity, 2), np.random.default_rng(seed)
    for row in range(rows):
        end = (row % episode_length == 0) if episode_length else rng.random(2) < 0.15
        oracle.add(np.broadcast_to(np.where(end, 1, 0), 2).tolist())
    return oracle


@pytest.mark.thorough
@pytest.mark.parametrize(("length", "strict"), [(1, True), (4, True), (4, False), (9, True)])
def test_windows_are_equally_likely(length, strict):
    oracle = filled()
    windows = oracle.windows(length, strict)
    drawn = collections.Counter()
    samples = oracle.buffer.sample_slices(100 * len(windows), length, strict_length=strict)
    drawn.update(check(samples, windows, length))
    assert stats.chisquare([drawn[window] for window in windows]).pvalue > 1e-4


@pytest.mark.parametrize("strict", [True, False])
def test_by_trajectory_episodes_are_equally_likely_and_so_are_the_windows_of_one(strict):
    oracle = filled()
    windows = oracle.windows(3, strict)
    episodes = collections.Counter(window[0]["episode"] for window in windows.values())
    drawn = collections.Counter(check(oracle.buffer.sample_slices(5_000, 3, "trajectory", strict), windows, 3))
    expected = [5_000 / len(episodes) / episodes[window[0]["episode"]] for window in windows.values()]
    assert stats.chisquare([drawn[window] for window in windows], expected).pvalue > 1e-4


def test_without_replacement_windows_are_equally_likely():
    oracle = filled()
    windows = oracle.windows(4)
    drawn = collections.Counter()
    for _ in range(200):
        batch = check(oracle.buffer.sample_slices(10, 4, replace=False), windows, 4)
        assert len(set(batch)) == 10
        drawn.update(batch)
    # Draws of a batch are not independent, and spread less than those that are: the test is the stricter for it.
    assert stats.chisquare([drawn[window] for window in windows]).pvalue > 1e-4


def test_rare_windows_are_found():
    """One episode of nine steps among thousands of one step: no draw of slots is likely to end in it."""
    buffer = ReplayBuffer(100_000, NUMBER, ACTION, device="cpu")
    ends = np.ones((100_000, 1), bool)
    ends[50_000:50_008] = False
    number = np.arange(100_000.0)[:, None]
    buffer.add_rollout(number, np.zeros((100_000, 1, 2)), number, ends, ~ends & False, number + 1)
    for by in ("window", "trajectory"):
        samples = buffer.sample_slices(5, 9, by=by)
        assert (samples.observations[..., 0] == torch.arange(50_000, 50_009)).all()
    with pytest.raises(ValueError, match="slice_len must be at most 9, the length of the longest stored piece"):
        buffer.sample_slices(5, 10)


def test_burn_in_is_what_comes_before_and_is_masked_at_the_beginning_of_an_episode():
    oracle = filled(episode_length=7)
    slots = {slot["rewards"]: slot for slots in oracle.slots for slot in slots}
    samples = oracle.buffer.sample_slices(300, 3, burn_in=4)
    assert samples.mask.shape == samples.rewards.shape == (300, 7)
    drawn = check(samples, oracle.windows(3), 3, burn_in=4)
    assert set(drawn) == set(oracle.windows(3))
    for i in range(300):
        real, first = samples.mask[i].numpy(), slots[samples.rewards[i, 4].item()]
        before = [slots[reward] for reward in samples.rewards[i, :4].numpy()[real[:4]].tolist()]
        assert (real == np.sort(real)).all()
        assert [slot["episode"] for slot in before] == [first["episode"]] * len(before)
        steps = list(range(first["episode_steps"] - len(before), first["episode_steps"]))
        assert [slot["episode_steps"] for slot in before] == steps
        # As many as there are: fewer than four only where the episode, or what is stored of it, begins.
        oldest = min(s["episode_steps"] for s in slots.values() if s["episode"] == first["episode"])
        assert len(before) == min(4, first["episode_steps"] - oldest)


@pytest.mark.parametrize("kind", ["torch", "numpy", "jax"])
def test_a_rollout_of_any_array_is_stored_as_by_adds(kind):
    convert = {"torch": torch.as_tensor, "numpy": np.asarray, "jax": jnp.asarray}[kind]
    rng = np.random.default_rng(0)
    steps, num_envs, capacity = 25, 3, 10
    observation = rng.normal(size=(steps + 1, num_envs, 3)).astype(np.float32)
    final = observation[1:].copy()
    terminated, truncated = rng.random((2, steps, num_envs)) < 0.15
    final[terminated | truncated] += 100
    action = rng.uniform(-1, 1, (steps, num_envs, 2)).astype(np.float32)
    reward = rng.normal(size=(steps, num_envs)).astype(np.float32)
    space = OBSERVATIONS["vector"]
    one, many = (ReplayBuffer(capacity * num_envs, space, ACTION, device="cpu", n_envs=num_envs) for _ in range(2))
    for t in range(steps):
        infos = [{"TimeLimit.truncated": bool(flag)} for flag in truncated[t] & ~terminated[t]]
        done = terminated[t] | truncated[t]
        one.add(observation[t], final[t], action[t], reward[t], done, infos)
    many.add_rollout(*map(convert, (observation[:-1], action, reward, terminated, truncated, final)))
    assert (many.pos, many.full) == (one.pos, one.full)
    for name in ("observations", "next_observations", "actions", "rewards", "dones", "timeouts"):
        np.testing.assert_array_equal(getattr(many, name), getattr(one, name), err_msg=name)


def test_steps_are_counted_on_after_the_first_draw():
    """Also of an episode that is longer than the buffer, and in episodes that begin after a reset by hand."""
    oracle = Oracle(7, 2)
    for row in range(60):
        oracle.add([int(row == 40), 0])
        if row == 50:
            oracle.buffer.mark_reset()  # which no observation shows
        samples = oracle.buffer.sample_slices(20, 1)
        env_indices = samples.indices[:, 0].numpy() % 2
        begin = np.where(env_indices == 0, 41 if row > 46 else 0, 0)
        begin = np.where(row > 56, 51, begin)
        if row < 40 or 46 < row <= 50 or row > 56:
            steps = row - (row - samples.indices[:, 0].numpy() // 2) % 7 - begin
            np.testing.assert_array_equal(samples.episode_steps[:, 0], steps)
    assert not np.isin(oracle.buffer.sample_slices(300, 2).episode_steps[:, 1], 0).any()


@pytest.mark.parametrize(("rows", "longest"), [(1, 1), (5, 5), (30, 17)])  # of rows 13 to 32
def test_a_reset_that_no_observation_shows_ends_slices(rows, longest):
    buffer, zeros = ReplayBuffer(40, NUMBER, ACTION, device="cpu", n_envs=2), np.zeros((2, 1))
    for number in range(33):
        buffer.add(zeros, zeros, np.zeros((2, 2)), np.full(2, number), np.zeros(2, bool), [{}, {}])
        if number % rows == rows - 1:
            buffer.mark_reset()
        if number == 3:
            buffer.sample_slices(2, 1)
    samples = buffer.sample_slices(100, longest)
    assert (samples.rewards[:, -1] % rows == rows - 1).all()
    assert samples.truncated[samples.rewards[:, -1] < 32, -1].all()
    with pytest.raises(ValueError, match="slice_len must be at most"):
        buffer.sample_slices(1, longest + 1)


def test_dict_observations_and_images_are_sliced():
    space = OBSERVATIONS["dict"]
    buffer = ReplayBuffer(60, space, spaces.Discrete(3), device="cpu", n_envs=2)
    number = np.arange(20).reshape(20, 1).repeat(2, 1)
    observation = {"image": np.broadcast_to(number[..., None, None, None], (20, 2, 2, 2, 1)), "which": number}
    following = {name: leaf + 1 for name, leaf in observation.items()}
    ends = number % 5 == 4
    buffer.add_rollout(observation, number % 3, number, ends, ends & False, following)
    samples = buffer.sample_slices(30, 4, strict_length=False, burn_in=2)
    assert samples.observations["image"].shape == (30, 6, 2, 2, 1)
    assert samples.observations["image"].dtype == torch.uint8
    assert samples.actions.shape == (30, 6, 1)
    which, after = samples.observations["which"][..., 0], samples.next_observations["image"][..., 0, 0, 0]
    assert ((which + 1) * samples.mask == after).all()
    assert (which == samples.rewards).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 2), "num_slices must be a positive int, got 0"),
        ((2, 0), "slice_len must be a positive int, got 0"),
        ((2, 2, "episode"), "by must be one of 'window', 'trajectory', got 'episode'"),
    ],
)
def test_an_argument_out_of_range_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        filled().buffer.sample_slices(*arguments)


def test_an_empty_buffer_and_an_extend_of_a_wrong_shape_say_so():
    buffer = ReplayBuffer(60, NUMBER, ACTION, device="cpu", n_envs=2)
    with pytest.raises(ValueError, match="empty"):
        buffer.sample_slices(2, 2)
    zeros = np.zeros((5, 2))
    with pytest.raises(ValueError, match=r"truncated must have the shape \(5, 2\), got \(4, 2\)"):
        buffer.add_rollout(zeros, np.zeros((5, 2, 2)), zeros, zeros, zeros[:4], zeros)
    assert buffer.size() == 0


@pytest.mark.parametrize("rows", [1_000, 100_000])
def test_a_draw_reads_as_few_slots_whatever_is_stored(rows):
    buffer = ReplayBuffer(rows * 2, NUMBER, ACTION, device="cpu")
    number = np.zeros((rows, 1))
    ends = np.arange(rows)[:, None] % 100 == 99
    buffer.add_rollout(number, np.zeros((rows, 1, 2)), number, ends, ends & False, number)
    buffer.sample_slices(64, 4)
    buffer._episodes.steps = counted = CountedArray(buffer._episodes.steps)
    assert buffer.sample_slices(64, 4).mask.all()
    assert max(counted.read) <= 64 * 4


def test_of_more_rows_than_the_buffer_holds_only_what_is_documented_is_read():
    """Next observations are read where an episode ends and in the last step, and nowhere else."""
    box = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    buffer = ReplayBuffer(10, box, box, device="cpu")
    number = np.arange(15.0)[:, None, None]
    no = np.zeros((15, 1), bool)
    final = np.full((15, 1, 1), -777.0)
    final[-1] = 15
    buffer.add_rollout(number, number, number[..., 0], no, no, final)
    assert not buffer.dones.any()
    np.testing.assert_array_equal(np.sort(buffer.next_observations[:, 0, 0]), np.arange(6, 16))
