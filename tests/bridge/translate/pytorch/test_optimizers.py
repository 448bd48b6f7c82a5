"""PyTorch's optimisers in Optax: the same steps, and the same moments whoever took them."""

import functools

import jax
import numpy as np
import pytest
import torch
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from torch.optim import optimizer as torch_optimizer

from bridge.engine.learner import Learner
from bridge.errors import NotCompilable
from bridge.translate.pytorch.modules import read_parameters
from bridge.translate.pytorch.optimizers import export_optimizer
from tests.bridge.translate.policies.networks import holds_torch

SHAPES = ((4, 4), (5,))  # without a gap between them in a vector
SIZE = 21
LEARNING_RATE = 1e-2

OPTIMIZERS = {
    "adam": (torch.optim.Adam, {"eps": 1e-5}),
    "adam with decay": (torch.optim.Adam, {"betas": [0.8, 0.99], "weight_decay": 0.1}),
    "adamw": (torch.optim.AdamW, {"weight_decay": 0.1}),
    "rmsprop": (torch.optim.RMSprop, {"alpha": 0.9, "eps": 1e-5}),
    "rmsprop with everything": (torch.optim.RMSprop, {"centered": True, "momentum": 0.9, "weight_decay": 0.1}),
    "rmsprop like tf": (RMSpropTFLike, {"alpha": 0.9, "eps": 1e-5}),
    "rmsprop like tf with everything": (RMSpropTFLike, {"centered": True, "momentum": 0.9, "weight_decay": 0.1}),
    "sgd": (torch.optim.SGD, {}),
    "sgd with momentum": (torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.1}),
    "sgd with nesterov": (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
}
every_optimizer = pytest.mark.parametrize("kind", OPTIMIZERS)


class Parameters(torch.nn.Module):
    """Some parameters and their optimiser."""

    def __init__(self, kind, dtype="float32"):
        super().__init__()
        rng = np.random.default_rng(0)
        self.parts = torch.nn.ParameterList(torch.tensor(rng.normal(size=shape).astype(dtype)) for shape in SHAPES)
        cls, settings = OPTIMIZERS[kind]
        self.optimizer = cls(self.parameters(), lr=LEARNING_RATE, **settings)

    def steps(self, gradients):
        parameters = list(self.parameters())
        ends = np.cumsum([parameter.numel() for parameter in parameters])
        for gradient in gradients:
            for parameter, part in zip(parameters, np.split(gradient, ends[:-1])):
                parameter.grad = torch.tensor(part.reshape(parameter.shape))
            self.optimizer.step()


def learner(optimizer):
    return Learner({"all": optimizer.param_groups[0]["params"]}, {}, {"all": optimizer})


def read_optimizer(optimizer):
    """Return a copy of the state as JAX has it."""
    return jax.tree.map(np.array, learner(optimizer).vectors()[2]["all"])


def write(optimizer, vector, state):
    learner(optimizer).write_back({"all": vector}, {}, {"all": state})


def write_optimizer(optimizer, state):
    write(optimizer, read_parameters(optimizer.param_groups[0]["params"]), state)


def gradients(num, size=SIZE, dtype="float32"):
    return np.random.default_rng(1).normal(scale=0.1, size=(num, size)).astype(dtype)


@functools.partial(jax.jit, static_argnums=0)
def step(optimizer, settings, vector, state, gradient):
    update, state = optimizer.transformation(settings).update(gradient, state, vector)
    return vector - LEARNING_RATE * update, state


def steps(module, gradients):
    """The parameters and the state after steps in JAX from where a module is, which stays as it is."""
    optimizer = export_optimizer(module.optimizer)
    settings = optimizer.settings(module.optimizer)
    vector, state = read_parameters(module.parameters()), read_optimizer(module.optimizer)
    for gradient in gradients:
        vector, state = step(optimizer, settings, vector, state, gradient)
    return np.asarray(vector), jax.tree.map(np.asarray, state)


@every_optimizer
def test_takes_the_steps_of_torch_in_float64(kind, x64):
    module = Parameters(kind, "float64")
    ours, state = steps(module, gradients(10, dtype="float64"))
    module.steps(gradients(10, dtype="float64"))
    assert ours.dtype == "float64"
    np.testing.assert_allclose(ours, read_parameters(module.parameters()), rtol=1e-12, atol=1e-12)
    for got, expected in zip(jax.tree.leaves(state), jax.tree.leaves(read_optimizer(module.optimizer))):
        np.testing.assert_allclose(got, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.thorough
@every_optimizer
def test_goes_on_from_the_moments_of_torch_and_torch_from_ours(kind):
    ours, theirs = Parameters(kind), Parameters(kind)
    ours.steps(gradients(3))
    write(ours.optimizer, *steps(ours, gradients(5)))
    ours.steps(gradients(5))
    for num in (3, 5, 5):
        theirs.steps(gradients(num))
    np.testing.assert_allclose(
        read_parameters(ours.parameters()), read_parameters(theirs.parameters()), rtol=1e-6, atol=1e-6
    )


def same(a, b):
    """Compare entries of an optimizer's state: types, and every bit."""
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and a.device == b.device and torch.equal(a, b)
    return type(a) is type(b) and a == b


@pytest.mark.parametrize("steps_before", [0, 2])
@every_optimizer
def test_written_entries_are_those_that_torch_made(kind, steps_before):
    ours, theirs = Parameters(kind), Parameters(kind)
    ours.steps(gradients(steps_before))
    theirs.steps(gradients(3))
    write_optimizer(ours.optimizer, read_optimizer(theirs.optimizer))
    got, expected = ours.optimizer.state_dict()["state"], theirs.optimizer.state_dict()["state"]
    assert got.keys() == expected.keys()
    for i, entry in expected.items():
        assert got[i].keys() == entry.keys()
        assert all(same(got[i][name], value) for name, value in entry.items())


@pytest.mark.thorough
@every_optimizer
def test_state_has_one_type_before_and_after_steps(kind):
    module = Parameters(kind)
    vector, state = read_parameters(module.parameters()), read_optimizer(module.optimizer)
    optimizer = export_optimizer(module.optimizer)
    settings = optimizer.settings(module.optimizer)
    stepped = jax.eval_shape(lambda *args: step(optimizer, *args), settings, vector, state, vector)[1]
    module.steps(gradients(1))
    for other in (stepped, read_optimizer(module.optimizer)):
        assert jax.tree.structure(other) == jax.tree.structure(state)
        for now, before in zip(jax.tree.leaves(other), jax.tree.leaves(state)):
            assert isinstance(before, np.ndarray)
            assert (now.shape, now.dtype) == (before.shape, before.dtype)
            assert not getattr(now, "weak_type", False)


def test_numbers_change_between_steps_as_in_torch_and_compile_nothing():
    ours, theirs = Parameters("adam with decay"), Parameters("adam with decay")
    changes = {"betas": (0.5, 0.9), "eps": 1e-3, "weight_decay": 0.5}
    steps(ours, gradients(2))  # the first step begins with NumPy's arrays, the second with JAX's
    compiled = step._cache_size()
    for module in (ours, theirs):
        module.optimizer.param_groups[0].update(changes)
        module.optimizer.param_groups[0]["lr"] = LEARNING_RATE
    got, _ = steps(ours, gradients(5))
    assert step._cache_size() == compiled
    theirs.steps(gradients(5))
    np.testing.assert_allclose(got, read_parameters(theirs.parameters()), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "changes"), [("adam", {"weight_decay": 0.1}), ("sgd", {"momentum": 0.9, "weight_decay": 0.1})]
)
def test_parts_that_are_switched_on_between_steps_work_as_in_torch(kind, changes):
    ours, theirs = Parameters(kind), Parameters(kind)
    before = export_optimizer(ours.optimizer)
    for module in (ours, theirs):
        module.steps(gradients(3))
        module.optimizer.param_groups[0].update(changes)
    assert export_optimizer(ours.optimizer) != before
    got, _ = steps(ours, gradients(5))
    theirs.steps(gradients(5))
    np.testing.assert_allclose(got, read_parameters(theirs.parameters()), rtol=1e-6, atol=1e-6)


def test_optimizers_of_one_kind_are_equal_whatever_their_numbers():
    one, other = Parameters("adam"), Parameters("adam", "float64")
    other.optimizer.param_groups[0].update({"lr": 1.0, "eps": 1e-3, "betas": [0.5, 0.5]})
    assert export_optimizer(one.optimizer) == export_optimizer(other.optimizer)
    assert hash(export_optimizer(one.optimizer)) == hash(export_optimizer(other.optimizer))
    assert export_optimizer(one.optimizer) != export_optimizer(Parameters("adam with decay").optimizer)
    assert not holds_torch(export_optimizer(one.optimizer))


def test_trains_a_scalar():
    scalar = torch.zeros((), requires_grad=True)
    optimizer = torch.optim.Adam([scalar], lr=LEARNING_RATE)
    exported = export_optimizer(optimizer)
    vector, state = step(
        exported, exported.settings(optimizer), read_parameters([scalar]), read_optimizer(optimizer), np.ones(1, "f")
    )
    scalar.grad = torch.ones(())
    optimizer.step()
    np.testing.assert_allclose(vector, [scalar.item()], rtol=1e-6)
    write(optimizer, vector, state)
    assert scalar.shape == ()
    assert optimizer.state[scalar]["exp_avg"].shape == ()


@pytest.mark.parametrize(
    ("cls", "settings", "message"),
    [
        (torch.optim.RMSprop, {"capturable": True}, "RMSprop with capturable=True"),
        (torch.optim.SGD, {"momentum": 0.9, "dampening": 0.5}, "SGD with dampening=0.5"),
    ],
)
def test_refuses_by_name_what_has_no_translation(cls, settings, message):
    optimizer = cls([torch.nn.Parameter(torch.zeros(2))], lr=0.1, **settings)
    with pytest.raises(NotCompilable, match=message):
        export_optimizer(optimizer)


def test_refuses_hooks_of_all_optimizers_and_a_replaced_step(monkeypatch):
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))])
    hook = torch_optimizer.register_optimizer_step_pre_hook(lambda *_: None)
    with pytest.raises(NotCompilable, match="has hooks"):
        export_optimizer(optimizer)
    hook.remove()
    export_optimizer(optimizer)
    monkeypatch.setattr(torch.optim.Adam, "step", lambda self, closure=None: None)
    with pytest.raises(NotCompilable, match="replaced method"):
        export_optimizer(optimizer)
