"""The state of a recurrent policy: as sb3-contrib's RecurrentPPO keeps it, and as compiled functions take it."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import torch

# Hidden and cell states of the actor ("pi") and of the critic ("vf"), each (num_envs, layers, size).
Memory = dict[str, Any]


def read_memory(algorithm: object) -> Memory | None:
    """Return a copy of a model's recurrent state; None for a model without one."""
    states = getattr(algorithm, "_last_lstm_states", None)
    return None if states is None else of_states(states)


def of_states(states: object) -> Memory:
    """Return sb3-contrib's RNNStates as compiled functions take them."""
    return {name: tuple(_swapped(part) for part in getattr(states, name)) for name in ("pi", "vf")}


def _swapped(part: torch.Tensor) -> np.ndarray:
    array: np.ndarray = part.detach().cpu().numpy()
    return np.array(array.swapaxes(0, 1), order="C")


def keep_memory(algorithm: Any, memory: Memory) -> None:
    """Let a model continue from a recurrent state."""
    algorithm._last_lstm_states = to_states(algorithm, memory)


def to_states(algorithm: Any, memory: Memory) -> Any:
    """Return a recurrent state as RNNStates, of the model's class and on its device."""

    def tensor(part: jax.typing.ArrayLike) -> torch.Tensor:
        return torch.as_tensor(np.array(np.asarray(part).swapaxes(0, 1), order="C"), device=algorithm.device)

    return type(algorithm._last_lstm_states)(*(tuple(map(tensor, memory[name])) for name in ("pi", "vf")))
