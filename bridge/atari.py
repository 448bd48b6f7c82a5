"""make_atari_env: Stable-Baselines3's function, with EnvPool as another backend."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
from stable_baselines3.common.atari_wrappers import AtariWrapper
from stable_baselines3.common.vec_env import VecEnv

from bridge.factory import BACKENDS, make_vec_env
from bridge.sb3 import AnyEnv
from jaxenvs.arguments import instance, one_of, shown

# EnvPool's names for the arguments of AtariWrapper.
OPTIONS = {
    "noop_max": ("noop_max",),
    "frame_skip": ("frame_skip",),
    "screen_size": ("img_height", "img_width"),
    "terminal_on_life_loss": ("episodic_life",),
    "clip_reward": ("reward_clip",),
    "action_repeat_probability": ("repeat_action_probability",),
}
# AtariWrapper's defaults, and one frame: SB3 stacks frames with VecFrameStack.
DEFAULTS: dict[str, Any] = {"episodic_life": True, "reward_clip": True, "stack_num": 1}


def make_atari_env(
    env_id: str | Callable[..., AnyEnv],
    n_envs: int = 1,
    seed: int | None = None,
    start_index: int = 0,
    monitor_dir: str | None = None,
    wrapper_kwargs: Mapping[str, object] | None = None,
    env_kwargs: Mapping[str, object] | None = None,
    vec_env_cls: Callable[..., VecEnv] | None = None,
    vec_env_kwargs: Mapping[str, object] | None = None,
    monitor_kwargs: Mapping[str, object] | None = None,
    *,
    backend: str = "auto",
) -> VecEnv:
    """Make a VecEnv of an Atari game in SB3's AtariWrapper, with the arguments of SB3's `make_atari_env`.

    With `backend="native"`, EnvPool steps the game, with the options that do the same as AtariWrapper;
    docs/environments/envpool.md lists the remaining differences. Wrap the result in a VecFrameStack, as with SB3.

    Args:
      env_id: such as "PongNoFrameskip-v4"; for "native" also EnvPool's name, "Pong-v5".
      n_envs, seed, start_index, monitor_dir, vec_env_cls, vec_env_kwargs, monitor_kwargs: as in `make_vec_env`.
      wrapper_kwargs: arguments of AtariWrapper.
      env_kwargs: arguments of `gymnasium.make`; for "native", further options of EnvPool.
      backend: as in `make_vec_env`: "serial", which "auto" means here; "process"; or "native".

    Raises:
      ValueError, TypeError: an argument is invalid, or EnvPool has no option for it.
    """
    one_of("backend", backend, BACKENDS)
    if backend == "native":
        if vec_env_cls is not None:
            raise ValueError("vec_env_cls and backend='native' cannot be combined: pass one of them.")
        if monitor_dir is not None or monitor_kwargs:
            raise ValueError("backend='native' does not support monitor_dir and monitor_kwargs: pass backend='serial'.")
        options = native_options(wrapper_kwargs) | dict(env_kwargs or {})
        return make_vec_env(
            native_id(env_id), n_envs, seed, start_index, None, None, options, None, vec_env_kwargs, backend="native"
        )
    if importlib.util.find_spec("ale_py") is not None:
        gymnasium.register_envs(importlib.import_module("ale_py"))
    backend = "serial" if backend == "auto" and vec_env_cls is None else backend
    return make_vec_env(
        env_id,
        n_envs,
        seed,
        start_index,
        monitor_dir,
        AtariWrapper,
        env_kwargs,
        vec_env_cls,
        vec_env_kwargs,
        monitor_kwargs,
        wrapper_kwargs,
        backend=backend,
    )


def native_id(env_id: Any) -> str:
    """Return EnvPool's name of a game. Ids for which Gymnasium already skips frames are refused."""
    instance("env_id", env_id, str, "an id, for backend='native'")
    found = re.fullmatch(r"(\w+)NoFrameskip-v4|(\w+)-v5", env_id)
    if found is None:
        raise ValueError(
            f"With backend='native', env_id must look like 'PongNoFrameskip-v4' or 'Pong-v5', got {env_id!r}."
        )
    return f"{found[1] or found[2]}-v5"


def native_options(wrapper_kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the options with which EnvPool does what AtariWrapper does with these arguments."""
    options = dict(DEFAULTS)
    for name, value in (wrapper_kwargs or {}).items():
        if name not in OPTIONS:
            raise TypeError(f"wrapper_kwargs must hold arguments of AtariWrapper ({', '.join(OPTIONS)}), got {name!r}.")
        if name == "noop_max" and value < 1:
            raise ValueError(
                f"wrapper_kwargs['noop_max'] must be at least 1 with backend='native', got {shown(value)}."
            )
        options |= dict.fromkeys(OPTIONS[name], value)
    return options
