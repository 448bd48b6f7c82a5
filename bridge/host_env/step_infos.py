"""StepInfos: the infos of a step, converted to dicts only when one of them is read."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from bridge.sb3 import Infos
from bridge.vec_env.infos import QuietInfos

# The methods of `list` that read its items. Length and truth value are known before the items exist.
_READERS = (
    *("__getitem__", "__iter__", "__reversed__", "__contains__", "__setitem__", "__delitem__", "__repr__"),
    *("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__add__", "__iadd__", "__mul__", "__imul__"),
    *("__rmul__", "append", "clear", "copy", "count", "extend", "index", "insert", "pop", "remove", "reverse", "sort"),
)


class StepInfos(list[dict[str, Any]]):
    """The infos of all environments, as a list whose dicts are made when the first of them is read.

    In a thousand environments, forty episodes may end in each step, and each environment may have an info in each step:
    making all those dicts costs more than a native step of the thousand, and training reads few of them, or none.

    Copies and pickles are plain lists.

    Attributes:
      ended: the indices of the environments whose episode ended.
    """

    def __init__(
        self,
        quiet_infos: QuietInfos,
        write: Callable[[Infos], None] | None = None,
        ended: Sequence[int] = (),
        of_ends: Callable[[], Infos] = list,
    ) -> None:
        """Remember how to make the infos. The data that the functions read must not change any more.

        Args:
          quiet_infos: makes a list for environments that have nothing to report.
          write: writes the infos of environments that continue into the list, where they have any.
          ended: the indices of environments whose episode ended.
          of_ends: returns the infos of these environments.
        """
        super().__init__()
        self._make: tuple[QuietInfos, Callable[[Infos], None] | None] | None = (quiet_infos, write)
        self.ended, self._of_ends = list(ended), of_ends
        self._ends: Infos | None = None

    def _read(self) -> None:
        if self._make is not None:
            ends = self.at_ends()
            (quiet_infos, write), self._make = self._make, None
            super().extend(quiet_infos({}))
            if write is not None:
                write(self)
            for index, info in zip(self.ended, ends):
                self[index] = info

    def at_ends(self) -> Infos:
        """Return the infos of the environments whose episode ended. The infos of the others are not made for it."""
        if self.ended and self._make is not None:
            if self._ends is None:
                self._ends = self._of_ends()
            return self._ends
        return [self[index] for index in self.ended]

    def __len__(self) -> int:
        return super().__len__() if self._make is None else self._make[0].num_envs

    def __radd__(self, other: Infos) -> Infos:
        return other + list(self)

    def __reduce_ex__(self, protocol: object) -> tuple[type, tuple[Infos]]:
        return list, (list(self),)


def _reading(method: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(method)
    def read_first(self: StepInfos, *args: object, **kwargs: object) -> object:
        self._read()
        return method(self, *args, **kwargs)

    return read_first


for _name in _READERS:
    setattr(StepInfos, _name, _reading(getattr(list, _name)))
