"""Features extractors whose code is not pure: it changes something, draws, or uses what is not listed."""

import builtins
import collections
import enum
import io
import itertools
import os
import random
import time

import numpy as np
import pytest
import torch
from torch import nn

from bridge.errors import NotCompilable
from bridge.translate.policies.on_policy import export_policy
from bridge.translate.user_modules.snapshot import Snapshot
from tests.bridge.translate.policies.networks import Extractor

COUNT, SEEN, DRAWS, LOAD = 0, [], np.random.default_rng(0), np.load


class Base(Extractor):
    def __init__(self, space):
        super().__init__(space, 6)


def assert_refused(policy, line):
    """The reason names a line, with `line` in it."""
    message = rf"line \d+ of (impure|test_\w+|core).py, .*{line}"
    with pytest.raises(NotCompilable, match=message):
        export_policy(policy)
    with pytest.raises(NotCompilable, match=message):
        Snapshot(policy).require_pure()


def extractor_of(forward, **attributes):
    """A class with such a forward, and attributes that each object gets from a function."""

    def __init__(self, space):
        Base.__init__(self, space)
        for name, make in attributes.items():
            setattr(self, name, make())

    return type("Reaching", (Base,), {"__init__": __init__, "forward": forward, "__module__": __name__})


# --- What changes something -------------------------------------------------------------------------------------------


def into_dict(self, x):
    self.seen["features"] = 1
    return self.linear(x)


def into_list(self, x):
    self.seen.append(1)
    return self.linear(x)


def into_set(self, x):
    self.seen.add(1)
    return self.linear(x)


def into_array(self, x):
    self.seen[0] += 1
    return self.linear(x)


def into_nested(self, x):
    self.seen["a"][0].count += 1
    return self.linear(x)


def into_global(self, x):
    global COUNT
    COUNT += 1
    return self.linear(x)


def into_new_global(self, x):
    global LATER
    LATER = 1
    return self.linear(x)


def into_list_of_module(self, x):
    SEEN.append(1)
    return self.linear(x)


def into_class(self, x):
    type(self).count = getattr(type(self), "count", 0) + 1
    return self.linear(x)


def into_tensor(self, x):
    self.seen += 1
    return self.linear(x)


def into_parameters(self, x):
    for parameter in self.linear.parameters():
        parameter.data.mul_(0.5)
    return self.linear(x)


def only_with_tensors(self, x):
    if isinstance(x, torch.Tensor):
        self.seen.append(1)
    return self.linear(x)


def only_without_gradients(self, x):
    if not torch.is_grad_enabled():
        self.seen.append(1)
    return self.linear(x)


def by_setattr(self, x):
    setattr(self.seen, "co" + "unt", self.seen.count + 1)
    return self.linear(x)


def through_a_part(self, x):
    return self.linear(self.parts[0](x))


def through_a_closure():
    count = 0

    def forward(self, x):
        nonlocal count
        count += 1
        return self.linear(x)

    return forward, lambda: count


class Counted:
    def __init__(self):
        self.count = 0


class Slots:
    __slots__ = ("count",)

    def __init__(self):
        self.count = 0


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.count = 0

    def forward(self, x):
        self.count += 1
        return x


def array():
    return np.zeros(3)


def nested():
    return {"a": [Counted()]}


# How an extractor is made, what to compare before and after, and a part of the line that is named.
CHANGES = {
    "dict": (extractor_of(into_dict, seen=dict), lambda f: dict(f.seen), "self.seen"),
    "list": (extractor_of(into_list, seen=list), lambda f: list(f.seen), "seen"),
    "deque": (extractor_of(into_list, seen=collections.deque), lambda f: list(f.seen), "seen"),
    "set": (extractor_of(into_set, seen=set), lambda f: set(f.seen), "seen"),
    "array": (extractor_of(into_array, seen=array), lambda f: f.seen.tolist(), "seen"),
    "object in a list in a dict": (extractor_of(into_nested, seen=nested), lambda f: f.seen["a"][0].count, "count"),
    "object with slots": (
        extractor_of(into_nested, seen=lambda: {"a": [Slots()]}),
        lambda f: f.seen["a"][0].count,
        "count",
    ),
    "global": (extractor_of(into_global), lambda f: COUNT, "COUNT"),
    "new global": (extractor_of(into_new_global), lambda f: "LATER" in globals(), "LATER"),
    "list of the module": (extractor_of(into_list_of_module), lambda f: list(SEEN), "SEEN"),
    "class": (extractor_of(into_class), lambda f: vars(type(f)).get("count"), "count"),
    "tensor": (extractor_of(into_tensor, seen=lambda: torch.zeros(2)), lambda f: f.seen.tolist(), "self.seen"),
    "parameters": (extractor_of(into_parameters), lambda f: f.linear.weight.tolist(), "parameters"),
    "only with tensors": (extractor_of(only_with_tensors, seen=list), lambda f: list(f.seen), "seen"),
    "only without gradients": (
        extractor_of(only_without_gradients, seen=list),
        lambda f: list(f.seen),
        "is_grad_enabled",
    ),
    "by setattr": (extractor_of(by_setattr, seen=Counted), lambda f: f.seen.count, "setattr"),
    "module in a list": (
        extractor_of(through_a_part, parts=lambda: [Counting()]),
        lambda f: f.parts[0].count,
        "self.parts",
    ),
}


# --- What draws random numbers, or gives something else each time -----------------------------------------------------


def drawing(draw, only_in_training=False):
    def forward(self, x):
        y = self.linear(x)
        if only_in_training and not self.training:
            return y
        return y * 0.0 if draw(self) < 0.5 else y

    return forward


DRAWS_NUMBERS = {
    "random": lambda self: random.random(),
    "randint": lambda self: random.randint(0, 1),
    "random of numpy": lambda self: np.random.rand(),  # noqa: NPY002
    "torch": lambda self: torch.rand(1).item(),
    "generator of numpy": lambda self: self.source.random(),
    "generator of the module": lambda self: DRAWS.random(),
    "generator of python": lambda self: self.source.random(),
}
SOURCES = {
    "generator of numpy": lambda: np.random.default_rng(0),
    "generator of python": lambda: random.Random(0),
}


def disguised(function):
    """Decorate as if the function were PyTorch's."""
    function.__module__ = "torch.nn.functional"
    return function


class Kind(enum.Enum):
    ONE = 1

    def scale(self):
        return time.time()


def loads_by_another_name(self):
    return float(LOAD("a.npy")[0])


UNKNOWN = {
    "np.load": (lambda self: np.load("a.npy")[0], int, "np.load"),
    "np.load by another name": (loads_by_another_name, int, "LOAD"),
    "np.load held by the extractor": (lambda self: self.source("a.npy")[0], lambda: np.load, "self.source"),
    "np.load by getattr": (lambda self: getattr(np, "load")("a.npy")[0], int, "load"),  # noqa: B009
    "np.loadtxt": (lambda self: np.loadtxt("a.txt")[0], int, "loadtxt"),
    "np.genfromtxt": (lambda self: np.genfromtxt("a.txt")[0], int, "genfromtxt"),
    "np.fromfile": (lambda self: np.fromfile("a.bin")[0], int, "fromfile"),
    "np.memmap": (lambda self: np.memmap("a.bin")[0], int, "memmap"),
    "open_memmap": (lambda self: np.lib.format.open_memmap("a.npy")[0], int, "open_memmap"),
    "np.save": (lambda self: np.save("a.npy", 1.0) or 1.0, int, "save"),
    "np.savetxt": (lambda self: np.savetxt("a.txt", 1.0) or 1.0, int, "savetxt"),
    "np.savez": (lambda self: np.savez("a.npz", 1.0) or 1.0, int, "savez"),
    "tofile": (lambda self: np.float32(1).tofile("a.bin") or 1.0, int, "tofile"),
    "torch.load": (lambda self: torch.load("a.pt")["a"], int, "load"),
    "torch.save": (lambda self: torch.save(1.0, "a.pt") or 1.0, int, "save"),
    "torch.hub": (lambda self: float(len(torch.hub.get_dir())), int, "get_dir"),
    "torch.jit.save": (lambda self: torch.jit.save(None, "a.pt") or 1.0, int, "save"),
    "print of builtins": (lambda self: builtins.print(end="") or 1.0, int, "print"),
    "print held by the extractor": (lambda self: self.source(end="") or 1.0, lambda: print, "self.source"),
    "open of builtins": (lambda self: float(builtins.open("a.txt").read()), int, "open"),  # noqa: SIM115
    "open of io": (lambda self: float(io.open("a.txt").read()), int, "io.open"),  # noqa: SIM115, UP020
    "input": (lambda self: float(input() or 1), int, "input"),
    "time in a function that says it is PyTorch's": (disguised(lambda self: time.time()), int, "time.time"),
    "time in an enumeration": (lambda self: self.source.scale(), lambda: Kind.ONE, "self.source.scale"),
    "new generator in a second function": (
        lambda self: np.random.random() + np.random.default_rng().random(),  # noqa: NPY002
        int,
        "np.random.random",
    ),
    "time": (lambda self: time.time(), int, "time.time"),
    "new generator": (lambda self: np.random.default_rng().random(), int, "default_rng"),
    "environment variables": (lambda self: float(os.environ.get("SCALE", 1)), int, "os.environ"),
    "iterator": (lambda self: next(self.source), itertools.count, "next"),
    "iterator of a list": (lambda self: next(self.source), lambda: iter([1.0] * 99), "next"),
    "print": (lambda self: print(end="") or 1.0, int, "print"),
    "large array": (lambda self: float(self.source[0]), lambda: np.ones(2**18), "ndarray"),
    "array of objects": (lambda self: self.source[0], lambda: np.array([1.0], dtype=object), "ndarray"),
    "long list": (lambda self: self.source[0], lambda: [1.0] * 501, "more than 500"),
    "many objects": (
        lambda self: self.source[0].count,
        lambda: [Counted() for _ in range(500)],
        "Counted",
    ),
}
