"""Run an off-policy training within limits: alternate updates that are due and steps that are stored."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxenvs.environment import struct
from jaxenvs.learn import loop
from jaxenvs.learn.devices import axis_size, psum
from jaxenvs.learn.interfaces import Array
from jaxenvs.learn.learner_state import LearnerState
from jaxenvs.learn.loop import put, zeros
from jaxenvs.learn.off_policy.iteration import ExplorationState, Iteration, Noise, is_ready, num_at_once
from jaxenvs.learn.off_policy.settings import OffPolicySettings


@struct
class Progress:
    """Position of a training, besides its environments and what it learns.

    Attributes:
      iteration: the number of the iteration. All random draws follow from it and the key.
      step: how many steps of the iteration were taken.
      is_due: whether an update is due before the next step.
      num_timesteps: steps of all environments together.
      calls: how many steps each environment took, by which DQN counts.
    """

    iteration: jax.Array | np.int32
    step: Any
    is_due: jax.Array | np.bool
    num_timesteps: Any
    calls: Any


@struct
class Schedule:
    """Rates of a run in each of its steps, (most,), and the limits at which it ends.

    Attributes:
      learning_rate: of an update before each of the steps.
      exploration_rate: the share of random actions in each step.
      steps: the number of steps of each environment, at most `most`; with 0, only the update that is due.
      episodes: the number of further episodes to end.
    """

    learning_rate: Array
    exploration_rate: Array
    steps: jax.Array | np.int32
    episodes: jax.Array | np.int32


@struct
class RunState:
    """State and results of a run.

    Attributes:
      learner: parameters, targets and moments.
      exploration, progress: the state of exploration, and the position of the training.
      metrics: each metric of the last update that had it; `num_updated`: the number of updates.
      count: the number of steps of each environment; `num_ended`: the number of episodes that ended in them.
      kept: the further outputs of the steps, (most, ...); 0 after the first `count`.
    """

    learner: LearnerState
    exploration: ExplorationState
    progress: Progress
    metrics: dict[str, jax.Array]
    num_updated: jax.Array
    count: jax.Array
    num_ended: jax.Array
    kept: Any


def run(
    iteration: Iteration,
    settings: OffPolicySettings,
    learner: LearnerState,
    exploration: ExplorationState,
    progress: Progress,
    key: jax.Array,
    schedule: Schedule,
) -> RunState:
    """Continue until a limit is reached. However a training is split into runs, its bits are the same.

    An iteration makes the updates that the previous iteration left due, and then takes its steps: callbacks see a step
    before the update that follows it.

    Args:
      iteration: its `step` returns as further output whether episodes ended, and what is kept of the step.
      settings: the learning rate is not used.
      key: a typed key. All random draws follow from it and the number of the iteration.
    """
    num_envs = exploration.replay.num_envs * axis_size(settings.axis_name)  # of all devices
    dtype = jax.tree.leaves(learner.params)[0].dtype
    turns = _Turns(iteration, settings, schedule, num_envs, dtype)

    def draw(number: jax.Array) -> Noise:
        return iteration.draw(settings, learner, exploration, jax.random.fold_in(key, progress.iteration + number))

    zero = jnp.zeros((), jnp.int32)
    begun = RunState(learner, exploration, progress, {}, zero, zero, zero, ())
    noise = jax.eval_shape(draw, zero)
    metrics = jax.eval_shape(turns.update, begun, noise)[1] if turns.has_updates else {}
    most = schedule.learning_rate.shape[0]
    kept = zeros(jax.eval_shape(turns.step, begun, noise)[2], most)
    begun = dataclasses.replace(begun, metrics=zeros(metrics), kept=kept)
    chunk = num_at_once(noise, most // settings.train_freq)

    def can_continue(number: jax.Array, carry: RunState) -> jax.Array:
        return turns.can_continue(number, carry) | (number == 0)  # at least once, for the update that is due

    return loop.run(turns.iterate, begun, None, draw=draw, num_at_once=chunk, can_continue=can_continue)[0]


@dataclasses.dataclass(frozen=True, eq=False)
class _Turns:
    """The two parts of an iteration that `run` alternates: the update that is due, and the steps."""

    iteration: Iteration
    settings: OffPolicySettings
    schedule: Schedule
    num_envs: int  # of all devices
    dtype: np.dtype  # of the parameters

    @property
    def has_updates(self) -> bool:
        """True if an iteration has updates."""
        return self.settings.num_updates(self.num_envs) > 0

    def update(self, carry: RunState, noise: Noise) -> tuple[LearnerState, dict[str, jax.Array], jax.Array]:
        """Update if an update is due; return the learner, the metrics, and whether it was due."""
        now = self.settings.replace(learning_rate=self.schedule.learning_rate[carry.count].astype(self.dtype))
        is_due = carry.progress.is_due & is_ready(self.settings, carry.exploration.replay)
        return *self.iteration.update(now, carry.learner, carry.exploration.replay, noise, is_due), is_due

    def update_if_due(self, carry: RunState, noise: Noise) -> RunState:
        """Return the carry after the update, if one is due."""
        if not self.has_updates:
            return carry
        learner, metrics, is_due = self.update(carry, noise)
        before, after = carry.learner.num_updates, learner.num_updates
        there = {name: self.settings.num_averaged(name, before, after) > 0 for name in metrics}
        return dataclasses.replace(
            carry,
            learner=learner,
            metrics={name: jnp.where(there[name], new, carry.metrics[name]) for name, new in metrics.items()},
            num_updated=carry.num_updated + is_due,
            progress=dataclasses.replace(carry.progress, is_due=jnp.asarray(False)),
        )

    def step(self, carry: RunState, noise: Noise) -> tuple[RunState, jax.Array, Any]:
        """Take one step; return the carry with the new exploration state, whether episodes ended, and what is kept."""
        progress = carry.progress
        now = self.settings.with_exploration_rate(self.schedule.exploration_rate[carry.count].astype(self.dtype))
        no_progress = jnp.zeros((), self.dtype)
        exploration, (done, kept) = self.iteration.take_step(
            now, carry.learner, carry.exploration, noise, progress.step, progress.num_timesteps, no_progress
        )
        taken = progress.step + 1
        num_timesteps = progress.num_timesteps + self.num_envs
        is_last = taken == self.settings.train_freq
        progress = Progress(
            iteration=progress.iteration + is_last,
            step=jnp.where(is_last, 0, taken),
            is_due=is_last & (num_timesteps > self.settings.learning_starts) & self.has_updates,
            num_timesteps=num_timesteps,
            calls=progress.calls + 1,
        )
        after = dataclasses.replace(carry, exploration=exploration, progress=progress)
        return after, done, kept

    def take(self, carry: RunState, noise: Noise) -> RunState:
        """Take one step, record it, and update target networks."""
        after, done, kept = self.step(carry, noise)
        after = dataclasses.replace(
            after,
            count=carry.count + 1,
            num_ended=carry.num_ended + psum(done.sum(dtype=jnp.int32), self.settings.axis_name),
            kept=put(carry.kept, carry.count, kept),
        )
        calls = after.progress.calls
        learner = self.settings.on_step(self.iteration.policy, after.learner, calls - 1, calls, self.num_envs)
        return dataclasses.replace(after, learner=learner)

    def can_continue(self, _: jax.Array, carry: RunState) -> jax.Array:
        """Return whether no limit is reached."""
        return (carry.count < self.schedule.steps) & (carry.num_ended < self.schedule.episodes)

    def iterate(self, carry: RunState, _: jax.Array, noise: Noise) -> tuple[RunState, None]:
        """Run the update that is due, and the rest of an iteration, or as much of it as the limits allow."""
        steps_left = self.settings.train_freq - carry.progress.step

        def take(carry: RunState, _: jax.Array, __: None) -> tuple[RunState, None]:
            return self.take(carry, noise), None

        return loop.run(take, self.update_if_due(carry, noise), steps_left, can_continue=self.can_continue)[0], None
