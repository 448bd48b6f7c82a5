"""One seed is one run: on JAX environments a callback changes nothing of what bridge trains.

Not by more than rounding, that is: XLA may round tiny networks differently in another function. `test_one_run` compares
bits.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from tests.differential.running import Program, run

# Another draw changes numbers by far more.
RELATIVE, ABSOLUTE = 1e-4, 1e-5
CALLBACKS = (("noop", 1, ()), ("announced", 5, ()), ("eval alone", 3, ()), ("every", 3, ()))
# What depends on whether SB3's loop runs, and what a callback's kind is documented to change.
BESIDE = ("wrap", "patch", "play", "look", "signal")


def programs(program: Program) -> list[Program]:
    """The program without a callback, and with each of CALLBACKS; none where runs are documented to differ."""
    setting = dataclasses.replace(program.setting, overrides=(), logged="")
    if setting.env != "jax" or setting.wrapper:
        return []
    kept = [operation for operation in program.operations if operation[0] not in BESIDE]
    begin = () if setting.exact else (("write", "rate", "constant", 0.02),)
    return [Program(setting, (*begin, *(_with(each, callback) for each in kept))) for callback in (None, *CALLBACKS)]


def _with(operation: tuple[Any, ...], callback: Any) -> tuple[Any, ...]:
    return (*operation[:3], callback, *operation[4:]) if operation[0] == "learn" else operation


def differing(program: Program) -> str:
    """Which callback changes what; "" if none does."""
    expected = None
    for each, callback in zip(programs(program), (None, *CALLBACKS)):
        found = _numbers(run("bridge", each).models)
        expected = expected or found
        for name, value in expected.items():
            if not np.allclose(value, found[name], RELATIVE, ABSOLUTE, equal_nan=True):
                return f"{callback[0] if callback else None} changes {name}"
    return ""


def _numbers(models: dict[int, Any]) -> dict[str, Any]:
    found = {}
    for number, model in models.items():
        found |= {f"{number}.{name}": value.numpy().copy() for name, value in model.policy.state_dict().items()}
        found[f"{number}.num_timesteps"] = np.array(model.num_timesteps)
    return found
