"""Trainings on prioritised buffers: weights in the loss, priorities from the errors, as plain PyTorch has it."""

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

BATCH, STEPS = 8, 4
SMALLEST = 1e-6  # of Schaul et al. 2016: nothing is drawn never again
BUFFER = {"replay_buffer_class": PrioritizedReplayBuffer, "replay_buffer_kwargs": {"alpha": 0.6, "beta": 0.5}}
pytestmark = pytest.mark.filterwarnings("ignore:`n_steps=2` is ignored")


def filled(name, **settings):
    """A model whose buffer has steps, and which has not learnt yet."""
    policy = {"net_arch": [8], "optimizer_class": torch.optim.SGD}  # which, unlike Adam, makes nothing of roundings
    settings = {"learning_starts": 10**6, "learning_rate": 0.1, "policy_kwargs": policy, **settings}
    if name == "TD3":
        settings["action_noise"] = None
    if name == "SAC":
        settings |= {"ent_coef": "auto_0.1"} | ({"n_steps": 1} if "n_steps" in OWN["SAC"] else {})
    env = make_env("DQN" if name == "DQN" else "TD3")
    model = make(name, env, **BUFFER, **settings)
    model.learn(60)
    model.set_logger(configure(None, []))
    return model


class Plain:
    """Updates on copies of the policy and the buffer, written in PyTorch."""

    def __init__(self, model):
        self.policy, self.buffer = copy.deepcopy(model.policy), copy.deepcopy(model.replay_buffer)
        self.gamma, self.tau, self.key = model.gamma, model.tau, model.key
        self.updates, self.log_ent_coef = 0, None
        if getattr(model, "log_ent_coef", None) is not None:
            self.log_ent_coef = model.log_ent_coef.detach().clone().requires_grad_()
            self.ent_coef_optimizer = torch.optim.Adam([self.log_ent_coef], lr=model.learning_rate)

    def train(self, update):
        for _ in range(STEPS):
            data = self.buffer.sample(BATCH)
            self.updates += 1
            errors = update(self, data)
            self.buffer.update_priorities(data.indices, errors + SMALLEST)

    def normal(self, *shape):
        """Return what the compiled function draws for an update."""
        key, draw = jax.random.split(jax.random.wrap_key_data(self.key))
        self.key = np.asarray(jax.random.key_data(key))
        return torch.tensor(np.asarray(jax.random.normal(draw, shape)))

    def critic_step(self, data, next_values, factor):
        """The errors of both critics, (2, batch), before a step of these."""
        target = data.rewards[:, 0] + (1 - data.dones[:, 0]) * self.gamma * next_values
        values = torch.stack([values[:, 0] for values in self.policy.critic(data.observations, data.actions)])
        errors = values - target.detach()
        step(self.policy.critic.optimizer, factor * (data.weights[:, 0] * errors**2).mean(dim=1).sum())
        return errors.detach().abs().mean(dim=0)

    def polyak(self, *names):
        for name in names:
            target, network = getattr(self.policy, f"{name}_target"), getattr(self.policy, name)
            with torch.no_grad():
                for old, new in zip(target.parameters(), network.parameters()):
                    old.mul_(1 - self.tau).add_(self.tau * new)


def step(optimizer, loss, clipped=None):
    optimizer.zero_grad()
    loss.backward()
    if clipped is not None:
        torch.nn.utils.clip_grad_norm_(clipped, 10)
    optimizer.step()


def dqn(plain, data):
    policy = plain.policy
    with torch.no_grad():
        target = data.rewards[:, 0] + (1 - data.dones[:, 0]) * plain.gamma * policy.q_net_target(
            data.next_observations
        ).amax(dim=1)
    errors = policy.q_net(data.observations).gather(1, data.actions.long())[:, 0] - target
    losses = torch.where(errors.abs() < 1, 0.5 * errors**2, errors.abs() - 0.5)
    plain.normal(1)  # takes the next key
    step(policy.optimizer, (data.weights[:, 0] * losses).mean(), policy.parameters())
    return errors.detach().abs()


def td3(plain, data):
    policy, noise = plain.policy, plain.normal(1, BATCH, 2)[0]
    with torch.no_grad():
        action = policy.actor_target(data.next_observations) + (0.2 * noise).clamp(-0.5, 0.5)
        following = torch.stack(policy.critic_target(data.next_observations, action.clamp(-1, 1))).amin(dim=0)[:, 0]
    errors = plain.critic_step(data, following, 1)
    if plain.updates % 2 == 0:
        step(
            policy.actor.optimizer, -policy.critic.q1_forward(data.observations, policy.actor(data.observations)).mean()
        )
        plain.polyak("actor", "critic")
    return errors


def sac(plain, data):
    policy, (noise, next_noise) = plain.policy, plain.normal(2, BATCH, 2)

    def act(observations, noise):
        mean, log_std, _ = policy.actor.get_action_dist_params(observations)
        gaussian = mean + log_std.exp() * noise
        action = torch.tanh(gaussian)
        log_prob = torch.distributions.Normal(mean, log_std.exp()).log_prob(gaussian).sum(dim=1)
        return action, log_prob - torch.log(1 - action**2 + 1e-6).sum(dim=1)

    action, log_prob = act(data.observations, noise)
    ent_coef = plain.log_ent_coef.detach().exp()
    step(plain.ent_coef_optimizer, -(plain.log_ent_coef * (log_prob - 2).detach()).mean())
    with torch.no_grad():
        next_action, next_log_prob = act(data.next_observations, next_noise)
        following = torch.stack(policy.critic_target(data.next_observations, next_action)).amin(dim=0)[:, 0]
        following = following - ent_coef * next_log_prob
    errors = plain.critic_step(data, following, 0.5)
    values = torch.stack(policy.critic(data.observations, action)).amin(dim=0)[:, 0]
    step(policy.actor.optimizer, (ent_coef * log_prob - values).mean())
    plain.polyak("critic")
    return errors


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "update"), [("DQN", dqn), ("SAC", sac), ("TD3", td3)])
def test_updates_on_a_prioritised_buffer_are_those_of_plain_pytorch(name, update):
    model = filled(name)
    plain = Plain(model)
    np.random.seed(0)  # noqa: NPY002
    plain.train(update)
    np.random.seed(0)  # noqa: NPY002
    model.train(STEPS, BATCH)
    theirs = plain.policy.state_dict()
    for key, ours in model.policy.state_dict().items():
        torch.testing.assert_close(ours, theirs[key], rtol=1e-5, atol=1e-5)
    leaves, expected = (each.priorities.leaves for each in (model.replay_buffer, plain.buffer))
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
