"""Modules of PyTorch in JAX: the same numbers and gradients, alone and in compositions."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

from bridge.translate.policies.on_policy import export_policy
from bridge.translate.pytorch.modules import export_module, read_parameters
from tests.bridge.translate.policies.networks import make


class Absolute(nn.Module):
    def forward(self, x):
        return x.abs()


ACTIVATIONS = [
    *(nn.ReLU(), nn.ReLU6(), nn.LeakyReLU(0.2), nn.PReLU(), nn.ELU(0.7), nn.CELU(0.7), nn.SELU(), nn.SiLU(), nn.Mish()),
    *(nn.GELU(), nn.GELU("tanh"), nn.Tanh(), nn.Hardtanh(-1, 2), nn.Tanhshrink(), nn.Sigmoid(), nn.LogSigmoid()),
    *(nn.Hardsigmoid(), nn.Softplus(), nn.Softplus(2.0, 3.0), nn.Softsign(), nn.Softmax(1), nn.LogSoftmax(-1)),
    *(nn.Identity(), nn.Dropout(0.5), Absolute()),
]


@pytest.mark.parametrize("module", ACTIVATIONS, ids=str)
def test_activations_equal_torch_at_corners_too(module, x64):
    network = nn.Sequential(module).double().eval()
    params = {name: parameter.detach().numpy() for name, parameter in network.named_parameters()}
    points = np.array([[-30.0, -3, -2, -1, -0.5, 0, 0.5, 1, 2, 3, 6, 30]])
    x = torch.tensor(points, requires_grad=True)
    expected = network(x)
    (expected * torch.arange(12)).sum().backward()
    exported = export_module(network, x)
    got, pull_back = jax.vjp(lambda x: exported(params, x), points)
    np.testing.assert_allclose(got, expected.detach().numpy(), rtol=1e-12, atol=1e-12)
    (gradient,) = pull_back(jnp.broadcast_to(jnp.arange(12.0), got.shape))
    # PyTorch itself differentiates these two with constants in float32.
    tolerance = 1e-7 if isinstance(module, nn.CELU | nn.Hardsigmoid) else 1e-12
    np.testing.assert_allclose(gradient, x.grad.numpy(), rtol=tolerance, atol=tolerance)


class Partly(nn.Module):
    """Part of its gradient is held back."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x):
        y = self.linear(x)
        with torch.no_grad():
            weight = torch.sigmoid(self.linear(x))
        return y * weight + y.detach()


def test_gradients_end_where_those_of_torch_do():
    module, x = Partly(), torch.linspace(-1, 1, 12).reshape(2, 6)
    exported = export_module(module, x)
    module(x).sum().backward()
    gradient = jax.grad(lambda vector: exported(vector, x.numpy()).sum())(read_parameters(module.parameters()))
    expected = read_parameters(parameter.grad for parameter in module.parameters())
    np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-6)


class Held(nn.Module):
    """Holds its parts in lists and as bound methods too."""

    def __init__(self):
        super().__init__()
        self.linear, self.weights = nn.Linear(6, 6), nn.ParameterList([torch.ones(6)])
        self.listed, self.method = [self.linear], self.helper

    def helper(self, x):
        return self.linear(x) * self.weights[0]

    def forward(self, x):
        return self.listed[0](x) + self.method(x)


def test_parts_may_be_held_elsewhere_too():
    module, x = Held(), torch.linspace(-1, 1, 12).reshape(2, 6)
    got = export_module(module, x)(read_parameters(module.parameters()), x.numpy())
    np.testing.assert_allclose(got, module(x).detach(), rtol=1e-5, atol=1e-6)


# --- Threads ------------------------------------------------------------------------------------------------------


def test_threads_export_one_policy_while_another_thread_runs_it():
    policy, errors, exported = make(), [], []
    before = nn.Module.__call__, nn.Module.__getattr__
    observation = np.zeros(6, np.float32)
    expected = policy.predict(observation, deterministic=True)[0]
    begin, done = threading.Barrier(5), threading.Event()

    def attempt(function):
        begin.wait()
        try:
            function()
        except Exception as error:
            errors.append(error)

    def predict():
        while not done.is_set():
            np.testing.assert_array_equal(policy.predict(observation, deterministic=True)[0], expected)

    def export():
        exported.extend(export_policy(policy) for _ in range(3))

    predicting = threading.Thread(target=attempt, args=(predict,))
    exporting = [threading.Thread(target=attempt, args=(export,)) for _ in range(4)]
    for thread in (predicting, *exporting):
        thread.start()
    for thread in exporting:
        thread.join()
    done.set()
    predicting.join()
    assert not errors
    assert exported == [export_policy(policy)] * 12
    assert (nn.Module.__call__, nn.Module.__getattr__) == before


# --- Parameters ---------------------------------------------------------------------------------------------------


def test_what_was_read_has_its_own_memory():
    policy = make()
    vector = read_parameters(policy.parameters())
    kept = vector.copy()
    with torch.no_grad():
        policy.log_std.add_(1)
    np.testing.assert_array_equal(vector, kept)
