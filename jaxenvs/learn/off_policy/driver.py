"""An off-policy training within limits: updates that are due, and steps that are stored, in turns."""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from jaxenvs.environment import struct
from jaxenvs.learn import loop
from jaxenvs.learn.devices import axis_size, psum
from jaxenvs.learn.learner_state import LearnerState
from jaxenvs.learn.loop import Loop, zeros
from jaxenvs.learn.off_policy.iteration import ExplorationState, Iteration, Noise, is_ready, num_at_once
from jaxenvs.learn.off_policy.settings import OffPolicySettings


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
      follows, follows_last: whether DQN's target network is updated after each step, and after the last one. Otherwise
        the caller does that, once callbacks have seen the step.
    """

    steps: Any
    episodes: Any
    follows: Any
    follows_last: Any


@struct
class Rates:
    """Schedules, (most,): no more steps may be taken.

    Attributes:
      learning: the learning rate of an update before each of the steps.
      exploration: the share of random actions in each step.
    """

    learning: jax.Array
    exploration: jax.Array


class Keep(Protocol):
    """What is kept of steps, each of which gives the stored action, and whatever the environments give besides."""

    def empty(self, given: Any) -> Any:
        """Return what is kept before the first step, from the shapes of what one gives."""

    def put(self, kept: Any, count: jax.Array, given: Any) -> Any:
        """Return what is kept after the step of this number."""


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

    learner: LearnerState
    exploration: ExplorationState
    progress: Progress
    metrics: dict[str, Any]
    num_updated: Any
    count: Any
    num_ended: Any
    kept: Any


def run(
    own: Iteration,
    settings: OffPolicySettings,
    learner: LearnerState,
    exploration: ExplorationState,
    progress: Progress,
    key: jax.Array,
    limits: Limits,
    rates: Rates,
    keep: Keep,
) -> Run:
    """Go on until a limit is reached. However a training is cut into runs, its bits are the same.

    An iteration makes the updates that the iteration before left due, and then takes its steps: callbacks see a step
    before the update that follows it.

    Args:
      own: its `step` gives besides whether episodes ended, and anything.
      settings: the learning rate is not used.
      key: a typed key. All that is drawn follows from it and the number of the iteration.
    """
    num_envs = exploration.replay.num_envs * axis_size(settings.axis_name)  # of all devices
    dtype = jax.tree.leaves(learner.params)[0].dtype
    turns = _Turns(own, settings, limits, rates, keep, num_envs, dtype)

    def draw(number: jax.Array) -> Noise:
        return own.draw(settings, learner, exploration, jax.random.fold_in(key, progress.iteration + number))

    zero = jnp.zeros((), jnp.int32)
    begun = Run(learner, exploration, progress, {}, zero, zero, zero, ())
    noise = jax.eval_shape(draw, zero)
    metrics = jax.eval_shape(turns.update, begun, noise)[1] if turns.has_updates else {}
    begun = dataclasses.replace(
        begun,
        metrics=zeros(metrics),
        kept=keep.empty(jax.eval_shape(turns.step, begun, noise)[2]),
    )
    chunk = num_at_once(noise, rates.learning.shape[0] // settings.train_freq)
    # Once at least, for the update that is due.
    limited = loop.Limits(None, turns.goes_on, at_least_once=True)
    end: Run = loop.run(Loop(turns.iterate, draw, chunk), begun, limited)[0]
    return end


@dataclasses.dataclass(frozen=True, eq=False)
class _Turns:
    """What is done in turns, the update that is due and the steps of an iteration, as `run` describes it.

    Attributes:
      own, settings, limits, rates, keep: as given to `run`.
      num_envs: of all devices.
      dtype: of the parameters.
    """

    own: Iteration
    settings: OffPolicySettings
    limits: Limits
    rates: Rates
    keep: Keep
    num_envs: int
    dtype: Any

    @property
    def has_updates(self) -> bool:
        """Whether an iteration has any."""
        return self.settings.num_updates(self.num_envs) > 0

    def update(self, carry: Run, noise: Noise) -> tuple[LearnerState, dict[str, Any], Any]:
        """Update if that is due; and whether it was."""
        now = self.settings.replace(learning_rate=self.rates.learning[carry.count].astype(self.dtype))
        is_due = carry.progress.is_due & is_ready(self.settings, carry.exploration.replay)
        return *self.own.update(now, carry.learner, carry.exploration.replay, noise, is_due), is_due

    def update_if_due(self, carry: Run, noise: Noise) -> Run:
        """The carry after the update, if one is due."""
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

    def step(self, carry: Run, noise: Noise) -> tuple[Run, jax.Array, Any]:
        """Step once: the carry with what explores, whether episodes ended, and what is to be kept of the step."""
        progress = carry.progress
        now = self.settings.with_exploration_rate(self.rates.exploration[carry.count].astype(self.dtype))
        row, no_progress = carry.exploration.replay.position, jnp.zeros((), self.dtype)
        exploration, (done, outputs) = self.own.take_step(
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
        return after, done, (exploration.replay.action[row], outputs)

    def take(self, carry: Run, noise: Noise) -> Run:
        """Step once, keep what is to be kept, and let target networks follow."""
        after, done, given = self.step(carry, noise)
        after = dataclasses.replace(
            after,
            count=carry.count + 1,
            num_ended=carry.num_ended + psum(done.sum(dtype=jnp.int32), self.settings.axis_name),
            kept=self.keep.put(carry.kept, carry.count, given),
        )
        calls = after.progress.calls
        follows = jnp.where(self.goes_on(after), self.limits.follows, self.limits.follows_last)
        learner = self.settings.on_step(self.own.policy, after.learner, calls - follows, calls, self.num_envs)
        return dataclasses.replace(after, learner=learner)

    def goes_on(self, carry: Run) -> Any:
        """Whether no limit is reached."""
        return (carry.count < self.limits.steps) & (carry.num_ended < self.limits.episodes)

    def iterate(self, carry: Run, _: jax.Array, noise: Noise) -> tuple[Run, None]:
        """The update that is due, and the rest of an iteration, or as much of it as the limits allow."""
        left = loop.Limits(self.settings.train_freq - carry.progress.step, self.goes_on)
        steps = Loop(lambda carry, _, __: (self.take(carry, noise), None))
        return loop.run(steps, self.update_if_due(carry, noise), left)[0], None
