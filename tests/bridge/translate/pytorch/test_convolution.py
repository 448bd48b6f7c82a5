"""Convolutions in JAX beside PyTorch's, in values and in gradients."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.nn import functional

from bridge.translate.pytorch import convolution
from bridge.translate.pytorch.convolution import conv

# The shapes of x and of the weight, and the further arguments.
CASES = {
    "nature_1": ((4, 4, 84, 84), (32, 4, 8, 8), {"stride": 4}),
    "nature_2": ((4, 32, 20, 20), (64, 32, 4, 4), {"stride": 2}),
    "nature_3": ((4, 64, 9, 9), (64, 64, 3, 3), {}),
    "small_image": ((5, 1, 36, 36), (32, 1, 8, 8), {"stride": 4}),
    "colours": ((2, 3, 84, 84), (8, 3, 8, 8), {"stride": 4}),
    "pointwise": ((3, 4, 5, 6), (7, 4, 1, 1), {}),
    "leaves_pixels_out": ((3, 2, 11, 9), (4, 2, 4, 2), {"stride": 2}),
    "stride_does_not_divide_kernel": ((3, 2, 10, 11), (4, 2, 3, 3), {"stride": 2, "padding": 1}),
    "stride_beyond_kernel": ((3, 2, 10, 11), (4, 2, 1, 2), {"stride": 3}),
    "of_each_axis": ((2, 3, 9, 12), (4, 3, 2, 5), {"stride": (1, 3), "padding": (2, 1)}),
    "kernel_as_large_as_image": ((2, 3, 5, 5), (4, 3, 5, 5), {}),
    "one_position": ((2, 3, 5, 5), (4, 3, 4, 4), {"stride": 2}),
    "same": ((2, 3, 6, 7), (4, 3, 4, 3), {"padding": "same"}),
    "same_dilated": ((2, 3, 8, 7), (4, 3, 2, 3), {"padding": "same", "dilation": (3, 2)}),
    "valid": ((2, 3, 6, 7), (4, 3, 2, 3), {"padding": "valid", "stride": 2}),
    "dilated": ((2, 3, 12, 11), (4, 3, 3, 3), {"dilation": 2, "stride": 2, "padding": 1}),
    "grouped": ((2, 4, 8, 8), (6, 2, 3, 3), {"groups": 2, "padding": 1}),
    "one_axis": ((3, 4, 17), (5, 4, 4), {"stride": 2, "padding": 1}),
    "one_axis_same": ((3, 4, 17), (5, 4, 4), {"padding": "same"}),
    "one_axis_dilated": ((3, 4, 17), (5, 4, 3), {"dilation": (2,), "stride": (3,)}),
}


def both(case, dtype, has_bias=True):
    """Values and gradients, of JAX and of PyTorch."""
    shape, kernel, options = CASES[case]
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=size).astype(dtype) for size in (shape, kernel, kernel[:1])[: 2 + has_bias]]
    tensors = [torch.tensor(array, requires_grad=True) for array in arrays]
    theirs = (functional.conv1d if len(kernel) == 3 else functional.conv2d)(*tensors, **options)
    g = rng.normal(size=theirs.shape).astype(dtype)
    theirs.backward(torch.tensor(g))

    @jax.jit
    def pull(arrays, g):
        y, back = jax.vjp(lambda *arrays: conv(*arrays, **options), *arrays)
        return y, *back(g)

    return pull(arrays, g), [theirs.detach().numpy(), *(tensor.grad.numpy() for tensor in tensors)]


def assert_close(ours, theirs, tolerance):
    assert len(ours) == len(theirs)
    for our, their in zip(ours, theirs):
        np.testing.assert_allclose(our, their, rtol=0, atol=tolerance * np.abs(their).max())


@pytest.mark.thorough(but=["same_dilated"])
@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients_are_those_of_pytorch(case):
    assert_close(*both(case, np.float32), 1e-5)


@pytest.mark.thorough(but=["dilated", "one_axis"])
@pytest.mark.parametrize("case", ["nature_2", "stride_does_not_divide_kernel", "dilated", "one_axis"])
def test_in_float64_too(case, x64):
    assert_close(*both(case, np.float64), 1e-12)


def test_bias_may_be_absent():
    assert_close(*both("pointwise", np.float32, has_bias=False), 1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("chunk", [1, 200_000])
def test_any_size_of_the_chunks_gives_the_same(monkeypatch, chunk):
    monkeypatch.setattr(convolution, "CHUNK", chunk)
    assert_close(*both("nature_2", np.float32), 1e-5)


@pytest.mark.thorough
def test_can_be_mapped_over_networks():
    rng = np.random.default_rng(0)
    x, weights = rng.normal(size=(3, 2, 6, 6)), rng.normal(size=(2, 4, 2, 3, 3))
    together = jax.vmap(lambda weight: conv(jnp.asarray(x), weight))(weights)
    for one, weight in zip(together, weights):
        np.testing.assert_allclose(one, conv(jnp.asarray(x), jnp.asarray(weight)), rtol=1e-5, atol=1e-5)


def test_holds_the_patches_of_some_images_only():
    x, weight = jnp.zeros((256, 4, 84, 84), jnp.uint8), jnp.zeros((32, 4, 8, 8))
    loss = jax.grad(lambda weight, x: conv(x.astype(weight.dtype), weight, stride=4).sum())
    memory = jax.jit(loss).lower(weight, x).compile().memory_analysis().temp_size_in_bytes
    assert memory < 80e6, "the patches of all images are 105 MB"
