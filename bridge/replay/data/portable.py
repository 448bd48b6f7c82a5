"""Files of replay buffers that Stable-Baselines3 can read without bridge, and that bridge restores exactly.

Such a file is a pickle of SB3's class. It holds observations once, as the ring does: next observations are written as
`numpy.roll` of them, with the exceptions put in, so only reading it with SB3 takes SB3's memory. The rest of the ring's
content is in one more attribute, which SB3 ignores.
"""

from __future__ import annotations

import pathlib
import pickle
from typing import Any

import numpy as np
from stable_baselines3.common import buffers
from stable_baselines3.common.save_util import open_path, save_to_pkl
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer as SB3sHerReplayBuffer

from bridge.replay.data import replay_buffer
from bridge.replay.data.hindsight import HerReplayBuffer
from bridge.replay.store import edits
from bridge.replay.store.columns import leaves, map_leaves
from bridge.replay.store.replay_buffer import RingReplayBuffer
from bridge.replay.store.ring import InMemory, Ring

# bridge's classes, and the classes of SB3 that read their files.
KINDS: dict[type[Any], type[Any]] = {
    replay_buffer.ReplayBuffer: buffers.ReplayBuffer,
    replay_buffer.DictReplayBuffer: buffers.DictReplayBuffer,
    replay_buffer.NStepReplayBuffer: getattr(buffers, "NStepReplayBuffer", buffers.ReplayBuffer),
    HerReplayBuffer: SB3sHerReplayBuffer,
}
# The attribute with the content that SB3 does not have. It comes first, so that the first bytes of a file show it.
MARK, FIRST_BYTES = "_bridge_ring", 1024
# The content of a ring besides SB3's arrays, and of an index of episodes.
RING = ("tag", "last_observation", "end_observation", "end_slot", "position", "size", "num_ended", "not_done",
        "has_old_ages")  # fmt: skip
EPISODES = ("extent", "begin", "first", "count")
# The attributes of bridge's classes that SB3's do not have.
OWN = ("_ring", "_device_store", "_newest_store", "_waiting", "_counted", "_is_lost", "_episodes", "_storage",
       "_path", "env")  # fmt: skip


def save(buffer: Any, path: Any, verbose: int = 0) -> None:
    """Save a replay buffer as SB3's `save_replay_buffer` does, in a form that SB3 can read if it has a class for it."""
    save_to_pkl(path, as_sb3s(buffer) if is_portable(buffer) else buffer, verbose)


def is_portable(buffer: Any) -> bool:
    """Return whether SB3 has a class for the content of a buffer."""
    if type(buffer) not in KINDS or (
        type(buffer) is replay_buffer.NStepReplayBuffer and isinstance(buffer.obs_shape, dict)
    ):
        return False
    ring = buffer.ring_on_host()
    # In SB3, rows are filled from the first one on, until the last one is written.
    return type(ring.storage) is InMemory and (ring.size == ring.capacity or ring.position == ring.size)


def as_sb3s(buffer: RingReplayBuffer) -> Any:
    """Return a buffer of SB3's class, only for pickling: it shares the arrays of bridge's buffer."""
    ring, theirs = buffer.ring_on_host(), object.__new__(KINDS[type(buffer)])
    more = {name: getattr(ring, name) for name in RING}
    more["optimize_memory_usage"] = buffer.optimize_memory_usage
    state: dict[str, Any] = {MARK: more}
    state |= {name: value for name, value in vars(buffer).items() if name not in OWN}
    exceptions = ring.tag.reshape(-1) < 0
    exceptions[ring.newest * ring.num_envs : (ring.newest + 1) * ring.num_envs] = True
    slots = exceptions.nonzero()[0]
    where = np.divmod(slots, ring.num_envs)
    state |= {
        "optimize_memory_usage": False,
        "pos": ring.position % ring.capacity,
        "full": ring.size == ring.capacity,
        "observations": ring.observation,
        "next_observations": map_leaves(
            lambda column, values: _Following(column, where, values),
            ring.observation,
            edits.next_observations(ring, slots),
        ),
        "actions": ring.action,
        "rewards": ring.reward,
        "dones": np.array(buffer.dones),
        "timeouts": np.array(buffer.timeouts),
    }
    if isinstance(buffer, HerReplayBuffer):
        more["episodes"] = {name: getattr(buffer._episodes, name) for name in EPISODES}
        state |= {name: np.array(getattr(buffer, name), np.int64) for name in ("ep_start", "ep_length")}
        state |= {"_current_ep_start": buffer._episodes.begin.astype(np.int64), "env": None}
    vars(theirs).update(state)
    return theirs


def load(path: Any, verbose: int = 0) -> RingReplayBuffer | None:
    """Load a buffer that `save` has written for SB3, exactly as it was, from a path or an open file.

    For any other file, such as one that SB3 has saved since, return None and leave an open file at its position.
    """
    file = open_path(path, "r", verbose, suffix="pkl")
    try:
        if not file.seekable():
            return None
        start = file.tell()
        is_marked = MARK.encode() in file.read(FIRST_BYTES)
        file.seek(start)
        if not is_marked:
            return None
        theirs = _Unpickler(file).load()
        buffer = _from_saved(theirs)
        if buffer is None:
            file.seek(start)
        return buffer
    finally:
        if isinstance(path, (str, pathlib.Path)):
            file.close()


def _from_saved(theirs: Any) -> RingReplayBuffer | None:
    state = dict(vars(theirs))
    if not isinstance(leaves(state.pop("next_observations"))[0], _Skipped):
        return None
    more = state.pop(MARK)
    cls = next(ours for ours, of_sb3 in KINDS.items() if of_sb3 is type(theirs))
    columns = [state.pop(name) for name in ("observations", "actions", "rewards")]
    for name in ("pos", "full", "dones", "timeouts", "ep_start", "ep_length", "_current_ep_start"):
        state.pop(name, None)
    buffer: RingReplayBuffer = object.__new__(cls)
    vars(buffer).update(state, optimize_memory_usage=more["optimize_memory_usage"])
    buffer._ring = Ring(
        **dict(zip(("observation", "action", "reward"), columns)), **{name: more[name] for name in RING}
    )
    if isinstance(buffer, HerReplayBuffer):
        buffer._begin()
        for name in EPISODES:
            getattr(buffer._episodes, name)[...] = more["episodes"][name]
    else:
        vars(buffer).update(_storage="ram", _path=None)
    return buffer


class _Following:
    """Pickles as next observations: the observations of the next row, except for some slots."""

    def __init__(self, column: np.ndarray, where: Any, values: np.ndarray) -> None:
        self._column, self._where, self._values = column, where, values

    def __reduce__(self) -> Any:
        # The last part lets the unpickler set items of the function's result.
        return np.roll, (self._column, -1, 0), None, None, iter([(self._where, self._values)])


class _Skipped:
    """Stands for the pickled next observations, which the ring already has."""

    def __init__(self, *args: Any) -> None: ...

    def __setitem__(self, where: Any, values: Any) -> None: ...


class _Unpickler(pickle.Unpickler):
    """Unpickler that makes no array of next observations."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a class or function by its module and name."""
        return _Skipped if (module, name) == ("numpy", "roll") else super().find_class(module, name)
