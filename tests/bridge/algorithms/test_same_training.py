"""Whole trainings: Stable-Baselines3's own code, made to act as the compiled rollout did, learns the same."""

import itertools

import numpy as np
import pytest
import stable_baselines3
import torch
from stable_baselines3.common import env_util
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecNormalize

import bridge
from tests.tiers import tiered

N_STEPS, N_ENVS, ITERATIONS = 20, 4, 6
# An order of minibatches does not matter where there is one.
SETTINGS = {"n_steps": N_STEPS, "batch_size": N_STEPS * N_ENVS, "n_epochs": 3, "gamma": 0.9, "seed": 0}


def make(package, env_id, settings, make_vec_env):
    # Ends of both kinds: in 12 steps some poles fall and some do not.
    env = make_vec_env(env_id, N_ENVS, seed=0, env_kwargs={"max_episode_steps": 12})
    return package.PPO("MlpPolicy", VecNormalize(env, gamma=0.9), **SETTINGS, **settings)


class Rollouts(BaseCallback):
    """Copies of what the buffer held after each rollout."""

    def _init_callback(self):
        self.seen = []

    def _on_step(self):
        return True

    def _on_rollout_end(self):
        names = ("observations", "actions", "rewards", "values", "log_probs", "returns", "episode_starts")
        self.seen.append({name: getattr(self.model.rollout_buffer, name).copy() for name in names})


CASES = {
    "discrete": ("CartPole-v1", {"ent_coef": 0.01}),
    "box": ("Pendulum-v1", {}),
    "state-dependent": ("Pendulum-v1", {"use_sde": True}),
}


@pytest.mark.parametrize(
    ("environments", "case"),
    tiered(
        itertools.product(["JAX's", "Gymnasium's"], CASES),
        *(("JAX's", "discrete"), ("Gymnasium's", "box")),
    ),
)
def test_sb3_that_takes_our_actions_learns_what_we_learn(environments, case, monkeypatch):
    env_id, settings = CASES[case]
    make_vec_env = bridge.make_vec_env if environments == "JAX's" else env_util.make_vec_env
    ours, stock = (make(package, env_id, settings, make_vec_env) for package in (bridge, stable_baselines3))
    assert ours.plan.collects if environments == "JAX's" else ours.plan.actor is not None
    stock.set_parameters(ours.get_parameters())
    ours_seen, stock_seen = Rollouts(), Rollouts()
    ours.learn(ITERATIONS * N_STEPS * N_ENVS, ours_seen)
    actions = iter(action for rollout in ours_seen.seen for action in rollout["actions"])

    def act_alike(observation):
        # The first versions of SB3 that are supported keep all actions as float32.
        action = torch.tensor(next(actions).astype(stock.action_space.dtype)).reshape(N_ENVS, *stock.action_space.shape)
        values, log_prob, _ = stock.policy.evaluate_actions(observation, action)
        return action, values, log_prob

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
