"""A whole on-policy training as one program: rollouts and updates in turns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from jaxenvs.learn.on_policy.settings import LearnerState, OnPolicySettings
from jaxenvs.learn.rollout import CollectorState, collect
from jaxenvs.learn.training_state import TrainingState, episodes, normalized_step, start

if TYPE_CHECKING:
    from jaxenvs.learn.training import Training


def init(training: Training, key: jax.Array, params: Any = None) -> TrainingState:
    """See Training.init."""
    settings: Any = training.algorithm
    params, collector, key = start(training, key, params)
    if training.normalize:
        env_state, normalizer = collector.env_state
        observation = normalizer.normalize_observation(collector.observation)
        collector = CollectorState((env_state, normalizer), observation)
    return TrainingState(
        learner=LearnerState.create(params, training.optimizer or settings.OPTIMIZER),
        collector=collector,
        key=key,
        iteration=jnp.zeros((), jnp.int32),
    )


def advance(
    training: Training, state: TrainingState, num_iterations: int
) -> tuple[TrainingState, dict[str, jax.Array]]:
    """See `jaxenvs.learn.training.advance`."""
    optimizer = training.optimizer or training.algorithm.OPTIMIZER  # type: ignore[attr-defined]
    num_timesteps = training.algorithm.steps_per_iteration * training.venv.num_envs

    def iterate(state: TrainingState, _: None) -> tuple[TrainingState, dict[str, Any]]:
        key, collect_key, update_key = jax.random.split(state.key, 3)
        settings: OnPolicySettings = training.algorithm.at(state.iteration, state.learner.params)  # type: ignore[assignment]
        collector, rollout, timestep = collect(
            training.network,
            state.learner.params,
            normalized_step(training.venv),
            state.collector,
            collect_key,
            settings.n_steps,
            gamma=settings.gamma,
            gae_lambda=settings.gae_lambda,
            sde_sample_freq=settings.sde_sample_freq,
        )
        env_state, normalizer = collector.env_state
        if normalizer is not None:
            collector = CollectorState((env_state, normalizer.merge()), collector.observation)
        learner, metrics = settings.update(training.network, optimizer, state.learner, rollout, update_key)
        iteration = state.iteration + 1
        metrics |= episodes(timestep) | {"timesteps": iteration * num_timesteps}
        return TrainingState(learner, collector, key, iteration), metrics

    return jax.lax.scan(iterate, state, None, num_iterations)
