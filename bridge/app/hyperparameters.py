"""Parsing of hyper-parameters from the command line, and checks of their values."""

from __future__ import annotations

import ast
import contextlib
import math
import re
from collections.abc import Callable, Iterable
from typing import Any

from bridge.algorithms.specs import ALGORITHMS
from jaxenvs import learn

# The arguments of SB3's algorithms that may be schedules. PPO has all of them.
SCHEDULED = learn.PPO.SCHEDULED

# Lowest and highest value of hyper-parameters that are not in jaxenvs.learn, or have other bounds there.
BOUNDS: dict[str, tuple[float, float]] = {
    "rms_prop_eps": (0, math.inf),
    "sde_sample_freq": (-1, math.inf),
    "stats_window_size": (1, math.inf),
    "learning_starts": (0, math.inf),
    "gradient_steps": (-1, math.inf),
    "noise_std": (0, math.inf),
    "frame_stack": (1, math.inf),
}

# Replace `action_noise`, with their defaults.
NOISE: dict[str, Any] = {"noise_type": None, "noise_std": 0.0}
NOISE_TYPES = ("normal", "ornstein-uhlenbeck")
TRAIN_FREQ_UNITS = ("step", "episode")


def bounds_of(algorithm: str) -> dict[str, tuple[float, float]]:
    """Return the lowest and highest value of an algorithm's hyper-parameters that have bounds.

    SB3 accepts some values outside of them, which do not train.

    Args:
      algorithm: a key of ALGORITHMS.
    """
    settings = ALGORITHMS[algorithm].settings
    return settings.RANGES | dict.fromkeys(settings.COUNTS, (1, math.inf)) | BOUNDS


def check_bounds(algorithm: str, name: str, value: Any) -> None:
    """Raise for a value with which training cannot work.

    Raises:
      ValueError: a number, or the start of a schedule, is infinite, NaN or out of its bounds; or a word is unknown.
    """
    if name == "noise_type" and value not in (None, *NOISE_TYPES):
        raise ValueError(f"noise_type must be None or one of {', '.join(NOISE_TYPES)}, got {value!r}.")
    if name == "train_freq" and not _is_train_freq(value):
        expected = "an int of at least 1, or an int and a unit such as (1,'episode')"
        raise ValueError(f"train_freq must be {expected}, got {value!r}.")
    if name in ("ent_coef", "target_entropy") and isinstance(value, str) and value != "auto":
        is_start = name == "ent_coef" and value.startswith("auto_") and _is_positive(value.removeprefix("auto_"))
        if not is_start:
            words = "'auto' or a start such as 'auto_0.1'" if name == "ent_coef" else "'auto'"
            raise ValueError(f"{name} must be a number or {words}, got {value!r}.")
    if isinstance(value, str) and name in SCHEDULED:
        value = to_schedule(value)(1.0)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    low, high = bounds_of(algorithm).get(name, (-math.inf, math.inf))
    if not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {value}.")
    if not low <= value <= high:
        expected = f"at least {low:g}" if math.isinf(high) else f"between {low:g} and {high:g}"
        raise ValueError(f"{name} must be {expected}, got {value}.")


def _is_train_freq(value: Any) -> bool:
    if isinstance(value, list | tuple):  # JSON has a pair as a list, Python as a tuple
        return len(value) == 2 and type(value[0]) is int and value[0] >= 1 and value[1] in TRAIN_FREQ_UNITS
    return type(value) is int and value >= 1


def _is_positive(text: str) -> bool:
    try:
        return 0 < float(text) < math.inf
    except ValueError:
        return False


def parse_assignments(assignments: Iterable[str]) -> dict[str, Any]:
    """Parse `["n_steps=32", "learning_rate=lin_0.001"]` to a dict. Values are Python literals; plain words are strings.

    Raises:
      ValueError: an item is not `name=value`, or its value is not a literal.
    """
    parsed = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not (equals and name.isidentifier()):
            raise ValueError(f"Expected name=value, such as n_steps=32, got {assignment!r}.")
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
        raise ValueError(
            f"{name} must be a Python literal, such as 32, 0.5, True, 'text' or [64, 64], got {text}."
        ) from error


def whole_number(text: str) -> int:
    """Read a whole number as people type it: 100000, 100_000 or 1e5.

    Raises:
      ValueError: it is none.
    """
    with contextlib.suppress(ValueError):
        return int(text)
    with contextlib.suppress(ValueError):
        number = float(text)
        if number.is_integer() and abs(number) < 2**53:  # beyond which floats leave out numbers
            return int(number)
    raise ValueError(f"expected a whole number, such as 100000 or 1e5, got {text!r}.")


def to_schedule(value: Any) -> Any:
    """Return the function of the remaining progress that "lin_0.001" describes; any other value unchanged.

    Raises:
      ValueError: it is a string, but not such a schedule.
    """
    if not isinstance(value, str):
        return value
    kind, _, start = value.partition("_")
    try:
        if kind == "lin":
            return _linear(float(start))
    except ValueError:
        pass
    raise ValueError(f"{value!r} is not a schedule. A linear schedule looks like lin_0.001.")


def _linear(start: float) -> Callable[[float], float]:
    # A closure, because SB3 pickles it by value: then the zip loads where this package is not installed.
    return lambda progress_remaining: progress_remaining * start
