"""A whole on-policy training as one compiled function, which alternates rollouts and updates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from jaxenvs.learn.devices import axis_size, own_key
from jaxenvs.learn.interfaces import CollectorState, OnPolicyNetwork, Recalled
from jaxenvs.learn.learner_state import POLICY, LearnerState, Optimizers
from jaxenvs.learn.loop import run
from jaxenvs.learn.on_policy.collecting import Rollout, collect, masked_observation, masked_step
from jaxenvs.learn.on_policy.settings import OnPolicySettings
from jaxenvs.learn.progress_bar import Bar
from jaxenvs.learn.training_state import RecentEpisodes, TrainingSetup, TrainingState, normalized_step, place, start
from jaxenvs.wrappers.action_masker import require_action_masks


def iterate(
    settings: OnPolicySettings,
    network: OnPolicyNetwork,
    optimizers: Optimizers,
    collect: Callable[[Any, CollectorState, jax.Array], tuple[CollectorState, Rollout, Any]],
    learner: LearnerState,
    collector: CollectorState,
    keys: Sequence[jax.Array],
) -> tuple[LearnerState, CollectorState, Rollout, Any, dict[str, jax.Array]]:
    """Collect a rollout and update on it.

    Args:
      collect: from parameters, a state and a key to the next state, the rollout, and its steps.
      keys: for the rollout, and for the update.

    Returns:
      The next learner and collector; the rollout; what `collect` gave of its steps; and the update's metrics.
    """
    collect_key, update_key = (own_key(each, settings.axis_name) for each in keys)
    params = settings.acting_params(network, learner.params[POLICY])
    collector, rollout, steps = collect(params, collector, collect_key)
    learner, metrics = settings.update(network, optimizers, learner, rollout, update_key)
    return learner, collector, rollout, steps, metrics


def init(training: TrainingSetup, key: jax.Array, params: Any = None, mesh: Mesh | None = None) -> TrainingState:
    """Return the state before the first iteration, for `Training.init`."""
    settings: Any = training.algorithm
    training = _with_masks(training)
    params, collector, key = start(training, key, params)
    if training.normalize:
        env_state, normalizer = collector.env_state
        observation = normalizer.normalize_observation(collector.observation)
        collector = CollectorState((env_state, normalizer), observation)
    seen: Any = collector.observation
    if settings.MASKS:
        seen = masked_observation(training.venv, collector.env_state, seen)
    if hasattr(training.network, "no_memory"):
        memory = training.network.no_memory(params, training.venv.num_envs)
        seen = Recalled(seen, memory, jnp.ones(training.venv.num_envs, bool))
    collector = CollectorState(collector.env_state, seen)
    state = TrainingState(
        learner=settings.create({POLICY: params}, settings.optimizers(training.optimizer)),
        collector=collector,
        key=key,
        iteration=jnp.zeros((), jnp.int32),
        recent=RecentEpisodes.none(),
    )
    return place(state, mesh)


def advance(
    training: TrainingSetup, state: TrainingState, num_iterations: int, progress: bool = False
) -> tuple[TrainingState, dict[str, jax.Array]]:
    """Run iterations of an on-policy training, for `jaxenvs.learn.training.advance`."""
    optimizers = training.algorithm.optimizers(training.optimizer)
    training = _with_masks(training)
    axis_name = training.algorithm.axis_name
    num_timesteps = training.algorithm.steps_per_iteration * training.venv.num_envs * axis_size(axis_name)
    step = normalized_step(training.venv, axis_name)
    algorithm: Any = training.algorithm
    if algorithm.MASKS:
        step = masked_step(training.venv, step)

    def iterate_once(state: TrainingState, number: jax.Array, drawn: None) -> tuple[TrainingState, dict[str, Any]]:
        settings: OnPolicySettings = algorithm.at(state.iteration, state.learner.params)

        def rollout(params: Any, collector: CollectorState, key: jax.Array) -> tuple[CollectorState, Rollout, Any]:
            collector, collected, timestep = collect(
                training.network,
                params,
                step,
                collector,
                key,
                settings.n_steps,
                gamma=settings.gamma,
                gae_lambda=settings.gae_lambda,
                sde_sample_freq=settings.sde_sample_freq,
            )
            env_state, normalizer = collector.env_state
            if normalizer is not None:
                collector = CollectorState((env_state, normalizer.merge()), collector.observation)
            return collector, collected, timestep

        key, *keys = jax.random.split(state.key, 3)
        learner, collector, _, timestep, metrics = iterate(
            settings, training.network, optimizers, rollout, state.learner, state.collector, keys
        )
        iteration = state.iteration + 1
        recent, of_episodes = state.recent.add(timestep, axis_name)
        metrics |= of_episodes | {"timesteps": iteration * num_timesteps}
        return TrainingState(learner, collector, key, iteration, recent), metrics

    bar = Bar(num_timesteps, axis_name) if progress and num_iterations else None
    return run(iterate_once, state, num_iterations, num_iterations, bar=bar)


def _with_masks(training: TrainingSetup) -> TrainingSetup:
    """Return the training with environments that have action masks, if the algorithm needs them."""
    settings: Any = training.algorithm
    return training.replace(venv=require_action_masks(training.venv)) if settings.MASKS else training
