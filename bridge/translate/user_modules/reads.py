"""Lists of what pure functions may use, and the record of what they read."""

from __future__ import annotations

import ast
import collections
import functools
import inspect
import math
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import Space
from stable_baselines3.common import utils
from torch import nn

from bridge.libraries import LIBRARIES, is_library, root_of
from bridge.translate.pytorch.operations import FUNCTIONS, MODULES, OPERATIONS

MISSING = object()
# Types of objects that hold nothing that can change. No subclasses, as users' may do anything.
NUMBERS: set[type] = {bool, int, float, complex, str, bytes, types.NoneType, types.EllipsisType, range}
NUMBERS |= {torch.dtype, torch.device, torch.Size, np.bool_, *(np.dtype(each).type for each in "bBhHiIlLefd")}
# Schedules of SB3, in later versions; and objects of libraries that do not change.
SCHEDULES = tuple(
    getattr(utils, name) for name in ("FloatSchedule", "LinearSchedule", "ConstantSchedule") if hasattr(utils, name)
)
UNCHANGING = (Space, *SCHEDULES)
CONTAINERS: set[type] = {list, tuple, dict, set, frozenset, collections.OrderedDict}
OF_MODULES: set[type] = {nn.ModuleList, nn.ModuleDict, nn.Sequential, nn.ParameterList, nn.ParameterDict}

OF_PYTHON = (abs, any, all, bool, dict, divmod, enumerate, float, int, len, list, max, min, pow, range, reversed, round)
OF_NUMPY = {"all", "any", "arange", "array", "clip", "digitize", "interp", "isclose", "linspace", "max", "mean", "min"}
OF_NUMPY |= {"ndim", "polyval", "prod", "round", "shape", "sum", "where"}
# Functions that only calculate, modes of gradients, and layers without weights. By identity, because users' objects may
# compare as they like.
CALCULATIONS = {
    id(each): each
    for each in (
        *(function for function in FUNCTIONS if function is not getattr),
        *(cls for cls, (_, *attributes) in MODULES.items() if "weight" not in attributes),
        *(torch.no_grad, torch.enable_grad, torch.inference_mode),
        *(*OF_PYTHON, set, sorted, sum, tuple, zip),
        *(each for each in vars(math).values() if callable(each)),
        *(each for name, each in vars(np).items() if name in OF_NUMPY or isinstance(each, np.ufunc)),
        *(each for each in NUMBERS if issubclass(each, np.generic)),
    )
}
# Methods and attributes of tensors, numbers, strings and containers that change nothing; methods that fill containers.
READING = {"items", "keys", "values", "get", "copy", "index", "count"}
METHODS = {*OPERATIONS, *READING, "item", "dim", "numel", "split", "startswith", "endswith", "forward"}
ATTRIBUTES = {"shape", "dtype", "device", "ndim"}
FILLING = {"append", "add", "extend", "insert", "update", "setdefault"}
# Libraries whose functions are read, as users' are.
SOURCES = {"stable_baselines3", "sb3_contrib", "gymnasium", "bridge"}

# Statements and expressions that do nothing besides their parts. Some make a container, or look at one without passing
# it on.
MAKING = {"ListComp", "SetComp", "DictComp", "GeneratorExp", "List", "Set", "Dict"}
LOOKING = {"For", "comprehension", "Subscript", "Compare", "Starred", "If", "While", "Assert", "BinOp", "UnaryOp"}
LISTED = {*MAKING, *LOOKING, "Expr", "Return", "Assign", "Pass", "Break", "Continue", "With", "withitem", "Constant"}
LISTED |= {"BoolOp", "IfExp", "JoinedStr", "FormattedValue", "Slice", "Tuple", "keyword", "Load", "Store"}
OPERATORS = (ast.operator, ast.unaryop, ast.boolop, ast.cmpop)
# Changes in place that tracing records.
IN_PLACE = (ast.Add, ast.Sub, ast.Mult, ast.Div)
# Special names in users' classes of modules that run no code.
PASSIVE = {"__init__", "__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__annotations__"}
PASSIVE |= {"__firstlineno__", "__parameters__", "__orig_bases__", "__static_attributes__", "__abstractmethods__"}
PASSIVE |= {"__constants__", "__annotate_func__", "__annotations_cache__"}
# Methods of modules that SB3 and PyTorch call, though not in a forward.
MODULE_METHODS = {"_call_impl", "_wrapped_call_impl", "train", "eval"}
# The most items of a container, because all are compared before each compiled function.
MOST = 500


class Impure(Exception):
    """Something is not known to be pure. The message says what it does, as the end of a sentence."""

    has_line = False


class Known(NamedTuple):
    """Object that exists before the function runs; with `owner`, a method of that object."""

    it: Any
    owner: object = None


def require_no_module(value: object) -> None:
    """Refuse modules that are no attributes of modules: tracing would run them, and not their replicas."""
    # Only by types, because whatever a user's object is asked for may run the user's code.
    if type(value) in CONTAINERS:
        items: Any = value
        if len(items) > MOST:
            raise Impure(f"reads a {type(value).__name__} of more than {MOST} items, too many to compare each time")
        for each in (*items, *items.values()) if isinstance(value, dict) else items:
            require_no_module(each)
    owner = value.__self__ if type(value) is types.MethodType else value
    if issubclass(type(owner), nn.Module):
        raise Impure("uses a module that is not an attribute of a module")


def changes_by_itself(it: object) -> bool:
    """Return whether an object may change while compiled functions run, as models, buffers and environments count."""
    return not isinstance(it, UNCHANGING) and any(root_of(each) in LIBRARIES for each in type(it).__mro__)


def users_names(cls: type) -> set[str]:
    """Return the names in a class, and in its bases, that are not a library's."""
    return {name for each in cls.__mro__ if not is_library(root_of(each)) for name in vars(each)}


def hidden_names(module: nn.Module, base: type) -> set[str]:
    """Return names of users' attributes of classes that hide what the code of `base` reads from the module."""
    read = {*dir(base)}.union(*(vars(each).get("__annotations__", ()) for each in base.__mro__))
    inside = {*module._modules, *module._parameters, *module._buffers}
    hidden = set()
    for name in users_names(type(module)) - PASSIVE:
        value = inspect.getattr_static(type(module), name)
        # A property with a new name is read by the module's own code only.
        is_own = not hasattr(type(value), "__set__") or (
            type(value) is property and not value.fset and name not in read
        )
        if name in inside or not is_own:
            hidden.add(name)
    return hidden


class Reads:
    """Record of what functions read besides their arguments."""

    def __init__(self) -> None:
        self._reads: dict[tuple[int, str], tuple[Callable[[], object], object]] = {}
        self._contents: dict[int, tuple[object, object]] = {}

    def item(self, names: Mapping[str, object], name: str) -> object:
        """Return what has a name in a namespace, or MISSING."""
        return self._read(functools.partial(names.get, name, MISSING), (id(names), name))

    def attribute(self, owner: object, name: str) -> object:
        """Return an attribute that is in no namespace, such as the content of a cell, or MISSING."""

        def read() -> object:
            try:
                return getattr(owner, name)
            except (AttributeError, ValueError):  # the latter for a variable that is not set yet
                return MISSING

        return self._read(read, (id(owner), name))

    def attributes(self, owner: object, *names: str) -> None:
        """Record attributes that are in no namespace."""
        for name in names:
            self.attribute(owner, name)

    def _read(self, read: Callable[[], object], key: tuple[int, str]) -> object:
        if key not in self._reads:
            value = read()
            if key[1] != "__dict__":  # of which only the identity is compared
                require_no_module(value)
            self._reads[key] = read, value
        return self._reads[key][1]

    def content(self, container: Any) -> None:
        """Record what is in one of Python's containers."""
        self._contents.setdefault(id(container), (container, type(container)(container)))

    def classes(self, classes: Iterable[type]) -> None:
        """Record the attributes of the classes that are users'."""
        for cls in classes:
            if not is_library(root_of(cls)):
                self._contents.setdefault(id(cls), (vars(cls), dict(vars(cls))))

    def class_of(self, it: object) -> None:
        """Record which class an object has, and its attributes."""
        self.attributes(it, "__class__")
        self.classes(type(it).__mro__)

    def is_current(self) -> bool:
        """Return whether everything is as it was: the same objects, or equal numbers."""
        return all(_is_same(read(), then) for read, then in self._reads.values()) and all(
            _has_same_items(now, then) for now, then in self._contents.values()
        )


def _has_same_items(now: Any, then: Any) -> bool:
    if isinstance(then, set | frozenset):
        return bool(now == then)
    # In the same order.
    values = (now.values(), then.values()) if isinstance(then, dict) else (now, then)
    return len(now) == len(then) and (values[0] is now or [*now] == [*then]) and all(map(_is_same, *values))


def _is_same(now: object, then: object) -> bool:
    # Not just `==`, because users' `__eq__` may do anything.
    return now is then or (type(now) is type(then) and type(now) in NUMBERS and bool(now == then))
