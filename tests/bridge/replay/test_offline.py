"""Replay buffers of data collected before."""

import sys
import types

import numpy as np
import pytest
import torch
from gymnasium import spaces

from bridge import ReplayBuffer

NUMBER = spaces.Box(-np.inf, np.inf, (1,), np.float64)
LENGTHS = (5, 1, 8, 3)


def episodes(kind=dict):
    """Episodes of these lengths: observations are 100 * episode + step; every second ends in a terminal state."""
    found = []
    for number, length in enumerate(LENGTHS):
        steps = 100.0 * number + np.arange(length + 1)
        terminations = np.zeros(length, bool)
        terminations[-1] = number % 2
        found.append(
            kind(
                observations=steps[:, None],
                actions=-steps[:-1, None],
                rewards=steps[:-1],
                terminations=terminations,
                truncations=np.zeros(length, bool),
            )
        )
    return found


def check(buffer, lengths=LENGTHS):
    assert buffer.size() == sum(lengths)
    first = np.concatenate([100.0 * number + np.arange(length) for number, length in enumerate(lengths)])
    np.testing.assert_array_equal(buffer.observations[:, 0, 0], first)
    np.testing.assert_array_equal(buffer.actions[:, 0, 0], -first)
    np.testing.assert_array_equal(buffer.rewards[:, 0], first)
    ends = np.cumsum(lengths) - 1
    np.testing.assert_array_equal(np.flatnonzero(buffer.dones), ends)
    is_terminal = np.array([number % 2 == 1 for number in range(len(lengths))])
    np.testing.assert_array_equal(np.flatnonzero(buffer.timeouts), ends[~is_terminal])
    bootstrapped = ~np.isin(np.arange(len(first)), ends[is_terminal])
    np.testing.assert_array_equal(buffer.next_observations[:, 0, 0][bootstrapped], first[bootstrapped] + 1)
    samples = buffer.sample_slices(500, 3, strict_length=False)
    assert set(samples.mask.sum(1).tolist()) == {min(length, 3) for length in lengths}
    assert (torch.diff(samples.observations[..., 0])[samples.mask[:, 1:]] == 1).all()


@pytest.mark.parametrize("kind", [dict, types.SimpleNamespace])
def test_episodes_of_any_length_lie_end_to_end(kind):
    check(ReplayBuffer.from_episodes(episodes(kind), NUMBER, NUMBER, device="cpu"))


def test_episodes_may_come_one_by_one_into_files(tmp_path):
    settings = {"buffer_size": sum(LENGTHS), "device": "cpu", "storage": "memmap", "path": tmp_path}
    buffer = ReplayBuffer.from_episodes(iter(episodes()), NUMBER, NUMBER, **settings)
    buffer.close()
    check(ReplayBuffer(sum(LENGTHS), NUMBER, NUMBER, device="cpu", storage="memmap", path=tmp_path))


def flat():
    found = episodes()
    names = ("observations", "actions", "rewards", "terminations")
    arrays = {name: np.concatenate([episode[name][: len(episode["rewards"])] for episode in found]) for name in names}
    following = np.concatenate([episode["observations"][1:] for episode in found])
    return [arrays.pop(name) for name in names[:3]], arrays["terminations"], following


@pytest.mark.parametrize("by", ["ends", "trajectory_ids"])
def test_flat_arrays_are_cut_by_ends_or_by_ids(by):
    arrays, terminated, following = flat()
    ids = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
    ends = {"ends": np.append(np.diff(ids) > 0, False)} if by == "ends" else {"trajectory_ids": torch.tensor(ids * 3)}
    buffer = ReplayBuffer.from_arrays(
        *arrays, NUMBER, NUMBER, **ends, terminated=terminated, next_observations=following, device="cpu"
    )
    check(buffer)


def test_without_next_observations_the_last_of_a_truncated_episode_is_one():
    arrays, terminated, _ = flat()
    ids = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
    buffer = ReplayBuffer.from_arrays(*arrays, NUMBER, NUMBER, trajectory_ids=ids, terminated=terminated, device="cpu")
    check(buffer, lengths=(4, 1, 7, 3))
    with pytest.raises(ValueError, match="observations must have at least one step whose next observation is known"):
        ReplayBuffer.from_arrays(np.zeros((1, 1)), [[0]], [0], NUMBER, NUMBER, ends=[True])


class Dataset:
    """Dataset with the attributes of Minari's datasets."""

    observation_space = action_space = NUMBER
    total_steps = sum(LENGTHS)

    def iterate_episodes(self):
        yield from episodes(types.SimpleNamespace)


def test_a_dataset_of_minari_is_loaded(monkeypatch):
    check(ReplayBuffer.from_minari(Dataset(), device="cpu"))
    stand_in = types.SimpleNamespace(load_dataset={"pointmaze/medium-v2": Dataset()}.__getitem__)
    monkeypatch.setitem(sys.modules, "minari", stand_in)
    check(ReplayBuffer.from_minari("pointmaze/medium-v2", device="cpu"))


def test_a_real_dataset_of_minari_is_loaded(tmp_path, monkeypatch):
    minari = pytest.importorskip("minari")
    pytest.importorskip("h5py")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    from minari.data_collector import EpisodeBuffer

    collected = [
        EpisodeBuffer(
            id=number,
            observations=list(episode["observations"]),
            actions=list(episode["actions"]),
            rewards=episode["rewards"].tolist(),
            terminations=episode["terminations"].tolist(),
            truncations=episode["truncations"].tolist(),
        )
        for number, episode in enumerate(episodes())
    ]
    name = "tests/numbers-v0"
    minari.create_dataset_from_buffers(name, collected, observation_space=NUMBER, action_space=NUMBER)
    check(ReplayBuffer.from_minari(name, device="cpu"))


def test_without_minari_a_name_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(ImportError, match=r'from_minari needs minari, .* pip install "minari\[hdf5\]"'):
        ReplayBuffer.from_minari("pointmaze/medium-v2")


def test_arrays_that_do_not_belong_together_are_named():
    wrong = episodes()
    wrong[1] = {**wrong[0], "observations": wrong[0]["observations"][1:]}
    with pytest.raises(ValueError, match="one observation more than actions, got 5 observations and 5 actions"):
        ReplayBuffer.from_episodes(wrong, NUMBER, NUMBER)
    with pytest.raises(ValueError, match="Each episode must have rewards, but a dict has none"):
        ReplayBuffer.from_episodes([{k: v for k, v in episodes()[0].items() if k != "rewards"}], NUMBER, NUMBER)
    with pytest.raises(ValueError, match="episodes must have at least one step, got 0 episodes"):
        ReplayBuffer.from_episodes([], NUMBER, NUMBER)
    arrays, _, _ = flat()
    with pytest.raises(ValueError, match="Pass either ends or trajectory_ids, and not both"):
        ReplayBuffer.from_arrays(*arrays, NUMBER, NUMBER)
    with pytest.raises(ValueError, match=r"ends must have the shape \(17,\), got \(3,\)"):
        ReplayBuffer.from_arrays(*arrays, NUMBER, NUMBER, ends=[True] * 3)


@pytest.mark.parametrize("name", ["observations", "actions", "next_observations", "rewards"])
def test_a_part_of_another_length_is_named(name):
    arrays, _, following = flat()
    given = dict(zip(("observations", "actions", "rewards"), arrays)) | {"next_observations": following}
    given[name] = 1.0 if name == "rewards" else given[name][:-1]
    with pytest.raises(ValueError, match="must have the leading axis") as raised:
        ReplayBuffer.from_arrays(
            **given, observation_space=NUMBER, action_space=NUMBER, ends=np.arange(17) > 15, device="cpu"
        )
    assert name == "rewards" or str(raised.value).startswith(name)


@pytest.mark.parametrize("change", [{"rewards": np.zeros(4)}, {"terminations": []}])
def test_a_part_of_an_episode_of_another_length_is_named(change):
    with pytest.raises(ValueError, match=rf"{next(iter(change))} of episodes\[0\] must have the leading axis 5"):
        ReplayBuffer.from_episodes([episodes()[0] | change], NUMBER, NUMBER)


def test_parts_of_a_dict_of_other_lengths_are_counted():
    one = {"a": np.zeros((6, 1)), "b": np.zeros((4, 1))}
    with pytest.raises(ValueError, match="one observation more than actions, got 4 observations and 5 actions"):
        ReplayBuffer.from_episodes(
            [episodes()[0] | {"observations": one}], spaces.Dict({"a": NUMBER, "b": NUMBER}), NUMBER
        )


def test_next_observations_that_are_given_are_stored_within_an_episode_too():
    arrays, terminated, following = flat()
    buffer = ReplayBuffer.from_arrays(
        *arrays, NUMBER, NUMBER, ends=terminated, next_observations=following + 0.5, device="cpu"
    )
    np.testing.assert_array_equal(buffer.next_observations[:, 0], following + 0.5)


def test_what_a_terminal_step_leads_to_is_not_taken_from_the_next_episode():
    box = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    observations = np.array([0, 1, 2, 10, 11, 12.0])[:, None]
    ends = np.array([0, 0, 1, 0, 0, 1])
    buffer = ReplayBuffer.from_arrays(observations, observations, ends, box, box, ends=ends, terminated=ends)
    np.testing.assert_array_equal(buffer.next_observations[:, 0, 0], [1, 2, 2, 11, 12, 12])
    assert buffer.dones.sum() == 2


@pytest.mark.parametrize("of", ["episodes", "arrays"])
def test_data_are_not_loaded_twice_into_a_folder(of, tmp_path):
    box = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    data = np.arange(5.0)[:, None]
    settings = {"buffer_size": 100, "storage": "memmap", "path": tmp_path}

    def load():
        if of == "arrays":
            return ReplayBuffer.from_arrays(data, data, data[:, 0], box, box, ends=data[:, 0] > 3, **settings)
        episode = {"observations": data, "actions": data[1:], "rewards": data[1:, 0]}
        return ReplayBuffer.from_episodes([episode], box, box, **settings)

    load().close()
    with pytest.raises(ValueError, match=r"path must be an empty folder, got .*, which holds 4 rows"):
        load()
    again = ReplayBuffer(100, box, box, storage="memmap", path=tmp_path)  # and it is closed, as it was
    assert again.size() == 4
