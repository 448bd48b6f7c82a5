"""A whole off-policy training as one program: steps that are stored, and updates on what the store holds, in turns."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxenvs.environment import struct
from jaxenvs.learn import progress_bar
from jaxenvs.learn.devices import all_of, axis_size, layouts, on_each, own_key
from jaxenvs.learn.normalization import Normalizer
from jaxenvs.learn.off_policy.hindsight import ComputeReward, require_goals
from jaxenvs.learn.off_policy.replay import Replay, Transitions
from jaxenvs.learn.off_policy.replay_lanes import regroup
from jaxenvs.learn.off_policy.settings import OffPolicySettings, OffPolicyState, Optimizers, on_vectors
from jaxenvs.learn.rollout import CollectorState, Step
from jaxenvs.learn.training_state import TrainingState, episodes, normalized_step, place, start
from jaxenvs.vector import VectorTimeStep

if TYPE_CHECKING:
    from jaxenvs.learn.training import Training

# The noise of so many bytes is drawn at once, because to draw takes as long for one iteration as for some; but not that
# of many more than a program is likely to need.
NOISE_BYTES = 2**16
# An observation of the environments as the policy sees it, from their state: normalised, say.
See = Callable[[Any, Any], Any]


@struct
class ExplorationState:
    """Where exploring goes on from.

    Attributes:
      collector: the environments, and what the policy acts on next, as the store holds it.
      replay: what was seen so far.
      action_noise: the state of `settings.action_noise`.
    """

    collector: CollectorState
    replay: Replay
    action_noise: Any


@struct
class Noise:
    """All that one iteration draws. It depends on a key alone, so that many iterations may draw at once.

    Attributes:
      exploration, random, normal: (train_freq, ...), of the policy; a random action, for each environment; standard
        normal numbers for the action noise, or None.
      bits: uint32 (gradient_steps, batch_size), from which slots of the store are drawn; with hindsight
        (gradient_steps, 2, batch_size), and goals.
      updates: (gradient_steps, ...), of the updates.
    """

    exploration: Any
    random: jax.Array
    normal: jax.Array | None
    bits: jax.Array
    updates: Any

    @classmethod
    def draw(cls, settings: OffPolicySettings, policy: Any, params: Any, observation: Any, key: jax.Array) -> Noise:
        """Of several devices each draws its own, for its part of the batches.

        Args:
          params, observation: of the networks and of all environments, of which only shapes and dtypes are used.
        """
        keys, num_devices = jax.random.split(own_key(key, settings.axis_name), 5), axis_size(settings.axis_name)
        num_envs, num = jax.tree.leaves(observation)[0].shape[0], settings.train_freq
        dtype, size = jax.tree.leaves(params)[0].dtype, policy.head.size
        normal = None
        if policy.head.kind == "box":
            random = jax.random.uniform(keys[0], (num, num_envs, size), dtype, -1, 1)
            if settings.action_noise is not None:
                normal = jax.random.normal(keys[1], random.shape, dtype)
        else:
            random = jax.random.randint(keys[0], (num, num_envs), 0, size, jnp.int32)

        gradient_steps = settings.num_updates(num_envs * num_devices)
        batch_size = settings.batch_size // num_devices

        def rows(leaf: Any) -> Any:
            return jax.ShapeDtypeStruct((batch_size, *leaf.shape[1:]), leaf.dtype)  # type: ignore[no-untyped-call]

        number: Any = jax.ShapeDtypeStruct((batch_size,), dtype)  # type: ignore[no-untyped-call]
        batch = jax.tree.map(rows, observation)
        transitions = Transitions(batch, rows(random[0]), number, batch, number)
        return cls(
            exploration=settings.exploration_noise(policy, params, observation, keys[2], num),
            random=random,
            normal=normal,
            bits=jax.random.bits(keys[3], (gradient_steps, *(2,) * (settings.hindsight is not None), batch_size)),
            updates=settings.noise(policy, params, transitions, keys[4], gradient_steps) if gradient_steps else None,
        )


def take_step(
    settings: OffPolicySettings,
    policy: Any,
    params: Any,
    step: Step,
    state: ExplorationState,
    noise: Noise,
    index: Any,
    num_timesteps: Any,
    progress: Any,
    see: See = lambda _, observation: observation,
) -> tuple[ExplorationState, Any]:
    """Act for one step in every environment, and store it.

    Args:
      step: see `jaxenvs.learn.rollout.Step`. What it gives is stored as it is.
      index: its number in the iteration.
      num_timesteps: steps of all environments together so far.
      progress: the share of the training that is done.
      see: from the state of the environments and an observation to what the policy acts on.

    Returns:
      Where to go on; and what `step` gave besides.
    """
    exploration, random, normal = jax.tree.map(
        lambda leaf: leaf[index], (noise.exploration, noise.random, noise.normal)
    )
    observation, env_state = state.collector.observation, state.collector.env_state
    seen = see(env_state, observation)
    action = settings.explore(policy, params, seen, exploration, random, progress)
    if settings.random_warm_up:
        action = jnp.where(num_timesteps < settings.learning_starts, random, action)
    noise_state = state.action_noise
    if settings.action_noise is not None:
        noise_state, added = settings.action_noise.step(noise_state, normal)
        action = jnp.clip(action + added, -1, 1).astype(random.dtype)
    env_state, timestep, outputs = step(env_state, policy.to_env(action))
    replay = state.replay.add(
        observation,
        action,
        timestep.reward,
        timestep.terminated,
        timestep.truncated,
        timestep.observation,
        timestep.final_observation,
    )
    if settings.action_noise is not None:
        noise_state = settings.action_noise.reset(noise_state, timestep.done)
    return ExplorationState(CollectorState(env_state, timestep.observation), replay, noise_state), outputs


def update(
    settings: OffPolicySettings,
    policy: Any,
    optimizers: Optimizers,
    state: OffPolicyState,
    replay: Replay,
    noise: Noise,
    num: Any = None,
    normalizer: Normalizer | None = None,
    compute_reward: ComputeReward | None = None,
) -> tuple[OffPolicyState, dict[str, jax.Array]]:
    """The updates after a collection, on what the store holds.

    Args:
      num: how many of those that `noise` is for; may be traced. If not given, all.
      normalizer: of what the networks see of the store.
      compute_reward: that of the environments, for hindsight.
    """

    def batch_of(bits: jax.Array) -> Transitions:
        if settings.hindsight is not None:
            assert compute_reward is not None
            batch: Transitions = settings.hindsight.transitions(replay, bits, settings.gamma, compute_reward)
            if normalizer is None:
                return batch
            batch = dataclasses.replace(batch, reward=normalizer.normalize_reward(batch.reward))
        elif normalizer is None:
            return replay.transitions(*replay.draw(bits), settings.gamma, settings.n_steps)
        else:
            batch = replay.transitions(
                *replay.draw(bits), settings.gamma, settings.n_steps, reward_of=normalizer.normalize_reward
            )
        observation, next_observation = (
            normalizer.normalize_observation(leaf) for leaf in (batch.observation, batch.next_observation)
        )
        return dataclasses.replace(batch, observation=observation, next_observation=next_observation)

    return settings.updates(policy, optimizers, state, noise.bits, noise.updates, batch_of, num)


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


def num_at_once(noise: Noise, most: int) -> int:
    """Of how many iterations noise is drawn at once, if there are not more than `most`; given the shapes of one's."""

    def data(leaf: Any) -> Any:  # the size in bytes of a key is not known
        return jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf

    plain = jax.eval_shape(lambda tree: jax.tree.map(data, tree), noise)
    num_bytes: int = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(plain))
    return max(1, min(most, NOISE_BYTES // num_bytes))
