"""`predict` by a program: SB3's actions, and tensors and JAX arrays for tensors and JAX arrays."""

from concurrent.futures import Future

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm

from bridge.algorithms.common import predicting
from tests.bridge.engine.test_stepping import ACTIONS, OBSERVATIONS, sampled
from tests.bridge.small_models import make


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """Programs from the first call on, compiled before it."""

    compiled = Future()
    compiled.set_result(None)
    monkeypatch.setattr(predicting, "CALLS_BEFORE_COMPILING", 0)
    monkeypatch.setattr(predicting, "compile_meanwhile", lambda *arguments: compiled)
    monkeypatch.setattr("bridge.algorithms.common.predicting.is_slower_compiled", lambda policy: False)


def batches(space, n=5):
    """One observation, and a batch."""
    space.seed(0)
    one, several = space.sample(), [space.sample() for _ in range(n)]
    return one, jax.tree.map(lambda *parts: np.stack(parts), *several)


def refuse_sb3s(monkeypatch):
    def predict(*args, **kwargs):
        raise AssertionError("SB3's code")

    monkeypatch.setattr(BaseAlgorithm, "predict", predict)


@pytest.mark.parametrize(
    ("observation", "action"),
    [*((name, "discrete") for name in OBSERVATIONS), *(("box", name) for name in ACTIONS if name != "discrete")],
)
def test_actions_are_sb3s(observation, action, monkeypatch):
    model = make(sampled(observation, action), policy="MultiInputPolicy" if observation == "dict" else "MlpPolicy")
    for inputs in batches(OBSERVATIONS[observation]):
        expected, _ = BaseAlgorithm.predict(model, inputs, deterministic=True)
        with monkeypatch.context() as patch:
            refuse_sb3s(patch)
            actions, state = model.predict(inputs, deterministic=True)
        assert state is None
        assert (type(actions), actions.shape) == (type(expected), expected.shape)
        assert np.can_cast(actions.dtype, expected.dtype)
        np.testing.assert_allclose(actions, expected, atol=1e-5)


@pytest.mark.parametrize("action", ACTIONS)
def test_drawn_actions_are_distributed_as_sb3s(action):
    model = make(sampled("box", action))
    model.policy.action_net.bias.data.copy_(torch.linspace(-1, 1, len(model.policy.action_net.bias)))
    inputs = np.tile(OBSERVATIONS["box"].sample(), (4000, 1))
    ours, _ = model.predict(inputs)
    theirs, _ = BaseAlgorithm.predict(model, inputs)
    np.testing.assert_allclose(ours.mean(axis=0), theirs.mean(axis=0), atol=0.08)
    np.testing.assert_allclose(ours.std(axis=0), theirs.std(axis=0), atol=0.08)


def test_equal_seeds_of_pytorch_draw_equal_actions():
    model = make(sampled())
    inputs = batches(OBSERVATIONS["box"])[1]
    drawn = []
    for _ in range(2):
        torch.manual_seed(3)
        drawn.append([model.predict(inputs)[0] for _ in range(5)])
    np.testing.assert_array_equal(*drawn)


@pytest.mark.parametrize("translated", [True, False])
@pytest.mark.parametrize(("observation", "action"), [("box", "discrete"), ("box", "box"), ("dict", "discrete")])
def test_tensors_give_tensors_and_jax_arrays_jax_arrays(observation, action, translated):
    engine = "auto" if translated else "torch"
    policy = "MultiInputPolicy" if observation == "dict" else "MlpPolicy"
    model = make(sampled(observation, action), policy=policy, engine=engine)
    for inputs in batches(OBSERVATIONS[observation]):
        expected, _ = BaseAlgorithm.predict(model, inputs, deterministic=True)
        for to_array, array_type in ((jnp.asarray, jax.Array), (torch.as_tensor, torch.Tensor)):
            actions, _ = model.predict(jax.tree.map(to_array, inputs), deterministic=True)
            assert isinstance(actions, array_type)
            np.testing.assert_allclose(np.asarray(actions), expected, atol=1e-5)


def test_a_tensor_of_another_shape_is_named():
    with pytest.raises(ValueError, match=r"must have the shape \(3,\) or .*, got \(4,\)"):
        make(sampled()).predict(torch.zeros(4))


def test_new_weights_count_from_the_next_call_on():
    model = make(sampled("box", "box"))
    inputs = OBSERVATIONS["box"].sample()
    model.predict(inputs, deterministic=True)
    model.policy.action_net.weight.data.zero_()
    model.policy.action_net.bias.data.copy_(torch.tensor([0.5, 0.05]))
    np.testing.assert_allclose(model.predict(inputs, deterministic=True)[0], [0.5, 0.05])


def test_errors_are_sb3s():
    model = make(sampled())
    with pytest.raises(ValueError, match="observation shape"):
        model.predict(np.zeros(7, np.float32))
    model.policy.action_net.bias.data.fill_(torch.nan)
    with pytest.raises(ValueError, match="invalid values"):
        model.predict(np.zeros(3, np.float32))


def test_a_policy_that_predicts_in_its_own_way_does(monkeypatch):
    model = make(sampled())
    model.policy._predict = lambda observation, deterministic: torch.full((len(observation),), 2)
    assert model.predict(np.zeros(3, np.float32))[0] == 2


def test_images_may_have_their_channels_last():
    assert isinstance(OBSERVATIONS["dict"]["image"], spaces.Box)
    model = make(sampled("dict"), policy="MultiInputPolicy")
    inputs = batches(OBSERVATIONS["dict"])[1]
    moved = {**inputs, "image": np.moveaxis(inputs["image"], -1, 1)}
    ours = [model.predict(jax.tree.map(torch.as_tensor, each), deterministic=True)[0] for each in (inputs, moved)]
    torch.testing.assert_close(*ours)


def test_it_is_compiled_beside_the_second_hundred_of_calls_and_the_same_seed_draws_the_same(monkeypatch):
    monkeypatch.undo()
    runs = []
    for _ in range(2):
        model = make(sampled())
        torch.manual_seed(3)
        runs.append([int(model.predict(np.zeros(3, np.float32))[0]) for _ in range(230)])
        assert model._predictor._compiled == {((3,), False, False)}
    assert runs[0] == runs[1]
