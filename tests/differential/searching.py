"""Many programs, one after the other, and of those that fail one of each kind, minimised."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

from tests.differential.comparing import Difference, compare
from tests.differential.drawing import draw
from tests.differential.minimising import minimise
from tests.differential.running import Program


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
    tell: Callable[[Find], None] = lambda find: None,
) -> Result:
    """Run programs.

    Args:
      numbers, envs, few: of the programs; `draw`'s.
      most: stop after so many finds.
      tell: called with each find.
    """
    result, kinds = Result(), set()
    for number in numbers:
        program = draw(number, envs, few)
        result.count += 1
        difference = compare(program)
        if difference is None:
            continue
        result.failed += 1
        kind = (program.setting.is_on_policy, program.setting.env, difference.kind)
        if kind in kinds:
            continue
        kinds.add(kind)
        smallest = minimise(program, difference)
        kind = (program.setting.is_on_policy, program.setting.env, smallest[1].kind)
        if kind not in kinds or smallest[1].kind == difference.kind:
            kinds.add(kind)
            result.finds.append(Find(number, *smallest))
            tell(result.finds[-1])
        if len(result.finds) >= most:
            break
    return result
