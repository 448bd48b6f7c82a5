"""Many programs, one after the other, and of those that fail one of each kind, minimised."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Callable, Iterable
from pathlib import Path

import jax

from tests.differential.comparing import Difference, compare
from tests.differential.drawing import draw
from tests.differential.minimising import minimise
from tests.differential.running import Program

# Of a process's memory mappings, of which each function that XLA compiles takes some, and Linux gives 65,530.
MOST_MAPPINGS = 25_000


@dataclasses.dataclass
class Find:
    """A program that fails.

    Attributes:
      number: it was drawn from.
      program, difference: minimised.
    """

    number: int
    program: Program
    difference: Difference

    def __str__(self) -> str:
        return f"{self.number}: {self.difference}\n{self.program}"


@dataclasses.dataclass
class Result:
    """What a search found.

    Attributes:
      count, failed: how many programs ran, and how many of them failed.
      finds: one of each kind of difference.
    """

    count: int = 0
    failed: int = 0
    finds: list[Find] = dataclasses.field(default_factory=list)


def search(
    numbers: Iterable[int],
    envs: tuple[str, ...] = ("jax", "gymnasium"),
    few: bool = False,
    most: int = 20,
    smaller: int = 150,
    tell: Callable[[Find], None] = lambda find: None,
    tell_failed: Callable[[int, Difference], None] = lambda number, difference: None,
) -> Result:
    """Run programs.

    Args:
      numbers, envs, few: of the programs; `draw`'s.
      most: stop after so many finds.
      smaller: so many smaller programs are tried for each find.
      tell: called with each find.
      tell_failed: called with each number whose program fails, and how.
    """
    result, kinds = Result(), set()
    for number in numbers:
        _forget_programs()
        program = draw(number, envs, few)
        result.count += 1
        difference = compare(program)
        if difference is None:
            continue
        result.failed += 1
        tell_failed(number, difference)
        kind = (program.setting.is_on_policy, program.setting.env, difference.kind)
        if kind in kinds:
            continue
        kinds.add(kind)
        smallest = minimise(program, difference, smaller)
        kind = (program.setting.is_on_policy, program.setting.env, smallest[1].kind)
        if kind not in kinds or smallest[1].kind == difference.kind:
            kinds.add(kind)
            result.finds.append(Find(number, *smallest))
            tell(result.finds[-1])
        if len(result.finds) >= most:
            break
    return result


def _forget_programs() -> None:
    """Forget compiled functions once there are as many as a process may hold."""
    mappings = Path("/proc/self/maps")
    if mappings.exists() and mappings.read_bytes().count(b"\n") > MOST_MAPPINGS:
        jax.clear_caches()
        gc.collect()
