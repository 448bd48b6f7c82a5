"""Whole trainings: Stable-Baselines3's own code, made to act as the compiled rollout did, learns the same."""

import copy
import itertools

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from stable_baselines3.common import env_util
from stable_baselines3.common.vec_env import VecNormalize

import bridge
from bridge.engine.off_policy.compiled_training import compiled_function
from jaxenvs import learn
from jaxenvs.learn.off_policy.store.replay import Replay
from jaxenvs.learn.on_policy import recurrent_ppo
from tests.stock import STOCK

N_STEPS, N_ENVS, ITERATIONS = 20, 4, 6
SETTINGS = {"n_steps": N_STEPS, "gamma": 0.9, "seed": 0}
# An order of minibatches does not matter where there is one.
PPO = {"batch_size": N_STEPS * N_ENVS, "n_epochs": 3}
# Where each epoch of RecurrentPPO begins, from which its two minibatches follow. No other test has memories of 7, so
# that none gets the functions that are compiled with these.
BEGINS = (7, 33, 50)
RECURRENT = {"batch_size": N_STEPS * N_ENVS // 2, "n_epochs": len(BEGINS), "policy_kwargs": {"lstm_hidden_size": 7}}


def make(package, algorithm, env_id, settings, make_vec_env):
    # Ends of both kinds: in 12 steps some poles fall and some do not.
    env = make_vec_env(env_id, N_ENVS, seed=0, env_kwargs={"max_episode_steps": 12})
    policy = "MlpLstmPolicy" if algorithm == "RecurrentPPO" else "MlpPolicy"
    settings = SETTINGS | copy.deepcopy(settings)
    return getattr(package, algorithm)(policy, VecNormalize(env, gamma=0.9), **settings)


class Rollouts(bridge.ScheduledCallback):
    """Copies of what the buffer held after each rollout, which needs no step: rollouts in JAX are compiled."""

    def _init_callback(self):
        self.seen = []

    def _on_step(self):
        return True

    def _on_rollout_end(self):
        names = ("observations", "actions", "rewards", "values", "log_probs", "returns", "episode_starts")
        self.seen.append({name: getattr(self.model.rollout_buffer, name).copy() for name in names})


CASES = {
    "discrete": ("PPO", "CartPole-v1", PPO | {"ent_coef": 0.01}),
    "box": ("PPO", "Pendulum-v1", PPO),
    "state-dependent": ("PPO", "Pendulum-v1", PPO | {"use_sde": True}),
    "A2C": ("A2C", "CartPole-v1", {}),
    "recurrent": ("RecurrentPPO", "CartPole-v1", RECURRENT),
}


@pytest.fixture
def begins(monkeypatch):
    """Let each epoch of RecurrentPPO, compiled or not, begin where BEGINS says."""
    drawn = itertools.cycle(BEGINS)
    monkeypatch.setattr(
        learn.RecurrentPPO, "_orders", lambda self, key, *shape: recurrent_ppo.in_rows(jnp.array(BEGINS), *shape)
    )
    monkeypatch.setattr("sb3_contrib.common.recurrent.buffers.np.random.randint", lambda size: next(drawn))


@pytest.mark.thorough(but=["Gymnasium's-box"])
@pytest.mark.parametrize(
    ("environments", "case"),
    itertools.product(["JAX's", "Gymnasium's"], CASES),
)
def test_sb3_that_takes_our_actions_learns_what_we_learn(environments, case, begins, monkeypatch):
    make_vec_env = bridge.make_vec_env if environments == "JAX's" else env_util.make_vec_env
    ours, stock = (make(package, *CASES[case], make_vec_env) for package in (bridge, STOCK))
    assert ours.plan.collects if environments == "JAX's" else ours.plan.actor is not None
    stock.set_parameters(ours.get_parameters())
    ours_seen, stock_seen = Rollouts(), Rollouts()
    ours.learn(ITERATIONS * N_STEPS * N_ENVS, ours_seen)
    actions = iter(action for rollout in ours_seen.seen for action in rollout["actions"])
    forward = stock.policy.forward

    def act_alike(observation, *memory):
        # The first versions of SB3 that are supported keep all actions as float32.
        action = torch.tensor(next(actions).astype(stock.action_space.dtype)).reshape(N_ENVS, *stock.action_space.shape)
        if not memory:
            values, log_prob, _ = stock.policy.evaluate_actions(observation, action)
            return action, values, log_prob
        _, values, _, remembered = forward(observation, *memory)
        distribution, _ = stock.policy.get_distribution(observation, memory[0].pi, memory[1])
        return action, values, distribution.log_prob(action), remembered

    monkeypatch.setattr(stock.policy, "forward", act_alike)
    stock.learn(ITERATIONS * N_STEPS * N_ENVS, stock_seen)

    assert len(ours_seen.seen) == len(stock_seen.seen) == ITERATIONS
    assert sum(rollout["episode_starts"][1:].sum() for rollout in ours_seen.seen) > 20
    for mine, reference in zip(ours_seen.seen, stock_seen.seen):
        for name, array in reference.items():
            np.testing.assert_allclose(mine[name], array, rtol=1e-3, atol=1e-3 * max(1, np.abs(array).max()))
    for name, tensor in stock.policy.state_dict().items():
        np.testing.assert_allclose(ours.policy.state_dict()[name], tensor, rtol=1e-3, atol=1e-4, err_msg=name)
    for name in ("mean", "var", "count"):
        mine, reference = (getattr(model.env.obs_rms, name) for model in (ours, stock))
        np.testing.assert_allclose(mine, reference, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(ours.env.ret_rms.var, stock.env.ret_rms.var, rtol=1e-4)


# --- Off-policy: the batches are ours, too ---------------------------------------------------------------------------

# The store is filled more than twice.
TOTAL, STARTS = 700, 50
REPLAY = {"buffer_size": 300, "learning_starts": STARTS, "batch_size": 16, "gamma": 0.9, "seed": 0, "device": "cpu"}
SMALL = {"policy_kwargs": {"net_arch": [16]}}
GREEDY = {"exploration_fraction": 0.2, "exploration_final_eps": 0.0, "train_freq": 4, "gradient_steps": 2}
OFF_POLICY = {
    "DQN": ("CartPole-v1", SMALL | GREEDY | {"target_update_interval": 32, "learning_rate": 1e-3}),
    "QRDQN": ("CartPole-v1", SMALL | GREEDY | {"target_update_interval": 32, "learning_rate": 1e-3}),
    "TD3": ("Pendulum-v1", SMALL | {"target_policy_noise": 0.0}),
    "SAC": ("Pendulum-v1", SMALL | {"train_freq": 2, "gradient_steps": -1}),
    "TQC": ("Pendulum-v1", SMALL | {"train_freq": 2}),
    # Before a BatchRenorm, the gradient of a bias is rounding alone, which Adam would make steps of full length.
    "CrossQ": (
        "Pendulum-v1",
        {
            "policy_kwargs": {"net_arch": [16], "renorm_warmup_steps": 100, "optimizer_class": torch.optim.SGD},
            "learning_rate": 1e-3,
        },
    ),
}


@pytest.fixture
def drawn(monkeypatch):
    """The actions and the rows of the batches of compiled trainings, in which SAC's own noise is 0."""
    drawn, zeros = {"actions": [], "rows": []}, {}

    def record(method, name, what):
        own = getattr(Replay, method)

        def recorded(*given):
            result = own(*given)
            jax.debug.callback(lambda each: drawn[name].append(np.array(each)), what(given, result), ordered=True)
            return result

        monkeypatch.setattr(Replay, method, recorded)

    record("add", "actions", lambda given, _: given[2])
    record("draw", "rows", lambda _, result: result[0])
    for name in ("noise", "exploration_noise"):
        zeros[name] = getattr(learn.SAC, name)
        monkeypatch.setattr(
            learn.SAC, name, lambda *given, name=name: jax.tree.map(jnp.zeros_like, zeros[name](*given))
        )
    monkeypatch.setattr("torch.distributions.normal._standard_normal", lambda shape, **_: torch.zeros(shape))
    compiled_function.cache_clear()
    yield drawn
    compiled_function.cache_clear()


def make_off_policy(package, name):
    env_id, settings = OFF_POLICY[name]
    env = bridge.make_vec_env(env_id, 1, seed=0, env_kwargs={"max_episode_steps": 30})
    return getattr(package, name)("MlpPolicy", env, **{**REPLAY, **copy.deepcopy(settings)})


@pytest.mark.thorough
@pytest.mark.parametrize("name", OFF_POLICY)
def test_sb3_that_takes_our_actions_and_batches_learns_what_we_learn(name, drawn, monkeypatch):
    ours, stock = (make_off_policy(package, name) for package in (bridge, STOCK))
    stock.set_parameters(ours.get_parameters())
    # Without a callback, so that collecting and updating are one compiled function.
    ours.learn(TOTAL)
    assert not ours.plan.reasons
    actions, rows, agree = iter(drawn["actions"]), iter(drawn["rows"]), []
    is_box = isinstance(stock.action_space, gymnasium.spaces.Box)

    def act_alike(learning_starts, action_noise=None, n_envs=1):
        stored = next(actions)
        action = stock.policy.unscale_action(stored) if is_box else stored
        if stock.num_timesteps >= TOTAL / 2:  # where nothing is random
            own, _ = stock.predict(stock._last_obs, deterministic=True)
            agree.append(np.abs(own - action).max() < 2e-2)
        return action, stored

    monkeypatch.setattr(stock, "_sample_action", act_alike)
    monkeypatch.setattr(
        stock.replay_buffer, "sample", lambda count, env=None: stock.replay_buffer._get_samples(next(rows), env)
    )
    stock.learn(TOTAL)

    assert next(actions, None) is next(rows, None) is None
    assert ours._n_updates == stock._n_updates > 300
    assert np.mean(agree) > 0.99
    for part, tensor in stock.policy.state_dict().items():
        np.testing.assert_allclose(ours.policy.state_dict()[part], tensor, rtol=1e-3, atol=1e-4, err_msg=part)


@pytest.mark.thorough(but=["QRDQN"])
@pytest.mark.parametrize("name", ["DQN", "QRDQN", "TD3"])
def test_on_gymnasiums_environments_the_same_seed_gives_what_sb3_learns(name):
    """On the host, DQN and QRDQN draw all numbers as SB3's do, and so does TD3 without target noise."""
    env_id, settings = OFF_POLICY[name]
    models = []
    for package in (bridge, STOCK):
        env = env_util.make_vec_env(env_id, 1, seed=0, env_kwargs={"max_episode_steps": 30})
        settings = copy.deepcopy(settings)
        models.append(getattr(package, name)("MlpPolicy", env, **{**REPLAY, "buffer_size": TOTAL, **settings}))
        models[-1].learn(TOTAL)
    ours, stock = models
    assert ours.plan.actor is not None
    assert not ours.plan.collects
    assert ours._n_updates == stock._n_updates > 300
    np.testing.assert_allclose(ours.replay_buffer.actions, stock.replay_buffer.actions, rtol=1e-3, atol=1e-3)
    for part, tensor in stock.policy.state_dict().items():
        np.testing.assert_allclose(ours.policy.state_dict()[part], tensor, rtol=1e-3, atol=1e-4, err_msg=part)
