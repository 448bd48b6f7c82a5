"""evaluate for environments on the host: SB3's evaluate_policy, and what it does not report for each episode."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium
import numpy as np
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize, is_vecenv_wrapped, unwrap_vec_wrapper

from bridge.contrib import is_maskable


def run_episodes(
    model: Any,
    env: gymnasium.Env[Any, Any] | VecEnv,
    n_episodes: int,
    deterministic: bool,
    seed: int,
    normalize: VecNormalize | None,
) -> tuple[np.ndarray, ...]:
    """Return returns, lengths, terminated and truncated of episodes, each (n_episodes,).

    `normalize` is the VecNormalize that the model trains in, whose statistics are used if `env` has none.
    """
    venv: VecEnv = DummyVecEnv([lambda: Monitor(env)]) if isinstance(env, gymnasium.Env) else env
    venv.seed(seed)
    if normalize is not None and normalize.norm_obs and not is_vecenv_wrapped(venv, VecNormalize):
        venv = with_statistics(venv, normalize)
    truncated: list[bool] = []

    def keep(local: dict[str, Any], _: dict[str, Any]) -> None:
        if local["done"]:
            truncated.append(bool(local["info"].get("TimeLimit.truncated", False)))

    own = unwrap_vec_wrapper(venv, VecNormalize)
    training = own is not None and own.training
    if own is not None:
        own.training = False  # an evaluation does not update statistics
    try:
        returns, lengths = _evaluate_policy_of(model)(
            model, venv, n_episodes, deterministic, callback=keep, return_episode_rewards=True
        )
    finally:
        if own is not None:
            own.training = training
    cut = np.array(truncated)
    return np.array(returns, float), np.array(lengths, int), ~cut, cut


def _evaluate_policy_of(model: Any) -> Any:
    """Return SB3's evaluate_policy, or sb3-contrib's, which asks environments for the legal actions."""
    if not is_maskable(model.policy if isinstance(model, BaseAlgorithm) else model):
        return evaluate_policy
    from sb3_contrib.common.maskable.evaluation import evaluate_policy as evaluate_maskable_policy

    return evaluate_maskable_policy


def with_statistics(venv: VecEnv, like: VecNormalize) -> VecNormalize:
    """Return the environments normalized with a copy of another VecNormalize's statistics, which is not updated."""
    normalized = VecNormalize(
        venv,
        training=False,
        norm_reward=False,
        clip_obs=like.clip_obs,
        epsilon=like.epsilon,
        norm_obs_keys=like.norm_obs_keys,
    )
    normalized.obs_rms = copy.deepcopy(like.obs_rms)
    return normalized
