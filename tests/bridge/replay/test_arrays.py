"""The arrays and counters of a replay buffer are read, written and replaced as SB3's."""

import copy
import pickle

import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common import buffers

from bridge.replay import PrioritizedReplayBuffer, ReplayBuffer
from tests.bridge.replay.histories import ACTION, OBSERVATIONS, CountedTags, History

HAS_N_STEP = hasattr(buffers, "NStepReplayBuffer")
NAMES = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")
KINDS = [
    ("vector", 1, buffers.ReplayBuffer),
    ("dict", 3, buffers.DictReplayBuffer),
    ("discrete", 2, buffers.ReplayBuffer),
]


def pair(kind="vector", n_envs=1, sb3s=buffers.ReplayBuffer, steps=0, size=12, ours=ReplayBuffer, **settings):
    """One of ours and one of SB3's, after the same steps."""
    space = OBSERVATIONS[kind]
    theirs = sb3s(size * n_envs, space, ACTION, n_envs=n_envs, device="cpu", **settings)
    mine = ours(size * n_envs, space, ACTION, n_envs=n_envs, device="cpu", **settings)
    history = History(n_envs, space, 0)
    history.fill(steps, theirs, mine)
    return mine, theirs, history


def leaves(tree):
    return dict(tree) if isinstance(tree, dict) else {"": tree}


def assert_same(ours, theirs, names=NAMES):
    assert (ours.pos, ours.full, ours.size()) == (theirs.pos, theirs.full, theirs.size())
    stored = slice(0, theirs.size())
    for name in names:
        parts = leaves(getattr(ours, name))
        for part, expected in leaves(getattr(theirs, name)).items():
            np.testing.assert_array_equal(parts[part][stored], expected[stored], f"{name} {part}")
    if not theirs.size():
        return
    rows = np.random.default_rng(0).integers(0, theirs.size(), 64)
    drawn = []
    for buffer in (ours, theirs):
        np.random.seed(0)  # noqa: NPY002
        drawn.append(buffer._get_samples(rows)._asdict())
    for name, expected in drawn[1].items():
        for part, tensor in leaves(expected).items() if expected is not None else ():
            torch.testing.assert_close(leaves(drawn[0][name])[part], tensor, rtol=0, atol=0, msg=f"{name} {part}")


def indices(rng, rows, n_envs):
    """Indices of rows and environments of all the kinds that there are."""
    row, some = int(rng.integers(rows)), rng.integers(0, rows, 3)
    index = int(rng.integers(n_envs))
    mask = np.zeros((12, n_envs), bool)
    mask[:rows] = rng.random((rows, n_envs)) < 0.2
    indices = rng.integers(0, n_envs, 3)
    return [
        row, (row, index), slice(row, row + 3), some, list(map(int, some)), (some, index), (some, indices),
        (slice(None), index), (...,), mask, mask.any(1), (slice(1, None, 2), slice(0, 1)), np.int64(row),
    ]  # fmt: skip


@pytest.mark.parametrize(("kind", "n_envs", "sb3s"), KINDS)
@pytest.mark.parametrize("steps", [7, 12, 31])
def test_what_is_written_is_stored_as_by_sb3s(kind, n_envs, sb3s, steps):
    ours, theirs, history = pair(kind, n_envs, sb3s, steps)
    rng = np.random.default_rng(steps)
    for _ in range(60):
        name = NAMES[rng.integers(len(NAMES))]
        every = indices(rng, theirs.size(), n_envs)
        index = every[rng.integers(len(every))]
        for part, array in leaves(getattr(theirs, name)).items():
            shape = array[index].shape
            values = rng.integers(0, 2 if name in ("dones", "timeouts") else 200, shape).astype(array.dtype)
            array[index] = values
            leaves(getattr(ours, name))[part][index] = values
        assert_same(ours, theirs)
    for _ in range(20):
        transition = history.next()
        theirs.add(*copy.deepcopy(transition))
        ours.add(*transition)
        # A step that does not begin where the one before ended is one after a reset by hand: there ours has a timeout.
        assert_same(ours, theirs, NAMES[:4])


@pytest.mark.parametrize(("kind", "n_envs", "sb3s"), KINDS)
def test_a_view_is_indexed_as_an_array(kind, n_envs, sb3s):
    ours, theirs, _ = pair(kind, n_envs, sb3s, 31)
    rng = np.random.default_rng(0)
    for name in ("observations", "next_observations", "dones", "timeouts"):
        for part, array in leaves(getattr(theirs, name)).items():
            view = leaves(getattr(ours, name))[part]
            assert (view.shape, view.dtype, view.ndim, len(view)) == (array.shape, array.dtype, array.ndim, len(array))
            for index in [*indices(rng, 12, n_envs), (3, ..., None), (None, 2), np.array([], int), ()]:
                np.testing.assert_array_equal(view[index], array[index], f"{name} {index}")
            for wrong in (12, -13, (0, n_envs), [3, 12], (slice(None), [n_envs]), (0,) * (array.ndim + 1)):
                with pytest.raises(IndexError):
                    view[wrong]


def test_a_view_is_computed_with_as_an_array():
    ours, theirs, _ = pair(steps=31)
    for view, array in ((ours.dones, theirs.dones), (ours.next_observations, theirs.next_observations)):
        np.testing.assert_array_equal(view * 2 + array, array * 3)
        assert (view == array).all()
        assert view.sum() == array.sum()
        np.testing.assert_array_equal(view.reshape(-1), array.reshape(-1))
        np.testing.assert_array_equal(np.concatenate([view, array]), np.concatenate([array, array]))
        np.testing.assert_array_equal(torch.as_tensor(view), array)
        np.testing.assert_array_equal(torch.tensor(view[2:5]), array[2:5])
        np.testing.assert_array_equal([row.copy() for row in view], array)
        assert type(pickle.loads(pickle.dumps(view))) is type(copy.deepcopy(view[3])) is np.ndarray
        assert repr(view) == repr(array)
    assert bool(ours.dones[3]) == bool(theirs.dones[3])
    assert float(ours.rewards[3].item()) == theirs.rewards[3].item()


def test_parts_of_views_and_operators_in_place_write_too():
    ours, theirs, _ = pair("vector", 3, steps=9)
    for buffer in (ours, theirs):
        buffer.dones[3][1] = 1
        buffer.timeouts[2:5][:, 1] = 1
        buffer.next_observations[4] += 1
        buffer.next_observations[5:7, 1][0][2] = 7
        # Normalised in place, one after the other: what a slot led to is no longer the next one's observation.
        buffer.observations[:] = buffer.observations / 2
        buffer.next_observations /= 2
        buffer.observations[7] -= 3
        np.multiply(buffer.dones, 0, out=buffer.dones)
        row = buffer.dones[6]
        buffer.dones[6, 0] = 1
        assert row[0] == 1
    assert_same(ours, theirs)


def test_what_would_be_lost_is_an_error():
    ours, _, _ = pair(steps=9)
    for write in (
        lambda: ours.dones.fill(1),
        lambda: np.asarray(ours.dones).__setitem__(3, 1),
        lambda: np.asarray(ours.observations).__setitem__(3, 1),
        lambda: ours.next_observations.reshape(-1).__setitem__(0, 1),
        lambda: ours.dones.__setitem__(3, 0.5),
    ):
        with pytest.raises(ValueError, match=r"read-only|dones must be 0 or 1, got 0\.5"):
            write()


@pytest.mark.parametrize("order", [range(6), range(5, -1, -1)])
@pytest.mark.parametrize("n_steps", [1, pytest.param(3, marks=pytest.mark.skipif(not HAS_N_STEP, reason="no n-step"))])
def test_a_buffer_filled_by_hand_holds_what_sb3s_does(order, n_steps):
    settings = {"sb3s": buffers.NStepReplayBuffer, "n_steps": 3, "gamma": 0.9} if n_steps > 1 else {}
    ours, theirs, _ = pair(**settings)
    rng = np.random.default_rng(0)
    data = {name: rng.random((12, *getattr(theirs, name).shape[1:])) for name in NAMES}
    data["dones"], data["timeouts"] = np.zeros((2, 12, 1))
    data["dones"][3], data["timeouts"][6] = 1, 1  # as D4RL has them: an end by a time limit is no terminal
    data["next_observations"][4] = 0  # as what is not stored yet
    for buffer in (ours, theirs):
        for which in order:
            getattr(buffer, NAMES[which])[:] = data[NAMES[which]]
        buffer.pos = 9
    assert_same(ours, theirs)
    for buffer in (ours, theirs):
        buffer.rewards = np.full((12, 1), 5.0, np.float32)
        buffer.dones = np.ones((12, 1), np.float32)
        buffer.pos, buffer.full = 0, True
    assert_same(ours, theirs)
    for buffer in (ours, theirs):
        buffer.pos, buffer.full = 0, False
    assert_same(ours, theirs)


@pytest.mark.parametrize(("kind", "n_envs", "sb3s"), KINDS)
def test_an_add_written_for_sb3s_arrays_works(kind, n_envs, sb3s):
    """Write into the arrays as a subclass of SB3's buffer may."""

    def add(buffer, obs, next_obs, action, reward, done, infos):
        for name, values in (("observations", obs), ("next_observations", next_obs)):
            for part, array in leaves(getattr(buffer, name)).items():
                array[buffer.pos] = leaves(values)[part].reshape(array.shape[1:])
        buffer.actions[buffer.pos], buffer.rewards[buffer.pos], buffer.dones[buffer.pos] = action, reward, done
        buffer.timeouts[buffer.pos] = np.array([info.get("TimeLimit.truncated", False) for info in infos])
        buffer.pos += 1
        if buffer.pos == buffer.buffer_size:
            buffer.full, buffer.pos = True, 0

    ours, theirs, history = pair(kind, n_envs, sb3s)
    for step in range(40):
        if step in (20, 31):
            history.reset(np.arange(n_envs))
        transition = history.next()
        add(ours, *transition)
        add(theirs, *transition)
        assert_same(ours, theirs)
    # Rows of the side ring are used again: there are few of them.
    assert len(ours.ring_on_host().end_slot) <= 64
    taken = ours.sample_slices(20, 2)
    number = leaves(taken.observations)[next(iter(leaves(taken.observations)))].reshape(20, 2, -1)[:, :, 0].long()
    assert ((number[:, 1] - number[:, 0]) % 200 == 1).all()


def test_slices_do_not_go_across_what_was_written():
    ours, _, _ = pair(size=200, steps=150)
    ours.dones[:] = 0
    ours.dones[40], ours.dones[90] = 1, 1
    ours.next_observations[60] = 77
    cuts = np.append(np.flatnonzero(np.abs(np.diff(np.asarray(ours.observations)[:150, 0, 0])) != 1), [40, 90, 60])
    slices = ours.sample_slices(500, 6)
    assert not np.isin(slices.indices[:, :-1], cuts).any()
    assert np.isin(slices.indices[:, -1], cuts).any()
    following = slices.next_observations[:, :, 0].numpy()
    np.testing.assert_array_equal(following, np.asarray(ours.next_observations)[slices.indices.numpy(), 0, 0])


def test_a_rollout_over_timeouts_that_were_written_without_dones_has_its_own_ends():
    ours, _, _ = pair(steps=12)
    ours.timeouts[:], ours.dones[:] = 1, 0
    rows, ends = np.zeros((12, 1)), np.ones((12, 1), bool)
    ours.add_rollout(np.zeros((12, 1, 3)), np.zeros((12, 1, 2)), rows, ends, ~ends, np.zeros((12, 1, 3)))
    assert ours.dones[:].all()
    assert not ours.timeouts[:].any()


def test_reading_some_rows_costs_the_same_whatever_the_capacity():
    ours, _, _ = pair(size=100_000, steps=20)
    ours.ring_on_host().tag = counted = CountedTags(ours.ring_on_host().tag)
    for name in ("next_observations", "dones", "timeouts", "observations"):
        getattr(ours, name)[3], getattr(ours, name)[[5, 7], 0]
        np.asarray(getattr(ours, name)[2:6])
    assert max(counted.read) <= 4


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("pos", 13, "pos must be a non-negative int up to 12, got 13"),
        ("rewards", np.zeros(12), r"rewards must have the shape \(12, 1\), got \(12,\)"),
        ("observations", np.zeros((11, 1, 3)), r"observations must have the shape \(12, 1, 3\), got \(11, 1, 3\)"),
        ("dones", np.full((12, 1), 2), "dones must be 0 or 1, got 2"),
    ],
)
def test_what_cannot_be_set_is_named(name, value, message):
    ours, _, _ = pair(steps=5)
    with pytest.raises(ValueError, match=message):
        setattr(ours, name, value)


def test_parts_of_dict_observations_are_replaced():
    ours, theirs, _ = pair("dict", 3, buffers.DictReplayBuffer, 7)
    for buffer in (ours, theirs):
        buffer.next_observations["which"] = np.full((12, 3, 1), 5)
        buffer.observations = {name: np.ones_like(part) for name, part in buffer.observations.items()}
    assert_same(ours, theirs)
    with pytest.raises(ValueError, match=r"next_observations must be a dict with the keys \['image', 'which'\], got"):
        ours.next_observations = {}


def test_priorities_follow_what_is_stored():
    ours, _, _ = pair(ours=PrioritizedReplayBuffer, steps=9)
    ours.pos = 4
    assert ours.sample(200).indices.max() == 3
    ours.observations[4:8], ours.pos = 1.0, 8
    assert ours.sample(200).indices.max() == 7


def test_files_hold_what_was_written(tmp_path):
    space = spaces.Box(-1, 1, (2,), np.float32)
    arguments = {"device": "cpu", "storage": "memmap", "path": tmp_path / "buffer"}
    buffer = ReplayBuffer(20, space, ACTION, **arguments)
    for step in range(10):
        observation = np.full((1, 2), step)
        buffer.add(observation, observation + 1, np.zeros((1, 2)), np.zeros(1), np.zeros(1, bool), [{}])
    buffer.flush()
    buffer.next_observations[3], buffer.dones[5], buffer.pos = 7, 1, 8
    buffer.close()
    again = ReplayBuffer(20, space, ACTION, **arguments)
    assert (again.pos, again.size()) == (8, 8)
    np.testing.assert_array_equal(again.next_observations[:8, 0, 0], [1, 2, 3, 7, 5, 6, 7, 8])
    np.testing.assert_array_equal(np.flatnonzero(again.dones[:8]), [5])
    assert again.sample_slices(9, 4).mask.all()
    again.close()
