"""Table of the parts of each algorithm that are compiled on this machine, by the plans of small models."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable

import gymnasium
from stable_baselines3.common.vec_env import VecEnv

import jaxenvs
from bridge import SerialVecEnv, make_vec_env
from bridge.algorithms.specs import ALGORITHMS, AlgorithmSpec
from bridge.app.config import TrainingConfig
from bridge.app.runs import make_model
from bridge.engine.plan import Mode
from jaxenvs.cli import UserError

ENVIRONMENTS = {"Discrete": "CartPole-v1", "Box": "Pendulum-v1"}


def _programs(env_id: str, num_envs: int) -> VecEnv:
    return make_vec_env(env_id, num_envs, seed=0)


def _pictures(env_id: str, num_envs: int) -> VecEnv:
    return make_vec_env(jaxenvs.Pixels(jaxenvs.make(env_id)), num_envs, seed=0)


def _on_the_host(env_id: str, num_envs: int) -> VecEnv:
    return SerialVecEnv([lambda: gymnasium.make(env_id)] * num_envs)


# Kinds of environments, the function that makes them, and the kind of policy.
KINDS: dict[str, tuple[Callable[[str, int], VecEnv], str]] = {
    "JAX": (_programs, "Mlp"),
    "JAX, images": (_pictures, "Cnn"),
    "Gymnasium": (_on_the_host, "Mlp"),
}


def compiled_parts() -> list[tuple[str, ...]]:
    """Return a row for each algorithm, below the kinds of environments: the compiled parts of its training on these."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)  # the table shows what falls back
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rows = [(each.name, *(_parts(each, *KINDS[kind]) for kind in KINDS)) for each in ALGORITHMS.values()]
    finally:
        logging.disable(level)
    return [("", *KINDS), *rows]


def _parts(algorithm: AlgorithmSpec, make: Callable[[str, int], VecEnv], network: str) -> str:
    """Return the compiled parts of a training, in a few words."""
    if not algorithm.is_installed:
        return "needs sb3-contrib"
    env_id = ENVIRONMENTS[algorithm.actions or "Discrete"]
    policy = f"{network}{algorithm.policy_kind}Policy"
    try:
        config = TrainingConfig.resolve(algorithm.command, env_id, hyperparameters={"policy": policy})
        plan = make_model(config, make(env_id, config.num_envs)).plan  # type: ignore[attr-defined]
    except UserError:
        return "-"  # the algorithm has no such policy
    if plan.collects and plan.updates:
        return "all"
    parts = ["steps"] * plan.collects + ["acting"] * (plan.mode is Mode.ACTING) + ["updates"] * plan.updates
    return ", ".join(parts) or "nothing"
