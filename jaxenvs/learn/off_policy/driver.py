"""The driver of an off-policy training: updates that are due, and steps that are stored, in turns, within limits."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxenvs.environment import struct
from jaxenvs.learn.devices import all_of, axis_size, psum
from jaxenvs.learn.off_policy.hindsight import ComputeReward
from jaxenvs.learn.off_policy.iteration import ExplorationState, Noise, num_at_once, take_step, update
from jaxenvs.learn.off_policy.settings import OffPolicySettings, OffPolicyState, Optimizers
from jaxenvs.learn.rollout import Step


@struct
class Progress:
    """Where a training is, besides its environments and what it learns.

    Attributes:
      iteration: its number. All that is drawn follows from it and the key.
      step: of the iteration, how many were taken.
      is_due: whether an update is due before the next step.
      num_timesteps: steps of all environments together.
      calls: how many steps each environment took, by which DQN counts.
    """

    iteration: Any
    step: Any
    is_due: Any
    num_timesteps: Any
    calls: Any


@struct
class Limits:
    """Until when to run.

    Attributes:
      steps: so many steps of each environment; with 0, only the update that is due.
      episodes: until so many more episodes have ended.
      follows, follows_last: whether DQN's target follows after each step, and after the last one. Elsewhere that is the
        caller's, who lets somebody look at the step before.
    """

    steps: Any
    episodes: Any
    follows: Any
    follows_last: Any


@struct
class Run:
    """What a run goes on with and gives.

    Attributes:
      learner: parameters, targets and moments.
      exploration, progress: where it is.
      metrics: each of the last update that had it; `num_updated`: how many times there was one.
      count: how many steps of each environment there were; `num_ended`: how many episodes ended in them.
      kept: what `keep` made of them.
    """

    learner: OffPolicyState
    exploration: ExplorationState
    progress: Progress
    metrics: dict[str, Any]
    num_updated: Any
    count: Any
    num_ended: Any
    kept: Any


def run(
    settings: OffPolicySettings,
    policy: Any,
    optimizers: Optimizers,
    step: Step,
    learner: OffPolicyState,
    exploration: ExplorationState,
    progress: Progress,
    key: jax.Array,
    limits: Limits,
    learning_rate: jax.Array,
    exploration_rate: jax.Array,
    keep: Callable[[Any, Any, Any], Any],
    empty: Callable[[Any], Any],
    compute_reward: ComputeReward | None = None,
) -> Run:
    """Go on until a limit is reached. However a training is cut into runs, its bits are the same.

    Args:
      settings: of which the learning rate is not used.
      step: see `jaxenvs.learn.rollout.Step`. What it gives besides is whether episodes ended, and anything.
      key: a typed key. All that is drawn follows from it and the number of the iteration.
      learning_rate, exploration_rate: (most,), of an update before each of the steps, and of the step. No more steps
        may be taken.
      keep: from what was kept, the number of a step, and what it gave: the stored action, and the anything.
      empty: what is kept before the first step, from the shapes of what one gives.
      compute_reward: that of the environments, for hindsight.
    """
    axis_name = settings.axis_name
    num_envs = exploration.replay.num_envs * axis_size(axis_name)  # of all devices
    dtype = jax.tree.leaves(learner.params)[0].dtype
    num_updates, train_freq = settings.num_updates(num_envs), settings.train_freq

    def draw(iteration: jax.Array) -> Noise:
        observation = exploration.collector.observation
        params = settings.acting_params(learner)
        return Noise.draw(settings, policy, params, observation, jax.random.fold_in(key, iteration))

    def is_due(carry: Run) -> Any:
        return carry.progress.is_due & all_of(carry.exploration.replay.is_ready, axis_name)

    def learn(carry: Run, noise: Noise) -> tuple[OffPolicyState, dict[str, Any]]:
        now = settings.replace(learning_rate=learning_rate[carry.count].astype(dtype))
        # None rather than a branch around them, which would copy what they change.
        num = jnp.where(is_due(carry), num_updates, 0)
        replay = carry.exploration.replay
        return update(now, policy, optimizers, carry.learner, replay, noise, num, compute_reward=compute_reward)

    def update_if_due(carry: Run, noise: Noise) -> Run:
        if not num_updates:
            return carry
        learner, metrics = learn(carry, noise)
        before, after = carry.learner.num_updates, learner.num_updates
        there = {name: settings.num_averaged(name, before, after) > 0 for name in metrics}
        return dataclasses.replace(
            carry,
            learner=learner,
            metrics={name: jnp.where(there[name], new, carry.metrics[name]) for name, new in metrics.items()},
            num_updated=carry.num_updated + is_due(carry),
            progress=dataclasses.replace(carry.progress, is_due=jnp.asarray(False)),
        )

    def step_once(carry: Run, noise: Noise) -> tuple[Run, jax.Array, Any]:
        progress, now = carry.progress, settings.with_exploration_rate(exploration_rate[carry.count].astype(dtype))
        row, params = carry.exploration.replay.position, settings.acting_params(carry.learner)
        no_progress = jnp.zeros((), dtype)
        exploration, (done, outputs) = take_step(
            now, policy, params, step, carry.exploration, noise, progress.step, progress.num_timesteps, no_progress
        )
        taken = progress.step + 1
        num_timesteps = progress.num_timesteps + num_envs
        is_last = taken == train_freq
        progress = Progress(
            iteration=progress.iteration + is_last,
            step=jnp.where(is_last, 0, taken),
            is_due=is_last & (num_timesteps > settings.learning_starts) & (num_updates > 0),
            num_timesteps=num_timesteps,
            calls=progress.calls + 1,
        )
        after = dataclasses.replace(carry, exploration=exploration, progress=progress)
        return after, done, (exploration.replay.action[row], outputs)

    def take(carry: Run, noise: Noise) -> Run:
        after, done, given = step_once(carry, noise)
        after = dataclasses.replace(
            after,
            count=carry.count + 1,
            num_ended=carry.num_ended + psum(done.sum(dtype=jnp.int32), axis_name),
            kept=keep(carry.kept, carry.count, given),
        )
        calls, follows = after.progress.calls, jnp.where(goes_on(after), limits.follows, limits.follows_last)
        learner = settings.on_step(policy, after.learner, calls - follows, calls, num_envs)
        return dataclasses.replace(after, learner=learner)

    def goes_on(carry: Run) -> Any:
        return (carry.count < limits.steps) & (carry.num_ended < limits.episodes)

    def iterate(carry: Run, noise: Noise) -> Run:
        """The update that is due, and the rest of an iteration, or as much of it as the limits allow."""

        def in_iteration(inner: tuple[Run, jax.Array]) -> Any:
            return goes_on(inner[0]) & ~inner[1]

        def step_on(inner: tuple[Run, jax.Array]) -> tuple[Run, jax.Array]:
            after = take(inner[0], noise)
            return after, after.progress.step == 0

        return jax.lax.while_loop(in_iteration, step_on, (update_if_due(carry, noise), jnp.asarray(False)))[0]

    zero = jnp.zeros((), jnp.int32)
    begun = Run(learner, exploration, progress, {}, zero, zero, zero, ())
    noise = jax.eval_shape(draw, progress.iteration)
    metrics = jax.eval_shape(learn, begun, noise)[1] if num_updates else {}
    begun = dataclasses.replace(
        begun,
        metrics={name: jnp.zeros(leaf.shape, leaf.dtype) for name, leaf in metrics.items()},
        kept=empty(jax.eval_shape(step_once, begun, noise)[2]),
    )
    chunk = num_at_once(noise, learning_rate.shape[0] // train_freq)

    def iterate_chunk(carry: tuple[Run, jax.Array]) -> tuple[Run, jax.Array]:
        """As many iterations as draw at once."""
        first = carry[0].progress.iteration
        noise = jax.vmap(draw)(first + jnp.arange(chunk, dtype=jnp.int32))

        def in_chunk(carry: tuple[Run, jax.Array]) -> Any:
            return carry[1] | (goes_on(carry[0]) & (carry[0].progress.iteration < first + chunk))

        def next_iteration(carry: tuple[Run, jax.Array]) -> tuple[Run, jax.Array]:
            own = jax.tree.map(lambda leaf: leaf[carry[0].progress.iteration - first], noise)
            return iterate(carry[0], own), jnp.asarray(False)

        return jax.lax.while_loop(in_chunk, next_iteration, carry)

    # Once at least, for the update that is due; and not a scan, whose length would be part of the program.
    end, _ = jax.lax.while_loop(lambda carry: carry[1] | goes_on(carry[0]), iterate_chunk, (begun, jnp.asarray(True)))
    return end
