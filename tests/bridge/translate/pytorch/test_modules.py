"""Modules of PyTorch in JAX: the same numbers and gradients, alone and in compositions."""

import functools
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from stable_baselines3.common.utils import polyak_update
from stable_baselines3.sac.policies import SACPolicy
from torch import nn

from bridge.translate.policies.on_policy import export_policy
from bridge.translate.pytorch.modules import export_module, read_parameters, require_same_gradients, write_parameters
from bridge.translate.pytorch.optimizers import export_optimizer, read_optimizer
from tests.bridge.translate.policies.networks import PAIR, VECTOR, make

ACTIVATIONS = [
    *(nn.ReLU(), nn.ReLU6(), nn.LeakyReLU(0.2), nn.PReLU(), nn.ELU(0.7), nn.CELU(0.7), nn.SELU(), nn.SiLU(), nn.Mish()),
    *(nn.GELU(), nn.GELU("tanh"), nn.Tanh(), nn.Hardtanh(-1, 2), nn.Tanhshrink(), nn.Sigmoid(), nn.LogSigmoid()),
    *(nn.Hardsigmoid(), nn.Softplus(), nn.Softplus(2.0, 3.0), nn.Softsign(), nn.Softmax(1), nn.LogSoftmax(-1)),
    *(nn.Identity(), nn.Dropout(0.5)),
]


@pytest.mark.parametrize("module", ACTIVATIONS, ids=str)
def test_activations_equal_torch_at_corners_too(module, x64):
    module.double().eval()
    params = {name: parameter.detach().numpy() for name, parameter in module.named_parameters()}
    points = np.array([[-30.0, -3, -2, -1, -0.5, 0, 0.5, 1, 2, 3, 6, 30]])
    x = torch.tensor(points, requires_grad=True)
    expected = module(x)
    (expected * torch.arange(12)).sum().backward()
    exported = export_module(module, x)
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


def test_modules_of_one_architecture_are_equal():
    one, other = (export_module(nn.Sequential(nn.Linear(6, 2), nn.Tanh()), torch.zeros(1, 6)) for _ in range(2))
    assert one == other
    assert hash(one) == hash(other)
    assert one != export_module(nn.Sequential(nn.Linear(6, 2), nn.ReLU()), torch.zeros(1, 6))


def test_takes_several_inputs_and_dicts():
    class Sum(nn.Module):
        def forward(self, x, parts):
            return x + parts["a"] - parts["b"], parts["b"]

    exported = export_module(Sum(), torch.zeros(1, 2), {"a": torch.zeros(1, 2), "b": torch.zeros(1, 2)})
    first, second = exported({}, np.ones((3, 2)), {"a": np.full((3, 2), 5.0), "b": np.full((3, 2), 2.0)})
    np.testing.assert_array_equal(first, np.full((3, 2), 4))
    np.testing.assert_array_equal(second, np.full((3, 2), 2))


class Held(nn.Module):
    """Holds its parts in lists, as bound methods and in closures too."""

    def __init__(self):
        super().__init__()
        self.linear, self.other, self.weights = nn.Linear(6, 6), nn.Linear(6, 6), nn.ParameterList([torch.ones(6)])
        self.listed, self.method, self.closure = [self.linear], self.helper, lambda x: self.other(x)

    def helper(self, x):
        return self.linear(x) * self.weights[0]

    def forward(self, x):
        return self.listed[0](x) + self.method(x) + self.closure(x)


def test_parts_may_be_held_elsewhere_too():
    module, x = Held(), torch.linspace(-1, 1, 12).reshape(2, 6)
    got = export_module(module, x)(read_parameters(module.parameters()), x.numpy())
    np.testing.assert_allclose(got, module(x).detach(), rtol=1e-5, atol=1e-6)


# --- The networks of SAC ------------------------------------------------------------------------------------------


class Critics(nn.Module):
    """Those of a ContinuousCritic on encoded observations."""

    def __init__(self, critic):
        super().__init__()
        self.features_extractor, self.q_networks = critic.features_extractor, nn.ModuleList(critic.q_networks)

    def forward(self, observation, action):
        x = torch.cat([self.features_extractor(observation), action], dim=1)
        return tuple(q_network(x) for q_network in self.q_networks)


LEARNING_RATE, TAU, STEPS = 1e-2, 0.1, 5


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def sac_steps(network, optimizer, ent_optimizer, settings, start, batch):
    """Steps of two critics, of their targets after them, and of the entropy coefficient."""

    def descend(optimizer, settings, params, state, gradient):
        update, state = optimizer.transformation(settings).update(gradient, state, params)
        return params - LEARNING_RATE * update, state

    def loss(params, target, batch):
        observation, action, reward = batch
        expected = reward + 0.9 * jnp.minimum(*network(target, observation, action))
        return sum(((q - expected) ** 2).mean() for q in network(params, observation, action))

    def step(carry, batch):
        params, target, state, log_ent_coef, ent_state = carry
        gradient = jax.grad(loss)(params, target, batch)
        params, state = descend(optimizer, settings["critic"], params, state, gradient)
        gradient = jax.grad(lambda log_ent_coef: -(log_ent_coef * batch[2]).mean())(log_ent_coef)
        log_ent_coef, ent_state = descend(ent_optimizer, settings["ent_coef"], log_ent_coef, ent_state, gradient)
        return (params, (1 - TAU) * target + TAU * params, state, log_ent_coef, ent_state), None

    return jax.lax.scan(step, start, batch)[0]


def test_critics_their_targets_and_the_entropy_coefficient_learn_as_in_torch():
    torch.manual_seed(0)
    policy = SACPolicy(VECTOR, PAIR, lambda _: LEARNING_RATE, net_arch=[8], n_critics=2)
    critic, target = policy.critic, policy.critic_target
    log_ent_coef = torch.log(torch.ones(1) * 0.5).requires_grad_(True)
    ent_coef_optimizer = torch.optim.Adam([log_ent_coef], lr=LEARNING_RATE)
    rng = np.random.default_rng(0)
    batches = [rng.normal(size=(STEPS, 4, size)).astype("float32") for size in (6, 2, 1)]

    network = export_module(Critics(critic), torch.zeros(1, 6), torch.zeros(1, 2))
    assert network == export_module(Critics(target), torch.zeros(1, 6), torch.zeros(1, 2))
    require_same_gradients(Critics(critic), network, critic.optimizer)
    optimizers = {"critic": critic.optimizer, "ent_coef": ent_coef_optimizer}
    exported = {name: export_optimizer(optimizer) for name, optimizer in optimizers.items()}
    start = (
        *(read_parameters(each.parameters()) for each in (critic, target)),
        *(read_optimizer(critic.optimizer), read_parameters([log_ent_coef]), read_optimizer(ent_coef_optimizer)),
    )
    settings = {name: exported[name].settings(optimizer) for name, optimizer in optimizers.items()}
    got = sac_steps(network, *exported.values(), settings, start, batches)

    for observation, action, reward in zip(*map(torch.from_numpy, batches)):
        with torch.no_grad():
            expected = reward + 0.9 * torch.minimum(*target(observation, action))
        loss = sum(((q - expected) ** 2).mean() for q in critic(observation, action))
        for each, optimizer in ((loss, critic.optimizer), (-(log_ent_coef * reward).mean(), ent_coef_optimizer)):
            optimizer.zero_grad()
            each.backward()
            optimizer.step()
        polyak_update(critic.parameters(), target.parameters(), TAU)

    expected = (
        *(read_parameters(each.parameters()) for each in (critic, target)),
        *(read_optimizer(critic.optimizer), read_parameters([log_ent_coef]), read_optimizer(ent_coef_optimizer)),
    )
    for ours, theirs in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


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


def test_writing_what_was_read_changes_no_bit():
    policy, other = make(), make()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    pointers = [parameter.data_ptr() for parameter in other.parameters()]
    write_parameters(other.parameters(), jnp.asarray(read_parameters(policy.parameters())))
    assert all(torch.equal(a, b) for a, b in zip(policy.parameters(), other.parameters()))
    assert [parameter.data_ptr() for parameter in other.parameters()] == pointers


def test_what_was_read_has_its_own_memory():
    policy = make()
    vector = read_parameters(policy.parameters())
    kept = vector.copy()
    with torch.no_grad():
        policy.log_std.add_(1)
    np.testing.assert_array_equal(vector, kept)


def test_writing_refuses_another_number_of_parameters():
    policy = make()
    size = read_parameters(policy.parameters()).size
    with pytest.raises(ValueError, match=rf"vector of {size} numbers, got the shape \({size + 1},\)"):
        write_parameters(policy.parameters(), np.zeros(size + 1))
