"""evaluate for environments on the host: SB3's evaluate_policy, and what it does not report for each episode."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import gymnasium
import numpy as np
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.env_util import is_wrapped
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize, is_vecenv_wrapped, unwrap_vec_wrapper

from bridge.contrib import is_maskable
from bridge.sb3 import AnyEnv
from jaxenvs import Evaluation

# After this many episodes in a row that a wrapper around the Monitor truncated, evaluate raises an error.
MOST_UNSEEN = 100


def evaluate_on_host(
    model: BaseAlgorithm | BasePolicy,
    env: AnyEnv | VecEnv,
    n_episodes: int,
    deterministic: bool,
    seed: int,
    max_steps: int | None,
) -> Evaluation:
    """Evaluate a model or policy as `evaluate` does, with the model's `predict`."""
    if max_steps is not None:
        raise ValueError(
            f"max_steps is only for JAX environments, got {max_steps}. Wrap other environments in Gymnasium's "
            "TimeLimit, inside of a Monitor."
        )
    venv = _in_monitor(env) if isinstance(env, gymnasium.Env) else env
    venv.seed(seed)
    if (trained_in := missing_statistics(model, venv)) is not None:
        venv = with_statistics(venv, trained_in)
    truncated: list[bool] = []
    unseen = 0

    def keep(local: dict[str, Any], _: object) -> None:
        nonlocal unseen
        # Where a Monitor is, SB3 counts the episodes that it saw end. A wrapper around it may end others, as a life.
        if local["done"] and ("episode" in local["info"] or not local["is_monitor_wrapped"]):
            truncated.append(bool(local["info"].get("TimeLimit.truncated", False)))
            unseen = 0
        elif local["done"] and local["info"].get("TimeLimit.truncated", False):
            unseen += 1
        if unseen > MOST_UNSEEN:  # SB3 would never return
            raise ValueError(
                "env must have its Monitor outside of what truncates its episodes, such as a TimeLimit, got it inside, "
                "where it does not see them end: Monitor(TimeLimit(env, max_episode_steps))."
            )

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
    return Evaluation(np.array(returns, float), np.array(lengths, int), ~cut, cut)


def _in_monitor(env: AnyEnv) -> VecEnv:
    return DummyVecEnv([lambda: env if is_wrapped(env, Monitor) else Monitor(env)])


def _evaluate_policy_of(model: BaseAlgorithm | BasePolicy) -> Any:
    """Return SB3's evaluate_policy, or sb3-contrib's, which asks environments for the legal actions."""
    if not is_maskable(model.policy if isinstance(model, BaseAlgorithm) else model):
        return evaluate_policy
    from sb3_contrib.common.maskable.evaluation import evaluate_policy as evaluate_maskable_policy

    return evaluate_maskable_policy


def missing_statistics(model: BaseAlgorithm | BasePolicy, env: VecEnv) -> VecNormalize | None:
    """Return the VecNormalize in which a model trains, if it normalizes observations and `env` is not in one."""
    trained_in = model.get_vec_normalize_env() if isinstance(model, BaseAlgorithm) else None
    is_missing = trained_in is not None and trained_in.norm_obs and not is_vecenv_wrapped(env, VecNormalize)
    return trained_in if is_missing else None


def warn_without_statistics(model: BaseAlgorithm | BasePolicy, env: VecEnv, stacklevel: int) -> None:
    """Warn if a model of ours was trained on normalized observations, and `env` does not normalize them."""
    if getattr(model, "normalized_observations", False) and not is_vecenv_wrapped(env, VecNormalize):
        warnings.warn(
            "The model was trained on observations normalized by a VecNormalize, but env is not wrapped in one: pass "
            "env, wrapped in a VecNormalize with the statistics of the training (VecNormalize.load).",
            stacklevel=stacklevel + 1,
        )


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
