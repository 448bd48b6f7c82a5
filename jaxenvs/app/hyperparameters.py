"""Hyper-parameters that are known to work, and how they are written on a command line."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Iterable
from typing import Any

# The command's name of an algorithm, and bridge's. Any with SB3's constructor: adding one is one line.
ALGORITHMS = {"a2c": "A2C", "ppo": "PPO"}

# Algorithm -> environment -> what RL Baselines3 Zoo found for it (hyperparams/ppo.yml of DLR-RM/rl-baselines3-zoo).
# Names are those of the Zoo: `n_envs` and `n_timesteps` belong to the run, `normalize` asks for a VecNormalize, and
# "lin_0.001" falls linearly from 0.001 to 0 over the training.
TUNED: dict[str, dict[str, dict[str, Any]]] = {
    "ppo": {
        "CartPole-v1": {
            "n_envs": 8,
            "n_timesteps": 100_000,
            "n_steps": 32,
            "batch_size": 256,
            "gae_lambda": 0.8,
            "gamma": 0.98,
            "n_epochs": 20,
            "ent_coef": 0.0,
            "learning_rate": "lin_0.001",
            "clip_range": "lin_0.2",
        },
        "Acrobot-v1": {
            "normalize": True,
            "n_envs": 16,
            "n_timesteps": 1_000_000,
            "n_steps": 256,
            "gae_lambda": 0.94,
            "gamma": 0.99,
            "n_epochs": 4,
            "ent_coef": 0.0,
        },
        "MountainCar-v0": {
            "normalize": True,
            "n_envs": 16,
            "n_timesteps": 1_000_000,
            "n_steps": 16,
            "gae_lambda": 0.98,
            "gamma": 0.99,
            "n_epochs": 4,
            "ent_coef": 0.0,
        },
        "MountainCarContinuous-v0": {
            "normalize": True,
            "n_envs": 1,
            "n_timesteps": 20_000,
            "n_steps": 8,
            "batch_size": 256,
            "gamma": 0.9999,
            "learning_rate": 7.77e-05,
            "ent_coef": 0.00429,
            "clip_range": 0.1,
            "n_epochs": 10,
            "gae_lambda": 0.9,
            "max_grad_norm": 5.0,
            "vf_coef": 0.19,
            "use_sde": True,
            "policy_kwargs": {"log_std_init": -3.29, "ortho_init": False},
        },
        "Pendulum-v1": {
            "n_envs": 4,
            "n_timesteps": 100_000,
            "n_steps": 1024,
            "gae_lambda": 0.95,
            "gamma": 0.9,
            "n_epochs": 10,
            "ent_coef": 0.0,
            "learning_rate": 0.001,
            "clip_range": 0.2,
            "use_sde": True,
            "sde_sample_freq": 4,
        },
    }
}

# The arguments of SB3's algorithms that may be schedules.
SCHEDULED = ("learning_rate", "clip_range", "clip_range_vf")

# Least and greatest value of what has bounds. SB3 trains with some that lie outside, to no use.
BOUNDS: dict[str, tuple[float, float]] = {
    "n_steps": (1, math.inf),
    "batch_size": (1, math.inf),
    "n_epochs": (1, math.inf),
    "gamma": (0, 1),
    "gae_lambda": (0, 1),
    "learning_rate": (0, math.inf),
    "clip_range": (0, math.inf),
    "clip_range_vf": (0, math.inf),
    "max_grad_norm": (0, math.inf),
    "target_kl": (0, math.inf),
    "rms_prop_eps": (0, math.inf),
    "sde_sample_freq": (-1, math.inf),
    "stats_window_size": (1, math.inf),
}


def check_bounds(name: str, value: Any) -> None:
    """
    Raises:
      ValueError: a number, or the start of a schedule, that is infinite, NaN or out of its bounds.
    """
    if isinstance(value, str) and name in SCHEDULED:
        value = to_schedule(value)(1.0)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    low, high = BOUNDS.get(name, (-math.inf, math.inf))
    if not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {value}.")
    if not low <= value <= high:
        expected = f"at least {low:g}" if math.isinf(high) else f"between {low:g} and {high:g}"
        raise ValueError(f"{name} must be {expected}, got {value}.")


def parse_assignments(assignments: Iterable[str]) -> dict[str, Any]:
    """`["n_steps=32", "learning_rate=lin_0.001"]` as a dict. Values are Python literals; plain words are strings.

    Raises:
      ValueError: one of them is not `name=value`, or its value is not a literal.
    """
    parsed = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not (equals and name.isidentifier()):
            raise ValueError(f"{assignment!r} is not of the form name=value, as n_steps=32.")
        parsed[name] = _parse_value(name, text)
    return parsed


def _parse_value(name: str, text: str) -> Any:
    json_words = {"true": True, "false": False, "null": None}
    if text in json_words:
        return json_words[text]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError) as error:
        if re.fullmatch(r"[A-Za-z][\w.+-]*", text):
            return text
        raise ValueError(f"{name}={text} is not a Python literal, as 32, 0.5, True, 'text' or [64, 64].") from error


def to_schedule(value: Any) -> Any:
    """The function of the remaining progress that "lin_0.001" means; any other value as it is.

    Raises:
      ValueError: a string that is not such a schedule.
    """
    if not isinstance(value, str):
        return value
    kind, _, start = value.partition("_")
    try:
        if kind == "lin":
            return _linear(float(start))
    except ValueError:
        pass
    raise ValueError(f"{value!r} is not a schedule. A linear one is written lin_0.001.")


def _linear(start: float) -> Callable[[float], float]:
    # A closure, because SB3 saves it by value: the zip loads where this package is not installed.
    return lambda progress_remaining: progress_remaining * start
