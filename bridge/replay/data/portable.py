"""Files of replay buffers that Stable-Baselines3 reads where it is alone, and of which ours come back as they were.

Such a file is a pickle of SB3's class. It holds observations once, as the ring does: what slots led to is written as
`numpy.roll` of them, with the exceptions put in, so only reading it with SB3 takes SB3's memory. What else the ring
knows is in one more attribute, which SB3 leaves alone.
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

# Ours, and which of SB3's reads the file.
KINDS: dict[type[Any], type[Any]] = {
    replay_buffer.ReplayBuffer: buffers.ReplayBuffer,
    replay_buffer.DictReplayBuffer: buffers.DictReplayBuffer,
    replay_buffer.NStepReplayBuffer: getattr(buffers, "NStepReplayBuffer", buffers.ReplayBuffer),
    HerReplayBuffer: SB3sHerReplayBuffer,
}
# The attribute with what SB3 does not know, the first of all, so that a look at the first bytes finds it.
MARK, FIRST_BYTES = "_bridge_ring", 1024
# What a ring has besides SB3's arrays, and an index of episodes.
RING = ("tag", "last_observation", "end_observation", "end_slot", "position", "size", "num_ended", "not_done",
        "has_old_ages")  # fmt: skip
EPISODES = ("extent", "begin", "first", "count")
# What ours have besides SB3's.
OWN = ("_ring", "_lent", "_counted", "_is_lost", "_episodes", "_storage", "_path", "env")


def save(buffer: Any, path: Any, verbose: int = 0) -> None:
    """Save a replay buffer as SB3's `save_replay_buffer` does, for SB3 to read it if it is of one of SB3's kinds.

    Args:
      path: a path, or a file that is open.
    """
    save_to_pkl(path, as_sb3s(buffer) if is_portable(buffer) else buffer, verbose)


def is_portable(buffer: Any) -> bool:
    """Whether SB3 has a class for what a buffer holds."""
    if type(buffer) not in KINDS or (
        type(buffer) is replay_buffer.NStepReplayBuffer and isinstance(buffer.obs_shape, dict)
    ):
        return False
    ring = buffer.take_ring()
    # SB3's rows begin with the first one until the last one is written.
    return type(ring.storage) is InMemory and (ring.size == ring.capacity or ring.position == ring.size)


def as_sb3s(buffer: RingReplayBuffer) -> Any:
    """Return a buffer of SB3's class to be pickled, and nothing else: it shares the arrays of ours."""
    ring, theirs = buffer.take_ring(), object.__new__(KINDS[type(buffer)])
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
        state |= {"_current_ep_start": buffer._current_ep_start.astype(np.int64), "env": None}
    vars(theirs).update(state)
    return theirs


def load(path: Any, verbose: int = 0) -> RingReplayBuffer | None:
    """Load a buffer that `save` has written for SB3, exactly as it was.

    Args:
      path: a path, or a file that is open.

    Returns:
      None for any other file, as of one that SB3 has saved since; an open file is where it was.
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
    """In a pickle, what slots led to: the observations of the next row, but for some."""

    def __init__(self, column: np.ndarray, where: Any, values: np.ndarray) -> None:
        self._column, self._where, self._values = column, where, values

    def __reduce__(self) -> Any:
        # The last part lets the unpickler set items of what the function gave.
        return np.roll, (self._column, -1, 0), None, None, iter([(self._where, self._values)])


class _Skipped:
    """In the place of what slots led to, which the ring knows."""

    def __init__(self, *args: Any) -> None: ...

    def __setitem__(self, where: Any, values: Any) -> None: ...


class _Unpickler(pickle.Unpickler):
    """Makes no array of what slots led to."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a class or function by its names."""
        return _Skipped if (module, name) == ("numpy", "roll") else super().find_class(module, name)
