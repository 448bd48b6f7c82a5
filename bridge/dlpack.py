"""Arrays between JAX and PyTorch. The only file in the project that speaks DLPack."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
import torch.utils.dlpack

from jaxenvs.arrays import key_data


def to_torch(tree: Any) -> Any:
    """A pytree of arrays as torch tensors, without a copy, on the device where they are.

    The tensors share the memory of the JAX arrays, and PyTorch does not know that these are immutable: writing
    into such a tensor in place changes an array that JAX takes for constant. Write into a `.clone()`. Nor may an
    array be donated (`donate_argnums`) once it has been given away.

    Typed PRNG keys come as their `jax.random.key_data`. NumPy arrays and Python numbers are copied. The tensors
    never require a gradient.

    Args:
      tree: an array, or a dict, list, tuple or other pytree of them.
    """
    return jax.tree.map(_leaf_to_torch, tree)


def to_jax(tree: Any, copy: bool = False) -> Any:
    """A pytree of torch tensors as JAX arrays, on the device where they are.

    Without a copy where the facts allow it: the tensor is dense and row-major, its dtype exists in JAX (without
    x64, 64-bit numbers are narrowed to 32 bits), and its memory is aligned as XLA wants it (64 bytes on a CPU,
    which fresh tensors are and slices of tensors may not be). Everything else is copied.

    JAX takes the array for constant. So leave the tensor alone while the array lives, or ask for `copy=True`. Weights,
    which optimisers write in place, may be shared under one rule: whoever gives such an array to a program waits for
    all that it returns before anybody else's code may run, also where programs run in another thread
    (JAX_CPU_ENABLE_ASYNC_DISPATCH), and neither keeps the array nor returns it from a program.

    Tensors that require a gradient are detached. Anything but a tensor goes through `jnp.array`.

    Args:
      tree: a tensor, or a dict, list, tuple or other pytree of them.
      copy: whether all is copied, whatever the facts.
    """
    return jax.tree.map(lambda leaf: _leaf_to_jax(leaf, copy), tree)


def _leaf_to_torch(leaf: Any) -> torch.Tensor:
    if not isinstance(leaf, jax.Array):
        return torch.tensor(np.asarray(leaf))
    return torch.utils.dlpack.from_dlpack(key_data(leaf))


_NARROWED = {torch.int64: torch.int32, torch.float64: torch.float32, torch.complex128: torch.complex64}


def _leaf_to_jax(leaf: Any, copy: bool) -> jax.Array:
    if not isinstance(leaf, torch.Tensor):
        return jnp.array(leaf)
    tensor = leaf.detach().contiguous()
    if not jax.config.jax_enable_x64:  # type: ignore[attr-defined]
        tensor = tensor.to(_NARROWED.get(tensor.dtype, tensor.dtype))
    array = jnp.from_dlpack(tensor)
    # A tensor that was narrowed or made contiguous is our own already.
    return jnp.array(array, copy=True) if copy and tensor.data_ptr() == leaf.data_ptr() else array
