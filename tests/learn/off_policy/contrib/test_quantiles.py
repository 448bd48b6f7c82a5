"""The quantile Huber loss, as sb3-contrib's."""

import jax
import numpy as np
import pytest
import torch
from sb3_contrib.common.utils import quantile_huber_loss as stock

from jaxenvs.learn.off_policy.contrib.quantiles import MOST_KEPT, quantile_huber_loss, without_largest


@pytest.mark.thorough
@pytest.mark.parametrize("shape", [(), (3,)], ids=["of one network", "of several"])
def test_values_and_gradients_are_sb3_contribs(shape):
    rng = np.random.default_rng(0)
    # Errors on both sides of 0 and of the corners.
    quantiles = rng.normal(scale=2, size=(6, *shape, 5)).astype(np.float32)
    target = rng.normal(scale=2, size=(6, 7)).astype(np.float32)
    tensor = torch.tensor(quantiles, requires_grad=True)
    theirs = stock(tensor, torch.tensor(target[:, None] if shape else target), sum_over_quantiles=False)
    theirs.backward()

    ours, gradient = jax.value_and_grad(lambda each: quantile_huber_loss(each, target.T).mean())(
        np.moveaxis(quantiles, 0, -1)
    )
    gradient = np.moveaxis(gradient, -1, 0)
    np.testing.assert_allclose(ours, theirs.item(), rtol=1e-6)
    np.testing.assert_allclose(gradient, tensor.grad, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("num", [0, 1, 4, MOST_KEPT + 1])
def test_the_largest_are_left_out(num):
    values = np.random.default_rng(0).integers(10, size=(30, 6)).astype(np.float32)  # of which many are equal
    left = without_largest(values, num)
    np.testing.assert_array_equal(np.sort(left, axis=0), np.sort(values, axis=0)[: 30 - num])


@pytest.mark.thorough
def test_without_a_cpu_the_loss_is_the_same(monkeypatch):
    rng = np.random.default_rng(0)
    quantiles, target = rng.normal(size=(2, 5, 6)).astype(np.float32), rng.normal(size=(7, 6)).astype(np.float32)
    here = quantile_huber_loss(quantiles, target)
    monkeypatch.setattr("jaxenvs.learn.off_policy.contrib.quantiles.platform", lambda: "gpu")
    np.testing.assert_allclose(quantile_huber_loss(quantiles, target), here, rtol=1e-6)
