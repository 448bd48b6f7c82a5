"""The compiled update of all algorithms: what it learns from, and where its results are written."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, cast

import jax
import numpy as np
import torch
from gymnasium import spaces
from jax.sharding import Mesh
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.type_aliases import DictReplayBufferSamples, ReplayBufferSamples

from bridge.engine.learner import ExportedOptimizers, Learner, Numbers, transformations
from bridge.engine.plan import Plan
from bridge.engine.rollout_buffer import read_rollout
from bridge.engine.runtime import to_host
from bridge.observations import map_parts
from bridge.replay.priorities import PrioritizedSamples
from bridge.sb3 import Space
from jaxenvs.compilation import compiler_options
from jaxenvs.compilation.default_device import bound, cached_by_device
from jaxenvs.learn import LearnerState, OffPolicySettings, OnPolicySettings, Rollout, Transitions
from jaxenvs.learn.devices import layouts, own_key, run_on
from jaxenvs.learn.interfaces import OnPolicyNetwork, Real
from jaxenvs.learn.off_policy.policies import OffPolicyPolicy
from jaxenvs.learn.off_policy.store.replay import TD_ERRORS

Update = Callable[..., tuple[LearnerState, jax.Array, dict[str, jax.Array]]]
Samples = ReplayBufferSamples | DictReplayBufferSamples | PrioritizedSamples


@cached_by_device
def compiled_update(
    network: OnPolicyNetwork | OffPolicyPolicy,
    optimizers: ExportedOptimizers,
    sequential: bool,
    *,
    mesh: Mesh | None = None,
) -> Update:
    """Return the compiled update of a network.

    There is one for each network, because finding it by static arguments would take as long as a small update.

    Args:
      network: without weights.
      optimizers: by the names of parameters.
      sequential: whether XLA runs one kernel after the other.
      mesh: the devices, if the rollout's environments are divided over them.
    """

    def compute(
        settings: OnPolicySettings | OffPolicySettings,
        numbers: Numbers,
        state: LearnerState,
        data: Rollout | Transitions,
        key_data: jax.Array,
        first: jax.Array | None = None,
    ) -> tuple[LearnerState, jax.Array, dict[str, jax.Array]]:
        key, draw = jax.random.split(jax.random.wrap_key_data(key_data))
        of_each = transformations(optimizers, numbers)
        if isinstance(settings, OnPolicySettings):
            assert isinstance(data, Rollout)
            state, metrics = settings.update(
                cast(OnPolicyNetwork, network), of_each, state, data, own_key(draw, settings.axis_name)
            )
            # Computed on the host, which has the advantages and the values, and where NaN is allowed.
            metrics.pop("explained_variance")
        else:
            assert isinstance(data, Transitions)
            example, num = jax.tree.map(lambda leaf: leaf[0], data), data.reward.shape[0]
            networks = cast(OffPolicyPolicy, network)
            noise = settings.noise(networks, settings.acting_params(state), example, draw, num)
            state, metrics = settings.updates(networks, of_each, state, data, noise, first=first)
        return state, jax.random.key_data(key), metrics

    def update(*given: object) -> object:
        return run_on(mesh, compute, None if mesh is None else layouts(mesh)[1], *given)

    return bound(jax.jit(update, compiler_options=compiler_options(in_order=sequential)))


def read_learner(learner: Learner, num_updates: int) -> LearnerState:
    """Return what updates change, as compiled functions take it."""
    return LearnerState(*learner.vectors(), np.int32(num_updates))  # type: ignore[arg-type]


def rollout_update(
    plan: Plan,
    buffer: RolloutBuffer,
    settings: OnPolicySettings,
    key: np.ndarray,
    num_updates: int,
    rollout: Rollout | None = None,
) -> tuple[object, ...]:
    """Return the compiled update of an on-policy algorithm, and its arguments as they are now.

    The `rollout` is read from the buffer if it is None.
    """
    learner = plan.learner
    assert learner is not None
    update = _update_of(plan, learner, not is_large(learner, buffer, settings), plan.mesh)
    rollout = read_rollout(buffer) if rollout is None else rollout
    return update, settings, learner.settings(), read_learner(learner, num_updates), rollout, key


def _update_of(plan: Plan, learner: Learner, sequential: bool, mesh: Mesh | None = None) -> Update:
    optimizers = tuple(learner.exported.items())
    make = functools.partial(compiled_update, plan.network, optimizers, sequential, mesh=mesh)
    return plan.compiled(sequential, make)


def update_from_samples(
    plan: Plan,
    settings: OffPolicySettings,
    num_updates: int,
    samples: Sequence[Samples],
    action_space: Space,
    key: np.ndarray,
    first: int,
) -> tuple[np.ndarray, dict[str, float], np.ndarray | None]:
    """Learn from samples of SB3's replay buffer, and write the results back.

    Args:
      settings: the current settings, with the learning rate of each network.
      samples: one batch for each gradient step.
      first: the number of the first of these updates, among the updates that follow one collection.

    Returns:
      The next key, the means of the metrics, and for samples with weights the sizes of their temporal-difference
        errors, (num_updates, batch_size).

    Raises:
      ValueError: parameters became NaN. The parameters from before are kept.
      RuntimeError: a Discrete or MultiDiscrete observation is out of range, as in SB3.
    """
    learner = plan.learner
    assert learner is not None
    assert plan.actor is not None
    update = _update_of(plan, learner, not learner.is_large(samples[0].rewards.shape[0]))
    from_host = plan.actor.network.from_host
    each = [_transitions(sample, action_space, settings.gamma, from_host) for sample in samples]
    batches = jax.tree.map(lambda leaf, *rest: np.stack([leaf, *rest]) if rest else leaf[None], *each)
    state = read_learner(learner, num_updates)
    return run_update(plan, update, settings, learner.settings(), state, batches, key, np.int32(first))


def run_update(
    plan: Plan, update: Update, *arguments: object
) -> tuple[np.ndarray, dict[str, float], np.ndarray | None]:
    """Run a compiled update, and write its results back.

    Returns and raises what `update_from_samples` does.
    """
    state, key, metrics = update(*arguments)
    metrics = to_host(metrics)
    errors = metrics.pop(TD_ERRORS, None)
    means = {name: value.item() for name, value in metrics.items()}
    assert plan.learner is not None
    try:
        plan.learner.write_back(state.params, state.targets, state.optimizer_states)
    except ValueError as error:
        losses = ", ".join(f"{name} {value:.3g}" for name, value in means.items() if "loss" in name)
        raise ValueError(f"{error} Losses of the update: {losses}.") from None
    return np.array(key), means, errors


def is_large(learner: Learner, buffer: RolloutBuffer, settings: object) -> bool:
    """Return whether the kernels of an update are large enough to run side by side."""
    size = buffer.buffer_size * buffer.n_envs
    return learner.is_large(min(getattr(settings, "batch_size", size), size))


def _transitions(sample: Samples, action_space: Space, gamma: Real, from_host: Callable[[object], Any]) -> Transitions:
    """Return a sample of SB3's replay buffer as the compiled update takes it; `from_host` converts observations."""
    discounts = getattr(sample, "discounts", None)
    continues = 1 - _array(sample.dones)[:, 0]
    action = _array(sample.actions)
    return Transitions(
        observation=from_host(map_parts(_array, sample.observations)),
        action=action[:, 0] if isinstance(action_space, spaces.Discrete) else action,
        reward=_array(sample.rewards)[:, 0],
        next_observation=from_host(map_parts(_array, sample.next_observations)),
        discount=continues * (np.float32(gamma) if discounts is None else _array(discounts)[:, 0]),
        weight=_array(sample.weights)[:, 0] if isinstance(sample, PrioritizedSamples) else None,
    )


def _array(tensor: torch.Tensor) -> Any:
    return tensor.cpu().numpy()
