"""Resets of single environments of a Gymnasium vector environment, without a step of the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from bridge.host_env.batches import device_of
from bridge.host_env.envpool import Begun, is_pool
from bridge.sb3 import AnyVectorEnv

# Starts the resets of some environments, given their indices.
PartialReset = Callable[[np.ndarray], Begun]


def autoreset_mode_of(vector_env: AnyVectorEnv) -> AutoresetMode:
    """Return the auto-reset mode that a vector environment declares."""
    declared = (vector_env.metadata or {}).get("autoreset_mode")
    try:
        return AutoresetMode(declared)
    except ValueError:
        raise ValueError(
            "vector_env.metadata['autoreset_mode'] must be a gymnasium.vector.AutoresetMode, which says when "
            f"{vector_env} resets an environment, got {declared!r}."
        ) from None


def partial_reset_of(vector_env: AnyVectorEnv) -> PartialReset:
    """Return a function that resets some of the environments, and cancels the reset that their next step would bring.

    Such a function is required. A step returns a transition for every environment, and Stable-Baselines3 stores them
    all. A step that resets one environment also steps all others: so no order of such steps yields a real transition of
    every environment each time, and a wrapper without single resets would have to hide or invent a dummy one.
    """
    core = vector_env.unwrapped
    if type(vector_env) is CartPoleVectorEnv:
        return lambda env_indices: lambda: _reset_cartpoles(vector_env, env_indices)
    if isinstance(core, AsyncVectorEnv) and not core.shared_memory:
        # Its workers cancel the pending reset only if they share memory.
        raise _cannot_reset_partially(
            vector_env, "an AsyncVectorEnv without shared memory resets such an environment twice"
        )
    device = None
    if not isinstance(core, SyncVectorEnv | AsyncVectorEnv) and not is_pool(core):
        device = _require_reset_mask(vector_env)

    def reset(env_indices: np.ndarray) -> Begun:
        mask = np.zeros(vector_env.num_envs, bool)
        mask[env_indices] = True
        return lambda: vector_env.reset(options={"reset_mask": _of_kind(mask, device)})

    return reset


def _require_reset_mask(vector_env: AnyVectorEnv) -> torch.device | None:
    """Check that a vector environment reads `reset_mask`, by two resets of all environments.

    One that ignores the mask would later reset all environments unnoticed. The innermost environment is tested, because
    wrappers may read the mask for other purposes.

    Returns:
      Where its tensors are; None if it returns arrays.
    """
    core = vector_env.unwrapped
    options = _Probe()
    try:
        device = device_of(core.reset()[0])
        options["reset_mask"] = _of_kind(np.ones(vector_env.num_envs, bool), device)
        core.reset(options=options)
    except Exception as error:
        raise _cannot_reset_partially(vector_env, f"its reset raised {error!r}") from error
    if not options.was_read:
        raise _cannot_reset_partially(vector_env, "its reset does not read this option")
    return device


def _of_kind(mask: np.ndarray, device: torch.device | None) -> np.ndarray | torch.Tensor:
    return mask if device is None else torch.from_numpy(mask).to(device)


class _Probe(dict[str, Any]):
    """Reset options that record whether `reset_mask` was read."""

    was_read = False

    def __getitem__(self, key: str) -> Any:
        self.was_read |= key == "reset_mask"
        return super().__getitem__(key)

    def get(self, key: str, default: object = None) -> Any:
        self.was_read |= key == "reset_mask"
        return super().get(key, default)

    def pop(self, key: str, *default: object) -> Any:
        self.was_read |= key == "reset_mask"
        return super().pop(key, *default)


def _cannot_reset_partially(vector_env: AnyVectorEnv, why: str) -> ValueError:
    mode = autoreset_mode_of(vector_env).name
    return ValueError(
        f"vector_env has auto-reset {mode}, so it must be able to reset single environments by "
        f"reset(options={{'reset_mask': mask}}), as Gymnasium defines it, but {why}: {vector_env}. Without that "
        "option, resetting one environment would step all others. Use auto-reset SAME_STEP, or support reset_mask."
    )


def _reset_cartpoles(vector_env: Any, env_indices: np.ndarray) -> tuple[np.ndarray, dict[str, object]]:
    """Reset some environments as their own next step would, with their own random generator."""
    shape = 4, len(env_indices)
    vector_env.state[:, env_indices] = first = vector_env.np_random.uniform(vector_env.low, vector_env.high, shape)
    vector_env.steps[env_indices] = 0
    vector_env.prev_done[env_indices] = False
    return first.T.astype(np.float32), {}


def require_vector_env(vector_env: AnyVectorEnv) -> None:
    """Raise unless this is a vector environment that steps all its environments at once.

    Isaac Lab's environments have its attributes, but are no subclasses of `gymnasium.vector.VectorEnv`.
    """
    names = "num_envs", "single_observation_space", "single_action_space"
    if not isinstance(vector_env, gymnasium.vector.VectorEnv) and not all(hasattr(vector_env, name) for name in names):
        raise TypeError(f"vector_env must be a gymnasium.vector.VectorEnv, got {type(vector_env).__name__}.")
    if getattr(vector_env.unwrapped, "is_async", False) is True:
        raise ValueError("vector_env must step all environments at once: make the EnvPool with batch_size = num_envs.")
