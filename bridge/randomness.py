"""Random generators: the states of the host's generators, and JAX keys as data."""

from __future__ import annotations

import random
from typing import Any

import jax
import numpy as np
import torch

from jaxenvs.jax_names import config


def get_random_state() -> dict[str, object]:
    """Return the states of the global generators of PyTorch (with CUDA, if it is in use), NumPy and Python."""
    state = {"torch": torch.get_rng_state(), "numpy": np.random.get_state(), "python": random.getstate()}  # noqa: NPY002
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def set_random_state(state: dict[str, Any]) -> None:
    """Continue from the states that `get_random_state` returned."""
    torch.set_rng_state(state["torch"])
    np.random.set_state(state["numpy"])  # noqa: NPY002
    random.setstate(state["python"])
    if "cuda" in state and torch.cuda.device_count() == len(state["cuda"]):
        torch.cuda.set_rng_state_all(state["cuda"])


# The number that is folded into a model's key.
MODEL = 1


def key_data(seed: int) -> np.ndarray:
    """Return, as data, the key from which a model with this seed draws.

    It differs from `jax.random.key(seed)`, the first environment's key: otherwise a model would draw its noise from the
    keys of that environment's episodes, and where an iteration is an episode, act as the environment was drawn.
    """
    if config.jax_default_prng_impl == "threefry2x32":
        # Written out, because compiling a function for it would take longer than making a model.
        return np.array([MODEL, seed % 2**32], np.uint32)
    return np.array(jax.random.key_data(jax.random.fold_in(jax.random.key(seed % 2**32), MODEL)))
