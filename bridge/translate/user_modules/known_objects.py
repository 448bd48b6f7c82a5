"""Facts about objects that code may hold: which never change, and into which Python cannot look."""

from __future__ import annotations

import array
import collections
import random
import sys
import types
from argparse import Namespace
from typing import Any

import numpy as np
import torch

from jaxenvs import jax_names

CONTAINERS = (dict, list, set, collections.deque)
# Objects of the standard library that exist to hold settings, as a user's own do.
SETTINGS = (types.SimpleNamespace, Namespace)
# Types that hold nothing that can change.
CONSTANTS = (
    *(bool, int, float, complex, str, bytes, range, slice),
    *(types.NoneType, types.EllipsisType, types.NotImplementedType, np.ufunc, type(np.mean)),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
    *(types.MethodDescriptorType, types.WrapperDescriptorType, types.GetSetDescriptorType, types.MethodWrapperType),
    *(types.MemberDescriptorType, types.ClassMethodDescriptorType, types.GenericAlias, types.UnionType, types.CodeType),
)
# Packages whose functions return the same each time, except through the generators and objects passed to them.
CALCULATE = {"torch", "numpy", "jax", "jaxlib", "optax", "jaxenvs", "bridge", "builtins", "typing_extensions"}
CALCULATE |= {"abc", "array", "bisect", "cmath", "collections", "contextlib", "copy", "dataclasses", "decimal", "enum"}
CALCULATE |= {"fractions", "functools", "heapq", "itertools", "math", "numbers", "operator", "random", "re"}
CALCULATE |= {"statistics", "string", "types", "typing", "warnings", "weakref"}
CALCULATE |= {f"_{name}" for name in CALCULATE}
# Names in these packages that create generators, whose numbers are unpredictable.
GENERATOR_MAKERS = {"default_rng", "SeedSequence", "RandomState", "SystemRandom", "Random", "Generator"}
GENERATOR_MAKERS |= {"PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64"}
# Built-in functions that do something outside of the program, or read names that cannot be followed.
EFFECTS = {"breakpoint", "compile", "eval", "exec", "globals", "input", "open", "print", "__import__"}
# Modules of these packages, with those within, whose functions use files, devices or the process.
OUTSIDE: tuple[str, ...] = ("numpy.lib._npyio_impl", "numpy.lib._format_impl", "numpy.lib.format")
OUTSIDE += ("numpy.lib._datasource",)
OUTSIDE += ("numpy.lib.npyio", "numpy.lib._utils_impl", "numpy.__config__", "numpy.ctypeslib", "numpy.testing")
OUTSIDE += ("torch.serialization", "torch.storage", "torch.hub", "torch.jit._serialization", "torch.package")
OUTSIDE += ("torch.distributed", "torch.multiprocessing", "torch.profiler", "torch.autograd.profiler", "torch.onnx")
OUTSIDE += ("torch.utils.tensorboard", "torch.utils.data", "torch.utils.cpp_extension", "torch.utils.model_zoo")
OUTSIDE += jax_names.OUTSIDE_MODULES
# Names that do so in other modules and in C, where the module does not show it; and methods of arrays, whatever the
# variables with the arrays are called.
OUTSIDE_NAMES = {"load", "save", "fromfile", "from_file", "memmap", "set_num_threads", "get_num_threads"}
OUTSIDE_METHODS = {"dump", "tofile", "fromfile", "from_file"}
# Methods that have run already, or that no calculation calls by itself.
BESIDE = {"__init__", "__new__", "__init_subclass__", "__class_getitem__", "__del__", "__repr__", "__str__"}
BESIDE |= {"__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__getnewargs__", "__copy__"}
BESIDE |= {"__deepcopy__", "__dir__", "__sizeof__", "__doc__", "__module__", "__dict__", "__weakref__", "__slots__"}
OF_WITH = {"__enter__", "__exit__"}

HEAP_TYPE = 1 << 9
CYTHON_FUNCTION: type = type(np.random.default_rng)
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, CYTHON_FUNCTION, type(np.mean))
# Types implemented in C that hold no more than Python shows.
_OPEN = {object, *CONTAINERS, *CONSTANTS, tuple, frozenset, collections.OrderedDict, collections.defaultdict}
_OPEN |= {*SETTINGS, bytearray, array.array, type(Ellipsis), type, property}


def is_opaque(cls: type) -> bool:
    """Return whether objects of a class hold something in C, which Python does not show."""
    if cls in _OPEN or "__dict__" in vars(cls) or "__slots__" in vars(cls):
        return False
    if any(isinstance(each, types.FunctionType) for each in vars(cls).values()) or cls.__module__ == "__main__":
        return False
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    return file is None or not file.endswith((".py", ".pyc"))


def is_written(value: object) -> bool:
    """Return whether a value is a function that was written, not one that `dataclass` made, which names all fields."""
    return isinstance(value, types.FunctionType) and value.__code__.co_filename != "<string>"


def may_draw(value: object) -> bool:
    if isinstance(value, types.ModuleType):
        return value.__name__ in ("numpy.random", "random")
    owner = getattr(value, "__self__", None)
    is_maker = getattr(value, "__name__", None) in GENERATOR_MAKERS
    return is_maker or isinstance(owner, random.Random | np.random.RandomState)


def is_outside(value: Any) -> bool:
    """Return whether a function or class of a package in CALCULATE reads or changes something outside the program."""
    if not isinstance(value, (*_FUNCTIONS, type)):
        return False
    value = getattr(value, "_implementation", value)  # NumPy's functions that other array types may override have it
    # Not the `__module__` of functions: NumPy's functions claim to be in `numpy`.
    namespace = getattr(value, "__globals__", {})
    module = str(namespace.get("__name__", value.__module__))
    package = module.partition(".")[0]
    if package in ("builtins", "io", "_io"):
        return value.__name__ in EFFECTS
    is_of_such = any(module == each or module.startswith(f"{each}.") for each in OUTSIDE)
    return is_of_such or (package in CALCULATE and value.__name__ in OUTSIDE_NAMES)


def slots_of(cls: type) -> tuple[str, ...]:
    return tuple(name for each in cls.__mro__ for name, value in vars(each).items() if _is_slot(value))


def _is_slot(value: object) -> bool:
    return isinstance(value, types.MemberDescriptorType)
