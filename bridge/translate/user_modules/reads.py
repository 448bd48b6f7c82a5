"""Lists of what pure functions may use, and the record of what they read."""

from __future__ import annotations

import ast
import collections
import functools
import math
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

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
        *(*OF_PYTHON, set, sorted, str, sum, tuple, zip),
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
# The most items of a container, because all are compared before each compiled function.
MOST = 500


def changes_by_itself(it: object) -> bool:
    """Return whether an object may change while compiled functions run, as models, buffers and environments count."""
    return not isinstance(it, UNCHANGING) and any(root_of(each) in LIBRARIES for each in type(it).__mro__)


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

    def _read(self, read: Callable[[], object], key: tuple[int, str]) -> object:
        return self._reads.setdefault(key, (read, read()))[1]

    def content(self, container: Any) -> None:
        """Record what is in one of Python's containers."""
        self._contents.setdefault(id(container), (container, type(container)(container)))

    def classes(self, classes: Iterable[type]) -> None:
        """Record the attributes of the classes that are users'."""
        for cls in classes:
            if not is_library(root_of(cls)):
                self._contents.setdefault(id(cls), (vars(cls), dict(vars(cls))))

    def is_current(self) -> bool:
        """Return whether everything is as it was: the same objects, or equal numbers."""
        return all(_is_same(read(), then) for read, then in self._reads.values()) and all(
            now == then for now, then in self._contents.values()
        )


def _is_same(now: object, then: object) -> bool:
    # Not just `==`, because users' `__eq__` may do anything.
    return now is then or (type(now) is type(then) and type(now) in NUMBERS and bool(now == then))
