"""Detection of replaced methods: notebooks often assign a custom method to a class of SB3 or bridge.

A compiled function does what a class's original methods do, so it must not run if user code has replaced one of them.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Iterable, Mapping, Sequence

from bridge.libraries import is_library, root_of

# The attributes of each remembered class, as they were when bridge was imported.
_ATTRIBUTES: dict[type, dict[str, object]] = {}
# The names of a class's methods that other packages had already replaced by then.
_REPLACED_BEFORE: dict[type, tuple[str, ...]] = {}
# Methods that Python calls implicitly, whether or not the class had them before.
_ACCESS = frozenset(("__getattribute__", "__getattr__", "__setattr__", "__delattr__", "__call__"))
# The module from which `torch.compile` puts methods into `nn.Module` that mark modules, and change nothing else.
_MARKS_MODULES = "torch._dynamo.mutation_guard"
# The methods that these took the place of, by class and name: to get them back is no change either.
_UNMARKED: dict[tuple[type, str], object] = {}
_NOTHING = object()


def remember(*classes: type) -> None:
    """Remember the methods of classes and of their bases, unless they are remembered already."""
    for cls in classes:
        for base in cls.__mro__:
            if base not in _ATTRIBUTES and base is not object:
                _attributes_now_and_then.cache_clear()
                _ATTRIBUTES[base] = dict(vars(base))
                _REPLACED_BEFORE[base] = tuple(name for name, value in vars(base).items() if _is_user_code(value))


def remember_packages(*packages: str) -> None:
    """Remember all classes in the modules of packages, as far as these have been imported."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in packages and module is not None:  # None where an import is forbidden
            remember(*(each for each in list(vars(module).values()) if _is_of(each, name)))


def replaced(cls: type) -> tuple[str, ...]:
    """Return the names of the methods that were replaced in a class or its bases since they were remembered."""
    now, then, was_replaced_before = _attributes_now_and_then(cls)
    # A single comparison in C, because this runs before many steps.
    if now == then and not was_replaced_before:
        return ()
    return tuple(dict.fromkeys(name for base in known_bases((cls,)) for name in _replaced_in(base, cls)))


def is_shadowed(cls: type, name: str) -> bool:
    """Return whether a method was replaced in a base of a class that has another method of this name."""
    resolved = inspect.getattr_static(cls, name, None)
    return any(vars(base).get(name) is not resolved for base in known_bases((cls,)) if name in _replaced_in(base, cls))


def has_own_methods(thing: object) -> bool:
    """Return whether a method was assigned to an object or its class, for example of an environment or a buffer."""
    cls: type = type(thing)
    return not routines(cls).isdisjoint(vars(thing)) or bool(replaced(cls))


@functools.lru_cache(maxsize=256)
def routines(cls: type) -> frozenset[str]:
    """Return the names of the methods of a class."""
    # Not by `getattr`, which may run users' code, and gives each class `__annotations__`.
    values = ((name, value) for each in cls.__mro__ for name, value in vars(each).items() if inspect.isroutine(value))
    return frozenset(name for name, value in values if callable(value) or isinstance(value, classmethod))


def known_bases(classes: Iterable[type]) -> tuple[type, ...]:
    """Return the classes and bases whose methods are remembered."""
    bases = dict.fromkeys(base for cls in classes for base in cls.__mro__)
    return tuple(base for base in bases if base in _ATTRIBUTES)


@functools.lru_cache(maxsize=256)
def _attributes_now_and_then(cls: type) -> tuple[Sequence[Mapping[str, object]], Sequence[Mapping[str, object]], bool]:
    """Return current and remembered attributes of a class's known bases, and whether any had replaced methods."""
    bases = known_bases((cls,))
    return (
        [vars(base) for base in bases],
        [_ATTRIBUTES[base] for base in bases],
        any(_REPLACED_BEFORE[base] for base in bases),
    )


def _replaced_in(base: type, cls: type) -> list[str]:
    now, then = vars(base), _ATTRIBUTES[base]
    changed = [name for name in {*now, *then} if now.get(name) is not then.get(name)]
    for name in changed:
        if _module_of(now.get(name)) == _MARKS_MODULES:
            _UNMARKED.setdefault((base, name), then.get(name, _NOTHING))
    changed = [
        name
        for name in changed
        if _module_of(now.get(name)) != _MARKS_MODULES and now.get(name) is not _UNMARKED.get((base, name), _NOTHING)
    ]
    methods = [name for name in changed if _is_method(now.get(name)) or _is_method(then.get(name))]
    if not methods:
        then.clear()
        then.update(now)  # Python adds `__annotations__` when they are first read
        return [*_REPLACED_BEFORE[base]]
    # A method with a new name is called only by the code that assigned it.
    known = {*then, *_ACCESS}.union(*(vars(each) for each in cls.__mro__ if each is not base))
    return [*_REPLACED_BEFORE[base], *sorted(known.intersection(methods))]


def _module_of(function: object) -> object:
    return getattr(function, "__globals__", {}).get("__name__")


def _is_method(value: object) -> bool:
    return callable(value) or hasattr(type(value), "__get__")


def _is_user_code(value: object) -> bool:
    """Return whether a method comes from a package that is neither a library nor part of the project."""
    holders = [getattr(value, name, None) for name in ("__func__", "fget", "func", "__wrapped__")]
    for each in (*holders, value):
        namespace = getattr(each, "__globals__", None)
        if isinstance(namespace, dict) and isinstance(name := namespace.get("__name__"), str):
            return not (name.startswith("namedtuple_") or is_library(name.partition(".")[0]))
    # Only Python functions have globals. The class of anything else shows where it comes from.
    kind = root_of(type(value))
    return callable(value) and (kind == "unittest" or not is_library(kind))


def _is_of(value: object, module: str) -> bool:
    return isinstance(value, type) and value.__module__ == module
