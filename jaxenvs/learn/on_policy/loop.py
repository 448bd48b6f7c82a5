"""A whole on-policy training as one program: rollouts and updates in turns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from jaxenvs.learn import progress_bar
from jaxenvs.learn.devices import axis_size, own_key
from jaxenvs.learn.lstm import Recalled
from jaxenvs.learn.on_policy.settings import LearnerState, OnPolicySettings
from jaxenvs.learn.rollout import CollectorState, collect, masked_observation, masked_step
from jaxenvs.learn.training_state import TrainingState, episodes, normalized_step, place, start
from jaxenvs.wrappers.action_masker import require_action_masks

if TYPE_CHECKING:
    from jaxenvs.learn.training import Training


def init(training: Training, key: jax.Array, params: Any = None, mesh: Mesh | None = None) -> TrainingState:
    """See Training.init."""
    settings: Any = training.algorithm
    training = _with_masks(training)
    params, collector, key = start(training, key, params)
    if training.normalize:
        env_state, normalizer = collector.env_state
        observation = normalizer.normalize_observation(collector.observation)
        collector = CollectorState((env_state, normalizer), observation)
    if hasattr(training.network, "no_memory"):
        memory = training.network.no_memory(params, training.venv.num_envs)
        starts = jnp.ones(training.venv.num_envs, bool)
        collector = CollectorState(collector.env_state, Recalled(collector.observation, memory, starts))
    if settings.MASKS:
        observation = masked_observation(training.venv, collector.env_state, collector.observation)
        collector = CollectorState(collector.env_state, observation)
    state = TrainingState(
        learner=LearnerState.create(params, training.optimizer or settings.OPTIMIZER),
        collector=collector,
        key=key,
        iteration=jnp.zeros((), jnp.int32),
    )
    placed: TrainingState = place(state, mesh)
    return placed


def advance(
    training: Training, state: TrainingState, num_iterations: int, progress: bool = False
) -> tuple[TrainingState, dict[str, jax.Array]]:
    """See `jaxenvs.learn.training.advance`."""
    optimizer = training.optimizer or training.algorithm.OPTIMIZER  # type: ignore[attr-defined]
    training = _with_masks(training)
    axis_name = training.algorithm.axis_name
    num_timesteps = training.algorithm.steps_per_iteration * training.venv.num_envs * axis_size(axis_name)
    step = normalized_step(training.venv, axis_name)
    if training.algorithm.MASKS:  # type: ignore[attr-defined]
        step = masked_step(training.venv, step)

    def iterate(state: TrainingState, _: None) -> tuple[TrainingState, dict[str, Any]]:
        key, collect_key, update_key = jax.random.split(state.key, 3)
        settings: OnPolicySettings = training.algorithm.at(state.iteration, state.learner.params)  # type: ignore[assignment]
        collector, rollout, timestep = collect(
            training.network,
            state.learner.params,
            step,
            state.collector,
            own_key(collect_key, axis_name),
            settings.n_steps,
            gamma=settings.gamma,
            gae_lambda=settings.gae_lambda,
            sde_sample_freq=settings.sde_sample_freq,
        )
        env_state, normalizer = collector.env_state
        if normalizer is not None:
            collector = CollectorState((env_state, normalizer.merge()), collector.observation)
        update_key = own_key(update_key, axis_name)
        learner, metrics = settings.update(training.network, optimizer, state.learner, rollout, update_key)
        iteration = state.iteration + 1
        metrics |= episodes(timestep, axis_name) | {"timesteps": iteration * num_timesteps}
        return TrainingState(learner, collector, key, iteration), metrics

    if progress and num_iterations:
        kinds = jax.eval_shape(iterate, state, None)[1]
        metrics = {name: jnp.zeros((num_iterations, *leaf.shape), leaf.dtype) for name, leaf in kinds.items()}

        def run_iteration(index: jax.Array, carry: Any) -> Any:
            state, metrics = carry
            state, new = iterate(state, None)
            return state, {name: metrics[name].at[index].set(new[name]) for name in metrics}

        looped: tuple[TrainingState, dict[str, jax.Array]]
        looped = progress_bar.fori_loop(num_iterations, run_iteration, (state, metrics), num_timesteps, axis_name)
        return looped
    return jax.lax.scan(iterate, state, None, num_iterations)


def _with_masks(training: Training) -> Training:
    """With environments that have masks, where the algorithm asks for them."""
    masks = training.algorithm.MASKS  # type: ignore[attr-defined]
    return training.replace(venv=require_action_masks(training.venv)) if masks else training
