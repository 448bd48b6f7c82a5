"""A stock Stable-Baselines3 model and ours that start alike, and how far apart they are after learning."""

from __future__ import annotations

import copy
from typing import Any

import jax
import numpy as np
import stable_baselines3
import torch
from stable_baselines3.common.logger import configure

import bridge
from bridge.policy import read_parameters
from jaxenvs.learn.ppo import permutation
from tests.environments import Counter

N_STEPS, N_ENVS = 24, 4
SIZE = N_STEPS * N_ENVS
WARM_UP = 3


def make_pair(algorithm: str, action_kind: str, **settings: Any) -> tuple[Any, Any]:
    """A stock model and ours with the same weights, moments and rollout, half-way through their training.

    All is in float64 where JAX has it.
    """
    policy_kwargs = {"net_arch": [16, 8], **settings.pop("policy_kwargs", {})}
    settings = {"n_steps": N_STEPS, "seed": 0, "device": "cpu", "policy_kwargs": policy_kwargs, **settings}
    pair = []
    for package in (stable_baselines3, bridge):
        env = bridge.JaxVecEnv(Counter(action_kind=action_kind), N_ENVS)
        model = getattr(package, algorithm)("MlpPolicy", env, **settings)
        model.set_logger(configure(None, []))
        model._current_progress_remaining = 0.5
        if jax.config.jax_enable_x64:
            model.policy.double()
        pair.append(model)
    stock, ours = pair
    warm_up(stock.policy)
    # A copy, because PyTorch's optimisers go on in the very tensors they are given.
    ours.set_parameters(copy.deepcopy(stock.get_parameters()))
    give_rollout(stock, ours)
    return stock, ours


def warm_up(policy: Any) -> None:
    """Some steps along random gradients: weights as after training, and moments that are not 0."""
    generator = torch.Generator().manual_seed(0)
    policy.optimizer.param_groups[0]["lr"] = 0.03
    for _ in range(WARM_UP):
        for parameter in policy.parameters():
            parameter.grad = 0.1 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
        policy.optimizer.step()


def give_rollout(stock: Any, ours: Any, seed: int = 0) -> None:
    """Put into both buffers what the stock policy might have collected some updates ago."""
    rng, policy = np.random.default_rng(seed), stock.policy
    dtype = policy.value_net.weight.detach().numpy().dtype
    observations = rng.normal(size=(SIZE, 2)).astype(np.float32).astype(dtype)
    torch.manual_seed(seed)
    with torch.no_grad():
        if stock.use_sde:
            policy.reset_noise(SIZE)
        actions, values, log_probs = policy(torch.tensor(observations))
    old_values = values.numpy().ravel() + 0.3 * rng.normal(size=SIZE)
    advantages = rng.normal(size=SIZE)
    for model in (stock, ours):
        buffer, lead = model.rollout_buffer, (N_STEPS, N_ENVS)
        buffer.observations = observations.reshape(*lead, 2).copy()
        # SB3 casts them to float32 before it learns from them, whatever the policy computes in.
        buffer.actions = actions.numpy().astype(np.float32).reshape(*lead, -1)
        buffer.values = old_values.astype(dtype).reshape(lead)
        buffer.log_probs = (log_probs.numpy() + 0.2 * np.cos(np.arange(SIZE))).astype(dtype).reshape(lead)
        buffer.advantages = advantages.astype(dtype).reshape(lead)
        buffer.returns = buffer.values + buffer.advantages
        buffer.full, buffer.generator_ready = True, False


def next_orders(model: Any) -> np.ndarray:
    """The orders in which our model's next update will take the samples: (n_epochs, SIZE), where step t of environment
    i is t * N_ENVS + i.
    """
    _, key = jax.random.split(jax.random.wrap_key_data(model.key))
    orders = np.array([permutation(key, SIZE) for key in jax.random.split(key, model.n_epochs)])
    # Else the two sides could agree on what is no order at all.
    np.testing.assert_array_equal(np.sort(orders), np.broadcast_to(np.arange(SIZE), orders.shape))
    return orders


def as_sb3_counts(orders: np.ndarray) -> np.ndarray:
    """The same samples by SB3's numbers, of which step t of environment i has i * N_STEPS + t."""
    return orders % N_ENVS * N_STEPS + orders // N_ENVS


def moments(policy: Any) -> dict[str, np.ndarray]:
    """What PyTorch's optimiser keeps, by the names of the parameter and of the moment; and the number of steps."""
    return {
        f"{parameter_name}.{name}": np.array(value)
        for parameter_name, parameter in policy.named_parameters()
        for name, value in policy.optimizer.state[parameter].items()
    }


def assert_same(stock: Any, ours: Any, before: np.ndarray, tolerance: float, of_change: float) -> None:
    """Parameters, moments and logged values.

    A learning rate of 1e-4 changes parameters so little that even doing nothing would leave them equal to 1e-3. So what
    tells more is how they changed: the error relative to the largest change, `of_change`.

    Args:
      before: the parameters of both before they learned.
      tolerance: relative error; for arrays, of the largest element.
    """
    expected, got = read_parameters(stock.policy), read_parameters(ours.policy)
    assert got.dtype == expected.dtype
    error = np.abs(got - expected).max()
    assert error <= tolerance * np.abs(expected).max()
    assert error <= of_change * np.abs(expected - before).max()

    expected, got = moments(stock.policy), moments(ours.policy)
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        assert got[name].dtype == value.dtype, name
        np.testing.assert_allclose(got[name], value, rtol=0, atol=tolerance * np.abs(value).max(), err_msg=name)

    expected, got = (dict(model.logger.name_to_value) for model in (stock, ours))
    got.pop("time/compile_s", None)
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], value, rtol=tolerance, err_msg=name)
