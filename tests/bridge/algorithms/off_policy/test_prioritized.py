"""Trainings on prioritised buffers: weights in the loss, priorities from the errors."""

import copy

import jax
import numpy as np
import pytest
import stable_baselines3
import torch
from stable_baselines3.common.logger import configure

import bridge
from bridge import NotCompilable, PrioritizedReplayBuffer
from tests.bridge.algorithms.cases import OWN, make, make_env
from tests.stock import STOCK

BATCH, STEPS = 8, 4
SMALLEST = 1e-6  # of Schaul et al. 2016: nothing is drawn never again
BUFFER = {"replay_buffer_class": PrioritizedReplayBuffer, "replay_buffer_kwargs": {"alpha": 0.6, "beta": 0.5}}
pytestmark = pytest.mark.filterwarnings("ignore:`n_steps=2` is ignored")


def pair(name):
    """A model whose buffer has steps, and which has not learnt yet; and SB3's, with the same weights and buffer."""
    policy = {"net_arch": [8], "optimizer_class": torch.optim.SGD}  # which, unlike Adam, makes nothing of roundings
    settings = {"learning_starts": 10**6, "learning_rate": 0.1, "policy_kwargs": policy}
    if name == "TD3":
        settings["action_noise"] = None
    if name == "SAC":
        settings |= {"ent_coef": "auto_0.1"} | ({"n_steps": 1} if "n_steps" in OWN["SAC"] else {})
    model, stock = make(name, **BUFFER, **settings).learn(60), make(name, package=STOCK, **settings)
    stock.set_parameters(model.get_parameters())
    stock.replay_buffer = copy.deepcopy(model.replay_buffer)
    for each in (model, stock):
        each.set_logger(configure(None, []))
    return model, stock


def train_with_priorities(stock, key, monkeypatch):
    """SB3's updates, with weights in their losses, priorities from their errors, and noise from a key of ours."""
    buffer, draw, noise, drawn = stock.replay_buffer, stock.replay_buffer.sample, [], []

    def sample(count, env=None):
        nonlocal key
        key, draw_key = jax.random.split(key)
        shape = (2, BATCH, 2) if hasattr(stock, "ent_coef") else (1, BATCH, 2)
        noise[:] = torch.tensor(np.asarray(jax.random.normal(draw_key, shape)))
        drawn[:] = [draw(count, env)]
        return drawn[0]

    def weighted(loss):
        def mean(values, target):
            drawn.append((values - target).detach().abs()[:, 0])
            return (drawn[0].weights * loss(values, target, reduction="none")).mean()

        return mean

    for name in ("mse_loss", "smooth_l1_loss"):
        monkeypatch.setattr(torch.nn.functional, name, weighted(getattr(torch.nn.functional, name)))
    monkeypatch.setattr(buffer, "sample", sample)
    monkeypatch.setattr("torch.distributions.normal._standard_normal", lambda *_, **__: noise.pop(0))
    monkeypatch.setattr(torch.Tensor, "normal_", lambda tensor, _, scale: tensor.copy_(scale * noise.pop(0)))
    for _ in range(STEPS):
        stock.train(1, BATCH)
        data, *errors = drawn
        buffer.update_priorities(data.indices, torch.stack(errors).mean(dim=0) + SMALLEST)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["DQN", "SAC", "TD3"])
def test_updates_on_a_prioritised_buffer_are_sb3s_with_weights(name, monkeypatch):
    model, stock = pair(name)
    key = jax.random.wrap_key_data(model.key)
    np.random.seed(0)  # noqa: NPY002
    model.train(STEPS, BATCH)
    np.random.seed(0)  # noqa: NPY002
    train_with_priorities(stock, key, monkeypatch)
    theirs = stock.policy.state_dict()
    for part, ours in model.policy.state_dict().items():
        torch.testing.assert_close(ours, theirs[part], rtol=1e-5, atol=1e-5)
    leaves, expected = (each.replay_buffer.priorities.leaves for each in (model, stock))
    np.testing.assert_allclose(leaves, expected, rtol=1e-4, atol=1e-6)
    stored = leaves[: model.replay_buffer.size() * 2]
    assert 4 < (stored != 1).sum() <= STEPS * BATCH  # those that were drawn
    assert len(np.unique(stored)) > 4


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["DQN", "SAC", "TD3"])
def test_a_training_draws_what_surprised_it(name):
    model = make(name, **BUFFER, **({"n_steps": 1} if "n_steps" in OWN[name] else {}))
    model.learn(60)
    assert model.plan.updates
    assert len(np.unique(model.replay_buffer.priorities.leaves)) > 4
    assert model._n_updates > 4


@pytest.mark.parametrize("n_steps", [2])
def test_errors_of_several_steps_are_priorities_too(n_steps):
    settings = {**BUFFER, "replay_buffer_kwargs": {"alpha": 1.0, "n_steps": n_steps, "gamma": 0.9}}
    if "discounts" not in stable_baselines3.common.type_aliases.ReplayBufferSamples._fields:
        pytest.skip("this version of SB3 has no n-step returns")
    model = make("DQN", **settings).learn(40)
    assert len(np.unique(model.replay_buffer.priorities.leaves)) > 4


@pytest.mark.parametrize("name", ["DQN", "SAC", "TD3"])
def test_updates_that_are_sb3s_refuse_a_prioritised_buffer_at_once(name):
    model = make(name, engine="torch", **BUFFER)
    with pytest.raises(NotCompilable, match="A PrioritizedReplayBuffer requires compiled updates"):
        model.learn(40)
    assert model.num_timesteps == 0


def test_a_train_of_ones_own_may_do_with_priorities_what_it_likes():
    class Own(bridge.DQN):
        def train(self, gradient_steps, batch_size=100):
            samples = self.replay_buffer.sample(batch_size)
            self.replay_buffer.update_priorities(samples.indices, 7 * samples.weights)

    settings = {"learning_starts": 4, "engine": "torch", "device": "cpu", "buffer_size": 50}
    model = Own("MlpPolicy", make_env("DQN"), **BUFFER, **settings).learn(40)
    assert model.replay_buffer.priorities.leaves.max() > 1  # which those of transitions that are new are
