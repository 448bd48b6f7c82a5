"""The program of an update of PPO and A2C."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from stable_baselines3.common.buffers import RolloutBuffer

from bridge.buffers.rollout import read_rollout
from bridge.engine.compilation import to_host
from bridge.engine.learner import ExportedOptimizers, Learner, Numbers, transformations
from bridge.engine.plan import POLICY, Plan
from jaxenvs.compilation import compiler_options
from jaxenvs.learn import LearnerState, OnPolicySettings, Rollout
from jaxenvs.learn.devices import layout_behind, layouts, on_each, own_key


@functools.lru_cache(maxsize=64)
def update_program(
    network: Any, optimizers: ExportedOptimizers, in_order: bool, *, mesh: Mesh | None
) -> Callable[..., Any]:
    """The program of an update.

    Of a network each, because to look for it among static arguments would take as long as a small update does.

    Args:
      mesh: devices that have equal parts of the rollout's lanes, if they are divided.
    """

    def update(
        settings: OnPolicySettings,
        optimizer_settings: Numbers,
        state: LearnerState,
        rollout: Rollout,
        key_data: jax.Array,
    ) -> tuple[LearnerState, jax.Array, dict[str, jax.Array]]:
        key, draw = jax.random.split(jax.random.wrap_key_data(key_data))
        transformation = transformations(optimizers, optimizer_settings)[POLICY]
        draw = own_key(draw, settings.axis_name)
        state, metrics = settings.update(network, transformation, state, rollout, draw)
        # The advantages and the values are on the host, and there is no NaN on a device that somebody might look for.
        metrics.pop("explained_variance")
        return state, jax.random.key_data(key), metrics

    def on_devices(settings: OnPolicySettings, *rest: Any) -> Any:
        assert mesh is not None
        _, same = layouts(mesh)
        on_all = on_each(update, mesh, (same, same, same, layout_behind(mesh), same), same)
        return on_all(settings.replace(axis_name=mesh.axis_names[0]), *rest)

    return jax.jit(update if mesh is None else on_devices, compiler_options=compiler_options(in_order=in_order))


def rollout_update(plan: Plan, buffer: RolloutBuffer, settings: OnPolicySettings, key: np.ndarray) -> tuple[Any, ...]:
    """The program of one update of PPO or A2C, and its arguments, from what is there now."""
    learner = plan.learner
    assert learner is not None
    make = functools.partial(update_program, mesh=plan.mesh)
    update = plan.update_program(make, not is_large(learner, buffer, settings))
    return update, settings, learner.settings(), read_policy(learner), read_rollout(buffer), key


def update_from_rollout(
    plan: Plan, keep: bool, update: Callable[..., Any], *arguments: object
) -> tuple[np.ndarray, dict[str, float]]:
    """Run a `rollout_update`, and leave the results in the policy and its optimiser, once they are all there.

    Args:
      keep: see `Learner.leave`.

    Returns:
      The next key, and the metrics but for the explained variance.

    Raises:
      ValueError: weights became NaN. Those from before the update are kept.
    """
    state, key, metrics = update(*arguments)
    metrics = {name: value.item() for name, value in to_host(metrics).items()}
    assert plan.learner is not None
    try:
        plan.learner.leave({POLICY: state.params}, {}, {POLICY: state.optimizer_state}, keep)
    except ValueError as error:
        losses = ", ".join(f"{name} {value:.3g}" for name, value in metrics.items() if "loss" in name)
        raise ValueError(f"{error} Its losses: {losses}.") from None
    return np.array(key), metrics


def read_policy(learner: Learner) -> LearnerState:
    """What PPO and A2C learn, as their programs take it."""
    params, _, states = learner.vectors()
    return LearnerState(params[POLICY], states[POLICY])


def is_large(learner: Learner, buffer: RolloutBuffer, settings: object) -> bool:
    """Whether kernels of an update are large enough to run side by side."""
    size = buffer.buffer_size * buffer.n_envs
    return learner.is_large(min(getattr(settings, "batch_size", size), size))
