"""Conversion of arrays between JAX and PyTorch. The only file in the project that uses DLPack."""

from __future__ import annotations

import functools
import logging
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
import torch.utils.dlpack

from jaxenvs.arrays import key_data
from jaxenvs.jax_names import config

log = logging.getLogger("jaxenvs.sb3")


def to_torch(tree: object) -> Any:
    """Convert a pytree of arrays to torch tensors on the same device, without a copy.

    The tensors share the memory of the JAX arrays, and PyTorch does not know that these are immutable: writing into
    such a tensor in place changes an array that JAX takes for constant. Write into a `.clone()` instead. Do not donate
    an array (`donate_argnums`) after converting it.

    Typed PRNG keys are converted as their `jax.random.key_data`. NumPy arrays and Python numbers are copied. The
    tensors never require a gradient.

    Args:
      tree: an array, or a dict, list, tuple or other pytree of arrays.

    Returns:
      The same pytree of torch tensors.
    """
    return jax.tree.map(_leaf_to_torch, tree)


def to_jax(tree: object, copy: bool = False) -> Any:
    """Convert a pytree of torch tensors to JAX arrays on the same device, without a copy if possible.

    A tensor is not copied if it is dense and row-major, its dtype exists in JAX (without x64, 64-bit numbers are
    narrowed to 32 bits), and its memory is aligned as XLA requires (64 bytes on a CPU: new tensors are, slices of
    tensors may not be). Else it is copied.

    JAX takes the array for constant. So do not write into the tensor while the array exists, or use `copy=True`.
    Weights, which optimizers write in place, may be shared under one rule: code that passes such an array to a compiled
    function must wait for all of its results before any other code may run, also where JAX runs functions in another
    thread (JAX_CPU_ENABLE_ASYNC_DISPATCH), and must neither keep the array nor return it from a compiled function.

    Tensors that require a gradient are detached. Other leaves are converted with `jnp.array`.

    Args:
      tree: a tensor, or a dict, list, tuple or other pytree of tensors.
      copy: whether to copy always.

    Returns:
      The same pytree of JAX arrays.
    """
    return jax.tree.map(lambda leaf: _leaf_to_jax(leaf, copy), tree)


def tensor_to_host(tensor: torch.Tensor) -> np.ndarray:
    """Return a tensor as a NumPy array. The log says once if it is on a GPU that JAX does not use."""
    if tensor.device.type != "cpu" and jax.default_backend() == "cpu":
        _log_copies(tensor.device.type)
    array: np.ndarray = tensor.detach().cpu().numpy()
    return array


@functools.cache
def _log_copies(device: str) -> None:
    log.warning(
        "JAX runs on the CPU, so step_torch copies tensors from %s in each step, and its results back. To avoid this, "
        'install JAX with CUDA: pip install "jax[cuda13]".',
        device,
    )


def _leaf_to_torch(leaf: object) -> torch.Tensor:
    if not isinstance(leaf, jax.Array):
        return torch.tensor(np.asarray(leaf))
    return torch.utils.dlpack.from_dlpack(key_data(leaf))


_NARROWED = {torch.int64: torch.int32, torch.float64: torch.float32, torch.complex128: torch.complex64}


def _leaf_to_jax(leaf: object, copy: bool) -> jax.Array:
    if not isinstance(leaf, torch.Tensor):
        return jnp.array(leaf)
    tensor = leaf.detach().contiguous()
    if not config.jax_enable_x64:
        tensor = tensor.to(_NARROWED.get(tensor.dtype, tensor.dtype))
    array = jnp.from_dlpack(tensor)
    # A tensor that was narrowed or made contiguous is a copy already.
    return jnp.array(array, copy=True) if copy and tensor.data_ptr() == leaf.data_ptr() else array
