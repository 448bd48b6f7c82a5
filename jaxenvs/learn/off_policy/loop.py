"""A whole off-policy training as one compiled function, which alternates stored steps and updates."""

from __future__ import annotations

import dataclasses
from typing import Any, Self

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from jaxenvs.arguments import shown
from jaxenvs.environment import struct
from jaxenvs.learn.devices import axis_size, layouts, on_each
from jaxenvs.learn.interfaces import CollectorState, Observation
from jaxenvs.learn.learner_state import LearnerState
from jaxenvs.learn.loop import run
from jaxenvs.learn.off_policy.iteration import ExplorationState, Iteration, Noise, is_ready, num_at_once
from jaxenvs.learn.off_policy.settings import OffPolicySettings, on_vectors
from jaxenvs.learn.off_policy.store.hindsight import require_goals
from jaxenvs.learn.off_policy.store.replay import Replay
from jaxenvs.learn.progress_bar import Bar
from jaxenvs.learn.training_state import RecentEpisodes, TrainingSetup, TrainingState, normalized_step, place, start
from jaxenvs.vector import VectorTimeStep


@struct
class OffPolicyTrainingState(TrainingState):
    """State of an off-policy training: a TrainingState with a replay store.

    Attributes:
      replay: the store. Donate it (`jax.jit(advance, ..., donate_argnums=1)`), or there will be two copies. Over a mesh
        each device has the rows of its environments.
      action_noise: the state of the action noise, if it has one.
    """

    replay: Replay
    action_noise: Any

    def layout(self, sharded: PartitionSpec, same: PartitionSpec) -> Self:
        """Return a prefix of this pytree, in which the store and the action noise are divided too."""
        replay = self.replay.layout(sharded, same)
        return dataclasses.replace(super().layout(sharded, same), replay=replay, action_noise=sharded)


def init(
    training: TrainingSetup, key: jax.Array, params: Any = None, mesh: Mesh | None = None
) -> OffPolicyTrainingState:
    """Return the state before the first iteration, for `Training.init`."""
    settings: Any = training.algorithm
    policy = training.network
    params, collector, key = start(training, key, params)
    like = Noise.draw(settings, policy, params, collector.observation, key).random[0]
    action_noise = settings.action_noise
    for name, value in ({} if action_noise is None else vars(action_noise)).items():
        if jnp.shape(value) not in ((), (1,), like.shape[-1:], like.shape):
            expected = f"a number or an array of the shape {like.shape[-1:]}, one for each dimension of an action"
            raise ValueError(f"action_noise.{name} must be {expected}, got {shown(value)}.")
    state = OffPolicyTrainingState(
        learner=settings.create(params, settings.optimizers(training.optimizer)),
        collector=collector,
        key=key,
        iteration=jnp.zeros((), jnp.int32),
        recent=RecentEpisodes.none(),
        replay=_new_store(settings, collector.observation, like, mesh),
        action_noise=None if action_noise is None else action_noise.init(like),
    )
    return place(state, mesh)


def _new_store(settings: OffPolicySettings, observation: Observation, action: jax.Array, mesh: Mesh | None) -> Replay:
    """Create an empty store for the transitions of all environments; over a mesh, one on each device for its part."""
    capacity = max(settings.buffer_size // len(action), 1)

    def create(num_devices: int = 1) -> Replay:
        part = slice(len(action) // num_devices)
        seen, taken = jax.eval_shape(lambda: jax.tree.map(lambda leaf: leaf[part], (observation, action)))
        return Replay.create(capacity, seen, taken, whole=settings.hindsight is not None)

    if mesh is None:
        return create()
    layout = jax.eval_shape(create).layout(*layouts(mesh))
    store: Replay = jax.jit(on_each(lambda: create(mesh.size), mesh, (), layout))()
    return store


def advance(
    training: TrainingSetup, state: OffPolicyTrainingState, num_iterations: int, progress: bool = False
) -> tuple[OffPolicyTrainingState, dict[str, jax.Array]]:
    """Run iterations of an off-policy training, for `jaxenvs.learn.training.advance`: steps, then updates."""
    venv, axis_name = training.venv, training.algorithm.axis_name
    num_envs = venv.num_envs * axis_size(axis_name)
    num_timesteps = training.algorithm.steps_per_iteration * num_envs
    policy, learner, back = on_vectors(training.network, state.learner)
    # Like SB3, use the first environment to compute the rewards of all environments.
    algorithm: Any = training.algorithm
    compute_reward = None if algorithm.hindsight is None else require_goals(venv.first_env)

    def step(env_state: Any, action: jax.Array) -> tuple[Any, VectorTimeStep, VectorTimeStep]:
        env_state, _, raw = normalized_step(venv, axis_name)(env_state, action)
        # Of the step only what RecentEpisodes asks for is kept.
        return env_state, raw, dataclasses.replace(raw, observation=(), final_observation=(), info={}, final_info={})

    optimizers = training.algorithm.optimizers(training.optimizer)
    iteration = Iteration(policy, optimizers, step, compute_reward)
    exploration = ExplorationState(state.collector, state.replay, state.action_noise)

    def draw(number: jax.Array) -> Noise:
        # Depends on the number of the iteration, not on the previous key, so that many iterations may draw at once.
        key = jax.random.fold_in(state.key, state.iteration + number)
        return iteration.draw(algorithm, learner, exploration, key)

    def iterate(carry: tuple[LearnerState, ExplorationState, RecentEpisodes], number: jax.Array, noise: Noise) -> Any:
        (learner, exploration, recent), count = carry, state.iteration + number
        settings: OffPolicySettings = algorithm.at(count, learner.params)
        before = count * num_timesteps

        def act(exploration: ExplorationState, index: jax.Array, _: None) -> tuple[ExplorationState, VectorTimeStep]:
            now = before + index * num_envs
            normalizer = exploration.collector.env_state[1]
            share = now / training.total_timesteps
            return iteration.take_step(settings, learner, exploration, noise, index, now, share, normalizer)

        freq = settings.train_freq
        exploration, timestep = run(act, exploration, freq, freq)
        learner = settings.on_step(policy, learner, count * freq, count * freq + freq, num_envs)
        env_state, normalizer = exploration.collector.env_state
        if normalizer is not None:
            normalizer = normalizer.merge()
            collector = CollectorState((env_state, normalizer), exploration.collector.observation)
            exploration = dataclasses.replace(exploration, collector=collector)
        metrics: dict[str, jax.Array] = {}
        if settings.gradient_steps:
            replay = exploration.replay
            is_due = (before + num_timesteps > settings.learning_starts) & is_ready(settings, replay)
            learner, metrics = iteration.update(settings, learner, replay, noise, is_due, normalizer)
        recent, of_episodes = recent.add(timestep, axis_name)
        return (learner, exploration, recent), metrics | of_episodes

    chunk = num_at_once(jax.eval_shape(draw, jnp.zeros((), jnp.int32)), num_iterations)
    bar = Bar(num_timesteps, axis_name) if progress and num_iterations else None
    carry = learner, exploration, state.recent
    carry, metrics = run(iterate, carry, num_iterations, num_iterations, draw=draw, num_at_once=chunk, bar=bar)
    learner, exploration, recent = carry
    iterations = state.iteration + jnp.arange(1, num_iterations + 1, dtype=jnp.int32)
    state = OffPolicyTrainingState(
        learner=back(learner),
        collector=exploration.collector,
        key=state.key,
        iteration=state.iteration + num_iterations,
        recent=recent,
        replay=exploration.replay,
        action_noise=exploration.action_noise,
    )
    return state, metrics | {"timesteps": iterations * num_timesteps}
