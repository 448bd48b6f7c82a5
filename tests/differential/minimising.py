"""A program that fails, with all taken out that need not be there."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from tests.differential.comparing import Difference, compare
from tests.differential.running import Program
from tests.differential.settings import Setting


def minimise(program: Program, found: Difference, most: int = 150) -> tuple[Program, Difference]:
    """The smallest program that still fails, found by leaving out one thing after the other.

    Args:
      program, found: one that fails, and how. Smaller ones fail alike.
      most: so many are tried.
    """
    tried: set[str] = {str(program)}
    progress = True
    while progress and len(tried) < most:
        progress = False
        for smaller in _smaller(program):
            if str(smaller) in tried or len(tried) >= most:
                continue
            tried.add(str(smaller))
            try:
                difference = compare(smaller)
            except Exception:  # not a program any more
                continue
            if difference is not None and difference.kind == found.kind:
                program, found, progress = smaller, difference, True
                break
    return program, found


def _smaller(program: Program) -> Iterator[Program]:
    setting, operations = program
    for i in reversed(range(len(operations))):
        yield Program(setting, operations[:i] + operations[i + 1 :])
    for i in range(len(setting.overrides)):
        overrides = setting.overrides[:i] + setting.overrides[i + 1 :]
        yield Program(dataclasses.replace(setting, overrides=overrides), operations)
    for i, override in enumerate(setting.overrides):
        if len(override) > 1:
            overrides = (*setting.overrides[:i], override[:1], *setting.overrides[i + 1 :])
            yield Program(dataclasses.replace(setting, overrides=overrides), operations)
    for field in dataclasses.fields(Setting):
        if field.name not in ("algorithm", "env", "exact") and getattr(setting, field.name) != field.default:
            simpler = dataclasses.replace(setting, **{field.name: field.default})
            yield Program(simpler, operations)
    for i, operation in enumerate(operations):
        for simpler_operation in _simpler(operation):
            yield Program(setting, (*operations[:i], simpler_operation, *operations[i + 1 :]))


def _simpler(operation: tuple) -> Iterator[tuple]:
    if operation[0] == "look":
        for i in range(1, len(operation)):
            if len(operation) > 2:
                yield operation[:i] + operation[i + 1 :]
    if operation[0] == "play":
        for i in range(len(operation[1])):
            yield "play", operation[1][:i] + operation[1][i + 1 :]
    if operation[0] in ("wrap", "patch") and len(operation) > 3:
        yield operation[:3] if operation[0] == "wrap" else operation[:2]
    if operation[0] != "learn":
        return
    _, steps, resets, callback, log_interval = operation
    if callback is not None:
        yield "learn", steps, resets, None, log_interval
        kind, every, events = callback
        for i in range(len(events)):
            yield "learn", steps, resets, (kind, every, events[:i] + events[i + 1 :]), log_interval
        if kind != "each":
            yield "learn", steps, resets, ("each", 1, events), log_interval
    if not resets:
        yield "learn", steps, True, callback, log_interval
    if log_interval != 4:
        yield "learn", steps, resets, callback, 4
    for fewer in (1, 4, 8, 12):
        if fewer < steps:
            yield "learn", fewer, resets, callback, log_interval
