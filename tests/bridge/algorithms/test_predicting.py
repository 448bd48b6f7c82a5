"""`predict` by a program: SB3's actions, and tensors and JAX arrays for tensors and JAX arrays."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm

import bridge
from tests.bridge.engine.test_stepping import ACTIONS, OBSERVATIONS, sampled
from tests.bridge.small_models import make
from tests.stock import STOCK

pytestmark = pytest.mark.usefixtures("compiled_predict")


def batches(space, n=5):
    """One observation, and a batch."""
    space.seed(0)
    one, several = space.sample(), [space.sample() for _ in range(n)]
    return one, jax.tree.map(lambda *parts: np.stack(parts), *several)


def refuse_sb3s(monkeypatch):
    def predict(*args, **kwargs):
        raise AssertionError("SB3's code")

    monkeypatch.setattr(BaseAlgorithm, "predict", predict)


@pytest.mark.thorough
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


@pytest.mark.thorough(but=["box-box-False", "dict-discrete-False"])
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


# --- Arguments that the compiled function does not take --------------------------------------------------------------

ONE, SEVERAL = np.zeros(4, np.float32), np.zeros((3, 4), np.float32)
LAYERS = np.zeros((2, 1, 8), np.float32)
OF_NO_NUMBERS = [np.zeros(4, object), np.array([None] * 4), np.array(["1"] * 4), np.zeros(4, np.longdouble), (ONE, {})]
STATES = [
    *(np.zeros((2, *shape)) for shape in [(1, 1, 8), (3, 1, 8), (2, 3, 8), (2, 1, 7), (2, 8), (2, 1, 1, 8), (8,), ()]),
    (LAYERS,),
    (LAYERS, LAYERS, LAYERS),
    (np.zeros((1, 1, 8)), LAYERS),
    (LAYERS, np.zeros((2, 1, 7))),
    (LAYERS.astype(object), LAYERS),
    (None, None),
    "state",
]
ARGUMENTS = {
    "MaskablePPO": [
        *({"observation": each} for each in OF_NO_NUMBERS),
        *({"action_masks": each} for each in (np.ones(3), [None, True], ["a", "b"], "ab", True, [], [[1], [1, 0]])),
        {"action_masks": np.array([True, False], object)},
        *({"observation": SEVERAL, "action_masks": np.ones(shape)} for shape in (2, (1, 2), (4, 2), (3, 1), (2, 3))),
    ],
    "RecurrentPPO": [
        *({"state": each} for each in STATES),
        *({"observation": SEVERAL, "state": np.zeros((2, *each))} for each in [(2, 1, 8), (1, 3, 8), (2, 3, 7)]),
        *({"episode_start": each} for each in (np.zeros(3), "a", ["1"], np.array([None]), [], [0.5], [[True]])),
        *(
            {"observation": SEVERAL, "episode_start": each}
            for each in (True, np.zeros(2), np.zeros(6), np.zeros((3, 1)))
        ),
    ],
    "PPO": [
        *({"observation": each} for each in OF_NO_NUMBERS),
        {"deterministic": np.array(True)},
        {"deterministic": np.ones(2)},
    ],
}


def outcome(model, arguments):
    try:
        return model.predict(**{"observation": ONE, "deterministic": True} | arguments)
    except Exception as error:
        return type(error), str(error)


@pytest.mark.thorough(but=["MaskablePPO"])
@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_of_other_shapes_and_types_do_what_they_do_in_sb3(name):
    own = {"policy_kwargs": {"lstm_hidden_size": 8, "n_lstm_layers": 2}} if name == "RecurrentPPO" else {}
    policy = "MlpLstmPolicy" if name == "RecurrentPPO" else "MlpPolicy"
    ours, stock = (
        cls(policy, "CartPole-v1", device="cpu", **own) for cls in (getattr(bridge, name), getattr(STOCK, name))
    )
    stock.set_parameters(ours.get_parameters())
    for observation in (ONE, SEVERAL):
        masks = {"action_masks": np.ones((*observation.shape[:-1], 2))} if name == "MaskablePPO" else {}
        ours.predict(observation, deterministic=True, **masks)
    assert len(ours._predictor._compiled) == 2
    for arguments in ARGUMENTS[name]:
        expected, got = outcome(stock, arguments), outcome(ours, arguments)
        if isinstance(expected[0], type):
            assert got == expected, arguments
        else:
            chex.assert_trees_all_close(got, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("to_array", [torch.as_tensor, jnp.asarray])
def test_tensors_with_a_state_of_other_layers_are_refused_as_in_sb3(to_array):
    model = bridge.RecurrentPPO("MlpLstmPolicy", "CartPole-v1", policy_kwargs={"lstm_hidden_size": 8}, device="cpu")
    with pytest.raises(RuntimeError, match=r"Expected hidden\[0\] size \(1, 1, 8\), got \[2, 1, 8\]"):
        model.predict(to_array(ONE), (LAYERS, LAYERS))
