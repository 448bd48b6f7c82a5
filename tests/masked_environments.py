"""Locks: an environment whose legal actions change in each step, for jaxenvs and for Gymnasium."""

from __future__ import annotations

from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxenvs import Environment, TimeStep, environment, static, struct

ACTIONS = {
    "discrete": spaces.Discrete(4),
    "multi_discrete": spaces.MultiDiscrete([2, 3]),
    "multi_binary": spaces.MultiBinary(3),
}
# Three situations in turns, of which each leaves a choice.
MASKS = {
    "discrete": [[1, 1, 0, 0], [0, 1, 1, 0], [1, 0, 1, 1]],
    "multi_discrete": [[1, 1, 0, 1, 0], [0, 1, 1, 1, 0], [1, 1, 1, 0, 1]],
    "multi_binary": [[1, 0, 1, 1, 0, 1], [1, 1, 0, 1, 1, 1], [0, 1, 1, 0, 1, 1]],
}
SEEN = spaces.Box(0, 10, (2,), np.float32)


def is_legal(kind: str, action: np.ndarray, mask: np.ndarray) -> bool:
    """Whether an action is among those of a mask."""
    sizes = {"discrete": [4], "multi_discrete": [2, 3], "multi_binary": [2] * 3}[kind]
    parts = np.split(np.asarray(mask), np.cumsum(sizes)[:-1])
    return all(part[int(each)] for part, each in zip(parts, np.ravel(action)))


@struct
class LocksState:
    count: jax.Array
    start: jax.Array


@environment
class Locks(Environment[LocksState]):
    """Counts steps; ends after `length` of them, by truncation. Each choice is a reward.

    Attributes:
      kind: of actions, a key of ACTIONS.
      tells: where the mask is: in "info" or "observation", or nowhere, "".
    """

    length: int = 5
    kind: str = static(default="discrete")
    tells: str = static(default="info")

    @property
    def observation_space(self) -> spaces.Space[Any]:
        if self.tells != "observation":
            return SEEN
        return spaces.Dict({"action_mask": spaces.Box(0, 1, (len(MASKS[self.kind][0]),), np.int8), "seen": SEEN})

    @property
    def action_space(self) -> spaces.Space[Any]:
        return ACTIONS[self.kind]

    def reset(self, key: jax.Array) -> tuple[LocksState, TimeStep]:
        state = LocksState(jnp.zeros((), jnp.int32), jax.random.randint(key, (), 0, 3))
        return state, self._show(state, 0.0, False)

    def step(self, state: LocksState, action: Any) -> tuple[LocksState, TimeStep]:
        state = LocksState(state.count + 1, state.start)
        return state, self._show(state, jnp.sum(action).astype(float), state.count >= self.length)

    def _show(self, state: LocksState, reward: Any, truncated: Any) -> TimeStep:
        mask = jnp.asarray(MASKS[self.kind], jnp.int8)[(state.start + state.count) % 3]
        seen: Any = jnp.stack([state.count, state.start]).astype(jnp.float32)
        observation = {"action_mask": mask, "seen": seen} if self.tells == "observation" else seen
        return TimeStep.create(
            observation, reward, truncated=truncated, info={"action_mask": mask} if self.tells == "info" else {}
        )


@environment
class LocksWithMethod(Locks):
    """The same with a method, which is sb3-contrib's."""

    tells: str = static(default="")

    def action_masks(self, state: LocksState) -> jax.Array:
        return jnp.asarray(MASKS[self.kind], bool)[(state.start + state.count) % 3]


@environment
class LocksOnHost(LocksWithMethod):
    """The same with a method that cannot be traced."""

    def action_masks(self, state: LocksState) -> Any:
        return np.array(MASKS[self.kind], bool)[(int(state.start) + int(state.count)) % 3]


class GymnasiumLocks(gymnasium.Env[Any, Any]):
    """The same for Gymnasium."""

    observation_space = SEEN

    def __init__(self, kind: str = "discrete", length: int = 5) -> None:
        self.kind, self.length, self.action_space = kind, length, ACTIONS[kind]

    def action_masks(self) -> np.ndarray:
        return np.array(MASKS[self.kind][(self.start + self.count) % 3], bool)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.count, self.start = 0, int(self.np_random.integers(3))
        return np.float32([0, self.start]), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert is_legal(self.kind, action, self.action_masks())
        self.count += 1
        return np.float32([self.count, self.start]), float(np.sum(action)), False, self.count >= self.length, {}
