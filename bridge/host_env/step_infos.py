"""StepInfos: the infos of a step, made into dicts only when somebody reads one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from bridge.sb3 import Infos
from bridge.vec_env.infos import QuietInfos

# What `list` does with its items. `len` and truth are known before there are any.
_READERS = (
    *("__getitem__", "__iter__", "__reversed__", "__contains__", "__setitem__", "__delitem__", "__repr__"),
    *("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__add__", "__iadd__", "__mul__", "__imul__"),
    *("__rmul__", "append", "clear", "copy", "count", "extend", "index", "insert", "pop", "remove", "reverse", "sort"),
)


class StepInfos(list[dict[str, Any]]):
    """The infos of all lanes, a list like any other; its dicts are made when the first of them is read.

    Of a thousand lanes forty may end in a step, and each may have an info of its own in each: making all those dicts
    costs more than a native step of the thousand. Who trains reads few of them, or none.

    Copies and pickles are plain lists.
    """

    def __init__(self, quiet_infos: QuietInfos, write: Callable[[Infos], None] | None = None) -> None:
        """
        Args:
          quiet_infos: makes the infos of lanes of which there is nothing to tell.
          write: writes the infos of the others into the list. What it reads must not change any more.
        """
        super().__init__()
        self._make: tuple[QuietInfos, Any] | None = (quiet_infos, write)

    def _read(self) -> None:
        if self._make is not None:
            (quiet_infos, write), self._make = self._make, None
            super().extend(quiet_infos({}))
            if write is not None:
                write(self)

    def __len__(self) -> int:
        return super().__len__() if self._make is None else self._make[0].num_envs

    def __radd__(self, other: Infos) -> Infos:
        return other + list(self)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return list, (list(self),)


def _reading(method: Any) -> Any:
    @functools.wraps(method)
    def read_first(self: StepInfos, *args: Any, **kwargs: Any) -> Any:
        self._read()
        return method(self, *args, **kwargs)

    return read_first


for _name in _READERS:
    setattr(StepInfos, _name, _reading(getattr(list, _name)))
