"""The first difference between what two runs noted, but for those that are known and explained."""

from __future__ import annotations

import dataclasses
import fnmatch
import re
from typing import Any

import numpy as np

from tests.differential.observing import Drawn
from tests.differential.one_run import differing
from tests.differential.running import Note, Program, run

# One update moves weights by far more; PyTorch and JAX round each by far less. Where programs let weights grow, the
# rounding of the largest of them is in all the others.
RELATIVE, ABSOLUTE = 2e-3, 2e-4


@dataclasses.dataclass(frozen=True)
class Known:
    """A difference that stands in docs/stable-baselines3.md, "What differs".

    Attributes:
      observable: a pattern of what was looked at and where in it, as "locals.actions".
      reason: why it is as it is.
    """

    observable: str
    reason: str

    def explains(self, found: Difference) -> bool:
        return fnmatch.fnmatchcase(found.observable, self.observable)


# The reasons are the words of the document.
KNOWN: tuple[Known, ...] = (
    Known("*.time/compile_s", "`time/compile_s`"),
    Known("weights.training", "stays in evaluation mode"),
)


@dataclasses.dataclass(frozen=True)
class Difference:
    """What one run noted and the other did not.

    Attributes:
      place: after which operation, in which call of a callback.
      observable: what was looked at, and where in it.
      theirs, ours: of Stable-Baselines3 and of bridge.
    """

    place: str
    observable: str
    theirs: str
    ours: str

    @property
    def kind(self) -> str:
        """The same of programs that fail alike."""
        operation = re.sub(r"^(end of model )?\d+(, )?|\d+", "", self.place)
        return f"{operation}: {re.sub(r'[.][0-9]+', '', self.observable)}"

    def __str__(self) -> str:
        return f"{self.place}: {self.observable}: Stable-Baselines3 {self.theirs}, bridge {self.ours}"


def compare(program: Program) -> Difference | None:
    """Run a program on both libraries; the first difference that nobody has explained."""
    found = difference(run("sb3", program).notes, run("bridge", program).notes)
    if found is None and (changed := differing(program)):
        return Difference("one run", changed, "is not asked", "differs")
    return found


def difference(theirs: list[Note], ours: list[Note]) -> Difference | None:
    for their, our in zip(theirs, ours):
        if (their.place, their.what) != (our.place, our.what):
            return Difference(their.place, f"{their.what} is noted", str(their)[:200], str(our)[:200])
        for found in _differences(their.place, their.what, their.value, our.value):
            if not any(known.explains(found) for known in KNOWN):
                return found
    if len(theirs) != len(ours):
        more = (theirs if len(theirs) > len(ours) else ours)[min(len(theirs), len(ours))]
        counts = str(len(theirs)), str(len(ours))
        return Difference(more.place, f"{more.what} is noted", *counts)
    return None


def _differences(place: str, path: str, theirs: Any, ours: Any) -> Any:
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for name in sorted({*theirs, *ours}):
            if name not in theirs or name not in ours:
                there, missing = ("there", "missing") if name in theirs else ("missing", "there")
                yield Difference(place, f"{path}.{name}", there, missing)
            else:
                yield from _differences(place, f"{path}.{name}", theirs[name], ours[name])
    elif isinstance(theirs, list) and isinstance(ours, list):
        if len(theirs) != len(ours):
            yield Difference(place, f"{path}.length", _short(theirs), _short(ours))
        for number, (their, our) in enumerate(zip(theirs, ours)):
            yield from _differences(place, f"{path}.{number}", their, our)
    elif not _same(theirs, ours):
        yield Difference(place, path, _short(theirs), _short(ours))


def _same(theirs: Any, ours: Any) -> bool:
    if isinstance(theirs, Drawn) and isinstance(ours, Drawn):
        return theirs.kind == ours.kind
    if isinstance(theirs, np.ndarray) and isinstance(ours, np.ndarray):
        if theirs.shape != ours.shape or theirs.dtype != ours.dtype:
            return False
        if theirs.dtype.kind != "f":
            return bool(np.array_equal(theirs, ours))
        largest = np.abs(theirs, where=np.isfinite(theirs), out=np.zeros_like(theirs)).max(initial=0)
        return bool(np.allclose(theirs, ours, RELATIVE, max(ABSOLUTE, RELATIVE / 2 * float(largest)), equal_nan=True))
    if isinstance(theirs, float) and isinstance(ours, float):
        return bool(np.isclose(theirs, ours, RELATIVE, ABSOLUTE, equal_nan=True))
    return type(theirs) is type(ours) and bool(np.all(theirs == ours))


def _short(value: Any) -> str:
    if isinstance(value, np.ndarray):
        shown = np.array2string(value.ravel()[:6], precision=4, separator=", ")
        return f"{value.dtype}{list(value.shape)} {shown}"
    return str(value)[:300]
