"""Updates as programs, from what SB3's buffers hold or sample on the host."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import jax
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer

from bridge.buffers.rollout import read_rollout
from bridge.engine.compilation import compile_meanwhile, to_host
from bridge.engine.learner import Learner, transformations
from bridge.engine.plan import POLICY, Plan
from bridge.observations import map_parts
from bridge.replay.store.samples import PrioritizedSamples
from bridge.translate.optimizers import ExportedOptimizer
from jaxenvs.compilation import compiler_options
from jaxenvs.learn import LearnerState, OnPolicySettings, Rollout, Transitions
from jaxenvs.learn.off_policy.replay import TD_ERRORS
from jaxenvs.learn.off_policy.settings import OffPolicySettings, OffPolicyState

Optimizers = tuple[tuple[str, ExportedOptimizer], ...]


# Of a network each, because to look for it among static arguments would take as long as a small update does.
@functools.lru_cache(maxsize=64)
def _on_policy_program(network: Any, optimizers: Optimizers, in_order: bool) -> Any:
    def update(
        settings: OnPolicySettings,
        optimizer_settings: dict[str, dict[str, Any]],
        state: LearnerState,
        rollout: Rollout,
        key_data: jax.Array,
    ) -> Any:
        key, draw = jax.random.split(jax.random.wrap_key_data(key_data))
        transformation = transformations(optimizers, optimizer_settings)[POLICY]
        state, metrics = settings.update(network, transformation, state, rollout, draw)
        # The advantages and the values are on the host, and there is no NaN on a device that somebody might look for.
        metrics.pop("explained_variance")
        return state, jax.random.key_data(key), metrics

    return jax.jit(update, compiler_options=compiler_options(in_order=in_order))


class RolloutUpdate:
    """One update of PPO or A2C, from what is there now. It changes nothing before its results are all there."""

    def __init__(self, plan: Plan, buffer: RolloutBuffer, settings: OnPolicySettings, key: np.ndarray) -> None:
        assert plan.learner is not None
        self._learner = plan.learner
        self._program = plan.update_program(_on_policy_program, not is_large(plan.learner, buffer, settings))
        rollout = read_rollout(buffer)
        self._arguments = (settings, plan.learner.settings(), read_policy(plan.learner), rollout, key)

    def compile_meanwhile(self) -> Future[Any]:
        """Begin to compile the program, so that `run` on arguments of these shapes finds it compiled."""
        return compile_meanwhile(self._program, *self._arguments)

    def run(self) -> tuple[np.ndarray, dict[str, Any]]:
        """Leave the results in the policy and its optimiser.

        Returns:
          The next key, and the metrics but for the explained variance.

        Raises:
          ValueError: weights became NaN. Those from before the update are kept.
        """
        state, key, metrics = to_host(self._program(*self._arguments))
        metrics = {name: value.item() for name, value in metrics.items()}
        try:
            leave_policy(self._learner, state)
        except ValueError as error:
            losses = ", ".join(f"{name} {value:.3g}" for name, value in metrics.items() if "loss" in name)
            raise ValueError(f"{error} Its losses: {losses}.") from None
        return np.array(key), metrics


def read_policy(learner: Learner) -> LearnerState:
    """What PPO and A2C learn, as their programs take it."""
    params, _, states = learner.vectors()
    return LearnerState(params[POLICY], states[POLICY])


def leave_policy(learner: Learner, state: LearnerState) -> None:
    """Leave it where PyTorch has it.

    Raises:
      ValueError: weights became NaN. Those from before are kept.
    """
    learner.leave({POLICY: state.params}, {}, {POLICY: state.optimizer_state})


def is_large(learner: Learner, buffer: RolloutBuffer, settings: Any) -> bool:
    """Whether kernels of an update are large enough to run side by side."""
    size = buffer.buffer_size * buffer.n_envs
    return learner.is_large(min(getattr(settings, "batch_size", size), size))


@functools.lru_cache(maxsize=64)
def _off_policy_program(policy: Any, optimizers: Optimizers, in_order: bool) -> Callable[..., Any]:
    def update(
        settings: OffPolicySettings,
        optimizer_settings: dict[str, dict[str, Any]],
        learner: OffPolicyState,
        batches: Transitions,
        key_data: jax.Array,
        first: Any,
    ) -> Any:
        key, draw = jax.random.split(jax.random.wrap_key_data(key_data))
        num = batches.reward.shape[0]
        example = jax.tree.map(lambda leaf: leaf[0], batches)
        noise = settings.noise(policy, learner.params, example, draw, num)
        of_each = transformations(optimizers, optimizer_settings)
        learner, metrics = settings.updates(policy, of_each, learner, batches, noise, first=first)
        return learner, jax.random.key_data(key), metrics

    return jax.jit(update, compiler_options=compiler_options(in_order=in_order))


def update_from_samples(
    plan: Plan,
    settings: OffPolicySettings,
    num_updates: int,
    samples: Sequence[Any],
    action_space: spaces.Space[Any],
    key: np.ndarray,
    first: int,
    keep: bool,
) -> tuple[np.ndarray, dict[str, float], Any]:
    """Learn from samples of SB3's.

    Args:
      settings: of now, with the learning rate of each network.
      num_updates: how many there were before.
      samples: of a batch for each gradient step.
      key: its data.
      first: the number of the first one among those after one collection.
      keep: see `Learner.leave`.

    Returns:
      The next key, the means of the metrics, and of samples with weights the sizes of their temporal-difference
      errors, (num_updates, batch_size).

    Raises:
      ValueError: parameters became NaN. Those from before are kept.
    """
    learner = plan.learner
    assert learner is not None
    program = plan.update_program(_off_policy_program, not learner.is_large(samples[0].rewards.shape[0]))
    batches = _stacked([_transitions(sample, action_space, settings.gamma) for sample in samples])
    state, key, metrics = program(
        settings, learner.settings(), read_off_policy(learner, num_updates), batches, key, np.int32(first)
    )
    metrics = to_host(metrics)
    errors = metrics.pop(TD_ERRORS, None)
    means = {name: value.item() for name, value in metrics.items()}
    # Where a mean is NaN, parameters may be, of those networks too that are looked at later.
    keep = keep and not any(value != value for value in means.values())
    learner.leave(state.params, state.targets, state.optimizer_states, keep)
    return np.array(key), means, errors


def read_off_policy(learner: Learner, num_updates: int) -> OffPolicyState:
    """What off-policy algorithms learn, as their programs take it."""
    return OffPolicyState(*learner.vectors(), np.int32(num_updates))  # type: ignore[arg-type]


def _transitions(sample: Any, action_space: spaces.Space[Any], gamma: float) -> Transitions:
    """What SB3 samples as programs take it."""
    discounts = getattr(sample, "discounts", None)
    going_on = 1 - _array(sample.dones)[:, 0]
    action = _array(sample.actions)
    return Transitions(
        observation=map_parts(_array, sample.observations),
        action=action[:, 0] if isinstance(action_space, spaces.Discrete) else action,
        reward=_array(sample.rewards)[:, 0],
        next_observation=map_parts(_array, sample.next_observations),
        discount=going_on * (np.float32(gamma) if discounts is None else _array(discounts)[:, 0]),
        weight=_array(sample.weights) if isinstance(sample, PrioritizedSamples) else None,
    )


def _stacked(batches: list[Transitions]) -> Transitions:
    if len(batches) == 1:
        return jax.tree.map(lambda leaf: leaf[None], batches[0])  # type: ignore[no-any-return]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *batches)  # type: ignore[no-any-return]


def _array(tensor: torch.Tensor) -> Any:
    return tensor.cpu().numpy()
