"""Arguments of SB3's Monitor for VecMonitor, and the VecMonitor around environments that are stepped at once."""

from __future__ import annotations

import warnings
from typing import Any

from stable_baselines3.common.vec_env import VecEnv, VecMonitor

# Arguments of SB3's Monitor that VecMonitor lacks, and whether their defaults are true.
MONITOR_DEFAULTS = {"allow_early_resets": True, "reset_keywords": False, "override_existing": True}


def of_vec_monitor(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments with which a VecMonitor does what a Monitor does with `kwargs`.

    Raises:
      TypeError: VecMonitor cannot do what an argument asks for.
    """
    others = {name: value for name, value in kwargs.items() if name != "info_keywords"}
    unknown = [name for name, value in others.items() if bool(value) != MONITOR_DEFAULTS.get(name, not value)]
    if unknown:
        given = ", ".join(f"{name}={others[name]!r}" for name in unknown)
        raise TypeError(f"monitor_kwargs accepts only info_keywords and Monitor's default values, got {given}.")
    return {name: value for name, value in kwargs.items() if name == "info_keywords"}


def monitored(vec_env: VecEnv, folder: str | None, kwargs: dict[str, Any]) -> VecEnv:
    if folder is None and not kwargs:
        return vec_env
    with warnings.catch_warnings():
        # VecMonitor warns that it overwrites the infos' `episode`, but both are the same here.
        warnings.filterwarnings("ignore", message=".*already wrapped with a `Monitor`")
        return VecMonitor(vec_env, None if folder is None else f"{folder}/monitor.csv", **kwargs)
