"""Reach: what the code of modules can read and change besides tensors, found by following the names in it."""

from __future__ import annotations

import array
import builtins
import collections
import enum
import functools
import importlib.util
import sys
import types
import weakref
from collections.abc import Iterable
from typing import Any

import gymnasium
import jax
import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.policies import BaseModel
from stable_baselines3.common.vec_env import VecEnv
from torch import nn

from bridge.libraries import INSTALLED, is_library, is_standard, root_of
from bridge.translate.user_modules.bytecode import COMPUTED_NAMES, computes_names, global_names, names_in
from bridge.translate.user_modules.known_objects import (
    BESIDE,
    CALCULATE,
    CONSTANTS,
    CONTAINERS,
    CYTHON_FUNCTION,
    EFFECTS,
    GENERATOR_MAKERS,
    HEAP_TYPE,
    OF_WITH,
    OUTSIDE_METHODS,
    SETTINGS,
    is_opaque,
    is_outside,
    is_written,
    may_draw,
    slots_of,
)
from bridge.translate.user_modules.places import (
    GENERATORS,
    Place,
    array_place,
    attribute_place,
    bytes_place,
    cell_place,
    globals_place,
)

# These objects change all the time, so only the attributes that the code names are compared.
BUSY = (BaseAlgorithm, BaseCallback, VecEnv, gymnasium.Env)
# The most objects, because all are compared before each compiled function; and the most bytes of an array.
MOST, MOST_BYTES = 500, 2**20


class Reach:
    """Search for what the code of modules can reach, as far as it names it, outside of the modules' own attributes.

        forward of the user's classes --> names in its code --> methods, attributes, containers,
                                           ^                    objects, classes, closures, globals
                                           |                                |
                                           +-------- functions among them --+

    Attributes:
      live: dicts, lists, sets and deques, whose content may change, with their names; None for the attributes of an
        object.
      classes: the user's classes, into which something may be put.
      places: what else may change.
      tensors: tensors that are neither parameters nor buffers of the modules.
      generators: random generators.
      modules: further modules, which are no parts of the given ones.
      gap: why not everything that the code can reach is known, as a sentence; None if it is.
      runs_user_code: whether any class is the user's.
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._given = {id(module): module for module in modules}
        classes = dict.fromkeys(cls for module in self._given.values() for cls in type(module).__mro__)
        self._own = [cls for cls in classes if not is_library(root_of(cls))]
        self._packages = {root_of(cls) for cls in self._own}
        self._named: frozenset[str] = frozenset()
        self._names = {"forward"}
        self.runs_user_code = bool(self._own)
        self._computes_names = False
        self._clear()
        # A name that is found late may name an attribute of an object that was visited early, so the walk is repeated.
        before = None
        while self._own and before != (before := (len(self._names), self._computes_names)):
            self._named = frozenset(self._names)
            self._clear()
            self._walk(self._own)

    def _clear(self) -> None:
        self.live: list[tuple[str | None, Any]] = []
        self.classes: list[type] = []
        self.places: list[Place] = []
        self.tensors: list[torch.Tensor] = []
        self.generators: list[Any] = []
        self.modules: list[nn.Module] = []
        self.gap: str | None = None
        self._seen: dict[int, object] = {}  # keeps the objects alive, so that no id is reused
        self._looked_into: set[tuple[str, frozenset[str]]] = set()  # Python modules, and for which names
        self._queue: collections.deque[tuple[str, object]] = collections.deque()

    def _walk(self, classes: list[type]) -> None:
        for cls in classes:
            self._add(cls.__name__, cls)
        while True:
            self._go_on()
            for module in self._given.values():
                if any(cls in self._own for cls in type(module).__mro__):
                    self._add_named(vars(module))
            if not self._queue:
                return

    def _go_on(self) -> None:
        while self._queue:
            label, value = self._queue.popleft()
            if id(value) in self._seen:
                continue
            if len(self.live) + len(self.places) + len(self.classes) >= MOST:
                self._give_up(f"can read more than {MOST} objects, too many to check for changes")
                self._queue.clear()
                return
            self._seen[id(value)] = value
            self._visit(label, value)

    def _visit(self, label: str, value: Any) -> None:
        if is_outside(value):
            self._give_up(f"uses {value.__name__}()")
            return
        if type(value) in CONSTANTS:
            return
        if isinstance(value, np.generic | jax.Array | np.dtype) or id(value) in self._given:
            return
        if isinstance(value, torch.Tensor):
            self.tensors.append(value)
        elif isinstance(value, GENERATORS):
            self.generators.append(value)
        elif isinstance(value, np.ndarray):
            self._visit_array(label, value)
        elif isinstance(value, types.ModuleType):
            self._visit_module(value, self._named)
        elif isinstance(value, types.FunctionType):
            self._visit_function(value)
        elif isinstance(value, type):
            self._visit_class(value)
        elif not self._visit_callable(label, value):
            self._visit_object(label, value)

    def _visit_array(self, label: str, value: np.ndarray) -> None:
        if value.dtype.hasobject or value.nbytes > MOST_BYTES:
            self._give_up(f"reads `{label}`, an array of objects or a large one ({value.nbytes / 2**20:.1f} MiB)")
        else:
            self.places.append(array_place(label, value))

    def _visit_callable(self, label: str, value: Any) -> bool:
        """Visit the function inside one of Python's wrappers of functions. Return False if it is no wrapper."""
        if isinstance(value, types.MethodType):
            inside: tuple[object, ...] = (value.__func__, value.__self__)
        elif isinstance(value, types.BuiltinFunctionType | CYTHON_FUNCTION):
            self._visit_builtin(value)
            owner = getattr(value, "__self__", None)
            inside = () if isinstance(owner, types.ModuleType | type) else (owner,)
        elif isinstance(value, functools.partial):
            inside = (value.func, value.args, value.keywords)
        elif isinstance(value, staticmethod | classmethod):
            inside = (value.__func__,)
        elif isinstance(value, property):
            inside = (value.fget, value.fset)
        elif isinstance(value, functools._lru_cache_wrapper):
            inside = (value.__wrapped__,)
        elif isinstance(value, enum.Enum):
            inside = (value.value, type(value))
        elif isinstance(value, weakref.ref):
            inside = (value(),)
        elif isinstance(value, tuple | frozenset) and type(value).__flags__ & HEAP_TYPE == 0:
            inside = tuple(value)
        else:
            return False
        for each in inside:
            self._add(label, each)
        return True

    def _visit_builtin(self, function: Any) -> None:
        name, root = function.__name__, root_of(function)
        if name in GENERATOR_MAKERS or (root and root not in CALCULATE and is_standard(root)):
            self._give_up(f"uses {root or 'numpy'}.{name}")

    def _visit_class(self, cls: type) -> None:
        if cls.__name__ in GENERATOR_MAKERS and root_of(cls) in CALCULATE:
            self._give_up(f"uses {cls.__name__}")
        is_own = self._is_own(cls)
        if is_own:
            self.classes.append(cls)
        elif is_standard(root_of(cls)) and cls not in SETTINGS and root_of(cls) not in CALCULATE:
            self._give_up(f"uses {root_of(cls)}.{cls.__name__}")
            return
        for name, value in list(vars(cls).items()):
            if name in BESIDE or (not is_own and name in OF_WITH):
                continue
            if name in self._named or (name.startswith("__") and is_written(value)):
                self._add(name, value)
        if cls not in _OF_ALL:
            for base in cls.__mro__[1:]:
                if not (base in _OF_ALL or issubclass(base, BaseModel)):
                    self._add(base.__name__, base)

    def _visit_object(self, label: str, value: Any) -> None:
        cls = type(value)
        if isinstance(value, CONTAINERS):
            self.live.append((label, value))
            if len(value) > MOST:
                self._give_up(f"reads `{label}`, which holds more than {MOST} items")
                return
            for each in [*value.values()] if isinstance(value, dict) else [*value]:
                self._add(label, each)
        elif isinstance(value, tuple | frozenset):
            for each in value:
                self._add(label, each)
        elif isinstance(value, bytearray | array.array):
            self.places.append(bytes_place(label, value))
        elif any(is_opaque(each) for each in cls.__mro__):
            self._give_up(f"reads `{label}`, a {cls.__name__}, which jaxenvs.sb3 cannot check for changes")
            return
        is_whole = (self._is_own(cls) or isinstance(value, SETTINGS)) and not isinstance(value, BUSY)
        attributes = getattr(value, "__dict__", None)
        if isinstance(value, nn.Module):
            self.modules.append(value)
            self._add_named(vars(value))
            for part in vars(value)["_modules"].values():
                self._add(label, part)
        elif isinstance(attributes, dict):
            if is_whole:
                self.live.append((None, attributes))
            elif self._computes_names and isinstance(value, BUSY):
                self._give_up(f"computes names of attributes, perhaps of attributes of `{label}`, a {cls.__name__}")
            else:
                self.places += [attribute_place(value, name) for name in sorted(attributes) if self._is_named(name)]
            self._add_named(attributes)
        for name in slots_of(cls):
            self.places.append(attribute_place(value, name))
            self._add(name, getattr(value, name, None))
        if cls not in CONTAINERS:
            self._add(cls.__name__, cls)

    def _visit_function(self, function: types.FunctionType) -> None:
        # Not `__module__`, which `functools.wraps` copies.
        root = str(function.__globals__.get("__name__", "")).partition(".")[0]
        is_own = self._is_own_package(root)
        names = set(names_in(function.__code__))
        self._names |= names
        if is_own:
            self._computes_names |= not names.isdisjoint(COMPUTED_NAMES) and computes_names(function.__code__)
            used, _ = global_names(function.__code__)
            if effects := sorted((used & EFFECTS - function.__globals__.keys()) | (names & OUTSIDE_METHODS)):
                self._give_up(f"uses {effects[0]}()")
        elif root in CALCULATE:
            return
        elif is_standard(root):
            self._give_up(f"uses {root}.{function.__name__}")
            return
        self._visit_globals(function, names)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            place = cell_place(name, cell)
            self.places.append(place)
            self._add(name, place.read())
        for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self._add(function.__name__, default)
        wrapped = getattr(function, "__wrapped__", None)
        if wrapped is not None:
            self._add(function.__name__, wrapped)
        if vars(function):
            self.live.append((None, vars(function)))
            self._add_named(vars(function))

    def _visit_globals(self, function: types.FunctionType, names: set[str]) -> None:
        namespace = function.__globals__
        used, imported = _globals_and_imports(function)
        # Including names that do not exist yet: user code may define them later.
        used = sorted(name for name in used if name in namespace or not hasattr(builtins, name))
        if used:
            self.places.append(globals_place(used, namespace))
        for name in used:
            if isinstance(namespace.get(name), types.ModuleType):
                self._visit_module(namespace[name], names)
            else:
                self._add(name, namespace.get(name))
        for name in imported:
            module = sys.modules.get(name)
            if module is None:
                self._give_up(f"imports {name} when it runs")
            else:
                self._visit_module(module, names)

    def _visit_module(self, module: types.ModuleType, names: Iterable[str]) -> None:
        """Visit what code with these names can read in a module."""
        root, names = module.__name__.partition(".")[0], frozenset(names)
        if (module.__name__, names) in self._looked_into:
            return
        self._looked_into.add((module.__name__, names))
        if is_standard(root) and root not in CALCULATE:
            self._give_up(f"uses {root}")
            return
        values = {name: vars(module)[name] for name in sorted(names & vars(module).keys())}
        if root in CALCULATE:
            # Only what draws random numbers (functions of NumPy and `random`, methods of a generator), what uses files,
            # and further modules of these packages, such as `torch.hub`.
            values = {name: value for name, value in values.items() if _is_followed(value)}
        elif values:
            self.places.append(globals_place([*values], vars(module)))
        for name, value in values.items():
            if not isinstance(value, types.ModuleType):
                self._add(name, value)
            else:
                self._visit_module(value, names)

    def _add(self, label: str, value: object) -> None:
        self._queue.append((label, value))

    def _add_named(self, attributes: dict[str, Any]) -> None:
        for name, value in list(attributes.items()):
            if self._is_named(name) and id(value) not in self._seen:
                self._add(name, value)

    def _is_named(self, name: str) -> bool:
        return name in self._named or (self._computes_names and name not in _OF_MODULES)

    def _give_up(self, why: str) -> None:
        self.gap = self.gap or f"The networks cannot be compiled safely: their code {why}."

    def _is_own(self, value: Any) -> bool:
        """Return whether a function or a class is the user's: in a package of the modules, or not installed."""
        return self._is_own_package(root_of(value))

    def _is_own_package(self, root: str) -> bool:
        if is_library(root):
            return False
        file = getattr(sys.modules.get(root), "__file__", None) or ""
        return root in self._packages or not file.startswith(INSTALLED)


def _is_followed(value: object) -> bool:
    """Return whether to visit something in a module of a package in CALCULATE."""
    if isinstance(value, types.ModuleType):
        return value.__name__.partition(".")[0] in CALCULATE
    return may_draw(value) or is_outside(value)


# Bases that all modules or all objects have. SB3's policies are left out too: their code is translated by hand.
_OF_ALL: set[type] = {object, *nn.Module.__mro__}
_OF_MODULES = frozenset(vars(nn.Module()))


def _globals_and_imports(function: types.FunctionType) -> tuple[list[str], list[str]]:
    used, imported = global_names(function.__code__)
    modules: set[str] = set()
    for name, level in imported:
        package = function.__globals__.get("__package__") or ""
        absolute = importlib.util.resolve_name("." * level + name, package) if level and package else name
        modules |= {absolute, absolute.partition(".")[0]}
    return [*used], sorted(modules)
