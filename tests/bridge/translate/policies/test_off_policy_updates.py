"""Translated policies of off-policy algorithms learn by jaxenvs.learn as they do in Stable-Baselines3."""

import functools
import itertools

import jax
import numpy as np
import pytest
import torch
from stable_baselines3.common.logger import configure
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import nn

import bridge
from bridge.engine import learner
from bridge.engine.learner import Learner
from bridge.translate.policies.off_policy import export_off_policy, learned_tensors
from bridge.translate.pytorch.optimizers import export_optimizer
from jaxenvs import learn as pure
from jaxenvs.learn import LearnerState
from tests.learn.off_policy.test_arithmetic import BATCH, ENV, GAMMA, make_batches, teach
from tests.stock import STOCK


class Extractor(BaseFeaturesExtractor):
    def __init__(self, space):
        super().__init__(space, 4)
        self.linear = nn.Linear(2, 4)

    def forward(self, observations):
        return torch.tanh(self.linear(observations))


TAU = 0.3
SHARED = {"features_extractor_class": Extractor, "share_features_extractor": True}
# Of a bias before a renormalisation, which takes it away again, the gradient is hardly more than rounding, of which
# Adam else makes a whole step.
LARGE_EPSILON = {"optimizer_kwargs": {"eps": 1e-3}}
DISCRETE = ("DQN", "QRDQN")
# Of the algorithms.
SETTINGS = {"CrossQ": {"policy_delay": 1}}
CASES = {
    "DQN": {"features_extractor_class": Extractor, "optimizer_class": torch.optim.RMSprop},
    "SAC": {"n_critics": 3, "optimizer_class": torch.optim.AdamW},
    "SAC, shared": SHARED,
    "SAC, state-dependent": {**SHARED, "use_expln": True},
    "QRDQN": {"features_extractor_class": Extractor, "n_quantiles": 7},
    "TQC": {"n_critics": 3, "n_quantiles": 7},
    "TQC, shared": SHARED,
    "TQC, state-dependent": {**SHARED, "n_quantiles": 7},
    "CrossQ": {"renorm_warmup_steps": 2, "batch_norm_momentum": 0.1, **LARGE_EPSILON},
    "CrossQ, shared": {**SHARED, "renorm_warmup_steps": 10, **LARGE_EPSILON},
    "CrossQ, state-dependent": {"use_expln": True, **LARGE_EPSILON},
    "CrossQ, without renormalisation": {"batch_norm": False},
    "TD3": {"activation_fn": nn.Tanh},
    "TD3, shared": SHARED,
}


def make_stock(case, dtype):
    name, _, what = case.partition(", ")
    model = getattr(STOCK, name)(
        "MlpPolicy",
        bridge.JaxVecEnv(ENV["discrete" if name in DISCRETE else "box"], 1),
        policy_kwargs={"net_arch": [8], **CASES[case]},
        **{"learning_rate": 1e-3, "batch_size": BATCH, "gamma": GAMMA},
        **{"buffer_size": 10, "seed": 0, "device": "cpu"},
        **({} if name == "CrossQ" else {"tau": TAU}),
        **SETTINGS.get(name, {}),
        **({"use_sde": True} if what == "state-dependent" else {}),
    )
    model.set_logger(configure(None, []))
    model.policy.to(dtype)
    if getattr(model, "log_ent_coef", None) is not None:
        model.log_ent_coef.data = model.log_ent_coef.data.to(dtype)
    return model


def state_of(model):
    has_entropy = getattr(model, "log_ent_coef", None) is not None
    return Learner(
        *learned_tensors(model.policy, (model.log_ent_coef, model.ent_coef_optimizer) if has_entropy else None)
    )


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def updated(settings, policy, optimizers, numbers, state, batches, noise):
    transformations = {name: each.transformation(numbers[name]) for name, each in optimizers}
    return settings.updates(policy, transformations, state, batches, noise)[0]


def assert_sb3s_updates(case, dtype, num, tolerance, monkeypatch):
    name, model, rng = case.partition(",")[0], make_stock(case, dtype), np.random.default_rng(0)
    width = {torch.float32: np.float32, torch.float64: np.float64}[dtype]

    def learn(num):
        """Update in SB3, and return what bridge needs for the same update."""
        batches = make_batches(rng, name in DISCRETE, num)
        shape = (num, 8, 2) if "state-dependent" in case else (num, BATCH, 2)
        noise = [rng.normal(size=shape) for _ in range({"DQN": 0, "QRDQN": 0, "TD3": 1}.get(name, 2))]
        noise = noise[:1] * 2 if "state-dependent" in case else noise  # SB3 draws two, and uses the first
        in_order = noise[::-1] if name == "CrossQ" else noise  # which draws the next action first
        teach(model, batches, list(itertools.chain(*zip(*in_order))), monkeypatch, dtype)
        return jax.tree.map(
            lambda leaf: leaf.astype(width if leaf.dtype.kind == "f" else np.int32),
            (batches, None if name in DISCRETE else noise[0] if name == "TD3" else tuple(noise)),
        )

    learn(3)
    state = state_of(model)
    before = LearnerState(*jax.tree.map(np.array, state.vectors()), np.int32(model._n_updates))
    optimizers = tuple((each, export_optimizer(optimizer)) for each, optimizer in state.optimizers.items())
    numbers = {each: exported.settings(state.optimizers[each]) for each, exported in optimizers}
    shared = {"learning_rate": 1e-3, "batch_size": BATCH, "gamma": GAMMA, "tau": TAU}
    settings = getattr(pure, name)(**shared, **SETTINGS.get(name, {}))
    policy = export_off_policy(model.policy)
    got = updated(settings, policy, optimizers, numbers, before, *learn(num))
    expected = state.vectors()
    assert jax.tree.structure((got.params, got.targets)) == jax.tree.structure(expected[:2])
    assert got.num_updates == model._n_updates == 3 + num
    leaves = zip(*map(jax.tree.leaves, ((got.params, got.targets, got.optimizer_states), expected)), strict=True)
    for ours, theirs in leaves:
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance * np.abs(theirs).max())


@pytest.mark.parametrize("case", ["DQN", "SAC, shared", "CrossQ", "TD3, shared"])
def test_an_update_of_a_large_network_is_sb3s(case, monkeypatch):
    monkeypatch.setattr(learner, "SPLIT_FROM", 0)  # as if it were large
    assert_sb3s_updates(case, torch.float32, 1, 1e-4 if case.startswith("CrossQ") else 1e-5, monkeypatch)


@pytest.mark.thorough(but=["CrossQ"])
@pytest.mark.parametrize("case", CASES)  # the others in float64
def test_an_update_is_sb3s(case, monkeypatch):
    # A renormalisation leaves more rounding in gradients. In float64, below, there is none to speak of.
    assert_sb3s_updates(case, torch.float32, 1, 1e-4 if case.startswith("CrossQ") else 1e-5, monkeypatch)


TWENTY = ["DQN", "QRDQN", "SAC, shared", "TQC, shared", "CrossQ, shared", "TD3, shared"]


@pytest.mark.thorough
@pytest.mark.parametrize("case", TWENTY)
def test_twenty_updates_are_sb3s_in_float64(case, monkeypatch, x64):
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)  # by which SB3 encodes observations
    assert_sb3s_updates(case, torch.float64, 20, 1e-9, monkeypatch)
