"""Batch renormalisation, as sb3-contrib's in training and in evaluation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from sb3_contrib.common.torch_layers import BatchRenorm1d

from jaxenvs.learn.off_policy.contrib.batch_renorm import BatchStatistics, renormalize

WIDTH, BATCH, WARMUP = 4, 16, 2
NUMBERS = (0.3, 0.001, WARMUP, 3.0, 5.0)


def make_layer(width=WIDTH):
    torch.manual_seed(0)
    layer = BatchRenorm1d(width, momentum=0.3, warmup_steps=WARMUP)
    with torch.no_grad():
        layer.scale.normal_()
        layer.bias.normal_()
    return layer


def of(layer):
    names = ("ra_mean", "ra_var", "scale", "bias")
    return [jnp.asarray(getattr(layer, name).detach().numpy().copy()) for name in names]


@pytest.mark.thorough
def test_batches_of_a_training_give_sb3_contribs_results_gradients_and_running_statistics():
    layer, rng = make_layer(), np.random.default_rng(0)
    weights = jnp.linspace(1, 2, BATCH)
    for step in range(2 * WARMUP + 2):
        # Further and further from where it began, and wider, so that bounds are reached.
        x = rng.normal(step**2, 1 + step**2, (BATCH, WIDTH)).astype(np.float32)
        arguments = of(layer)

        def loss(x, scale, bias, statistics=tuple(arguments[:2]), step=step):
            batches = BatchStatistics(jnp.array([step]))
            result = batches.renormalize(x, *statistics, scale, bias, *NUMBERS)
            return (weights @ result**2).sum(), (result, batches.new)

        (_, (got, new)), gradients = jax.value_and_grad(loss, (0, 1, 2), has_aux=True)(x, *arguments[2:])
        tensor = torch.tensor(x, requires_grad=True)
        layer.zero_grad()
        expected = layer(tensor)
        (torch.linspace(1, 2, BATCH) @ expected**2).sum().backward()
        np.testing.assert_allclose(got, expected.detach(), rtol=1e-4, atol=1e-4)
        for ours, theirs in zip(gradients, (tensor.grad, layer.scale.grad, layer.bias.grad)):
            np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-3 * float(theirs.abs().max()))
        np.testing.assert_allclose(new, torch.cat([layer.ra_mean, layer.ra_var]), rtol=1e-5, atol=1e-5)
    assert layer.steps == 2 * WARMUP + 2


def test_in_evaluation_running_statistics_normalise():
    layer, x = make_layer(), np.random.default_rng(1).normal(size=(BATCH, WIDTH)).astype(np.float32)
    layer(torch.tensor(3 * x + 1))
    np.testing.assert_allclose(
        renormalize(x, *of(layer), *NUMBERS), layer.eval()(torch.tensor(x)).detach(), rtol=1e-5, atol=1e-5
    )


@pytest.mark.thorough(but=["warm"])
@pytest.mark.parametrize("step", [0, 10], ids=["warming up", "warm"])
def test_a_feature_that_never_varies_leaves_gradients_finite(step):
    x = jnp.concatenate([jnp.zeros((BATCH, 1)), jnp.arange(float(BATCH))[:, None]], axis=1)

    def loss(x):
        batches = BatchStatistics(jnp.array([step]))
        statistics = (jnp.full(2, 0.5), jnp.ones(2), jnp.ones(2), jnp.zeros(2))
        return (batches.renormalize(x, *statistics, *NUMBERS) ** 3).sum()

    assert np.isfinite(jax.grad(loss)(x)).all()
    layer, tensor = make_layer(2), torch.tensor(np.asarray(x), requires_grad=True)
    layer.steps.fill_(step)
    (layer(tensor) ** 3).sum().backward()
    assert tensor.grad.isfinite().all() == (step == 0)  # as docs/stable-baselines3.md says
