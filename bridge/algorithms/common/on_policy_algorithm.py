"""Base class of PPO, A2C and sb3-contrib's variants of PPO: compiled rollouts and updates instead of SB3's loops.

    iteration:  rollout  ->  callbacks  ->  log  ->  update
    compiled:   one function for the rollout and one for the update, or, if no callback and no log needs to see a step
                or an update in between, one function for several iterations
    a callback looks, or an announced step is in the rollout: SB3's own loop, with compiled acting, and the update

Weights, moments and statistics are where SB3 has them at any time. A callback, a subclass or `save` therefore reads
current values, and what it writes there takes effect, as with SB3.
"""

from __future__ import annotations

import math
from concurrent.futures import wait
from typing import Any, ClassVar

import numpy as np
from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.utils import explained_variance
from stable_baselines3.common.vec_env import VecEnv

from bridge.algorithms.common.compiled_algorithm import CompiledAlgorithm
from bridge.engine.already_called import already_called
from bridge.engine.callbacks.callback_schedule import Pace
from bridge.engine.callbacks.known import looks, needs_rollouts, rollouts_per_call, steps_until_needed
from bridge.engine.callbacks.taken_steps import count_steps
from bridge.engine.on_policy import compiled_training, sb3_loop
from bridge.engine.on_policy.device_arrays import on_device, stays_on_device
from bridge.engine.on_policy.host_loop import HostRollout, can_evaluate_later
from bridge.engine.on_policy.jax_rollout import OnJax
from bridge.engine.plan import Mode, Plan
from bridge.engine.rollout_buffer import read_rollout
from bridge.engine.runtime import compile_meanwhile
from bridge.engine.update import rollout_update, run_update
from bridge.engine.user_code.signals import handlers_wait
from bridge.randomness import get_random_state
from bridge.sb3 import Infos
from jaxenvs.learn import OnPolicySettings, Rollout


class CompiledOnPolicyAlgorithm(CompiledAlgorithm, OnPolicyAlgorithm):
    """Base class of compiled on-policy algorithms, mixed in before the SB3 class.

    It trains with compiled functions where these compute the same as SB3, and with SB3's code elsewhere: see `plan`.
    """

    _locals_of_learn: ClassVar[dict[str, object]] = {"iteration": 0}
    # The classes of rollout buffers that a compiled rollout can fill and a compiled update can read.
    ROLLOUT_BUFFERS: ClassVar[tuple[type, ...]] = (RolloutBuffer, DictRolloutBuffer)
    # Whether the policy supports action masks; `_masks`: whether they are used now.
    MASKS: ClassVar[bool] = False
    _masks: bool = False
    # While SB3's loop collects on JAX environments, what it needs of the compiled rollout.
    _on_jax: OnJax | None = None
    # Whether `on_rollout_start` has been called for the next rollout.
    _has_begun = False
    _compiling_for: Plan | None = None

    # --- Overridden by each algorithm ---------------------------------------------------------------------------

    def _settings(self, progress: float, learning_rate: float) -> OnPolicySettings:
        """Return the settings for compiled functions, at a `_current_progress_remaining`."""
        raise NotImplementedError

    def _shared_settings(self) -> dict[str, Any]:
        return {
            "n_steps": self.n_steps,
            "gamma": self.gamma,
            "gae_lambda": self.gae_lambda,
            "ent_coef": self.ent_coef,
            "vf_coef": self.vf_coef,
            "max_grad_norm": self.max_grad_norm,
            "sde_sample_freq": self._steps_of_same_noise(),
        }

    def _steps_of_same_noise(self) -> int:
        """Return for how many steps the noise of actions stays the same: 1, except with state-dependent exploration."""
        if not self.use_sde:
            return 1
        return self.sde_sample_freq if self.sde_sample_freq > 0 else self.n_steps

    def _record(self, settings: Any, metrics: dict[str, float]) -> None:
        """Log the metrics of an update with these settings, as SB3's `train` does."""
        raise NotImplementedError

    # --- SB3's methods ------------------------------------------------------------------------------------------

    def _train_until(self, total_timesteps: int, callback: BaseCallback, log_interval: int | None) -> None:
        iteration, pace, self._has_begun = 0, Pace(), False  # also after an iteration that Ctrl-C has ended
        while self.num_timesteps < total_timesteps:
            assert self.env is not None
            until_log = math.inf if log_interval is None else abs(log_interval) - iteration % abs(log_interval)
            plan = self._current_plan(self.env)
            count = pace.next(self._iterations_ahead(plan, callback, total_timesteps, until_log))
            if count:
                log_at = iteration + count if until_log <= count else None
                with pace.running(count):
                    can_continue = self._iterate(callback, total_timesteps, count, log_at)
                if can_continue is not None:
                    if not can_continue:
                        break
                    iteration += count
                    continue
            further = {"use_masking": self._masks} if self.MASKS else {}
            if not self.collect_rollouts(
                self.env, callback, self.rollout_buffer, n_rollout_steps=self.n_steps, **further
            ):
                break
            iteration += 1
            self._update_current_progress_remaining(self.num_timesteps, total_timesteps)
            if until_log <= 1:
                self.dump_logs(iteration)
            self.train()

    def _iterations_ahead(self, plan: Plan, callback: BaseCallback, total_timesteps: int, until_log: float) -> int:
        """Return how many of the next iterations can run in one compiled function; 0 if they cannot be combined.

        No callback and no log needs to see a step of these iterations before their end.
        """
        most = compiled_training.most_iterations(self, plan)
        if not most or looks(callback):
            return 0
        until_needed = steps_until_needed(callback, self.num_timesteps, self.n_envs) // self.n_steps
        left = -(-(total_timesteps - self.num_timesteps) // (self.n_steps * self.n_envs))
        # SB3 logs between the rollout and the update of an iteration, so a logged iteration must be the last, or run
        # alone.
        unlogged = max(1, until_log - 1) if self.logger.output_formats else math.inf
        return int(min(until_needed, left, unlogged, most, rollouts_per_call(callback)))

    def _iterate(self, callback: BaseCallback, total_timesteps: int, count: int, log_at: int | None) -> bool | None:
        """Run `count` iterations in one compiled function, and show the callback what it needs of them.

        Args:
          log_at: the number of the last iteration, if it is logged.

        Returns:
          False if the callback stops training. None if each iteration must run alone; nothing has changed then.
        """
        self._start_rollout(callback)
        plan = self._current_plan(self.env)
        collected = None
        if compiled_training.most_iterations(self, plan):  # unless `on_rollout_start` has changed the plan
            settings = self._settings_ahead(total_timesteps, count)
            collected = compiled_training.run_iterations(self, plan, settings)
        if collected is None:
            return None
        self._has_begun = False
        with handlers_wait():  # otherwise a handler could find new weights but old counts of steps
            compiled_training.write_back(self, plan, self.rollout_buffer, collected)
            self._record_compile_time()
            can_continue = count_steps(self, self._session, plan, callback, collected.steps)
            self._update_current_progress_remaining(self.num_timesteps, total_timesteps)
            if log_at is not None:
                self.dump_logs(log_at)
            self._update_learning_rate(self.policy.optimizer)
            self._record_updates(settings, collected.metrics)
        if can_continue:
            self._end_rollout(callback)
        return can_continue

    def _start_rollout(self, callback: BaseCallback) -> None:
        """Call the callback's `on_rollout_start`, if it does something there, and note that it has been called."""
        if not self._has_begun and needs_rollouts(callback):
            self.rollout_buffer.reset()
            callback.on_rollout_start()
            self._has_begun = True
            self._session.forget()

    def _end_rollout(self, callback: BaseCallback) -> None:
        if needs_rollouts(callback):
            callback.on_rollout_end()
            self._session.forget()

    def _settings_ahead(self, total_timesteps: int, count: int) -> list[OnPolicySettings]:
        """Return the settings of the next updates, at the training progress that each of them will have."""
        settings = []
        for i in range(1, count + 1):
            num_timesteps = self.num_timesteps + i * self.n_steps * self.n_envs
            progress = 1.0 - float(num_timesteps) / float(total_timesteps)
            settings.append(self._settings(progress, self.lr_schedule(progress)))
        return settings

    def _record_updates(self, all_settings: list[OnPolicySettings], all_metrics: list[dict[str, float]]) -> None:
        """Log updates, the last of which learned from what is in the rollout buffer."""
        # Computed on the host, where NaN is allowed: SB3 logs NaN if the returns do not vary.
        buffer = self.rollout_buffer
        all_metrics[-1]["explained_variance"] = explained_variance(buffer.values.flatten(), buffer.returns.flatten())
        for settings, metrics in zip(all_settings, all_metrics, strict=True):
            self._record(settings, metrics)

    def collect_rollouts(
        self, env: VecEnv, callback: BaseCallback, rollout_buffer: RolloutBuffer, n_rollout_steps: int
    ) -> bool:
        """Collect a rollout as SB3 does, in one compiled function if the policy and the environments allow it."""
        # The plan is read here, after `on_training_start`, because callbacks may have changed what it depends on.
        plan = self._current_plan(env)
        self._session.device_arrays = None  # the buffer is about to be overwritten
        stays = stays_on_device(self, plan, env, callback)
        self._compile_update(plan, stays)
        self._random_before_rollout = None
        sb3s, further = super().collect_rollouts, (self._masks,) if self.MASKS else ()
        has_begun, self._has_begun = self._has_begun, False
        is_quiet = has_begun or (
            not looks(callback)
            and steps_until_needed(callback, self.num_timesteps, self.n_envs) >= n_rollout_steps
            and n_rollout_steps == rollout_buffer.buffer_size
        )
        if is_quiet and plan.mode is Mode.COMPILED:
            self._has_begun = has_begun
            self._start_rollout(callback)
            has_begun, self._has_begun = self._has_begun, False
            plan = self._current_plan(env)
            if plan.mode is Mode.COMPILED:
                return self._collect_compiled(plan, callback, rollout_buffer)
        if has_begun or (is_quiet and plan.mode is Mode.ACTING and can_evaluate_later(plan, env, stays)):
            return HostRollout(self, self._session, plan, env, callback, rollout_buffer, stays).run(has_begun)
        # SB3 draws the matrices of state-dependent exploration before it calls callbacks, which may save a checkpoint.
        # A training that continues from the checkpoint draws them again, so it needs the states from before.
        self._random_before_rollout = get_random_state() if self.use_sde else None
        return sb3_loop.collect_rollouts(
            sb3s, self, self._session, env, callback, rollout_buffer, n_rollout_steps, *further
        )

    def _collect_compiled(self, plan: Plan, callback: BaseCallback, rollout_buffer: RolloutBuffer) -> bool:
        if self.policy.training:
            self.policy.set_training_mode(False)
        collected = compiled_training.run_rollout(self, plan, rollout_buffer)
        with handlers_wait():
            compiled_training.write_back(self, plan, rollout_buffer, collected)
            self._record_compile_time()
            if not count_steps(self, self._session, plan, callback, collected.steps):
                return False
        self._end_rollout(callback)
        return True

    def _update_info_buffer(self, infos: Infos, dones: np.ndarray | None = None) -> None:
        if self._on_jax is not None and dones is not None:
            self._on_jax.ended(infos, dones)
        super()._update_info_buffer(infos, dones)

    def _compile_update(self, plan: Plan, stays_on_device: bool) -> None:
        """Start compiling the update in a thread, while the first rollout is compiled or collected."""
        # Not if SB3 has flattened the buffer, because the next rollout has other shapes. Not with user code, because
        # custom schedules must be called exactly as often as SB3 calls them.
        is_ready = plan.learner is not None and not plan.user_code and not self.rollout_buffer.generator_ready
        if self._compiling_for is not plan and is_ready:
            rollout = on_device(read_rollout(self.rollout_buffer)) if stays_on_device else None
            self._compiling = compile_meanwhile(*self._update(plan, self._settings_now(), rollout))
        self._compiling_for = plan

    def _settings_now(self) -> OnPolicySettings:
        # The learning rate that SB3's `_update_learning_rate` has set, and that callbacks may change.
        return self._settings(self._current_progress_remaining, self.policy.optimizer.param_groups[0]["lr"])

    def _update(self, plan: Plan, settings: OnPolicySettings, rollout: Rollout | None) -> tuple[Any, ...]:
        return rollout_update(plan, self.rollout_buffer, settings, self.key, self._n_updates, rollout)

    def train(self) -> None:
        """Update the policy as SB3's `train`, in one compiled function if the policy and its optimizer allow it."""
        plan = self._current_plan(self.env)
        if plan.learner is None or not self.rollout_buffer.full:
            with self._session.sb3s_train(self):
                return super().train()
        # The policy stays in evaluation mode: no compiled module behaves differently in training mode, and switching
        # takes time.
        self._update_learning_rate(self.policy.optimizer)
        settings = self._settings_now()
        if plan.user_code:  # which may have changed anything
            settings = settings.replace(learning_rate=self.policy.optimizer.param_groups[0]["lr"])
            before, plan = plan, self._current_plan(self.env)
            if plan.learner is None or not self.rollout_buffer.full:
                with self._session.sb3s_train(self), already_called(self, before, settings):
                    return super().train()
        if self._compiling is not None:
            wait([self._compiling])
            self._compiling = None
        arrays = self._session.device_arrays
        with handlers_wait():
            rollout = None if arrays is None else arrays.read()
            self.key, metrics, _ = run_update(plan, *self._update(plan, settings, rollout))
        self._record_compile_time()
        self._record_updates([settings], [metrics])
        return None

    def _record_std(self) -> None:
        log_std = getattr(self.policy, "log_std", None)
        if log_std is not None:
            self.logger.record("train/std", log_std.detach().exp().mean().item())
