"""Arguments of the replay buffer, checked before anything is changed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch


def shaped(name: str, value: Any, shape: tuple[int, ...]) -> Any:
    """An argument in a shape; axes of one may be missing or more, as SB3 has it."""
    array = value if isinstance(value, torch.Tensor) else np.asarray(value)
    if math.prod(array.shape) != math.prod(shape):
        raise ValueError(f"{name} must have the shape {shape}, got {tuple(array.shape)}.")
    return array.reshape(shape)


def require_int(name: str, value: Any, least: int) -> None:
    """Raise a ValueError that names the argument unless it is an int of `least`, 0 or 1, or more."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
        what = "a positive int" if least else "an int of 0 or more"
        raise ValueError(f"{name} must be {what}, got {value!r}.")
