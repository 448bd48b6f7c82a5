"""Trial runs of a module: what it changes outside is restored, and is a reason not to compile it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from bridge.errors import NotCompilable
from bridge.translate.user_modules.known_objects import CONTAINERS
from bridge.translate.user_modules.places import MISSING, Place, generator_place, global_generators
from bridge.translate.user_modules.reach import Reach

PRIMITIVES = (int, float, complex, str, bytes, bool, type(None))


def reach_of(module: nn.Module) -> Reach:
    """Return what the code of a module and its parts can reach."""
    reach = Reach(module.modules())
    if reach.gap is not None:
        raise NotCompilable(reach.gap)
    return reach


@contextmanager
def on_trial(replica: nn.Module, reach: Reach) -> Iterator[None]:
    """Run a replica of a module, and restore everything that this changes outside of the replica.

    Args:
      reach: what the code of the replica can reach.
    """
    attributes = [(path, part, dict(vars(part)), _versions(part)) for path, part in replica.named_modules()]
    outside = _Outside(replica, reach) if reach.runs_user_code else None
    reason = None
    try:
        yield
        reason = _difference(attributes) or (outside and outside.difference())
    finally:
        if outside is not None:
            outside.put_back()
    if reason:
        raise NotCompilable(reason)


def describe(path: str, module: nn.Module) -> str:
    """Return a module's path and class, for use in a sentence."""
    return f"{path} ({type(module).__name__})" if path else type(module).__name__


def _difference(attributes: list[tuple[str, nn.Module, dict[str, object], list[tuple[int, int]]]]) -> str | None:
    for path, part, before, versions in attributes:
        for name in [*vars(part), *before]:
            if vars(part).get(name, MISSING) is not before.get(name, MISSING):
                return f"The forward method of {describe(path, part)} sets the attribute {name!r}."
        if _versions(part) != versions:
            return f"The forward method of {describe(path, part)} changes its buffers."
    return None


def _versions(module: nn.Module) -> list[tuple[int, int]]:
    return [(id(buffer), buffer._version) for buffer in module._buffers.values() if buffer is not None]


class _Outside:
    """Saved values of everything that the user's code may change."""

    def __init__(self, replica: nn.Module, reach: Reach) -> None:
        live: list[tuple[str | None, Any]] = [*reach.live, *((None, vars(each)) for each in reach.modules)]
        for part in replica.modules():
            live += [(name, value) for name, value in vars(part).items() if isinstance(value, CONTAINERS)]
        self._containers = [(label, each, _content(each)) for label, each in live]
        self._classes = [(cls, dict(vars(cls))) for cls in reach.classes]
        self._places = [(place, place.read()) for place in reach.places]
        tensors = [*replica.parameters(), *replica.buffers(), *reach.tensors]
        self._tensors = [(each, each.detach().clone()) for each in tensors]
        generators = [*global_generators(), *map(generator_place, reach.generators)]
        self._generators = [(place, place.read()) for place in generators]

    def difference(self) -> str | None:
        for label, container, before in self._containers:
            if not _is_same(_content(container), before):
                return f"The networks change `{label or _key(before, container)}` while they run."
        for cls, attributes in self._classes:
            for name in {*vars(cls), *attributes}:
                if vars(cls).get(name, MISSING) is not attributes.get(name, MISSING):
                    return f"The networks change `{name}` while they run."
        for place, content in self._places:
            if not _is_same(place.read(), content):
                return f"The networks change `{_name(place, content)}` while they run."
        if any(not _is_equal(now, then) for now, then in self._tensors):
            return "The networks change a tensor while they run."
        if any(place.read() != state for place, state in self._generators):
            return "The networks draw random numbers while they run."
        return None

    def put_back(self) -> None:
        for _, container, before in self._containers:
            if not _is_same(_content(container), before):
                _put_back(container, before)
        for cls, attributes in self._classes:
            for name in [each for each in vars(cls) if each not in attributes]:
                type.__delattr__(cls, name)
            for name, value in attributes.items():
                if vars(cls).get(name, MISSING) is not value:
                    type.__setattr__(cls, name, value)
        for place, content in [*self._places, *self._generators]:
            if not _is_same(place.read(), content):
                place.write(content)
        with torch.no_grad():
            for now, then in self._tensors:
                if now.shape != then.shape or now.dtype != then.dtype:
                    now.data = then
                elif not _is_equal(now, then):
                    now.copy_(then)


def _content(container: Any) -> list[Any]:
    """Return a list of what is in a container; of a dict, pairs."""
    return list(container.items()) if isinstance(container, dict) else list(container)


def _put_back(container: Any, content: list[Any]) -> None:
    container.clear()
    if isinstance(container, dict | set):
        container.update(content)
    else:
        container.extend(content)


def _key(before: list[Any], attributes: dict[str, Any]) -> str:
    """Return the name of an attribute that has changed."""
    then: dict[str, Any] = dict(before)
    names: list[str] = [*attributes, *then]
    return next(each for each in names if not _is_same(attributes.get(each, MISSING), then.get(each, MISSING)))


def _name(place: Place, before: Any) -> str:
    if not isinstance(before, list):
        return place.label
    names = place.label.split(", ")
    return next((name for name, now, then in zip(names, place.read(), before) if not _is_same(now, then)), place.label)


def _is_same(now: Any, then: Any) -> bool:
    """Return whether two contents are the same objects, or equal numbers and strings.

    Other objects are not compared with `==`, because a user's `__eq__` may do anything.
    """
    if now is then:
        return True
    if type(now) is not type(then):
        return False
    if isinstance(now, list | tuple):
        return len(now) == len(then) and all(map(_is_same, now, then))
    return isinstance(now, PRIMITIVES) and bool(now == then)


def _is_equal(now: torch.Tensor, then: torch.Tensor) -> bool:
    if now.shape != then.shape or now.dtype != then.dtype:
        return False
    return bool(((now == then) | ((now != now) & (then != then))).all())
