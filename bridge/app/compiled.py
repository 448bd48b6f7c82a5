"""Table of the parts of each algorithm that are compiled on this machine, by the plans of small models."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium
from stable_baselines3.common.vec_env import VecEnv

import jaxenvs
from bridge import SerialVecEnv, make_vec_env
from bridge.algorithms.specs import ALGORITHMS, AlgorithmSpec
from bridge.engine.plan import Mode

ENVIRONMENTS = {"Discrete": "CartPole-v1", "Box": "Pendulum-v1"}
# Kinds of environments, the function that makes one, and the kind of policy.
KINDS: dict[str, tuple[Callable[[str], VecEnv], str]] = {
    "JAX": (make_vec_env, "Mlp"),
    "JAX, images": (lambda env_id: make_vec_env(jaxenvs.Pixels(jaxenvs.make(env_id))), "Cnn"),
    "Gymnasium": (lambda env_id: SerialVecEnv([lambda: gymnasium.make(env_id)]), "Mlp"),
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


def _parts(algorithm: AlgorithmSpec, make: Callable[[str], VecEnv], network: str) -> str:
    """Return the compiled parts of a training, in a few words."""
    if not algorithm.is_installed:
        return "needs sb3-contrib"
    env_id, policy = ENVIRONMENTS[algorithm.actions or "Discrete"], f"{network}{algorithm.policy_kind}Policy"
    small: dict[str, Any] = {"buffer_size": 100} if algorithm.is_off_policy else {"n_steps": 64}
    try:
        plan = algorithm.cls(policy, make(env_id), **small).plan  # type: ignore[attr-defined]
    except ValueError:
        return "-"  # the algorithm has no such policy
    if plan.collects and plan.updates:
        return "all"
    parts = ["steps"] * plan.collects + ["acting"] * (plan.mode is Mode.ACTING) + ["updates"] * plan.updates
    return ", ".join(parts) or "nothing"
