"""The meaning of a model's `engine` and `device`: which code runs its policy, and on which device."""

from __future__ import annotations

from typing import Any

import torch
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import TrainFrequencyUnit
from stable_baselines3.common.vec_env import VecEnv

from bridge.sb3 import Algorithm
from bridge.vec_env.placement import PREDICT, Placement, Work, is_box2d, place
from jaxenvs import VectorEnv
from jaxenvs.compilation.default_device import accelerator

ENGINES = ("auto", "xla", "torch")
# `train_freq` may count episodes, whose length is not known: an episode is taken for this many steps.
STEPS_OF_AN_EPISODE = 100


def require_engine(engine: str) -> str:
    """Return the name of an engine.

    Raises:
      ValueError: there is no such engine.
    """
    if engine not in ENGINES:
        raise ValueError(f"engine must be one of {', '.join(map(repr, ENGINES))}, got {engine!r}.")
    return engine


def convolves(policy: torch.nn.Module) -> bool:
    """Return whether a policy has convolutions."""
    return any(isinstance(module, torch.nn.modules.conv._ConvNd) for module in policy.modules())


def policy_is_on_gpu(policy: BasePolicy) -> bool:
    """Return whether PyTorch has a policy on a GPU."""
    return policy.device.type != "cpu"


def is_slower_compiled(policy: torch.nn.Module) -> bool:
    """Return whether a policy acts and learns more slowly in XLA than in PyTorch: with convolutions, on a CPU.

    The cells with CnnPolicy of benchmarks/never_slower.py check it, on Atari's images.
    """
    return convolves(policy) and accelerator() is None


def placement_of(algorithm: Algorithm, env: VecEnv | None, in_jax: bool) -> Placement:
    """Return where the compiled functions of a model run, in which its environments are stepped if `in_jax`."""
    inner = None if env is None else env.unwrapped
    if algorithm.engine == "torch" or accelerator() is None or getattr(inner, "mesh", None) is not None:
        return Placement()
    return place(algorithm.asked_device, lambda: _work(algorithm, inner, in_jax).pays())


def placement_of_acting(asked: str, policy: BasePolicy, num_rows: int) -> Placement:
    """Return where one compiled function acts on `num_rows` observations: where the weights are, if these are few."""

    def pays() -> tuple[bool, str]:
        is_large = num_rows * _num_params(policy) >= PREDICT
        return is_large or policy_is_on_gpu(policy) or convolves(policy), "of its work"

    return place("cpu" if asked == "cpu" else "auto", pays)


def placement_of_episodes(model: object, policy: BasePolicy, venv: VectorEnv, num_envs: int) -> Placement:
    """Return where `evaluate` runs episodes, `num_envs` at once, in one compiled function."""
    work = Work(False, False, num_envs * _num_params(policy), pictures=convolves(policy), box2d=is_box2d(venv))
    return place(getattr(model, "asked_device", "auto"), work.pays)


def _num_params(policy: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in policy.parameters())


def _work(algorithm: Any, env: Any, in_jax: bool) -> Work:
    policy, num_envs = algorithm.policy, algorithm.n_envs
    if on_policy := isinstance(algorithm, OnPolicyAlgorithm):
        every, rows = algorithm.n_steps, getattr(algorithm, "n_epochs", 1) * num_envs
    else:
        every, unit = algorithm.train_freq
        every *= 1 if unit is TrainFrequencyUnit.STEP else STEPS_OF_AN_EPISODE
        updates = algorithm.gradient_steps if algorithm.gradient_steps >= 0 else every * num_envs
        rows = algorithm.batch_size * updates / max(every, 1)
    return Work(
        in_jax=in_jax,
        on_policy=on_policy,
        per_step=(num_envs + rows) * _num_params(policy),
        updates_per_step=1 / max(every, 1),
        pictures=convolves(policy),
        policy_on_gpu=policy_is_on_gpu(policy),
        box2d=in_jax and is_box2d(env.venv),
    )
