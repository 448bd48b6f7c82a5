"""Snapshots of modules, by which one knows cheaply whether what tracing made constant is still so.

The code of modules may read numbers that are no parameters: attributes of objects, containers, globals.
"""

from __future__ import annotations

import collections
import functools
import operator
import sys
import sysconfig
import types
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv
from torch import nn
from torch.nn.modules import module as torch_module

from bridge.translate.modules import BACKWARD_HOOKS, FORWARD_HOOKS

CONTAINERS = (dict, list, set, collections.deque)
# Of these, which change all the time, only numbers that the code names are watched.
BUSY = (BaseAlgorithm, BaseCallback, VecEnv, gymnasium.Env)
# Packages besides the standard library whose objects and classes are no user's, and not looked into.
LIBRARIES = {"torch", "numpy", "jax", "jaxlib", "optax", "gymnasium", "stable_baselines3", "sb3_contrib"}
LIBRARIES |= {"bridge", "jaxenvs"}
# Objects of the standard library that exist to hold settings.
SETTINGS = (types.SimpleNamespace, Namespace)
# No more than so many, the nearest first, because all are compared before each program; and no arrays of more bytes.
MOST, MOST_BYTES = 500, 2**20


class Snapshot:
    """How a module is: submodules, attributes, hooks, and which parameters it has; not their values, nor the mode.

    SB3 sets the mode before every rollout and every update, and a program has that of the rollout.
    Of attributes that are lists, sets or dicts a snapshot has what is in them; of other objects, which they are. What
    the code of a user's own modules can read through its attributes, its classes and its globals is part of it, as far
    as `Namespaces` finds it.

    Attributes:
      parameters: in the order of `named_parameters()`, and at hand: to find them takes longer than all this.
    """

    def __init__(self, module: nn.Module, parts: Sequence[nn.Module] | None = None) -> None:
        """Take the snapshot of now.

        Args:
          module: what will be watched.
          parts: those of its parts that matter, and all within them; if not given, all.
        """
        parts = [module] if parts is None else parts
        watched = dict.fromkeys([module, *(each for part in parts for each in part.modules())])
        attributes = [vars(each) for each in watched]
        inside = [value for each in attributes for value in each.values() if isinstance(value, CONTAINERS)]
        hooks = [getattr(torch_module, f"_global{hooks}") for hooks in (*FORWARD_HOOKS, *BACKWARD_HOOKS)]
        beyond = Namespaces(watched)
        containers = [*inside, *hooks, *beyond.live]
        # Most are empty, as those of hooks, and to ask whether one no longer is takes less than to compare it.
        self._empty = [each for each in containers if not each]
        self._now: list[Any] = [*attributes, *(each for each in containers if each)]
        self._then = [_copy(each) for each in self._now]
        self._modes = list(zip(attributes, self._then))
        self._readers = beyond.readers
        self._read = [read() for read in self._readers]
        self.parameters = [parameter for part in parts for parameter in part.parameters()]
        self._settings = self._read_settings()

    def is_current(self, learns: bool = True) -> bool:
        """Whether the module is still so.

        Args:
          learns: False, if what concerns gradients alone does not matter; then it takes half of that.
        """
        try:
            # One comparison in C, which looks into an object only where it is another than before. To leave out modes
            # first takes as long as the comparison, so that is done where there is a difference.
            is_same = not any(self._empty) and (self._now == self._then or self._is_same_in_another_mode())
            if is_same and self._readers:
                is_same = [read() for read in self._readers] == self._read
            return is_same and (not learns or self._read_settings() == self._settings)
        except Exception:  # of arrays that are other objects than before, or of users' own `__eq__`
            return False

    def _is_same_in_another_mode(self) -> bool:
        for now, then in self._modes:
            then["training"] = now["training"]
        return self._now == self._then

    def _read_settings(self) -> list[tuple[bool, torch.dtype, bool, bool]]:
        return [
            (each.requires_grad, each.dtype, bool(each._backward_hooks), bool(each._post_accumulate_grad_hooks))
            for each in self.parameters
        ]


def _copy(container: Any) -> Any:
    """What is in a container now, in one that is equal to it; of the view of a class, a dict."""
    for kind in CONTAINERS[1:]:
        if isinstance(container, kind):
            return kind(container)
    return dict(container)


class Namespaces:
    """What of a user's own the code of modules can reach, as far as it names it.

    The walk begins with the attributes that methods of the modules' classes name, and goes on through containers,
    objects, their classes, closures and globals. Modules are left out: what they hold is their own affair.

    Attributes:
      live: dicts, lists, sets, deques and views of classes, whose content may change.
      readers: functions without arguments that give what else may change.
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self.live: list[Any] = []
        self.readers: list[Callable[[], object]] = []
        self._seen: dict[int, object] = {}  # with the objects, so that no other gets their id
        self._queue: collections.deque[object] = collections.deque()
        modules = list(modules)
        classes = dict.fromkeys(cls for module in modules for cls in type(module).__mro__)
        own = [cls for cls in classes if not _is_library(_root(cls))]
        self._packages = {_root(cls) for cls in own}
        names = {cls: frozenset(_names_of_class(cls)) for cls in own}
        self._named: frozenset[str] = frozenset().union(*names.values())
        self._queue.extend(own)
        for module in modules:
            named = frozenset().union(*(names[cls] for cls in type(module).__mro__ if cls in own))
            self._queue.extend(value for name, value in vars(module).items() if name in named)
        while self._queue and len(self.live) + len(self.readers) < MOST:
            value = self._queue.popleft()
            if id(value) not in self._seen:
                self._seen[id(value)] = value
                self._visit(value)

    def _visit(self, value: object) -> None:
        if isinstance(value, nn.Module):
            return
        if isinstance(value, BUSY):
            self._watch_named(value)
        elif isinstance(value, np.ndarray):
            if value.nbytes <= MOST_BYTES:
                self.readers.append(value.tobytes)
        elif isinstance(value, tuple | frozenset):
            self._queue.extend(value)
        elif isinstance(value, types.FunctionType):
            self._visit_function(value)
        elif isinstance(value, types.MethodType):
            self._queue.extend((value.__func__, value.__self__))
        elif isinstance(value, functools.partial):
            self._queue.extend((value.func, value.args, value.keywords))
        elif isinstance(value, staticmethod | classmethod):
            self._queue.append(value.__func__)
        elif isinstance(value, property):
            self._queue.append(value.fget)
        elif isinstance(value, type):
            if self._is_own(value):
                self.live.append(vars(value))
                self._queue.extend(part for name, part in vars(value).items() if name != "__init__")
        else:
            self._visit_object(value)

    def _visit_object(self, value: object) -> None:
        if isinstance(value, CONTAINERS):
            self.live.append(value)
            if len(value) <= MOST:
                self._queue.extend(value.values() if isinstance(value, dict) else value)
        if not isinstance(value, SETTINGS) and _is_library(_root(type(value))):
            return
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            self.live.append(attributes)
            self._queue.extend(attributes.values())
        for name in _slots(type(value)):
            self._watch(functools.partial(getattr, value, name, None))
        self._queue.append(type(value))

    def _visit_function(self, function: types.FunctionType) -> None:
        if not self._is_own(function):
            return
        names = set(_names(function.__code__))
        known = sorted(names & function.__globals__.keys())
        if known:
            self.readers.append(functools.partial(operator.itemgetter(*known), function.__globals__))
        for name in known:
            value = function.__globals__[name]
            if isinstance(value, types.ModuleType):
                if self._is_own(value):
                    for attribute in sorted(names & vars(value).keys()):
                        self._watch(functools.partial(getattr, value, attribute))
            else:
                self._queue.append(value)
        for cell in function.__closure__ or ():
            self._watch(functools.partial(_content, cell))
        self._queue.extend((function.__defaults__, function.__kwdefaults__))

    def _watch(self, reader: Callable[[], object]) -> None:
        self.readers.append(reader)
        self._queue.append(reader())

    def _watch_named(self, value: object) -> None:
        for name in sorted(self._named & vars(value).keys()):
            if isinstance(vars(value)[name], int | float | str | np.generic | None):
                self.readers.append(functools.partial(getattr, value, name, None))

    def _is_own(self, value: object) -> bool:
        """Whether a function, class or module is the user's: in a package of the modules, or not installed."""
        root = value.__name__.partition(".")[0] if isinstance(value, types.ModuleType) else _root(value)
        if _is_library(root):
            return False
        file = getattr(sys.modules.get(root), "__file__", None) or ""
        return root in self._packages or not file.startswith(_INSTALLED)


_INSTALLED = tuple({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
_STANDARD = tuple({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")})


def _is_library(package: str) -> bool:
    if package not in sys.stdlib_module_names:
        return package in LIBRARIES
    file = getattr(sys.modules.get(package), "__file__", None)  # users have a package called `test` too
    return file is None or file.startswith(_STANDARD)


def _root(value: object) -> str:
    """The package of a class or a function."""
    module = getattr(value, "__module__", None)
    return module.partition(".")[0] if isinstance(module, str) else ""


def _content(cell: types.CellType) -> object:
    """What a closure holds; nothing yet, as long as the name has no value."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _names_of_class(cls: type) -> Iterator[str]:
    """The names that methods of a class use, but for `__init__`, which is over."""
    for name, value in vars(cls).items():
        if name == "__init__":
            continue
        for each in (value, getattr(value, "__func__", None), getattr(value, "fget", None)):
            if isinstance(each, types.FunctionType):
                yield from _names(each.__code__)


def _names(code: types.CodeType) -> Iterator[str]:
    """The names of globals and attributes, also in functions within the function; strings, because of `getattr`."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)
        elif isinstance(constant, str):
            yield constant


def _slots(cls: type) -> list[str]:
    return [name for each in cls.__mro__ for name, value in vars(each).items() if _is_slot(value)]


def _is_slot(value: object) -> bool:
    return isinstance(value, types.MemberDescriptorType)
