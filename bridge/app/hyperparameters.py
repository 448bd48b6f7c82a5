"""Parsing of hyper-parameters from the command line, and checks of their values."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import inspect
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from stable_baselines3.common.vec_env import VecNormalize

from bridge.algorithms.specs import ALGORITHMS
from jaxenvs import learn

# The arguments of SB3's algorithms that may be schedules. PPO has all of them.
SCHEDULED = learn.PPO.SCHEDULED

# Replace `action_noise`, with their defaults.
NOISE: dict[str, object] = {"noise_type": None, "noise_std": 0.0}
NOISE_TYPES = ("normal", "ornstein-uhlenbeck")
# The lowest value of hyper-parameters that are not in jaxenvs.learn.
LEAST = {"noise_std": 0, "frame_stack": 1, "stats_window_size": 1}


def check_values(algorithm: str, values: dict[str, Any], defaults: Mapping[str, object]) -> None:
    """Raise for values with which training cannot work. SB3's constructors accept many of them, jaxenvs.learn none.

    Args:
      algorithm: a key of ALGORITHMS.
      values: hyper-parameters by name.
      defaults: of all hyper-parameters of the algorithm.

    Raises:
      ValueError, TypeError: a value is of the wrong type, or out of its bounds.
    """
    settings: Any = ALGORITHMS[algorithm].settings()
    known = {field.name for field in dataclasses.fields(settings)} - {"sde_sample_freq"}  # SB3's may be -1
    numbers = {}
    for name, value in values.items():
        if name in SCHEDULED and isinstance(value, str):
            value = to_schedule(value)(1.0)
        elif name == "ent_coef" and isinstance(value, str):
            value = _parse_value(name, value.removeprefix("auto_")) or value  # auto_0 is no start
        elif name == "train_freq" and isinstance(value, list | tuple) and value:
            value = value[0]  # the unit is checked by SB3's constructor
        elif name == "normalize" and isinstance(value, dict):
            parameters = inspect.signature(VecNormalize).parameters
            for each in value.keys() & parameters.keys():  # others are refused by the constructor
                _check_type(f"{each} of normalize", value[each], parameters[each].default)
            continue
        _check_type(name, value, defaults[name])
        if name in known and value != "auto":
            numbers[name] = value
    if "auto_ent_coef" in known:
        numbers["auto_ent_coef"] = isinstance(values.get("ent_coef"), str)  # a number is a fixed coefficient
    settings.replace(**numbers).check()
    if values.get("noise_type") not in (None, *NOISE_TYPES):
        raise ValueError(f"noise_type must be None or one of {', '.join(NOISE_TYPES)}, got {values['noise_type']!r}.")
    for name, least in LEAST.items():
        if values.get(name, least) < least:
            raise ValueError(f"{name} must be at least {least}, got {values[name]}.")


def _check_type(name: str, value: object, default: object) -> None:
    """Raise a ValueError unless a value has the type of its default, and is finite."""
    kinds = {bool: (bool,), int: (int,), float: (float, int)}.get(type(default))
    if kinds is not None and type(value) not in kinds:
        raise ValueError(f"{name} must be of type {kinds[0].__name__}, such as {default!r}, got {value!r}.")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {value}.")


def parse_assignments(assignments: Iterable[str]) -> dict[str, object]:
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


def _parse_value(name: str, text: str) -> object:
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


def to_schedule(value: object) -> Any:
    """Return the function of the remaining progress that "lin_0.001" describes; any other value unchanged.

    Raises:
      ValueError: it is a string, but not such a schedule.
    """
    if not isinstance(value, str):
        return value
    kind, _, number = value.partition("_")
    try:
        start = float(number if kind == "lin" else "")
    except ValueError:
        raise ValueError(f"{value!r} is not a schedule. A linear schedule looks like lin_0.001.") from None
    # A closure, because SB3 pickles it by value: then the zip loads where this package is not installed.
    return lambda progress_remaining: progress_remaining * start
