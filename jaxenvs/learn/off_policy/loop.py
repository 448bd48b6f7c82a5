"""A whole off-policy training as one program: steps that are stored, and updates on what the store holds, in turns."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxenvs.environment import struct
from jaxenvs.learn import progress_bar
from jaxenvs.learn.devices import all_of, axis_size, layouts, on_each
from jaxenvs.learn.normalization import Normalizer
from jaxenvs.learn.off_policy.hindsight import require_goals
from jaxenvs.learn.off_policy.iteration import ExplorationState, Noise, num_at_once, take_step, update
from jaxenvs.learn.off_policy.replay import Replay
from jaxenvs.learn.off_policy.replay_lanes import regroup
from jaxenvs.learn.off_policy.settings import OffPolicySettings, OffPolicyState, on_vectors
from jaxenvs.learn.rollout import CollectorState
from jaxenvs.learn.training_state import TrainingState, episodes, normalized_step, place, start
from jaxenvs.vector import VectorTimeStep

if TYPE_CHECKING:
    from jaxenvs.learn.training import Training


@struct
class OffPolicyTrainingState(TrainingState):
    """A TrainingState, and:

    Attributes:
      replay: the store. Give it away (`jax.jit(advance, ..., donate_argnums=1)`), or there will be two. Over a mesh
        there is one on each device, for its lanes: a leading axis of devices.
      action_noise: the state of the action noise, if it has one.
    """

    learner: OffPolicyState
    replay: Replay
    action_noise: Any

    def layout(self, lanes: Any, same: Any) -> Self:
        """See TrainingState."""
        return dataclasses.replace(super().layout(lanes, same), replay=lanes, action_noise=lanes)

    def divided(self, num_devices: int) -> Self:
        """See TrainingState."""
        is_divided = self.replay.tag.ndim == 3
        if is_divided and self.replay.tag.shape[0] == num_devices:
            return self
        stores = jax.tree.map(np.asarray, self.replay)
        return dataclasses.replace(self, replay=regroup(stores if is_divided else _stacked(stores), num_devices))

    def whole(self) -> Self:
        """See TrainingState."""
        return self if self.replay.tag.ndim == 2 else self.divided(1).of_one_device()

    def of_one_device(self) -> Self:
        """See TrainingState."""
        return dataclasses.replace(self, replay=jax.tree.map(lambda leaf: leaf[0], self.replay))

    def of_all_devices(self) -> Self:
        """See TrainingState."""
        return dataclasses.replace(self, replay=_stacked(self.replay))


def init(training: Training, key: jax.Array, params: Any = None, mesh: Mesh | None = None) -> OffPolicyTrainingState:
    """See Training.init."""
    settings: Any = training.algorithm
    policy = training.network
    params, collector, key = start(training, key, params)
    like = Noise.draw(settings, policy, params, collector.observation, key).random[0]
    action_noise = settings.action_noise
    state = OffPolicyTrainingState(
        learner=settings.create(params, settings.optimizers(training.optimizer)),
        collector=collector,
        key=key,
        iteration=jnp.zeros((), jnp.int32),
        replay=_new_store(settings, collector.observation, like, mesh),
        action_noise=None if action_noise is None else action_noise.init(like),
    )
    placed: OffPolicyTrainingState = place(state, mesh)
    return placed


def _new_store(settings: OffPolicySettings, observation: Any, action: jax.Array, mesh: Mesh | None) -> Replay:
    """An empty store for observations and actions of all environments; of a mesh one on each device, for its own."""
    capacity = max(settings.buffer_size // len(action), 1)

    def create(observation: Any, action: jax.Array) -> Replay:
        return Replay.create(capacity, observation, action, whole=settings.hindsight is not None)

    if mesh is None:
        return create(observation, action)
    lanes = slice(len(action) // mesh.size)
    like = jax.eval_shape(lambda *both: jax.tree.map(lambda leaf: leaf[lanes], both), observation, action)
    make: Any = on_each(lambda: _stacked(create(*like)), mesh, (), layouts(mesh)[0])
    store: Replay = jax.jit(make)()
    return store


def _stacked(store: Replay) -> Replay:
    """With a leading axis of devices."""
    stacked: Replay = jax.tree.map(lambda leaf: leaf[None], store)
    return stacked


def advance(
    training: Training, state: OffPolicyTrainingState, num_iterations: int, progress: bool = False
) -> tuple[OffPolicyTrainingState, dict[str, jax.Array]]:
    """See `jaxenvs.learn.training.advance`."""
    venv, axis_name = training.venv, training.algorithm.axis_name
    num_envs = venv.num_envs * axis_size(axis_name)
    optimizers = training.algorithm.optimizers(training.optimizer)  # type: ignore[attr-defined]
    policy, learner, back = on_vectors(training.network, state.learner)
    num_timesteps = training.algorithm.steps_per_iteration * num_envs
    # Of all environments that of the first, as with SB3: that lanes differ in it is not meant.
    compute_reward = None if training.algorithm.hindsight is None else require_goals(venv.first_env)  # type: ignore[attr-defined]

    def see(env_state: tuple[Any, Normalizer | None], observation: Any) -> Any:
        return observation if env_state[1] is None else env_state[1].normalize_observation(observation)

    def step(env_state: Any, action: Any) -> tuple[Any, VectorTimeStep, VectorTimeStep]:
        env_state, _, raw = normalized_step(venv, axis_name)(env_state, action)
        return env_state, raw, raw

    def draw(iteration: jax.Array) -> Noise:
        # Of the number of the iteration, not of the key before it, so that many may draw at once.
        key = jax.random.fold_in(state.key, iteration)
        params = training.algorithm.acting_params(learner)  # type: ignore[attr-defined]
        return Noise.draw(training.algorithm, policy, params, state.collector.observation, key)  # type: ignore[arg-type]

    def iterate(
        iteration: jax.Array, learner: OffPolicyState, exploration: ExplorationState, noise: Noise
    ) -> tuple[OffPolicyState, ExplorationState, dict[str, jax.Array]]:
        settings: Any = training.algorithm.at(iteration, learner.params)
        before, params = iteration * num_timesteps, settings.acting_params(learner)

        def act(state: ExplorationState, index: jax.Array) -> tuple[ExplorationState, Any]:
            now = before + index * num_envs
            share = now / training.total_timesteps
            return take_step(settings, policy, params, step, state, noise, index, now, share, see)

        index = jnp.arange(settings.train_freq, dtype=jnp.int32)
        exploration, timestep = jax.lax.scan(act, exploration, index)
        steps = iteration * settings.train_freq
        learner = settings.on_step(policy, learner, steps, steps + settings.train_freq, num_envs)
        env_state, normalizer = exploration.collector.env_state
        if normalizer is not None:
            normalizer = normalizer.merge()
            collector = CollectorState((env_state, normalizer), exploration.collector.observation)
            exploration = dataclasses.replace(exploration, collector=collector)
        metrics: dict[str, jax.Array] = {}
        if settings.gradient_steps:
            # None rather than a branch around them, which would copy what they change.
            is_ready = all_of(exploration.replay.is_ready, axis_name)
            is_learning = (before + num_timesteps > settings.learning_starts) & is_ready
            num = jnp.where(is_learning, settings.num_updates(num_envs), 0)
            replay = exploration.replay
            learner, metrics = update(
                settings, policy, optimizers, learner, replay, noise, num, normalizer, compute_reward
            )
        return learner, exploration, metrics | episodes(timestep, axis_name)

    exploration = ExplorationState(state.collector, state.replay, state.action_noise)
    shapes = jax.eval_shape(draw, state.iteration)
    chunk = num_at_once(shapes, num_iterations)
    kinds = jax.eval_shape(iterate, state.iteration, learner, exploration, shapes)[2]
    metrics = {name: jnp.zeros((max(num_iterations, 1), *leaf.shape), leaf.dtype) for name, leaf in kinds.items()}

    def run_chunk(number: jax.Array, carry: Any) -> Any:
        first = number * chunk
        noise = jax.vmap(draw)(state.iteration + first + jnp.arange(chunk, dtype=jnp.int32))

        def run_iteration(index: jax.Array, carry: Any) -> Any:
            (learner, exploration), metrics = carry
            own = jax.tree.map(lambda leaf: leaf[index - first], noise)
            learner, exploration, new = iterate(state.iteration + index, learner, exploration, own)
            return (learner, exploration), {name: metrics[name].at[index].set(new[name]) for name in metrics}

        return jax.lax.fori_loop(first, jnp.minimum(first + chunk, num_iterations), run_iteration, carry)

    carry = (learner, exploration), metrics
    if progress:
        carry = progress_bar.fori_loop(num_iterations, run_chunk, carry, num_timesteps, axis_name, chunk)
    else:
        carry = jax.lax.fori_loop(0, -(-num_iterations // chunk), run_chunk, carry)
    (learner, exploration), metrics = carry
    iterations = state.iteration + jnp.arange(1, num_iterations + 1, dtype=jnp.int32)
    metrics = {name: values[:num_iterations] for name, values in metrics.items()}
    state = OffPolicyTrainingState(
        learner=back(learner),
        collector=exploration.collector,
        key=state.key,
        iteration=state.iteration + num_iterations,
        replay=exploration.replay,
        action_noise=exploration.action_noise,
    )
    return state, metrics | {"timesteps": iterations * num_timesteps}
