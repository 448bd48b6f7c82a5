"""An iteration of an off-policy training: its random draws, its steps, which are stored, and its updates."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxenvs.environment import struct
from jaxenvs.jax_names import shape_struct
from jaxenvs.learn.devices import all_of, axis_size, own_key
from jaxenvs.learn.interfaces import CollectorState, Real, Step
from jaxenvs.learn.learner_state import LearnerState, Optimizers
from jaxenvs.learn.normalization import Normalizer
from jaxenvs.learn.off_policy.policies import OffPolicyPolicy
from jaxenvs.learn.off_policy.settings import OffPolicySettings
from jaxenvs.learn.off_policy.store.hindsight import ComputeReward
from jaxenvs.learn.off_policy.store.replay import Replay, Transitions

# This many bytes of noise are drawn at once, because drawing for one iteration takes as long as for several; but not
# for many more iterations than a compiled function is likely to need.
NOISE_BYTES = 2**16


@struct
class ExplorationState:
    """State from which exploration continues.

    Attributes:
      collector: the environments, and the observation on which the policy acts next, as the store holds it.
      replay: the stored steps.
      action_noise: the state of `settings.action_noise`.
    """

    collector: CollectorState
    replay: Replay
    action_noise: Any


@struct
class Noise:
    """All random draws of one iteration. They depend on a key alone, so that many iterations may draw at once.

    Attributes:
      exploration, random, normal: (train_freq, ...), of the policy; a random action, for each environment; standard
        normal numbers for the action noise, or None.
      bits: uint32 (gradient_steps, batch_size), from which slots of the store are drawn; with hindsight
        (gradient_steps, 2, batch_size), for slots and goals.
      updates: (gradient_steps, ...), of the updates.
    """

    exploration: Any
    random: jax.Array
    normal: jax.Array | None
    bits: jax.Array
    updates: Any

    @classmethod
    def draw(
        cls,
        settings: OffPolicySettings,
        policy: OffPolicyPolicy,
        params: Any,
        observation: Any,
        key: jax.Array,
    ) -> Noise:
        """Draw the noise. Each of several devices draws separately, for its part of the batches.

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

        def rows(leaf: jax.Array) -> Any:
            return shape_struct((batch_size, *leaf.shape[1:]), leaf.dtype)

        number: Any = shape_struct((batch_size,), dtype)
        batch = jax.tree.map(rows, observation)
        transitions = Transitions(batch, rows(random[0]), number, batch, number)
        return cls(
            exploration=settings.exploration_noise(policy, params, observation, keys[2], num),
            random=random,
            normal=normal,
            bits=jax.random.bits(keys[3], (gradient_steps, *(2,) * (settings.hindsight is not None), batch_size)),
            updates=settings.noise(policy, params, transitions, keys[4], gradient_steps) if gradient_steps else None,
        )


def num_at_once(noise: Noise, most: int) -> int:
    """Return for how many iterations, at most `most`, to draw noise at once, given the shapes of one iteration's."""

    def data(leaf: jax.Array) -> jax.Array:  # the size in bytes of a key is not known
        return jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf

    plain = jax.eval_shape(lambda tree: jax.tree.map(data, tree), noise)
    num_bytes: int = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(plain))
    return max(1, min(most, NOISE_BYTES // num_bytes))


@dataclasses.dataclass(frozen=True)
class Iteration:
    """Parts of an iteration: random draws, a step, an update. `loop` puts them in order.

    Attributes:
      policy: the networks, on vectors.
      optimizers: by the names of parameters.
      step: a `jaxenvs.learn.interfaces.Step`, whose TimeStep is stored unchanged.
      compute_reward: the environments' method, for hindsight.
    """

    policy: OffPolicyPolicy
    optimizers: Optimizers
    step: Step
    compute_reward: ComputeReward | None = None

    def draw(
        self, settings: OffPolicySettings, learner: LearnerState, exploration: ExplorationState, key: jax.Array
    ) -> Noise:
        """Draw the noise of one iteration. Only shapes and dtypes of the states are used."""
        params, observation = settings.acting_params(learner), exploration.collector.observation
        return Noise.draw(settings, self.policy, params, observation, key)

    def take_step(
        self,
        settings: OffPolicySettings,
        learner: LearnerState,
        state: ExplorationState,
        noise: Noise,
        index: jax.Array,
        num_timesteps: jax.Array,
        progress: Real,
        normalizer: Normalizer | None = None,
    ) -> tuple[ExplorationState, Any]:
        """Act for one step in every environment, and store it.

        Args:
          index: the number of the step in the iteration.
          num_timesteps: steps of all environments together so far.
          progress: the share of the training that is done.
          normalizer: normalizes what the policy sees of the environments.

        Returns:
          The state to continue from; and the further output of `step`.
        """
        exploration, random, normal = jax.tree.map(
            lambda leaf: leaf[index], (noise.exploration, noise.random, noise.normal)
        )
        observation: Any = state.collector.observation  # Arrays
        env_state = state.collector.env_state
        seen = observation if normalizer is None else normalizer.normalize_observation(observation)
        params = settings.acting_params(learner)
        action, noise_state = choose(
            settings,
            self.policy,
            params,
            seen,
            (exploration, random, normal),
            state.action_noise,
            num_timesteps,
            progress,
        )
        env_state, timestep, outputs = self.step(env_state, self.policy.to_env(action))
        replay = state.replay.add(
            observation,
            action,
            timestep.reward,
            timestep.terminated,
            timestep.truncated,
            timestep.final_observation,
        )
        if settings.action_noise is not None:
            noise_state = settings.action_noise.reset(noise_state, timestep.done)
        return ExplorationState(CollectorState(env_state, timestep.observation), replay, noise_state), outputs

    def update(
        self,
        settings: OffPolicySettings,
        learner: LearnerState,
        replay: Replay,
        noise: Noise,
        is_due: jax.Array,
        normalizer: Normalizer | None = None,
    ) -> tuple[LearnerState, dict[str, jax.Array]]:
        """Update on sampled steps after a collection, if the update is due.

        Args:
          normalizer: normalizes what the networks see of the store.
        """

        def batch_of(bits: jax.Array) -> Transitions:
            if settings.hindsight is not None:
                assert self.compute_reward is not None
                batch = settings.hindsight.transitions(replay, bits, settings.gamma, self.compute_reward)
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

        # Run zero updates rather than branch around them: a branch would copy the arrays that they change.
        num = jnp.where(is_due, settings.num_updates(replay.num_envs * axis_size(settings.axis_name)), 0)
        return settings.updates(self.policy, self.optimizers, learner, noise.bits, noise.updates, batch_of, num)


def choose(
    settings: OffPolicySettings,
    policy: OffPolicyPolicy,
    params: Any,
    observation: Any,
    noise: tuple[Any, jax.Array, Any],
    noise_state: Any,
    num_timesteps: jax.Array,
    progress: Real,
) -> tuple[jax.Array, Any]:
    """Return the actions of one step, and the next state of the action noise.

    Args:
      params: that act.
      observation: as the policy sees it.
      noise: `exploration`, `random` and `normal` of Noise, of this step.
      noise_state, num_timesteps, progress: as in `Iteration.take_step`.
    """
    exploration, random, normal = noise
    action = settings.explore(policy, params, observation, exploration, random, progress)
    if settings.random_warm_up:
        action = jnp.where(num_timesteps < settings.learning_starts, random, action)
    if settings.action_noise is not None:
        noise_state, added = settings.action_noise.step(noise_state, normal)
        action = jnp.clip(action + added, -1, 1).astype(random.dtype)
    return action, noise_state


def is_ready(settings: OffPolicySettings, replay: Replay) -> jax.Array:
    """Return whether there is anything to learn from, on all devices."""
    return all_of(replay.is_ready, settings.axis_name)
