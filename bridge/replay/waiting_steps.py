"""Steps that a store on the device does not have yet: a compiled function writes several at once.

Calling a compiled function takes longer than it takes to write a step. The next update therefore writes these steps
first; what reads the store before that has them written.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import numpy as np

from jaxenvs.compilation.default_device import beside
from jaxenvs.learn import Replay


class WaitingSteps:
    """Steps of all environments, in the order in which they were taken.

    Attributes:
      steps: the arguments of `Replay.add`, with a leading axis, of which only the first `count` steps are filled.
      count: how many steps wait.
    """

    def __init__(self, replay: Replay, most: int) -> None:
        """Allocate memory for `most` steps of the environments of a store."""

        def zeros(leaf: jax.Array) -> np.ndarray:
            return np.zeros((most, *leaf.shape[1:]), leaf.dtype)

        names = ("observation", "action", "reward", "terminated", "truncated", "next_observation")
        self.steps = tuple(jax.tree.map(zeros, getattr(replay, name)) for name in names)
        self.count = 0
        self._leaves = jax.tree.leaves(self.steps)

    @property
    def is_full(self) -> bool:
        """True if there is no memory for a further step."""
        return self.count == len(self._leaves[-1])

    def append(self, *step: object) -> None:
        """Copy a step: the arguments of `Replay.add`."""
        for leaf, value in zip(self._leaves, jax.tree.leaves(step), strict=True):
            leaf[self.count] = value
        self.count += 1

    def written_to(self, replay: Replay) -> Replay:
        """Return a store, which is donated, with these steps."""
        with beside(replay.reward):
            return _write(replay, self.steps, np.int32(self.count))


def write(replay: Replay, steps: object, count: jax.typing.ArrayLike) -> Replay:
    """Return a store with the first `count` of WaitingSteps.steps, in traced code."""

    def add(index: jax.Array, now: Replay) -> Replay:
        return now.add(*jax.tree.map(lambda leaf: leaf[index], steps))

    written: Replay = jax.lax.fori_loop(0, count, add, replay)
    return written


_write: Callable[[Replay, object, np.int32], Replay] = functools.partial(jax.jit, donate_argnums=(0,))(write)
