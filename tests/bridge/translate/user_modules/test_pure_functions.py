"""The rule of pure functions, for forwards and for schedules. docs/not-compiled.md has most forwards that break it."""

import functools
import math
import random
import sys
import time
import types

import numpy as np
import pytest
import torch
from stable_baselines3.common import utils
from torch import nn
from torch.nn import functional as F

import bridge
from bridge.errors import NotCompilable
from bridge.translate.policies.on_policy import export_policy
from bridge.translate.pytorch.modules import read_parameters
from bridge.translate.user_modules.purity import Purity
from bridge.translate.user_modules.snapshot import Snapshot
from tests.bridge.translate.policies.networks import Extractor, extractor, forward_of, make

# --- What is pure -----------------------------------------------------------------------------------------------------

SCALE, NUMBERS, SETTINGS, ARRAY = 2.0, (1.0, 2.0), types.SimpleNamespace(scale=2.0), np.ones(6)
imported = types.ModuleType("settings_of_a_user")
imported.scale = 2.0
sys.modules["settings_of_a_user"] = imported


def doubled(x):
    return 2.0 * x


def printed(x):
    print(end="")
    return x


def disguised(function):
    """Decorate as if the function were PyTorch's."""
    function.__module__ = "torch.nn.functional"
    return function


class Base(Extractor):
    def __init__(self, space):
        super().__init__(space, 6)


class Helper:
    scale = 2.0

    def __call__(self, x):
        return x * self.scale

    def scaled(self, x):
        return x * self.scale


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x):
        out = F.relu(self.first(x))
        out = self.second(out)
        out += x
        out *= 0.5
        return out


class Net(Base):
    """Has what users' extractors have."""

    slope = 0.5

    def __init__(self, space):
        super().__init__(space)
        self.scale, self.sizes, self.norm, self.helper = 2.0, [6, 6], None, Helper()
        self.config, self.table = types.SimpleNamespace(scale=2.0, env=None), {"a": 2.0}
        self.clock = disguised(lambda: time.time())
        self.activation, self.leaky = torch.tanh, functools.partial(F.leaky_relu, negative_slope=0.2)
        self.layers = nn.ModuleList([nn.Linear(6, 6), Residual()])
        self.heads = nn.ModuleDict({"a": nn.Sequential(nn.Linear(6, 3), nn.ReLU()), "b": nn.Linear(6, 3)})
        self.register_buffer("mean", torch.zeros(6))
        self.__private = 2.0

    @property
    def half(self):
        return self.scale / 4

    @staticmethod
    def halved(x):
        return x / 2

    def embed(self, x, scale=1.0):
        for layer in self.layers:
            x = layer(x)
        return x * scale * self.__private


def loops(self, x):
    parts = []
    for name, head in self.heads.items():
        parts.append(head(x) * self.table["a"] if name == "a" else head(x))
    return torch.cat([*parts], dim=1)


def grows(self, x):
    for layer, size in zip(self.layers, reversed(self.sizes)):
        x = layer(x).view(x.shape[0], size)
    with torch.no_grad():
        y = self.linear(x)
    return x + y


def indexed(self, x):
    for i in range(len(self.layers) - 1):
        x = self.layers[i](x)
    return self.layers[-1].forward(x.view(x.shape[0], *self.sizes[1:])) + sum(layer(x) for layer in self.layers[:1])


def branches(self, x):
    if self.norm is not None:
        x = self.norm(x)
    elif len(self.sizes) > 2:
        raise ValueError(f"{self.sizes} are too many")
    return self.linear(x)


SCALED = (lambda by: lambda self, x: self.linear(x) * by)(2.0)
PURE = {
    "arguments": lambda self, x: x[:, :6] * x.size(1) + x.shape[-1],
    "own attributes": lambda self, x: self.linear(x) * self.scale * self.slope * self.half * self.table["a"],
    "own methods": lambda self, x: self.halved(self.embed(x, scale=2.0)),
    "modules in loops": loops,
    "modules in pairs": grows,
    "modules by index": indexed,
    "branches": branches,
    "a closure": SCALED,
    "numbers of objects": lambda self, x: self.linear(x) * self.config.scale * SETTINGS.scale * Helper.scale,
    "globals and modules": lambda self, x: self.linear(x) * SCALE * NUMBERS[1] * imported.scale,
    "PyTorch's functions": lambda self, x: torch.tanh(F.relu(self.linear(x))).flatten(1),
    "NumPy's and math's": lambda self, x: (
        self.linear(x) * float(np.clip(3.0, 0.0, 1.0)) * math.sqrt(np.prod(2)) / np.pi
    ),
    "functions of the user": lambda self, x: self.leaky(self.activation(doubled(self.linear(x)))),
    "a callable object": lambda self, x: self.helper(self.linear(x)),
    "a layer without weights": lambda self, x: nn.Tanh()(self.linear(x)),
    "a missing attribute": lambda self, x: self.linear(x) * getattr(self, "missing", 3.0) * hasattr(self, "missing"),
    "a comprehension": lambda self, x: torch.stack([layer(x) for layer in self.layers]).mean(0),
    "types": lambda self, x: self.linear(x) if not isinstance(x, (dict, list)) else x,
}


@pytest.mark.parametrize("what", PURE)
def test_what_is_listed_is_compiled(what):
    policy = extractor(type("Pure", (Net,), {"forward": PURE[what], "__module__": __name__}))
    snapshot = Snapshot(policy)
    snapshot.require_pure()
    assert snapshot.is_current()
    policy.set_training_mode(False)
    network, x = export_policy(policy), torch.linspace(-1, 1, 12).reshape(2, 6)
    vector = read_parameters(policy.parameters())
    got = network.apply(vector, x.numpy())[1]
    with torch.no_grad():
        np.testing.assert_allclose(got, policy.predict_values(x).flatten(), rtol=1e-5, atol=1e-5)


# --- What is not, beside the examples of the page ---------------------------------------------------------------------


def counting():
    count = 0

    def forward(self, x):
        nonlocal count
        count += 1
        return self.linear(x)

    return forward


def tries(self, x):
    try:
        return self.linear(x) * self.missing
    except AttributeError:
        return self.linear(x)


IMPURE = {
    "a closure that is set": (counting(), "nonlocal count"),
    "a method of another object": (lambda self, x: self.helper.scaled(x), "self.helper.scaled"),
    "an impure function": (lambda self, x: printed(self.linear(x)), "print"),
    "one that says it is PyTorch's": (lambda self, x: self.linear(x) * self.clock(), "time.time"),
    "a try": (tries, "try"),
}


@pytest.mark.parametrize("what", IMPURE)
def test_what_is_not_listed_names_the_line(what):
    forward, line = IMPURE[what]
    policy = extractor(type("Impure", (Net,), {"forward": forward, "__module__": __name__}))
    with pytest.raises(NotCompilable, match=rf"line \d+ of test_pure_functions.py, .*{line}"):
        Snapshot(policy).require_pure()


def test_a_private_name_in_a_string_is_read_as_python_reads_it():
    def forward(self, x):
        return self.linear(x) * getattr(self, "__factor", 3.0)

    cls = forward_of(forward)
    setattr(cls, "__factor", lambda: time.time())
    with pytest.raises(NotCompilable, match=r"time\.time"):
        Snapshot(extractor(cls)).require_pure()


def test_code_without_its_source_is_refused():
    names = {}
    exec("def forward(self, x): return self.linear(x)", names)
    with pytest.raises(NotCompilable, match="whose source is not found"):
        export_policy(extractor(forward_of(names["forward"])))


def test_code_that_differs_from_its_file_is_refused():
    function = types.FunctionType(doubled.__code__.replace(co_consts=(None, 3.0)), globals())
    assert function(1.0) == 3.0
    assert "not found" in Purity(function).reason
    assert Purity(doubled).reason is None


@pytest.mark.parametrize(
    "special",
    [
        {"__call__": lambda self, x: nn.Module.__call__(self, x)},
        {"__getattr__": lambda self, name: nn.Module.__getattr__(self, name)},
        {"__len__": lambda self: 1},
        {"_call_impl": lambda self, x: nn.Module._call_impl(self, x)},
        {"train": lambda self, mode=True: nn.Module.train(self, mode)},
    ],
    ids=lambda special: next(iter(special)),
)
def test_special_methods_of_modules_are_refused(special):
    cls = type("Special", (Base,), {"forward": lambda self, x: self.linear(x), **special})
    with pytest.raises(NotCompilable, match=f"Special has its own {next(iter(special))}"):
        export_policy(extractor(cls))


class Shadowed(nn.Sequential):
    def __getitem__(self, index):
        return super().__getitem__(index)


class Renamed(nn.Sequential):
    def children(self):
        return iter(())


class Positive(nn.Linear):
    def __init__(self, module):
        super().__init__(6, 6)
        self.raw = self._parameters.pop("weight")

    @property
    def weight(self):
        return self.raw.exp()


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (Shadowed, "its own __getitem__"),
        (Renamed, "overrides children of Sequential"),
        (Positive, "overrides weight of Linear"),
    ],
)
def test_a_library_forward_with_other_methods_is_refused(cls, message):
    module = cls(nn.Linear(6, 6))
    assert message in Purity(modules=module.modules()).reason


def test_a_training_with_such_a_forward_remembers_what_sb3s_does():
    class Remembering(Extractor):
        def __init__(self, space):
            super().__init__(space, 6)
            self.seen = []

        def forward(self, x):
            self.seen.append(1)
            return self.linear(x)

    env = bridge.make_vec_env("Acrobot-v1", 2, seed=0)
    kwargs = {"features_extractor_class": Remembering, "net_arch": [4]}
    for algorithm, settings in (
        (bridge.PPO, {"n_steps": 4, "batch_size": 8, "n_epochs": 1}),
        (bridge.DQN, {"learning_starts": 2, "buffer_size": 32, "batch_size": 4}),
    ):
        model = algorithm("MlpPolicy", env, policy_kwargs=dict(kwargs), seed=0, device="cpu", **settings).learn(8)
        assert any(part.seen for part in model.policy.modules() if isinstance(part, Remembering))


def test_stock_policies_read_nothing():
    snapshot = Snapshot(make())
    snapshot.require_pure()
    assert not snapshot._purity.reads._reads
    assert not snapshot._purity.reads._contents


# --- Schedules: the same test -----------------------------------------------------------------------------------------


class Linear:
    def __init__(self, start):
        self.start = start

    def __call__(self, left):
        return self.start * left


class Falling(Linear):
    def __call__(self, left):
        self.start *= 0.99
        return self.start


def test_schedules_are_read_by_the_same_test():
    def closed(start):
        def schedule(left: float) -> float:
            """Falls."""
            rate = start * left
            return max(rate, 1e-5) if left > 0.5 else NUMBERS[0]

        return schedule

    wrapped = getattr(utils, "FloatSchedule", functools.partial)(closed(0.1))
    schedules = (closed(0.1), Linear(0.1), functools.partial(math.pow, 0.1), wrapped)
    assert [Purity(each).reason for each in schedules] == [None] * 4
    for each in (Falling(0.1), lambda left: left * random.random(), lambda left: left * time.time(), input, Net):
        assert Purity(each).reason


def test_lambdas_in_one_line_are_told_apart():
    one, other, maker = (
        lambda left: left,
        lambda left: left if print(left) else 1.0,
        lambda by: lambda left: left * by,
    )
    assert Purity(one).reason is None
    assert "print" in Purity(other).reason
    assert "Lambda" in Purity(maker).reason
    assert Purity(maker(2.0)).reason is None


def test_what_a_schedule_reads_is_compared_by_value():
    schedule = Linear(0.1)
    purity = Purity(schedule)
    assert purity.reads.is_current()
    schedule.start = float("0.1")
    assert purity.reads.is_current()
    schedule.start = 0.2
    assert not purity.reads.is_current()
