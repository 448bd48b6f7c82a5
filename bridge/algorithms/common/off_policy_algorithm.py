"""Base class of the off-policy algorithms: compiled acting, storing and updating instead of SB3's loops.

On JAX environments all three are one compiled function, which runs until a callback needs a step. On any other
environment, and where a callback looks, acting is a compiled function, called in each step, and updates are another.
"""

from __future__ import annotations

import functools
import inspect
import math
import sys
from typing import Any, ClassVar

import numpy as np
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.noise import ActionNoise
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.type_aliases import RolloutReturn, TrainFreq, TrainFrequencyUnit
from stable_baselines3.common.vec_env import VecEnv

from bridge.algorithms.common.compiled_algorithm import CompiledAlgorithm
from bridge.algorithms.common.our_replay_buffer import WithOurReplayBuffer, add_quickly
from bridge.engine.acting import Actor
from bridge.engine.already_called import call_no_more
from bridge.engine.callbacks.callback_schedule import Pace
from bridge.engine.callbacks.known import looks, needs_rollouts, rollouts_per_call, steps_until_needed
from bridge.engine.callbacks.taken_steps import after_step, count_steps
from bridge.engine.off_policy import host_loop, host_updates, jax_steps
from bridge.engine.off_policy.compiled_training import most_steps, run_steps
from bridge.engine.plan import Mode, Plan
from bridge.engine.user_code.signals import handlers_wait
from bridge.randomness import get_random_state
from bridge.replay import HerReplayBuffer
from bridge.sb3 import Infos
from bridge.translate.action_noise import export_noise_if_known, noise_state, write_noise_state
from jaxenvs.learn.off_policy.driver import Progress
from jaxenvs.learn.off_policy.settings import OffPolicySettings

FEW_STEPS = 4  # a `learn` of at most this many takes less time in SB3's loop than in the compiled function


class CompiledOffPolicyAlgorithm(CompiledAlgorithm, WithOurReplayBuffer, OffPolicyAlgorithm):
    """Base class of off-policy algorithms, mixed in before the SB3 class: compiles what computes the same as SB3."""

    # Where training is between two updates. A checkpoint that is saved there continues from there.
    _iteration = _step_of_iteration = 0
    _update_is_due = False
    # The `train_freq` of an iteration that has begun, whose steps and update a changed `train_freq` does not concern.
    _begun_with: TrainFreq | None = None
    # Whether SB3's loop collects on JAX environments; the steps of its iteration so far; what it keeps in JAX.
    _collects_on_jax = False
    _steps_on_jax = 0
    _settings_on_jax: tuple[OffPolicySettings, OffPolicySettings] | None = None
    _noise_on_jax: jax_steps.NoiseAhead | None = None
    # Whether SB3's `train` counts each update before it samples for it, rather than all updates at its end.
    COUNTS_BEFORE_SAMPLING: ClassVar[bool] = False

    # --- Overridden by each algorithm ---------------------------------------------------------------------------

    def _settings_now(self) -> OffPolicySettings:
        """Return the current settings for compiled functions."""
        raise NotImplementedError

    def _shared_settings(self) -> dict[str, Any]:
        n_steps = getattr(self.replay_buffer, "n_steps", 1)
        gamma = self.gamma if n_steps == 1 else self.replay_buffer.gamma  # type: ignore[union-attr]
        return {
            "buffer_size": self.buffer_size,
            "learning_starts": self.learning_starts,
            "batch_size": self.batch_size,
            "tau": float(self.tau),
            "gamma": float(gamma),
            "train_freq": self._frequency.frequency,
            "gradient_steps": self.gradient_steps,
            "n_steps": n_steps,
            "hindsight": self.replay_buffer.hindsight if isinstance(self.replay_buffer, HerReplayBuffer) else None,
            "action_noise": export_noise_if_known(self.action_noise, self.action_space.shape or ()),
        }

    def _record(self, settings: OffPolicySettings, metrics: dict[str, float], num_before: int) -> None:
        """Log the means of updates with these settings, as SB3's `train` does.

        Args:
          num_before: how many updates there were before these.
        """
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        for name, value in metrics.items():
            if settings.num_averaged(name, num_before, self._n_updates):
                self.logger.record(f"train/{name}", np.float64(value))  # the type of SB3's means

    def _calls_of_interval(self) -> int:
        """Return how many steps each environment took, by which DQN counts; possibly modulo the interval."""
        return 0

    def _exploration_rates(self, progress_remaining: np.ndarray) -> np.ndarray:
        """Return the share of random actions in each of the next steps, given the progress remaining before each."""
        return np.zeros(progress_remaining.shape)

    def _count_step(self) -> None:
        """Do what SB3's `_on_step` does, except for updating the targets, which the compiled function has done."""

    @property
    def _frequency(self) -> TrainFreq:
        """The `train_freq` of the present iteration, or of the next one."""
        return self._next_frequency if self._begun_with is None else self._begun_with

    @property
    def _next_frequency(self) -> TrainFreq:
        assert isinstance(self.train_freq, TrainFreq)  # SB3's `_setup_model` has converted it
        return self.train_freq

    # --- In one compiled function -------------------------------------------------------------------------------

    def go_on_with(self, action_noise: ActionNoise | None) -> None:
        """Let the next `learn` continue with an action noise in its present state, which SB3's `learn` would reset."""
        self._noise_to_go_on_with = action_noise

    def _setup_learn(self, *args: object, **kwargs: object) -> tuple[int, BaseCallback]:
        noise = vars(self).pop("_noise_to_go_on_with", None)
        given = super()._setup_learn(*args, **kwargs)
        if noise is not None and self.num_timesteps:
            self.action_noise = noise  # SB3 has reset it
        assert self.replay_buffer is not None
        # A zip may have been saved while an update was pending, and without the replay buffer that it learns from.
        cannot_update = self._update_is_due and not self.replay_buffer.size()
        is_another = self._step_of_iteration > 0 and self._begun_with != self._next_frequency
        if self.num_timesteps == 0 or cannot_update or is_another:
            self._begin_iteration()
        return given

    def _train_until(self, total_timesteps: int, callback: BaseCallback, log_interval: int | None) -> None:
        if getattr(self.train, "__func__", None) is CompiledOffPolicyAlgorithm.train:
            # Fail now rather than at the first update.
            host_updates.require_weights_known(self.replay_buffer, self._current_plan(self.env))
        pace, can_continue = Pace(), True
        is_short = self._step_of_iteration == 0 and total_timesteps - self.num_timesteps <= FEW_STEPS * self.n_envs
        try:
            while can_continue and (self.num_timesteps < total_timesteps or self._step_of_iteration):
                if self._frequency != self._next_frequency and self._step_of_iteration == 0:
                    self._update_if_due()  # of an iteration with the former `train_freq`
                    self._begun_with = None
                if not is_short and self._current_plan(self.env).mode is Mode.COMPILED and self._is_quiet(callback):
                    can_continue = self._run_steps(callback, log_interval, pace)
                else:
                    can_continue = self._iterate(callback, log_interval)
            if can_continue:
                self._update_if_due(at_end=True)
        except Exception:
            self._begin_iteration()  # as in SB3, a failed iteration is dropped. After Ctrl-C nothing is lost
            raise
        self._begin_iteration()

    def _is_quiet(self, callback: BaseCallback) -> bool:
        """Return whether the callback needs no step of the next iteration, or of the rest of this one."""
        if looks(callback):
            return False
        if self._step_of_iteration:
            return True  # asked when it began
        # An iteration of episodes may take any number of steps.
        length = self._frequency.frequency if self._frequency.unit is TrainFrequencyUnit.STEP else sys.maxsize
        return 0 < length <= steps_until_needed(callback, self.num_timesteps, self.n_envs)

    def _update_if_due(self, at_end: bool = False) -> None:
        """Run the pending update, which a compiled function otherwise runs before its next step.

        Args:
          at_end: whether the training ends with it. Then that function runs again, without a step: to compile the
            update alone, for one call, takes a second or two.
        """
        if not self._update_is_due:
            return
        plan = self._current_plan(self.env)
        if plan.mode is Mode.COMPILED:
            with handlers_wait():
                if at_end:
                    _, metrics, num_updated = run_steps(self, plan, 0, math.inf)
                else:
                    metrics, num_updated = jax_steps.update(self, plan)
                self._update_is_due = False
                self._record_trained(metrics, num_updated, plan, 0)
        else:  # user code has changed the plan since then
            self.train(batch_size=self.batch_size, gradient_steps=self._settings_now().num_updates(self.n_envs))
            self._update_is_due = False

    def _iterate(self, callback: BaseCallback, log_interval: int | None) -> bool:
        """Run one iteration of SB3's `learn`."""
        self._update_if_due()  # left by the compiled function before
        if self._steps_on_jax:  # an iteration was interrupted
            self._begin_iteration()
        taken = self._step_of_iteration  # if the mode has changed within an iteration, this runs only the rest of it
        self._begun_with = frequency = self._frequency
        assert self.env is not None
        rollout = self.collect_rollouts(
            self.env,
            train_freq=frequency._replace(frequency=frequency.frequency - taken),
            action_noise=self.action_noise,
            callback=callback,
            learning_starts=self.learning_starts,
            replay_buffer=self.replay_buffer,
            log_interval=log_interval,
        )
        self._begin_iteration()
        if rollout.continue_training and self.num_timesteps > self.learning_starts:
            timesteps = rollout.episode_timesteps + taken * self.n_envs
            gradient_steps = self.gradient_steps if self.gradient_steps >= 0 else timesteps
            plan = self._current_plan(self.env)
            is_counted = frequency.unit is TrainFrequencyUnit.STEP  # by the settings of the compiled update
            if gradient_steps > 0 and plan.mode is Mode.COMPILED and plan.mesh is None and is_counted:
                self._begun_with, self._update_is_due = frequency, True
                self._update_if_due()
            elif gradient_steps > 0:
                self.train(batch_size=self.batch_size, gradient_steps=gradient_steps)
        return rollout.continue_training

    def _run_steps(self, callback: BaseCallback, log_interval: int | None, pace: Pace) -> bool:
        """Run the compiled function until the callback needs a step, and count its steps. Return False to stop."""
        num_envs, begun, self._begun_with = self.n_envs, self._step_of_iteration, self._frequency
        train_freq = self._begun_with.frequency
        self._random_before_rollout = None  # it belongs to rollouts on the host
        if (has_hooks := needs_rollouts(callback)) and begun == 0:
            self._update_if_due()  # as SB3 does before a rollout starts
            callback.on_rollout_start()
            self._session.forget()
        plan = self._current_plan(self.env)
        if plan.mode is not Mode.COMPILED:  # `on_rollout_start` has changed the plan
            with call_no_more(callback, "on_rollout_start"):
                return self._iterate(callback, log_interval)
        to_end = train_freq - begun
        left = max(0, -(-(self._total_timesteps - self.num_timesteps) // num_envs) - to_end)
        left *= rollouts_per_call(callback) > 1 and self._begun_with == self._next_frequency
        until_needed = steps_until_needed(callback, self.num_timesteps, num_envs)
        most = pace.next(min(most_steps(num_envs), until_needed, left + to_end))
        # Whole iterations, of which that which reaches the end is finished, as in SB3.
        steps = to_end + -(-left // train_freq) * train_freq
        steps = min(steps, to_end + max(0, most - to_end) // train_freq * train_freq, most_steps(num_envs))
        # A log is written at the step that ends an episode.
        episodes, learning_starts = math.inf, self.learning_starts
        if log_interval is not None and self.logger.output_formats:
            episodes = abs(log_interval) - self._episode_num % abs(log_interval)
        with handlers_wait():
            with pace.running(steps):
                taken, metrics, num_updated = run_steps(self, plan, steps, episodes)
            last = len(taken.dones) - 1
            self._record_trained(metrics, num_updated, plan, last - (begun + last) % train_freq)
            after = functools.partial(after_step, self, log_interval)
            if not count_steps(self, self._session, plan, callback, taken, after):
                return False
        if has_hooks and self._step_of_iteration == 0:
            callback.on_rollout_end()
            self._session.forget()
        if self.learning_starts != learning_starts and self._step_of_iteration == 0:  # a callback has changed it
            self._update_is_due = self.num_timesteps > self.learning_starts and self.gradient_steps != 0
        return True

    def _record_trained(self, metrics: dict[str, float], num_updated: int, plan: Plan, last_update: int) -> None:
        """Log the last update of a compiled function, and set its learning rate where SB3 sets it.

        Args:
          metrics: of the last update; num_updated: how many updates there were.
          last_update: the index of the step before which the last one ran.
        """
        self._record_compile_time()
        if num_updated:
            progress = self._current_progress_remaining
            if last_update > 0:
                num_timesteps = self.num_timesteps + last_update * self.n_envs
                self._update_current_progress_remaining(num_timesteps, self._total_timesteps)
            self._update_learning_rate(self._optimizers(plan))
            self._current_progress_remaining = progress
            settings = self._settings_now()
            self._record(settings, metrics, self._n_updates - num_updated * settings.num_updates(self.n_envs))

    def _optimizers(self, plan: Plan) -> list[torch.optim.Optimizer] | torch.optim.Optimizer:
        """Return what SB3's `train` passes to `_update_learning_rate`."""
        assert plan.learner is not None
        return list(plan.learner.optimizers.values())

    def _begin_iteration(self) -> None:
        # A new number, because an iteration that was cut short must not draw the same random numbers again.
        self._iteration += self._step_of_iteration > 0 or self._steps_on_jax > 0
        self._step_of_iteration, self._steps_on_jax, self._update_is_due, self._begun_with = 0, 0, False, None

    def _progress(self) -> tuple[Progress, np.ndarray | None, np.ndarray]:
        """Return where training is, for the compiled function; the state of the action noise; and the key's data."""
        progress = Progress(
            iteration=np.int32(self._iteration),
            step=np.int32(self._step_of_iteration),
            is_due=np.bool_(self._update_is_due),
            # Capped to fit an int32: beyond that only the order of steps matters, and that learning has started.
            num_timesteps=np.int32(min(self.num_timesteps, 2**30)),
            calls=np.int32(self._calls_of_interval()),
        )
        return progress, noise_state(self.action_noise, self.n_envs), self.key

    def _write_progress(self, progress: Progress, action_noise: np.ndarray | None) -> None:
        self._iteration, self._step_of_iteration = int(progress.iteration), int(progress.step)
        self._update_is_due = bool(progress.is_due)
        write_noise_state(self.action_noise, action_noise)

    # --- On the host --------------------------------------------------------------------------------------------

    def collect_rollouts(
        self,
        env: VecEnv,
        callback: BaseCallback,
        train_freq: TrainFreq,
        replay_buffer: Any,
        action_noise: ActionNoise | None = None,
        learning_starts: int = 0,
        log_interval: int | None = None,
    ) -> RolloutReturn:
        """Collect a rollout as SB3 does, with one compiled function that acts in each step if the policy allows it."""
        plan = self._current_plan(self.env)
        given = train_freq, replay_buffer, action_noise, learning_starts, log_interval
        # With state-dependent exploration SB3 draws before it calls callbacks, which may save a checkpoint.
        self._random_before_rollout = get_random_state() if self.use_sde else None
        is_ours = plan.mode is Mode.ACTING and "_update_info_buffer" not in plan.user_code and not self.use_sde
        is_ours &= train_freq.frequency > 0 and (env.num_envs == 1 or train_freq.unit is TrainFrequencyUnit.STEP)
        if is_ours and not needs_rollouts(callback) and self._is_quiet(callback):
            return host_loop.collect_rollouts(self, env, callback, *given)
        self._collects_on_jax = plan.mode is Mode.COMPILED and plan.mesh is None
        try:
            with self._session.sb3s_loop():
                return super().collect_rollouts(env, callback, *given)
        finally:
            self._collects_on_jax = False

    def _sample_action(
        self, learning_starts: int, action_noise: ActionNoise | None = None, n_envs: int = 1
    ) -> tuple[np.ndarray, np.ndarray]:
        session, plan = self._session, self._session.plan
        if plan is None or plan.actor is None or "predict" in plan.user_code:
            return super()._sample_action(learning_starts, action_noise, n_envs)
        on_jax = self._collects_on_jax and plan.mode is Mode.COMPILED  # a callback may have changed the plan
        is_random = self.num_timesteps < learning_starts and not on_jax
        is_planned = not is_random and (session.is_known or plan.acts_as_planned(self.policy))
        if is_planned and on_jax:
            action = jax_steps.sample_action(self, plan, self._steps_on_jax)
            self._steps_on_jax += 1
        elif is_planned and not self.use_sde and (session.is_known or not plan.actor.copies):
            if not session.is_known:
                plan.actor.refresh()
            action = self._act(plan.actor, action_noise, n_envs)
        else:
            action = super()._sample_action(learning_starts, action_noise, n_envs)
        session.is_known &= not session.runs_user_code  # next, environments and callbacks run
        return action

    def _act(self, actor: Actor, action_noise: ActionNoise | None, n_envs: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the actions that environments take, and the actions that are stored."""
        noise = actor.draw_noise(n_envs, 1, 1)
        scaled, _ = actor.act(self._last_obs, noise if noise is None else noise[0])
        scaled = scaled.reshape(-1, *(self.action_space.shape or ()))
        if action_noise is not None:
            scaled = np.clip(scaled + action_noise(), -1, 1)
        return self.policy.unscale_action(scaled), np.array(scaled)

    def _store_transition(
        self,
        replay_buffer: Any,
        buffer_action: np.ndarray,
        new_obs: np.ndarray | dict[str, np.ndarray],
        reward: np.ndarray,
        dones: np.ndarray,
        infos: Infos,
    ) -> None:
        plan = self._session.plan
        if self._collects_on_jax and plan is not None:
            return jax_steps.store_transition(self, plan, replay_buffer, buffer_action, new_obs, reward, dones, infos)
        if self._vec_normalize_env is not None or np.any(dones) or plan is None or "replay_buffer" in plan.user_code:
            return super()._store_transition(replay_buffer, buffer_action, new_obs, reward, dones, infos)
        add_quickly(replay_buffer, self._last_obs, new_obs, buffer_action, reward, dones, infos)
        self._last_original_obs, self._last_obs = self._last_obs, new_obs
        return None

    def train(self, gradient_steps: int, batch_size: int | None = None) -> None:
        """Update the networks as SB3's `train`, in one compiled function if the policy and its optimizers allow it."""
        if batch_size is None:
            batch_size = inspect.signature(super().train).parameters["batch_size"].default
        sb3s = super().train

        def by_sb3(gradient_steps: int) -> None:
            with self._session.sb3s_train(self):
                sb3s(gradient_steps, batch_size)

        host_updates.train(self, gradient_steps, batch_size, by_sb3)
