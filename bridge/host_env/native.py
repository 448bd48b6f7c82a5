"""NativeVectorEnv: the protocol of vectorized environments in C, C++ or Rust, and the memory that they write into."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from bridge.host_env.batches import new_batch, references_are_counted
from bridge.observations import map_parts
from bridge.sb3 import Space

# The alignment that XLA requires of memory to use it without a copy.
ALIGNMENT = 64

# The memory of at most this many steps is reused. If the caller holds more, the oldest leaves the pool for good.
MOST_BUFFERS = 8


@dataclass(frozen=True, eq=False)
class Buffers:
    """The memory of one step. Every array has the leading axis `num_envs`, is row-major and aligned to 64 bytes.

    An observation is an array in the shape and dtype of the space, or a dict or tuple of such arrays, as the space is.
    The same few Buffers are reused: what is computed for them, such as addresses, may be cached in a
    `weakref.WeakKeyDictionary`.

    Attributes:
      observation: the current observations: where an episode ended, the first one of the next episode.
      reward: float32.
      terminated, truncated: bool. They may both be True.
      final_observation: where an episode ended, its last observation. Elsewhere it is not read.
    """

    observation: Any
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    final_observation: Any


@runtime_checkable
class NativeVectorEnv(Protocol):
    """Protocol of a vectorized environment that writes into memory it is given. There is nothing to inherit.

    An environment may also have `send(actions, buffers)`, which starts a step and returns immediately, and `recv()`,
    which waits for it: then these are used instead of `step_into`. Actions and buffers live until `recv` returns.

    Attributes:
      observation_space, action_space: the spaces of one environment.
      num_envs: the number of environments.
    """

    observation_space: Space
    action_space: Space
    num_envs: int

    def reset_into(self, buffers: Buffers, seeds: np.ndarray | None) -> None:
        """Start an episode in every environment: write `observation`.

        Args:
          buffers: the memory to write into.
          seeds: uint64 (num_envs,), for the first episodes of these seeds; None for the next episodes.
        """

    def step_into(self, actions: np.ndarray, buffers: Buffers) -> None:
        """Step every environment, and begin the next episode where one ends: write all of `buffers`.

        Each step gets other buffers than the previous step: store the state of the environments elsewhere.

        Args:
          actions: (num_envs, *shape of an action), row-major, in the dtype of the space, members of it.
          buffers: the memory to write into.
        """


class BufferPool:
    """Pool of Buffers that are reused only when no reference to any of their arrays, or to a view of one, is left.

    Stable-Baselines3 keeps an observation until after the next step, wrappers and callbacks longer: with a pool, none
    of them has to copy it. Usually two or three Buffers are in use.
    """

    def __init__(self, num_envs: int, observation_space: Space) -> None:
        self._num_envs, self._space = num_envs, observation_space
        self._pool = [_Memory(num_envs, observation_space)]

    def take(self) -> Buffers:
        """Return Buffers to which no reference is left. Give callers `views` of their arrays, not the arrays."""
        for at, memory in enumerate(self._pool):
            if memory.is_free():
                # Moved to the end, so that the one that has been free for longest is checked first.
                self._pool.append(self._pool.pop(at))
                return memory.buffers
        if len(self._pool) == MOST_BUFFERS:
            del self._pool[0]
        self._pool.append(_Memory(self._num_envs, self._space))
        return self._pool[-1].buffers


class _Memory:
    """Buffers in one piece of memory, so that one reference count shows whether any part of it is in use."""

    def __init__(self, num_envs: int, space: Space) -> None:
        self.buffers = _allocate(num_envs, space)
        self._memory = self.buffers.reward.base  # the base of every view, as NumPy keeps no views of views
        self._alone = self._holders()

    def is_free(self) -> bool:
        return self._holders() == self._alone and references_are_counted()

    def _holders(self) -> int:
        return sys.getrefcount(self._memory)


def _allocate(num_envs: int, space: Space) -> Buffers:
    _, size = _lay_out(num_envs, space, None)
    memory = np.zeros(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    buffers, _ = _lay_out(num_envs, space, memory[start:])
    return buffers


def _lay_out(num_envs: int, space: Space, memory: np.ndarray | None) -> tuple[Buffers, int]:
    """Return Buffers whose arrays lie one after the other in `memory`, and the bytes that they take."""
    end = 0

    def place(shape: tuple[int, ...], dtype: npt.DTypeLike) -> np.ndarray:
        nonlocal end
        array: np.ndarray = np.ndarray((num_envs, *shape), dtype, memory, end)
        end += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
        return array

    buffers = Buffers(
        new_batch(space, place), place((), np.float32), place((), bool), place((), bool), new_batch(space, place)
    )
    return buffers, end


def views(batch: object) -> Any:
    """Return a batch of views, which keep the memory in use as long as they exist."""
    return map_parts(lambda part: part[:], batch)
