"""Prioritised draws: in proportion to priorities, of transitions and of slices."""

import collections
import pickle

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from stable_baselines3.common.buffers import ReplayBuffer as SB3sReplayBuffer

from bridge import PrioritizedReplayBuffer
from bridge.replay.priorities import WIDTH, SumTree
from tests.bridge.replay.histories import ACTION, OBSERVATIONS, History

NUMBER = spaces.Box(-np.inf, np.inf, (1,), np.float64)


def make(rows=20, num_envs=2, capacity=16, alpha=1.0, episode_length=7, **kwargs):
    """A buffer whose observations, rewards and actions are the numbers of steps, and whose ring may have wrapped."""
    buffer = PrioritizedReplayBuffer(
        capacity * num_envs, NUMBER, NUMBER, device="cpu", n_envs=num_envs, alpha=alpha, beta=1.0, **kwargs
    )
    number = np.arange(rows * num_envs, dtype=float).reshape(rows, num_envs)
    ends = np.arange(rows)[:, None].repeat(num_envs, 1) % episode_length == episode_length - 1
    buffer.add_rollout(number, number, number, ends, ends & False, np.where(ends, -1.0, number + num_envs))
    return buffer


def slots_of(buffer):
    return torch.arange(buffer.buffer_size * buffer.n_envs)


@settings(max_examples=40, deadline=None)
@given(data=st.data(), size=st.sampled_from([1, 5, WIDTH, WIDTH + 1, WIDTH**2, 3000]))
def test_every_node_is_the_sum_of_its_children_and_draws_hit_positive_numbers_alone(data, size):
    tree, numbers = SumTree(size), np.zeros(size)
    rng = np.random.default_rng(data.draw(st.integers(0, 100)))
    for _ in range(5):
        if data.draw(st.booleans()):
            start, stop = sorted(rng.integers(0, size + 1, 2))
            value = rng.random()
            tree.set_range(start, stop, value)
            numbers[start:stop] = value
        else:
            index = rng.choice(size, min(size, 7), replace=False)
            value = rng.random(len(index)) * rng.integers(0, 2, len(index)) * 10.0 ** rng.integers(-12, 12)
            tree.set(index, value)
            numbers[index] = value
    np.testing.assert_array_equal(tree.leaves[:size], numbers)
    for below, above in zip(tree.levels, tree.levels[1:]):
        np.testing.assert_array_equal(above.reshape(-1)[: len(below)], below.sum(axis=1))
    if numbers.any():
        assert (numbers[tree.draw(300)] > 0).all()


def test_transitions_are_drawn_in_proportion_to_their_priorities():
    buffer = make(alpha=0.5)
    priorities = torch.arange(32.0)
    buffer.update_priorities(slots_of(buffer), priorities)
    samples = buffer.sample(40_000)
    counts = np.bincount(samples.indices.numpy(), minlength=32)
    expected = priorities.numpy() ** 0.5
    assert counts[0] == 0
    assert stats.chisquare(counts[1:], (expected / expected.sum() * 40_000)[1:]).pvalue > 1e-4
    torch.testing.assert_close(samples.observations[:, 0].float(), samples.rewards[:, 0])
    np.testing.assert_array_equal(buffer.rewards.reshape(-1)[samples.indices.numpy()], samples.rewards[:, 0])


def test_weights_make_up_for_priorities_and_the_greatest_is_one():
    buffer = make(alpha=1.0)
    buffer.update_priorities(slots_of(buffer), torch.arange(1.0, 33.0))
    samples = buffer.sample(500)
    expected = (1 / (samples.indices + 1.0)).float()
    torch.testing.assert_close(samples.weights[:, 0], expected / expected.max())
    buffer.beta = 0.0
    assert (buffer.sample(10).weights == 1).all()


def test_what_is_written_has_the_greatest_priority_there_was():
    buffer = make(rows=4, num_envs=1, capacity=8)
    buffer.update_priorities([0, 1, 2, 3], [0.0, 0.0, 9.0, 0.0])
    history = History(1, NUMBER, 0)
    transition = list(history.next())
    transition[2] = np.zeros((1, 1))
    buffer.add(*transition)
    counts = np.bincount(buffer.sample(4000).indices, minlength=8)
    assert counts[[0, 1, 3, 5, 6, 7]].sum() == 0
    assert abs(counts[2] - counts[4]) < 400


def test_slices_are_drawn_in_proportion_to_the_sum_of_their_priorities():
    buffer = make()
    priorities = np.random.default_rng(0).random(32) + 0.05
    priorities[5] = 0
    buffer.update_priorities(slots_of(buffer), priorities)
    samples = buffer.sample_slices(40_000, 3)
    assert samples.mask.all()
    wanted = {}
    for slots in buffer.sample_slices(5000, 3).indices.numpy():
        wanted[tuple(slots)] = priorities[slots].sum()
    drawn = collections.Counter(map(tuple, samples.indices.numpy()))
    assert set(drawn) == set(wanted)
    total = sum(wanted.values())
    expected = [40_000 * value / total for value in wanted.values()]
    assert stats.chisquare([drawn[slots] for slots in wanted], expected).pvalue > 1e-4
    sums = torch.tensor([wanted[tuple(slots)] for slots in samples.indices.numpy()])
    torch.testing.assert_close(samples.weights[:, 0], (sums.min() / sums).float())
    assert (torch.diff(samples.rewards, dim=1) == 2).all()


def test_slices_of_which_draws_find_none_are_found():
    """Nearly all of the priority is in episodes too short for a slice."""
    buffer = make(rows=2000, num_envs=1, capacity=2000, episode_length=4)
    number = np.arange(8.0)[:, None]
    buffer.add_rollout(number, number, number, number > 9, number > 9, number + 1)
    priorities = np.full(2000, 1e6)
    priorities[:8] = 1.0
    buffer.update_priorities(slots_of(buffer), priorities)
    samples = buffer.sample_slices(100, 6)
    assert set(samples.rewards[:, 0].tolist()) == {0.0, 1.0, 2.0}
    with pytest.raises(ValueError, match="slice_len must be at most 8"):
        buffer.sample_slices(100, 9)
    assert sorted(buffer.sample_slices(3, 6, replace=False).rewards[:, 0].tolist()) == [0.0, 1.0, 2.0]
    with pytest.raises(ValueError, match="num_slices must be at most 3"):
        buffer.sample_slices(4, 6, replace=False)


@pytest.mark.parametrize(
    ("indices", "priorities", "message"),
    [
        ([0, 1], [1.0, -1.0], "priorities must be finite and at least 0, got -1.0 to 1.0"),
        ([0, 1], [1.0, np.nan], "priorities must be finite"),
        ([0, 1], [1.0], "priorities must have the shape .* of indices"),
        ([-2], [1.0], "indices must be the indices of samples, got -2"),
        ([10**6], [1.0], "indices must be the indices of samples"),
    ],
)
def test_an_update_out_of_range_raises_and_changes_nothing(indices, priorities, message):
    buffer = make()
    before = buffer.priorities.leaves.copy()
    with pytest.raises(ValueError, match=message):
        buffer.update_priorities(indices, priorities)
    np.testing.assert_array_equal(buffer.priorities.leaves, before)


def test_what_does_not_go_with_priorities_says_so():
    with pytest.raises(ValueError, match="alpha must be at least 0, got -1"):
        make(alpha=-1)
    with pytest.raises(ValueError, match="needs by='window' and strict_length=True"):
        make().sample_slices(2, 2, strict_length=False)
    buffer = make()
    buffer.update_priorities(slots_of(buffer), torch.zeros(32))
    with pytest.raises(ValueError, match="priorities must not all be 0"):
        buffer.sample(2)


def test_a_reset_and_a_pickle_keep_priorities_in_step(tmp_path):
    buffer = make()
    buffer.update_priorities(slots_of(buffer), torch.arange(32.0))
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(buffer)).priorities.leaves, np.arange(32.0))
    buffer.reset()
    assert buffer.priorities.total == 0
    filed = make(rows=5, storage="memmap", path=tmp_path)
    filed.close()
    filed = make(rows=1, storage="memmap", path=tmp_path)
    assert set(filed.sample(500).indices.tolist()) == set(range(12))


def test_the_row_that_holds_the_newest_next_observation_is_not_drawn():
    buffer = make(rows=9, capacity=4, episode_length=100, optimize_memory_usage=True, handle_timeout_termination=False)
    for row in range(9, 12):
        samples = buffer.sample(200)
        assert (samples.observations == samples.rewards).all()
        assert len(samples.indices.unique()) == 6
        number = np.arange(2.0)[None] + 2 * row
        buffer.add_rollout(number, number, number, number < 0, number < 0, number + 2)


def test_all_rows_are_drawn_that_a_taken_empty_buffer_gets():
    buffer = PrioritizedReplayBuffer.from_sb3(SB3sReplayBuffer(100, NUMBER, NUMBER, device="cpu"))
    number = np.arange(90.0)[:, None]
    buffer.add_rollout(number, number, number, number < 0, number < 0, number + 1)
    assert buffer.sample(5000).indices.max() > 80


def test_dict_observations_have_priorities_too():
    buffer = PrioritizedReplayBuffer(60, OBSERVATIONS["dict"], ACTION, device="cpu", n_envs=3, alpha=1.0)
    history = History(3, OBSERVATIONS["dict"], 0)
    history.fill(30, buffer)
    samples = buffer.sample(9)
    assert samples.observations["image"].shape == (9, 2, 2, 1)
    assert samples.indices.shape == (9,)
    assert samples.weights.shape == samples.rewards.shape == samples.dones.shape == (9, 1)


def test_columns_of_a_slice_without_a_step_change_no_priority():
    buffer = make()
    slices = buffer.sample_slices(8, 3, burn_in=2)
    assert not slices.mask.all()
    assert (slices.indices[~slices.mask] == -1).all()
    before = buffer.priorities.leaves.copy()
    buffer.update_priorities(slices.indices, torch.where(slices.mask, 1.0, 77.0))
    np.testing.assert_array_equal(buffer.priorities.leaves, before)
    assert buffer._greatest == 1


def test_slots_that_are_not_stored_get_no_priority():
    buffer = make(rows=5)
    buffer.update_priorities(slots_of(buffer), torch.ones(len(slots_of(buffer))))
    stored = 5 * buffer.n_envs
    assert set(buffer.sample(500).indices.tolist()) == set(range(stored))
    with pytest.raises(ValueError, match="indices must be the indices of samples"):
        buffer.update_priorities(torch.tensor([buffer.buffer_size * buffer.n_envs]), torch.ones(1))
    buffer.reset()
    buffer.update_priorities(torch.arange(stored), torch.ones(stored))
    assert buffer.priorities.total == 0
