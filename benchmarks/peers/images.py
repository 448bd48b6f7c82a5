"""Environments whose observations are pictures that cost next to nothing, for Gymnasium. For JAX: jax_images.

Further environments: `bits` has goals, and `Market`, only for Gymnasium, holds many objects.

The actions of a kind are Discrete. With ", Box" appended to the kind, they are a Box.
"""

from __future__ import annotations

import functools
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.envs import BitFlippingEnv

PHASES, ACTIONS, LENGTH = 16, 4, 100
BOX = ", Box"


def observation_space(kind: str) -> spaces.Space[Any]:
    """Return the observation space of a kind, with or without BOX appended."""
    channels_first = spaces.Box(0, 255, (4, 84, 84), np.uint8)
    return {
        "channels_first": channels_first,
        "channels_last": spaces.Box(0, 255, (84, 84, 3), np.uint8),
        "image_and_vector": spaces.Dict({"image": channels_first, "vector": spaces.Box(-1, 1, (8,), np.float32)}),
        "vectors": spaces.Dict({name: spaces.Box(-1, 1, (4,), np.float32) for name in ("position", "velocity")}),
        "wide": spaces.Box(-1, 1, (128,), np.float32),
        "four_numbers": spaces.Box(-1, 1, (4,), np.float32),
    }[kind.removesuffix(BOX)]


def action_space(kind: str) -> spaces.Space[Any]:
    """Of a kind."""
    return spaces.Box(-1, 1, (2,), np.float32) if kind.endswith(BOX) else spaces.Discrete(ACTIONS)


def fits(action: Any, phase: Any) -> Any:
    """Return whether an action is rewarded: the one of the phase, or a positive first number in every other phase."""
    return (action[0] > 0) == (phase % 2 == 1) if action.ndim else action == phase % ACTIONS


def legal(phase: Any) -> Any:
    """Which actions MaskablePPO may take in a phase: all but one."""
    return np.arange(ACTIONS) != (phase + 1) % ACTIONS


@functools.cache
def film(kind: str) -> Any:
    """The observations of all phases, with the leading axis PHASES."""
    space = observation_space(kind)
    space.seed(0)
    shots = [space.sample() for _ in range(PHASES)]
    if isinstance(space, spaces.Dict):
        return {name: np.stack([shot[name] for shot in shots]) for name in space.spaces}
    return np.stack(shots)


class Images(gymnasium.Env[Any, Any]):
    """Environment that repeats a film from a random phase on, for LENGTH steps. The action of the phase earns 1."""

    def __init__(self, kind: str) -> None:
        """
        Args:
          kind: of observations, as for `observation_space`, and of actions.
        """
        self.film = film(kind)
        self.observation_space, self.action_space = observation_space(kind), action_space(kind)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.phase, self.count = int(self.np_random.integers(PHASES)), 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = float(fits(np.asarray(action), self.phase))
        self.phase, self.count = (self.phase + 1) % PHASES, self.count + 1
        return self._observe(), reward, self.count >= LENGTH, False, {}

    def action_masks(self) -> Any:
        return legal(self.phase)

    def _observe(self) -> Any:
        if isinstance(self.film, dict):
            return {name: shots[self.phase].copy() for name, shots in self.film.items()}
        return self.film[self.phase].copy()


def bits() -> gymnasium.Env[Any, Any]:
    """Create an environment of 15 bits, of which an action flips one."""
    return BitFlippingEnv(n_bits=15, continuous=True)


class Market(gymnasium.Env[Any, Any]):
    """Environment that holds 100,000 dicts, like one that trades on a table of prices."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = [{"open": i % 7 / 7, "close": i % 5 / 5, "tags": [i]} for i in range(100_000)]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.start = self.count = int(self.np_random.integers(len(self.rows) - LENGTH))
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        row = self.rows[self.count]
        self.count += 1
        reward = float(action) * (row["close"] - row["open"])
        return self._observe(), reward, self.count - self.start >= LENGTH, False, {}

    def _observe(self) -> Any:
        row = self.rows[self.count]
        return np.array([row["open"], row["close"]], np.float32)
