"""Places where code keeps something that may change: how to read them, and how to restore what was there."""

from __future__ import annotations

import array
import dataclasses
import functools
import pickle
import random
import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

MISSING = object()
GENERATORS = (random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator, torch.Generator)


@dataclasses.dataclass(frozen=True)
class Place:
    """Something that may change, with its name.

    Attributes:
      label: what it is called in messages.
      read: returns what is there.
      write: restores what `read` has returned.
    """

    label: str
    read: Callable[[], Any]
    write: Callable[[Any], None]


def array_place(label: str, value: np.ndarray) -> Place:
    """Return a Place for the numbers of an array."""

    def write(content: bytes) -> None:
        is_writeable = value.flags.writeable
        if is_writeable:
            value[...] = np.frombuffer(content, value.dtype).reshape(value.shape)

    return Place(label, value.tobytes, write)


def bytes_place(label: str, value: bytearray | array.array[Any]) -> Place:
    """Return a Place for the content of a bytearray or of one of Python's arrays."""

    def write(content: bytes) -> None:
        value[:] = content if isinstance(value, bytearray) else array.array(value.typecode, content)  # type: ignore[assignment]

    return Place(label, functools.partial(bytes, value), write)


def attribute_place(owner: object, name: str) -> Place:
    """Return a Place for an attribute of an object."""

    def write(content: object) -> None:
        if content is not MISSING:
            object.__setattr__(owner, name, content)

    return Place(name, functools.partial(getattr, owner, name, MISSING), write)


def cell_place(name: str, cell: types.CellType) -> Place:
    """Return a Place for a variable of a closure: None as long as the variable has no value."""

    def read() -> object:
        try:
            return cell.cell_contents
        except ValueError:
            return None

    def write(content: object) -> None:
        cell.cell_contents = content

    return Place(name, read, write)


def globals_place(names: Sequence[str], namespace: dict[str, Any]) -> Place:
    """Return a Place for some names of a module."""

    def read() -> list[object]:
        return [namespace.get(name, MISSING) for name in names]

    def write(content: list[object]) -> None:
        for name, value in zip(names, content, strict=True):
            if value is MISSING:
                namespace.pop(name, None)
            else:
                namespace[name] = value

    return Place(", ".join(names), read, write)


def generator_place(generator: Any) -> Place:
    """Return a Place for the state of a random generator, as bytes that can be compared."""
    get: Callable[[], Any]
    put: Callable[[Any], object]
    if isinstance(generator, random.Random):
        get, put = generator.getstate, generator.setstate
    elif isinstance(generator, np.random.RandomState):
        get, put = generator.get_state, generator.set_state
    elif isinstance(generator, torch.Generator):
        get, put = (lambda: generator.get_state().numpy()), (lambda state: generator.set_state(torch.tensor(state)))
    else:
        bits = getattr(generator, "bit_generator", generator)
        get, put = (lambda: bits.state), functools.partial(setattr, bits, "state")

    def write(content: bytes) -> None:
        put(pickle.loads(content))

    return Place("random numbers", lambda: pickle.dumps(get()), write)


def global_generators() -> list[Place]:
    """Return Places for the states of the random generators of Python, NumPy and PyTorch that all code shares."""
    generators = [getattr(random, "_inst"), getattr(np.random.mtrand, "_rand"), torch.default_generator]  # noqa: B009
    if torch.cuda._initialized:
        generators += torch.cuda.default_generators
    return [generator_place(each) for each in generators]
