"""NativeVectorEnv: the protocol of vectorised environments in C, C++ or Rust, and the memory that they write into."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import gymnasium
import numpy as np

from bridge.host_env.batches import new_batch, references_are_counted
from bridge.observations import map_parts

# What XLA wants of memory that it is to use without a copy.
ALIGNMENT = 64

# So many steps' memory is kept for further ones. Who holds more steps than that has them for good.
MOST_BUFFERS = 8


@dataclass(frozen=True, eq=False)
class Buffers:
    """The memory of one step. Every array has the leading axis `num_envs`, is row-major and aligned to 64 bytes.

    An observation is an array in the shape and dtype of the space, or a dict or tuple of such arrays, as the space is.
    The same few Buffers come again and again: what is worked out for them, such as addresses, may be kept in a
    `weakref.WeakKeyDictionary`.

    Attributes:
      observation: the present ones: where an episode ended, the first of the next.
      reward: float32.
      terminated, truncated: bool. They may both be True.
      final_observation: where an episode ended, the last of it. Elsewhere it is not read.
    """

    observation: Any
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    final_observation: Any


@runtime_checkable
class NativeVectorEnv(Protocol):
    """A vectorised environment that writes into memory it is given. There is nothing to inherit.

    It may also have `send(actions, buffers)`, which starts a step and returns at once, and `recv()`, which waits for
    it: then these are used in place of `step_into`. Actions and buffers live until `recv` returns.

    Attributes:
      observation_space, action_space: of one lane.
      num_envs: how many lanes.
    """

    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    num_envs: int

    def reset_into(self, buffers: Buffers, seeds: np.ndarray | None) -> None:
        """Start an episode in every lane: write `observation`.

        Args:
          seeds: uint64 (num_envs,), for the first episodes of these seeds; None for the next ones.
        """

    def step_into(self, actions: np.ndarray, buffers: Buffers) -> None:
        """Step every lane, and begin the next episode where one ends: write all of `buffers`.

        Other buffers than those of the step before: what a lane is in must be kept elsewhere.

        Args:
          actions: (num_envs, *shape of an action), row-major, in the dtype of the space, members of it.
        """


class BufferPool:
    """Buffers that are written again only when nobody holds any array of them any more, or a view of one.

    Stable-Baselines3 keeps an observation until after the next step, wrappers and callbacks longer: with a pool, nobody
    has to copy, whoever they are. Two or three are in use as a rule.
    """

    def __init__(self, num_envs: int, observation_space: gymnasium.Space[Any]) -> None:
        """
        Raises:
          TypeError: observations of this space are no arrays of numbers.
        """
        self._num_envs, self._space = num_envs, observation_space
        self._pool = [_Block(num_envs, observation_space)]

    def take(self) -> Buffers:
        """Buffers that nobody holds. Hand out `view`s of their arrays, not the arrays."""
        for at, block in enumerate(self._pool):
            if block.is_free():
                # To the end, so that the one that has been free for longest is asked first.
                self._pool.append(self._pool.pop(at))
                return block.buffers
        if len(self._pool) == MOST_BUFFERS:
            del self._pool[0]
        self._pool.append(_Block(self._num_envs, self._space))
        return self._pool[-1].buffers


class _Block:
    """Buffers in one piece of memory, so that one count tells whether anybody holds a part of it."""

    def __init__(self, num_envs: int, space: gymnasium.Space[Any]) -> None:
        self.buffers = _allocate(num_envs, space)
        self._memory = self.buffers.reward.base  # that of every view, as NumPy keeps no chains of them
        self._alone = self._holders()

    def is_free(self) -> bool:
        return self._holders() == self._alone and references_are_counted()

    def _holders(self) -> int:
        return sys.getrefcount(self._memory)


def _allocate(num_envs: int, space: gymnasium.Space[Any]) -> Buffers:
    _, size = _lay_out(num_envs, space, None)
    memory = np.zeros(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    buffers, _ = _lay_out(num_envs, space, memory[start:])
    return buffers


def _lay_out(num_envs: int, space: gymnasium.Space[Any], memory: np.ndarray | None) -> tuple[Buffers, int]:
    """Buffers one array after the other in `memory`, and how many bytes they take."""
    end = 0

    def place(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        nonlocal end
        array: np.ndarray = np.ndarray((num_envs, *shape), dtype, memory, end)
        end += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
        return array

    buffers = Buffers(
        new_batch(space, place), place((), np.float32), place((), bool), place((), bool), new_batch(space, place)
    )
    return buffers, end


def views(batch: Any) -> Any:
    """A batch of views, which hold the memory as long as somebody holds them."""
    return map_parts(lambda part: part[:], batch)
