"""to_torch and to_jax: values, dtypes, aliases and copies."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from bridge import to_jax, to_torch

DTYPES = ["bool", "uint8", "int8", "int16", "int32", "float16", "float32"]


@pytest.mark.thorough
@settings(max_examples=60, deadline=None)
@given(
    array=st.sampled_from(DTYPES).flatmap(
        lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
    )
)
def test_a_round_trip_keeps_values_shapes_and_dtypes(array):
    tensor = to_torch(jnp.asarray(array))
    assert tuple(tensor.shape) == array.shape
    np.testing.assert_array_equal(tensor.numpy(), array)
    back = to_jax(tensor)
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)


def test_bfloat16_crosses_both_ways():
    array = jnp.arange(6, dtype=jnp.bfloat16)
    tensor = to_torch(array)
    assert tensor.dtype == torch.bfloat16
    chex.assert_trees_all_equal(to_jax(tensor), array)


def test_trees_keys_and_host_values():
    key = jax.random.key(3)
    tree = {"key": key, "list": [jnp.ones(2), np.arange(3)], "number": 2.5}
    out = to_torch(tree)
    np.testing.assert_array_equal(out["key"].numpy(), jax.random.key_data(key))
    assert out["list"][1].tolist() == [0, 1, 2]
    assert out["number"].item() == 2.5
    chex.assert_trees_all_equal(to_jax({"a": torch.ones(2), "b": (1, np.zeros(2))})["b"][1], jnp.zeros(2))


def test_to_torch_shares_memory():
    array = jax.block_until_ready(jnp.arange(1000.0))
    assert to_torch(array).data_ptr() == array.unsafe_buffer_pointer()


def test_to_jax_shares_aligned_memory_and_copies_when_asked():
    tensor = torch.arange(1000.0)
    assert tensor.data_ptr() % 64 == 0
    assert to_jax(tensor).unsafe_buffer_pointer() == tensor.data_ptr()
    copy = to_jax(tensor, copy=True)
    tensor.add_(1)
    np.testing.assert_array_equal(copy, np.arange(1000.0))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12.0).reshape(3, 4).T,
        torch.arange(12.0)[::2],
        torch.arange(12.0)[1:],  # dense, but not aligned
        torch.arange(12.0).requires_grad_(),
        torch.arange(3).expand(4, 3),
    ],
    ids=["transposed", "strided", "misaligned", "requires grad", "expanded"],
)
def test_what_dlpack_refuses_is_copied(tensor):
    np.testing.assert_array_equal(to_jax(tensor), tensor.detach().numpy())
    np.testing.assert_array_equal(to_jax(tensor, copy=True), tensor.detach().numpy())


def test_64_bit_numbers_are_narrowed_without_x64_and_kept_with_it():
    assert to_jax(torch.tensor([1, 2])).dtype == jnp.int32
    assert to_jax(torch.tensor([1.0], dtype=torch.float64)).dtype == jnp.float32
    with jax.enable_x64(True):
        assert to_jax(torch.tensor([1, 2])).dtype == jnp.int64
        assert to_jax(torch.tensor([1.0], dtype=torch.float64)).dtype == jnp.float64
