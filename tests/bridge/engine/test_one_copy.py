"""Weights and moments exist once: PyTorch, compiled functions and user code read and write the same memory."""

import copy
import io
import pickle

import cloudpickle
import gymnasium
import jax
import numpy as np
import pytest
import stable_baselines3
import torch
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

import bridge
from bridge.translate.policies.off_policy import flatten_networks
from bridge.translate.pytorch.vectors import Vector, flatten, is_alone
from tests.bridge.algorithms.user_code.own_code_models import HostCounter, make
from tests.bridge.engine.test_stepping import VECTOR, Sampled
from tests.bridge.small_models import Noop

NAMES = ["PPO", "A2C", "DQN", "SAC", "TD3"]


def model_of(name, where="Gymnasium", package=bridge, **settings):
    cls = getattr(package, name)
    return make(cls, where, **settings)


def tensors(model):
    optimizers = [each.optimizer for each in model.policy.modules() if hasattr(each, "optimizer")]
    entropy = [model.log_ent_coef] if hasattr(model, "log_ent_coef") else []
    optimizers += [model.ent_coef_optimizer] if entropy else []
    kept = [value for each in optimizers for entry in each.state.values() for value in entry.values()]
    return [*model.policy.parameters(), *entropy, *(each for each in kept if isinstance(each, torch.Tensor))]


# --- Where they are --------------------------------------------------------------------------------------------------


@pytest.mark.thorough(but=["A2C-Gymnasium", "TD3-Gymnasium"])
@pytest.mark.parametrize("where", ["Gymnasium", "JAX"])
@pytest.mark.parametrize("name", NAMES)
def test_training_changes_tensors_where_they_are(name, where):
    model = model_of(name, where).learn(32)
    before = [each.data_ptr() for each in tensors(model)]
    weights = [each.detach().clone() for each in model.policy.parameters()]
    model.learn(32, reset_num_timesteps=False)
    assert [each.data_ptr() for each in tensors(model)] == before
    assert not all(torch.equal(*each) for each in zip(weights, model.policy.parameters()))


@pytest.mark.thorough
@pytest.mark.parametrize("name", NAMES)
def test_vectors_of_updates_are_the_memory_of_the_tensors(name):
    model = model_of(name).learn(32)
    params, targets, states = model.plan.learner.vectors()
    held = [np.asarray(each.detach()) for each in tensors(model)]
    for vector in jax.tree.leaves((params, targets, states)):
        if not np.ndim(vector):  # a number of steps
            continue
        assert any(np.shares_memory(vector, each) for each in held)


@pytest.mark.parametrize("name", NAMES)
def test_acting_reads_the_memory_of_the_parameters(name):
    model = model_of(name).learn(32)
    actor = model.plan.actor
    actor.refresh()
    own = {each.data_ptr() for each in model.policy.parameters()}
    assert {each.unsafe_buffer_pointer() for each in actor.params.values()} <= own


def test_each_parameter_is_alone_in_a_storage_of_its_own():
    model = model_of("PPO")
    for each in model.policy.parameters():
        assert each.storage_offset() == 0
        assert each.untyped_storage().nbytes() == each.numel() * 4
        assert each.data_ptr() % 64 == 0


def test_models_that_are_not_compiled_stay_as_sb3_made_them():
    model = model_of("PPO", engine="torch")
    assert all(each.untyped_storage().resizable() for each in model.policy.parameters())


# --- What stays where it lies ----------------------------------------------------------------------------------------


def network():
    return torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(5, 2))


def tie(model, _):
    other = network()
    other.load_state_dict(model.state_dict(), assign=True)
    return other


def map_from_file(model, folder):
    torch.save(network().state_dict(), folder / "weights")
    model.load_state_dict(torch.load(folder / "weights", mmap=True), assign=True)


# Functions after which something refers to the weights of a model: what they return, if anything.
HOLDERS = {
    "an earlier state_dict": lambda model, _: model.state_dict(),
    "tied parameters": tie,
    "arrays": lambda model, _: [each.detach().numpy() for each in model.parameters()],
    "shared memory": lambda model, _: model.share_memory(),
    "a file": map_from_file,
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_weights_stay_where_something_else_refers_to_them(holder, tmp_path):
    model = network()
    kept = HOLDERS[holder](model, tmp_path)
    before = [each.data_ptr() for each in model.parameters()]
    flatten([[*model.parameters()]])
    assert [each.data_ptr() for each in model.parameters()] == before
    del kept


def test_weights_move_together_and_again_with_a_new_layer():
    model = network()
    flatten([[*model.parameters()]])
    assert Vector(model.parameters()).is_in_place()
    model[1] = torch.nn.Linear(5, 2)
    assert not Vector(model.parameters()).is_in_place()
    assert all(map(is_alone, model.parameters()))
    flatten([[*model.parameters()]])
    assert Vector(model.parameters()).is_in_place()


@pytest.mark.parametrize("where", ["Gymnasium", "JAX"])
def test_a_model_with_moved_parameters_trains_as_any_other(where):
    expected = model_of("DQN", where).learn(32)
    model = model_of("DQN", where)
    kept = {name: value.clone() for name, value in model.policy.state_dict().items()}
    for name, parameter in model.policy.named_parameters():
        parameter.data = kept[name]
    model.learn(32)
    assert model.plan.updates
    for name, value in expected.policy.state_dict().items():
        torch.testing.assert_close(model.policy.state_dict()[name], value, rtol=1e-6, atol=1e-7)
        assert kept[name].data_ptr() == dict(model.policy.named_parameters())[name].data_ptr()


def test_parameters_that_are_put_into_one_memory_after_a_plan_was_made_are_left_to_pytorch():
    model = model_of("SAC").learn(32)
    assert model.plan.updates
    first, second = (getattr(model.critic, name)[0].weight for name in ("qf0", "qf1"))
    second.data = first.data
    assert not model.plan.updates
    assert "share memory" in str(model.plan)


# --- Copies and pickles ----------------------------------------------------------------------------------------------


def saved(thing):
    file = io.BytesIO()
    torch.save(thing, file)
    return file.getvalue()


def parts(model):
    policy = model.policy
    return [policy, policy.state_dict(), *(each.state_dict() for each in policy.modules() if [*each.parameters()])]


@pytest.mark.parametrize("dump", [pickle.dumps, cloudpickle.dumps, saved], ids=["pickle", "cloudpickle", "torch.save"])
@pytest.mark.parametrize("name", ["PPO", "SAC"])
def test_pickles_are_as_small_as_stocks(name, dump):
    models = [model_of(name, "Gymnasium", package) for package in (stable_baselines3, bridge)]
    for stock, ours in zip(*map(parts, models), strict=True):
        assert len(dump(ours)) <= 1.1 * len(dump(stock)) + 64


def test_copies_are_independent():
    model = model_of("PPO")
    copied = copy.deepcopy(model.policy)
    with torch.no_grad():
        next(copied.parameters()).zero_()
    assert next(model.policy.parameters()).abs().sum() > 0
    assert all(each.untyped_storage().nbytes() == each.numel() * 4 for each in copied.parameters())


# --- SB3's own arithmetic --------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("size", [1, 3, 6])
@pytest.mark.parametrize("name", ["PPO", "A2C", "SAC", "TD3", "DDPG"])
def test_stocks_own_code_computes_the_same_bits_with_moved_weights(name, size):
    on_policy = {"n_steps": 16} | ({"batch_size": 8} if name == "PPO" else {})
    settings = on_policy if name in ("PPO", "A2C") else {"learning_starts": 8, "buffer_size": 100}
    models = []
    for moves in (False, True):
        env = Sampled(VECTOR, spaces.Box(-1, 1, (size,)))
        model = getattr(stable_baselines3, name)("MlpPolicy", env, seed=0, device="cpu", **settings)
        if moves:
            flatten_networks(model.policy)
            assert not next(model.policy.parameters()).untyped_storage().resizable()
        models.append(model.learn(48))
    for stock, moved in zip(*(model.policy.state_dict().values() for model in models), strict=True):
        assert torch.equal(stock, moved)


# --- Code of the user that changes the model in the middle -----------------------------------------------------------


class Meddling(gymnasium.Wrapper):
    """Changes a model in the middle of a training: its learning rate, what is trained, a layer."""

    model, number = None, 0

    def step(self, action):
        self.number += 1
        if self.model is not None:
            net = self.model.policy.q_net.q_net
            if self.number == 15:
                self.model.lr_schedule = lambda _: 1e-2
            elif self.number == 20:
                net[0].weight.requires_grad_(False)
            elif self.number == 26:
                net[0].weight.requires_grad_(True)
                with torch.no_grad():
                    net[2].bias.add_(1.0)
            elif self.number == 30:
                torch.manual_seed(1)
                net[2] = torch.nn.Linear(net[2].in_features, net[2].out_features)
                group = self.model.policy.optimizer.param_groups[0]
                group["params"] = [*self.model.policy.q_net.parameters()]
        return super().step(action)


@pytest.mark.thorough
@pytest.mark.parametrize("callback", [None, Noop])
def test_what_a_wrapper_changes_in_the_middle_of_a_training_takes_effect_as_in_sb3(callback):
    models = []
    for package in (stable_baselines3, bridge):
        env = Meddling(HostCounter("discrete"))
        model = package.DQN(
            "MlpPolicy", env, learning_starts=8, train_freq=2, gradient_steps=2, buffer_size=50, batch_size=4, seed=0,
            policy_kwargs={"net_arch": [8]}, device="cpu", learning_rate=1e-3, exploration_fraction=0.5,
        )  # fmt: skip
        env.model = model
        models.append(model.learn(44, callback and callback()))
    stock, ours = models
    for name, value in stock.policy.state_dict().items():
        torch.testing.assert_close(ours.policy.state_dict()[name], value, rtol=1e-3, atol=1e-4, msg=name)


class Pushing(gymnasium.Wrapper):
    """Changes a policy in the middle of a rollout."""

    model, number, draws = None, 0, False

    def step(self, action):
        self.number += 1
        if self.number == 5:
            with torch.no_grad():
                self.model.policy.action_net.bias.add_(torch.rand(1) if self.draws else 0.1)
        return super().step(action)


@pytest.mark.parametrize("draws", [False, True])
def test_after_a_change_in_the_middle_of_a_rollout_actions_are_drawn_as_in_sb3(draws):
    settings = {"n_steps": 20, "learning_rate": 0.0, "seed": 0, "device": "cpu", "policy_kwargs": {"net_arch": [8]}}
    actions = []
    for package in (stable_baselines3, bridge):
        env = Pushing(HostCounter("discrete"))
        env.model = package.A2C("MlpPolicy", env, **settings)
        env.draws = draws
        env.model.learn(20)
        actions.append(env.model.rollout_buffer.actions.ravel().tolist())
        actions.append(torch.get_rng_state())
    assert actions[0][:5] == actions[2][:5]
    # Where code of the user draws too, nothing that was drawn is drawn again.
    assert (actions[0] == actions[2], torch.equal(actions[1], actions[3])) == (not draws, not draws)


# --- Observations that the environment overwrites --------------------------------------------------------------------


class Own(DummyVecEnv):
    """Returns its own buffer of observations, which each step overwrites."""

    def __init__(self):
        super().__init__([lambda: Sampled(VECTOR, spaces.Discrete(2))] * 2)
        self.seen = []

    def _obs_from_buf(self):
        return self.buf_obs[None]

    def step_async(self, actions):
        self.seen.append(self.buf_obs[None].copy())
        super().step_async(actions)


@pytest.mark.thorough
@pytest.mark.parametrize("callback", [None, Noop])
@pytest.mark.parametrize("name", ["A2C", "PPO"])
def test_values_are_of_the_observations_that_were_acted_on(name, callback):
    env = Own()
    settings = {"n_steps": 10} | ({"batch_size": 20} if name == "PPO" else {})
    model = getattr(bridge, name)("MlpPolicy", env, learning_rate=0.0, seed=0, **settings)
    model.learn(60, callback and callback())
    with torch.no_grad():
        seen = torch.as_tensor(np.concatenate(env.seen[-10:]))
        values = model.policy.predict_values(seen).numpy().reshape(10, 2)
    np.testing.assert_allclose(model.rollout_buffer.values, values, rtol=1e-5, atol=1e-6)


def test_a_policy_that_moves_to_shared_memory_acts_with_the_weights_there():
    settings = {"learning_starts": 2, "gradient_steps": 0, "buffer_size": 64, "policy_kwargs": {"net_arch": [8]}}
    model = bridge.TD3("MlpPolicy", bridge.make_vec_env("Pendulum-v1", 1, backend="serial"), seed=0, **settings)
    model.learn(8)
    model.policy.share_memory()  # which frees the memory that was there
    with torch.no_grad():
        for parameter in model.actor.parameters():
            parameter.zero_()
    model.learn(8, reset_num_timesteps=False)
    actions = model.replay_buffer.actions[:16].ravel()
    assert actions[:8].all()
    assert not actions[8:].any()


@pytest.mark.thorough
def test_a_copy_of_a_model_with_a_normalized_env_fails_as_in_sb3():
    env = VecNormalize(bridge.make_vec_env("CartPole-v1", 1, seed=0))
    model = copy.deepcopy(bridge.PPO("MlpPolicy", env, n_steps=4, batch_size=4, n_epochs=1).learn(4))
    with pytest.raises(AttributeError, match="NoneType"):  # a copy of a VecNormalize has no environments
        model.learn(4)
