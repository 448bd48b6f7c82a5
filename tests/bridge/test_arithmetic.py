"""The arithmetic of Stable-Baselines3: the same weights, rollout and order of minibatches give the same update."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import stable_baselines3
import torch
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike

import bridge
from bridge.optimizers import export_optimizer
from bridge.policy import read_parameters
from bridge.rollouts import rollout_in
from jaxenvs import learn
from tests.bridge.arithmetic import (
    N_ENVS,
    N_STEPS,
    SIZE,
    WARM_UP,
    as_sb3_counts,
    assert_same,
    give_rollout,
    make_pair,
    next_orders,
    warm_up,
)
from tests.environments import Counter

# A learning rate at which float32 holds the change of a parameter to 1e-6.
ONE_STEP = {"batch_size": SIZE, "n_epochs": 1, "learning_rate": 0.1}
MANY_STEPS = {"batch_size": 8, "n_epochs": 20}  # 240 of them
SQUASHED = {"squash_output": True, "log_std_init": -2}

# The kind of actions, what else is special, and what differs from SB3's defaults.
PPO_CASES = {
    "discrete": {},
    "multi_discrete": {"ent_coef": 0.01},
    "multi_binary": {"ent_coef": 0.01},
    "box": {"ent_coef": 0.01},
    "box, state-dependent": {"use_sde": True, "ent_coef": 0.01},
    "box, squashed": {"use_sde": True, "policy_kwargs": SQUASHED, "ent_coef": 0.01},
    "discrete, clip_range_vf": {"clip_range_vf": 0.1},
    "box, no normalisation": {"normalize_advantage": False, "max_grad_norm": 0.05, "vf_coef": 0.3},
    "discrete, AdamW": {"policy_kwargs": {"optimizer_class": torch.optim.AdamW}},
}
A2C_CASES = {
    "discrete": {},
    "multi_discrete": {"ent_coef": 0.01},
    "multi_binary": {"ent_coef": 0.01},
    "box": {"ent_coef": 0.01, "normalize_advantage": True},
    "box, state-dependent": {"use_sde": True, "ent_coef": 0.01},
    "box, squashed": {"use_sde": True, "policy_kwargs": SQUASHED, "ent_coef": 0.01},
    "discrete, Adam": {"use_rms_prop": False, "vf_coef": 0.3, "max_grad_norm": 0.05},
    "box, RMSpropTFLike": {"policy_kwargs": {"optimizer_class": RMSpropTFLike, "optimizer_kwargs": {"eps": 1e-5}}},
}


def pair_for(algorithm, case, **settings):
    return make_pair(algorithm, case.partition(",")[0], **settings)


@pytest.fixture
def float64(x64, monkeypatch):
    """Both sides in float64: SB3's policies encode observations by `float`, and its buffer gives float32 actions."""
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    monkeypatch.setattr(RolloutBuffer, "to_torch", lambda _, array: torch.tensor(array, dtype=torch.float64))


@pytest.fixture
def train_both(monkeypatch):
    """A function that trains a stock model in the order in which ours draws its minibatches, and gives the parameters
    from before.
    """

    def train(stock, ours):
        before = read_parameters(stock.policy)
        if isinstance(ours, bridge.PPO):
            orders = iter(as_sb3_counts(next_orders(ours)))
            monkeypatch.setattr(np.random, "permutation", lambda _: next(orders))
        for model in (stock, ours):
            model.train()
        return before

    return train


# --- PPO ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", PPO_CASES)
def test_one_step_of_ppo_in_float32(case, train_both):
    stock, ours = pair_for("PPO", case, **ONE_STEP, **PPO_CASES[case])
    before = train_both(stock, ours)
    # Optax's Adam rounds 1 - 0.999**t to float32 late, so that its steps are too long by 1e-5.
    assert_same(stock, ours, before, 1e-5, of_change=3e-5)


@pytest.mark.parametrize("case", PPO_CASES)
def test_hundreds_of_steps_of_ppo_in_float32(case, train_both):
    stock, ours = pair_for("PPO", case, **MANY_STEPS, **PPO_CASES[case])
    assert_same(stock, ours, train_both(stock, ours), 1e-3, of_change=1e-3)


@pytest.mark.parametrize("case", PPO_CASES)
def test_hundreds_of_steps_of_ppo_in_float64(case, train_both, float64):
    stock, ours = pair_for("PPO", case, **MANY_STEPS, **PPO_CASES[case])
    assert_same(stock, ours, train_both(stock, ours), 1e-8, of_change=1e-8)


def test_schedules_are_read_at_the_present_progress(train_both, float64):
    schedules = {"learning_rate": 1e-3, "clip_range": 0.3, "clip_range_vf": 0.2}
    schedules = {name: lambda remaining, start=start: start * remaining for name, start in schedules.items()}
    stock, ours = pair_for("PPO", "discrete", **MANY_STEPS, **schedules)
    assert_same(stock, ours, train_both(stock, ours), 1e-8, of_change=1e-8)
    assert ours.logger.name_to_value["train/clip_range_vf"] == pytest.approx(0.1)


# 96 = 13 * 7 + 5 = 5 * 19 + 1: a last minibatch of 5, and of 1, which has no deviation; and one that is never full.
@pytest.mark.parametrize("batch_size", [7, 19, 100])
@pytest.mark.filterwarnings("ignore:You have specified a mini-batch size")
def test_a_last_minibatch_that_is_smaller(batch_size, train_both, float64):
    stock, ours = pair_for("PPO", "discrete", batch_size=batch_size, n_epochs=3)
    assert_same(stock, ours, train_both(stock, ours), 1e-8, of_change=1e-8)


# In an epoch of three minibatches, of which the last is smaller.
@pytest.mark.parametrize(
    ("target_kl", "stops"),
    [
        (1e-5, lambda steps: steps == 0),
        (0.001, lambda steps: steps % 3 == 1),
        (0.002, lambda steps: steps % 3 == 2),
        (0.003, lambda steps: steps > 0 and steps % 3 == 0),
        (1.0, lambda steps: steps == 15),
    ],
)
@pytest.mark.filterwarnings("ignore:You have specified a mini-batch size")
def test_target_kl_ends_the_update_at_the_same_step(target_kl, stops, train_both, float64):
    stock, ours = pair_for("PPO", "discrete", batch_size=40, n_epochs=5, target_kl=target_kl)
    print(train_both(stock, ours))
    print(int(stock.policy.optimizer.state[stock.policy.value_net.bias]["step"]) - WARM_UP)


# --- A2C ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", A2C_CASES)
def test_one_step_of_a2c_in_float32(case, train_both):
    stock, ours = pair_for("A2C", case, learning_rate=0.1, **A2C_CASES[case])
    assert_same(stock, ours, train_both(stock, ours), 1e-5, of_change=3e-5)


@pytest.mark.parametrize("case", A2C_CASES)
def test_ten_steps_of_a2c_in_float64(case, train_both, float64):
    stock, ours = pair_for("A2C", case, **A2C_CASES[case])
    before = read_parameters(stock.policy)
    for seed in range(10):
        give_rollout(stock, ours, seed)
        train_both(stock, ours)
    assert_same(stock, ours, before, 1e-8, of_change=1e-8)
