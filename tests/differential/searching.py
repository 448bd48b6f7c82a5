"""Many programs, one after the other, and of those that fail one of each kind, minimised."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import jax

from tests.differential.comparing import Difference, compare
from tests.differential.drawing import draw
from tests.differential.minimising import minimise
from tests.differential.running import Program

# Of a process's memory mappings, of which each function that XLA compiles takes some, and Linux gives 65,530.
MOST_MAPPINGS = 25_000


class Find(NamedTuple):
    """A program that fails, minimised, and the number it was drawn from."""

    number: int
    program: Program
    difference: Difference

    def __str__(self) -> str:
        return f"{self.number}: {self.difference}\n{self.program}"


def search(
    numbers: Iterable[int],
    envs: tuple[str, ...] = ("jax", "gymnasium"),
    few: bool = False,
    most: int = 20,
    smaller: int = 150,
) -> list[Find]:
    """Run programs, print those that fail, and return one of each kind of difference.

    Args:
      numbers, envs, few: of the programs; `draw`'s.
      most: stop after so many finds.
      smaller: so many smaller programs are tried for each find.
    """
    finds: list[Find] = []
    kinds, begun = set(), time.monotonic()
    for number in numbers:
        _forget_programs()
        program = draw(number, envs, few)
        difference = compare(program)
        if difference is None:
            continue
        print(f"{number} fails, {time.monotonic() - begun:.0f} s: {difference}", flush=True)
        about = program.setting.is_on_policy, program.setting.env
        if (*about, difference.kind) in kinds:
            continue
        kinds.add((*about, difference.kind))
        smallest = minimise(program, difference, smaller)
        if (*about, smallest[1].kind) not in kinds or smallest[1].kind == difference.kind:
            kinds.add((*about, smallest[1].kind))
            finds.append(Find(number, *smallest))
            print(finds[-1], flush=True)
        if len(finds) >= most:
            break
    return finds


def _forget_programs() -> None:
    """Forget compiled functions once there are as many as a process may hold."""
    mappings = Path("/proc/self/maps")
    if mappings.exists() and mappings.read_bytes().count(b"\n") > MOST_MAPPINGS:
        jax.clear_caches()
        gc.collect()
