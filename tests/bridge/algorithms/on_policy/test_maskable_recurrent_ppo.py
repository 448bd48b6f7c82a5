"""bridge.MaskableRecurrentPPO: RecurrentPPO where all is legal, MaskablePPO where nothing is remembered."""

import copy
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from stable_baselines3.common.logger import configure

import bridge
import jaxenvs
from bridge import JaxVecEnv
from jaxenvs import Wrapper, environment, learn
from jaxenvs.learn.interfaces import unmasked
from jaxenvs.learn.on_policy import recurrent_ppo
from tests.bridge.algorithms.cases import assert_equal, make, state_of
from tests.masked_environments import GymnasiumLocks, Locks, is_legal
from tests.stock import STOCK


@environment
class AllLegal(Wrapper):
    """CartPole that reports that all is legal."""

    env: jaxenvs.Environment

    def reset(self, key):
        return self.env.reset(key)

    def step(self, state, action):
        return self.env.step(state, action)

    def action_masks(self, state):
        return jnp.ones(2, bool)


def test_with_all_actions_legal_it_is_recurrent_ppo_bit_for_bit():
    cartpole = jaxenvs.make("CartPole-v1", max_episode_steps=12)  # as in the models of `make`
    plain = make("RecurrentPPO").learn(256)
    masked = make("MaskableRecurrentPPO", JaxVecEnv(AllLegal(cartpole), 4, 0)).learn(256)
    assert masked.plan.collects
    assert masked._masks
    assert_equal(state_of(masked), state_of(plain))


@dataclasses.dataclass(frozen=True)
class Forgetful(learn.ActorCritic):
    """A network without memory, whose observations are Recalled."""

    def apply(self, params, observation):
        seen, mask = unmasked(observation)
        inner = seen.observation
        return super().apply(params, inner if mask is None else learn.Masked(inner, mask))

    def recall(self, params, seen):
        return seen.memory

    def no_memory(self, params, num_envs):
        nothing = jnp.zeros((num_envs, 1, 1))
        return {name: (nothing, nothing) for name in ("pi", "vf")}


def test_with_no_memory_it_is_maskable_ppo_to_rounding():
    """With one minibatch, because the orders of minibatches differ."""
    venv = jaxenvs.VectorEnv(Locks(length=6), 4)
    settings = {"n_steps": 8, "batch_size": 32, "n_epochs": 3, "learning_rate": 1e-2}
    ended = []
    for network, algorithm in ((learn.ActorCritic, learn.MaskablePPO), (Forgetful, learn.MaskableRecurrentPPO)):
        training = learn.Training(venv, network.of(venv.env, actor=(8,), critic=(8,)), algorithm(**settings), 128)
        ended.append(jax.jit(learn.train)(jax.random.key(0), training))
    one, other = ended
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), one.params, other.params)
    np.testing.assert_array_equal(one.metrics["episode_return"], other.metrics["episode_return"])


@pytest.mark.thorough(but=["discrete"])
@pytest.mark.parametrize("kind", ["discrete", "multi_discrete", "multi_binary"])
def test_an_update_is_that_of_pytorch(kind, monkeypatch):
    begins = (5, 40)
    drawn, algorithm = iter(begins), learn.MaskableRecurrentPPO

    def orders(self, key, *shape):
        return recurrent_ppo.in_rows(jnp.array(begins), *shape)

    monkeypatch.setattr("sb3_contrib.common.recurrent.buffers.np.random.randint", lambda size: next(drawn))
    monkeypatch.setattr(algorithm, "_orders", orders)
    settings = {"batch_size": 32, "n_epochs": 2, "ent_coef": 0.01, "n_steps": 16, "learning_rate": 1e-2}
    # No other test has memories of 6, so that none gets the functions that are compiled with these.
    settings["policy_kwargs"] = {"net_arch": [8], "lstm_hidden_size": 6}
    env = JaxVecEnv(Locks(kind=kind), 4, 0)
    ours, stock = (make("MaskableRecurrentPPO", env, package, **settings) for package in (bridge, STOCK))
    _, callback = stock._setup_learn(64)
    assert stock.collect_rollouts(stock.env, callback, stock.rollout_buffer, 16)
    ours.set_parameters(stock.get_parameters())
    ours.rollout_buffer = copy.deepcopy(stock.rollout_buffer)
    for model in (ours, stock):
        model.set_logger(configure(None, []))
        model.train()
    assert ours.plan.updates
    for name, tensor in stock.policy.state_dict().items():
        np.testing.assert_allclose(ours.policy.state_dict()[name], tensor, rtol=1e-3, atol=1e-4, err_msg=name)
    for name in ("train/policy_gradient_loss", "train/entropy_loss", "train/value_loss"):
        np.testing.assert_allclose(
            ours.logger.name_to_value[name], stock.logger.name_to_value[name], rtol=1e-3, atol=1e-5, err_msg=name
        )


@pytest.mark.parametrize("package", [bridge, STOCK], ids=["ours", "PyTorch"])
def test_predict_takes_only_legal_actions_and_remembers(package):
    model = make("MaskableRecurrentPPO", package=package)
    env, observation, state, starts = JaxVecEnv(Locks(), 4, 0), None, None, np.ones(4, bool)
    observation = env.reset()
    for _ in range(20):
        masks = np.stack(env.env_method("action_masks"))
        actions, state = model.predict(observation, state, starts, deterministic=False, action_masks=masks)
        assert all(is_legal("discrete", action, mask) for action, mask in zip(actions, masks))
        observation, _, starts, _ = env.step(actions)
    assert state[0].shape == (1, 4, 8)
    assert np.abs(state[0]).sum() > 0


@pytest.mark.thorough
def test_in_gymnasiums_environments_no_action_is_illegal():
    """GymnasiumLocks refuses illegal actions."""
    model = make("MaskableRecurrentPPO", bridge.make_vec_env(GymnasiumLocks, 2, backend="serial")).learn(128)
    assert model.plan.actor is not None
    evaluation = bridge.evaluate(make("MaskableRecurrentPPO").learn(128), Locks(), 5, max_steps=20)
    assert evaluation.lengths.tolist() == [5] * 5


def test_environments_without_masks_are_refused_unless_masks_are_not_used():
    model = make("MaskableRecurrentPPO", bridge.make_vec_env("CartPole-v1", 4))
    with pytest.raises(ValueError, match="does not support action masking"):
        model.learn(64)
    assert model.learn(64, use_masking=False).num_timesteps == 64


def test_box_actions_are_refused():
    with pytest.raises(NotImplementedError, match="Must be of type Gym Spaces: Discrete, MultiDiscrete"):
        bridge.MaskableRecurrentPPO("MlpLstmPolicy", "Pendulum-v1")
