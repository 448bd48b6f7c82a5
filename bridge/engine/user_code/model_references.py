"""Search for references from environments to the model that learns from them, as self-play and resets by value have.

    env -> attributes, items, cells, globals that its functions name, ... -> a network, algorithm or callback?
                                                                             yes: the environment is user code

Environments are stepped between updates, whose results may be in vectors meanwhile. An environment that reads the
model's networks would read old weights, and what it writes into them would be lost. So an environment in this process
is followed through everything that its objects hold and that its functions name. If that leads to a network, an
algorithm or a callback, or to something that cannot be followed, the environment is treated as user code.
"""

from __future__ import annotations

import builtins
import collections
import contextvars
import dis
import functools
import gc
import importlib.util
import io
import logging
import multiprocessing.process
import sys
import types
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import gymnasium
import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import SubprocVecEnv, VecEnv

from bridge.host_env.processes.process_vec_env import ProcessVecEnv
from bridge.host_env.processes.worker_vec_env import WorkerVecEnv
from bridge.libraries import INSTALLED, is_library
from bridge.originals import has_own_methods
from bridge.vec_env.jax_vec_env import JaxVecEnv

# The search stops after this many references.
MOST_REFERENCES = 100_000
# Packages of environments and of what they compute with. None of them holds a model.
BESIDE_LIBRARIES = frozenset(
    (
        *("ale_py", "Box2D", "cv2", "glfw", "mujoco", "OpenGL", "PIL", "pygame", "pybullet", "envpool", "minatar"),
        *("dm_control", "dm_env", "gymnasium_robotics", "highway_env", "minigrid", "panda_gym", "shimmy", "bsuite"),
        *("matplotlib", "networkx", "numba", "pandas", "scipy", "shapely", "sklearn", "sympy", "h5py", "imageio"),
        *("attr", "attrs", "chex", "cloudpickle", "einops", "etils", "flax", "omegaconf", "psutil", "pydantic"),
        *("brax", "craftax", "gymnax", "jumanji", "mujoco_playground", "navix", "pgx", "xminigrid", "ray"),
        *("requests", "rich", "tensorboard", "tqdm", "yaml", "zmq"),
    )
)
# With these, code can reach any object.
ANYTHING = frozenset(("eval", "exec", "globals", "__import__", "compile", "locals", "breakpoint"))
FINDERS = frozenset(("gc", "inspect", "sys", "importlib", "ctypes", "builtins", "__main__"))
# Types that hold no Python object, or nothing that leads to a model.
PLAIN = frozenset((bool, int, float, complex, str, bytes, bytearray, range, slice, type(None), type(...)))
CONTAINERS = (list, tuple, dict, set, frozenset)
NUMPYS = (np.dtype, np.generic, np.random.Generator, np.random.RandomState, np.random.BitGenerator)
OTHERS = (io.IOBase, logging.Logger, multiprocessing.process.BaseProcess, gymnasium.Space)
CLOSED = (*NUMPYS, *OTHERS)
# Not followed: compiled functions get only arrays, and other processes have copies.
ELSEWHERE = (JaxVecEnv, WorkerVecEnv, ProcessVecEnv, SubprocVecEnv)
MODELS = (BaseAlgorithm, BaseCallback, torch.nn.Module, torch.Tensor, torch.optim.Optimizer)


def why_reached(env: VecEnv | None, algorithm: object) -> str | None:
    """Return why code of the environments may reach a model, or None if it cannot.

    Args:
      env: of the model, with the wrappers around it.
      algorithm: the model.
    """
    return None if env is None else _Walk(algorithm).follow(env)


class _Walk:
    """Breadth-first search through references."""

    def __init__(self, algorithm: object) -> None:
        self._models = {id(algorithm), id(vars(algorithm))}
        self._seen: set[int] = set()
        self._kept: list[object] = []  # keeps objects alive, so that no id is reused
        self._next: collections.deque[tuple[object, str]] = collections.deque()
        self._count = 0

    def follow(self, root: object) -> str | None:
        self._add(root, type(root).__name__)
        while self._next:
            thing, name = self._next.popleft()
            if id(thing) in self._models or (type(thing) not in CONTAINERS and isinstance(thing, MODELS)):
                return f"{name} references a {type(thing).__name__}"
            if self._count > MOST_REFERENCES:
                return f"they hold more than {MOST_REFERENCES:,} references, too many to check"
            reason = self._visit(thing, name)
            if reason is not None:
                return reason
        return None

    def _add(self, thing: object, name: str) -> None:
        self._count += 1
        # By exact type: a user's subclass of a number may hold anything.
        if type(thing) in PLAIN or id(thing) in self._seen:
            return
        if isinstance(thing, CLOSED) and is_trusted(module_of(type(thing))):
            return
        self._seen.add(id(thing))
        self._kept.append(thing)
        self._next.append((thing, name))

    def _add_all(self, items: Iterable[tuple[object, object]], prefix: str) -> None:
        for key, value in list(items):
            # Names are only made where they may be reported: tables have thousands of numbers.
            if type(key) not in PLAIN:
                self._add(key, f"a key of {prefix}")
            if type(value) not in PLAIN:
                self._add(value, f"{prefix}{key if type(key) in PLAIN else type(key).__name__}")
            self._count += 1

    def _visit(self, thing: Any, name: str) -> str | None:
        if type(thing) in (list, tuple):
            self._count += len(thing)
            for each in thing:
                if type(each) not in PLAIN:
                    self._add(each, name)
            return None
        if type(thing) in ELSEWHERE and not has_own_methods(thing):
            return None
        if isinstance(thing, types.FunctionType):
            return self._visit_function(thing)
        if isinstance(thing, types.ModuleType):
            return self._visit_module(thing)
        if isinstance(thing, types.FrameType | types.GeneratorType | types.CoroutineType):
            return f"{name} is a {type(thing).__name__}, whose references cannot be checked"
        if isinstance(thing, type):
            self._visit_class(thing)
        elif isinstance(thing, types.BuiltinFunctionType | types.MethodWrapperType):
            # a method of a list or of another object implemented in C
            if not isinstance(thing.__self__, types.ModuleType):
                self._add(thing.__self__, name)
        elif isinstance(thing, weakref.ReferenceType):
            self._add(thing(), name)
        elif isinstance(thing, contextvars.ContextVar):
            self._add(thing.get(None), name)
        elif isinstance(thing, dict):
            self._add_all(thing.items(), f"{name}.")
            self._visit_object(thing, name, [])
        elif isinstance(thing, np.ndarray):
            self._visit_object(thing, name, thing.ravel().tolist() if thing.dtype.hasobject else [])
        else:
            self._visit_object(thing, name, gc.get_referents(thing))
        return None

    def _visit_object(self, thing: object, name: str, referents: Iterable[object]) -> None:
        """Visit what an object holds: attributes and referents, which are items, slots, cells, and the contents of C
        objects.
        """
        if type(thing) not in CONTAINERS:
            self._add(type(thing), type(thing).__name__)
        attributes = getattr(thing, "__dict__", None)
        if isinstance(attributes, dict):
            self._add_all(attributes.items(), f"{type(thing).__name__}.")
        for each in referents:
            if each is not attributes:
                self._add(each, name)

    def _visit_class(self, cls: type) -> None:
        for each in cls.__mro__:
            is_ours = not is_trusted(module_of(each))
            for name, value in vars(each).items():
                # User code may have put a model, or a method, into a library's class.
                if is_ours or isinstance(value, MODELS) or id(value) in self._models or is_user_function(value):
                    self._add(value, f"{cls.__name__}.{name}")

    def _visit_function(self, function: types.FunctionType) -> str | None:
        name = function.__qualname__
        for cell in function.__closure__ or ():
            if cell != types.CellType():  # an empty cell belongs to a name without a value yet
                self._add(cell.cell_contents, name)
        if is_trusted(module_of(function)):
            return None
        self._add_all(((name, each) for each in function.__defaults__ or ()), "")
        self._add_all((function.__kwdefaults__ or {}).items(), f"{name}.")
        self._add_all(vars(function).items(), f"{name}.")
        package = function.__globals__.get("__package__") or ""
        for code in _codes(function.__code__):
            for imported in _imports(code, package):
                if imported.split(".")[0] in FINDERS:
                    return f"{name} imports {imported}, which can reach any object"
                module = sys.modules.get(imported)
                if module is None and not is_trusted(imported):
                    return f"{name} imports {imported}, which is not loaded yet"
                self._add_named(module, code, imported)
            for each in _globals(code):
                if each in function.__globals__:
                    self._add_named(function.__globals__[each], code, each)
                elif each in ANYTHING or not hasattr(builtins, each):
                    return f"{name} uses {each}, which may reach any object"
        return None

    def _add_named(self, thing: object, code: types.CodeType, name: str) -> None:
        """Add an object that code names. From an installed module, add only what the code names in it.

        Such a module imports much else, which does not lead to the user's model.
        """
        self._add(thing, name)
        if not isinstance(thing, types.ModuleType) or not is_installed(thing.__name__):
            return
        if is_trusted(thing.__name__):
            return
        for each in code.co_names:
            value = vars(thing).get(each)
            if value is not None and value is not thing:
                if isinstance(value, types.ModuleType) and id(value) not in self._seen:
                    self._add_named(value, code, each)
                self._add(value, f"{name}.{each}")

    def _visit_module(self, module: types.ModuleType) -> str | None:
        if module.__name__.split(".")[0] in FINDERS:
            return f"the module {module.__name__} can reach any object"
        if not is_installed(module.__name__) and not is_trusted(module.__name__):
            self._add_all(vars(module).items(), f"{module.__name__}.")
        return None


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield the code of a function, and of the functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


@functools.lru_cache(maxsize=4096)
def _globals(code: types.CodeType) -> tuple[str, ...]:
    """Return the names of globals that code reads."""
    return tuple(
        dict.fromkeys(
            str(each.argval) for each in dis.get_instructions(code) if each.opname in ("LOAD_GLOBAL", "LOAD_NAME")
        )
    )


@functools.lru_cache(maxsize=4096)
def _imports(code: types.CodeType, package: str) -> tuple[str, ...]:
    """Return the names of the modules that code imports."""
    found, level = [], 0
    instructions = list(dis.get_instructions(code))
    for at, each in enumerate(instructions):
        if each.opname != "IMPORT_NAME":
            continue
        # The two instructions before push the level, which is the number of dots, and the names to import.
        level = instructions[at - 2].argval
        dots = "." * level if isinstance(level, int) else ""
        module = importlib.util.resolve_name(f"{dots}{each.argval or ''}", package or None) if dots else each.argval
        found.append(module)
        for name in instructions[at - 1].argval or ():  # they may be modules too
            if f"{module}.{name}" in sys.modules:
                found.append(f"{module}.{name}")
    return tuple(found)


def module_of(thing: object) -> str:
    """Return the name of the module of a class or a function; "builtins" for C objects without one."""
    module = getattr(thing, "__module__", None)
    return module if isinstance(module, str) else "builtins"


def is_user_function(value: object) -> bool:
    """Return whether a value in a library's class is a function that does not come from a library."""
    return isinstance(value, types.FunctionType) and not is_trusted(module_of(value))


@functools.lru_cache(maxsize=4096)
def is_trusted(module: str) -> bool:
    """Return whether a module belongs to a library that holds no model."""
    root = module.partition(".")[0]
    return module == "builtins" or is_library(root) or root in BESIDE_LIBRARIES


@functools.lru_cache(maxsize=4096)
def is_installed(module: str) -> bool:
    """Return whether a module is in an installed package, rather than in the user's files."""
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return file.startswith(INSTALLED)
