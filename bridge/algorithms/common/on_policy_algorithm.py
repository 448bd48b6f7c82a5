"""Base class of PPO, A2C and sb3-contrib's variants of PPO: compiled rollouts and updates instead of SB3's loops.

    iteration:  rollout  ->  callbacks see its steps  ->  log  ->  update
    compiled:   one function for the rollout and one for the update, or, if no callback and no log needs to see a step
                or an update in between, one function for several iterations

Between two compiled functions everything is where SB3 has it: weights in the torch policy, the rollout in the rollout
buffer, statistics in the wrappers, and moments in the optimizer before any user code runs (see Learner). A callback, a
subclass or `save` therefore reads current values, and what it writes there takes effect, as with SB3.
"""

from __future__ import annotations

import math
from concurrent.futures import wait
from typing import Any, ClassVar

from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.utils import explained_variance
from stable_baselines3.common.vec_env import VecEnv

from bridge.algorithms.common.compiled_algorithm import CompiledAlgorithm
from bridge.engine.callbacks.callback_replay import show_rollout
from bridge.engine.callbacks.callback_schedule import Pace, steps_until_needed
from bridge.engine.on_policy import compiled_training
from bridge.engine.on_policy.host_loop import HostRollout
from bridge.engine.plan import Mode, Plan
from bridge.engine.runtime import compile_meanwhile, keep_freed_memory
from bridge.engine.session import CallbackDoor
from bridge.engine.update import rollout_update, update_from_rollout
from bridge.randomness import get_random_state
from jaxenvs.learn import OnPolicySettings


class CompiledOnPolicyAlgorithm(CompiledAlgorithm, OnPolicyAlgorithm):
    """Base class of compiled on-policy algorithms, mixed in before the SB3 class.

    It trains with compiled functions where these compute the same as SB3, and with SB3's code elsewhere: see `plan`.
    """

    _locals_of_learn: ClassVar[dict[str, Any]] = {"iteration": 0}
    # The classes of rollout buffers that a compiled rollout can fill and a compiled update can read.
    ROLLOUT_BUFFERS: ClassVar[tuple[type, ...]] = (RolloutBuffer, DictRolloutBuffer)
    # Whether the policy supports action masks; `_masks`: whether they are used now.
    MASKS: ClassVar[bool] = False
    # Whether callbacks get the locals at the end of a rollout, in addition to the locals of its last step.
    SHOWS_ROLLOUT_END: ClassVar[bool] = True
    _masks: bool = False
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

    def _train_until(self, total_timesteps: int, door: CallbackDoor, log_interval: int | None) -> None:
        iteration, pace = 0, Pace()
        while self.num_timesteps < total_timesteps:
            assert self.env is not None
            until_log = math.inf if log_interval is None else abs(log_interval) - iteration % abs(log_interval)
            plan = self._current_plan(self.env)
            count = pace.next(self._iterations_ahead(plan, door.callback, total_timesteps, until_log))
            log_at = iteration + count if until_log <= count else None
            with pace.running(count):
                if count and self._iterate(plan, door, total_timesteps, count, log_at):
                    iteration += count
                    continue
            further = {"use_masking": self._masks} if self.MASKS else {}
            if not self.collect_rollouts(
                self.env, door.callback, self.rollout_buffer, n_rollout_steps=self.n_steps, **further
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
        until_needed = steps_until_needed(callback, self.num_timesteps, self.n_envs) // self.n_steps if most else 0
        left = -(-(total_timesteps - self.num_timesteps) // (self.n_steps * self.n_envs))
        # SB3 logs between the rollout and the update of an iteration, so a logged iteration must be the last, or run
        # alone.
        unlogged = max(1, until_log - 1) if self.logger.output_formats else math.inf
        return int(min(until_needed, left, unlogged, most))

    def _iterate(self, plan: Plan, door: CallbackDoor, total_timesteps: int, count: int, log_at: int | None) -> bool:
        """Run `count` iterations in one compiled function. Return False, with nothing changed, if each must run alone.

        Args:
          log_at: the number of the last iteration, if it is logged.
        """
        settings = self._settings_ahead(total_timesteps, count)
        collected = compiled_training.run_iterations(self, plan, settings)
        if collected is None:
            return False
        signals = self._session.signals
        with signals.waiting():  # otherwise a handler could find new weights but old counts of steps
            compiled_training.write_back(self, plan, self.rollout_buffer, collected)
            self._record_compile_time()
            show_rollout(self, collected.wrapped_env, door, self.rollout_buffer, collected.steps, False, signals)
            self._update_current_progress_remaining(self.num_timesteps, total_timesteps)
            if log_at is not None:
                self.dump_logs(log_at)
            self._update_learning_rate(self.policy.optimizer)
            self._record_updates(settings, collected.metrics)
        return True

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
        self._compile_update(plan)
        self._random_before_rollout = None
        door, same_noise = CallbackDoor(self._session, callback), self._steps_of_same_noise()
        if plan.mode is Mode.ACTING and n_rollout_steps == rollout_buffer.buffer_size:
            return HostRollout(self, plan, env, door, rollout_buffer, same_noise).run()
        if plan.mode is not Mode.COMPILED:
            # SB3 draws the matrices of state-dependent exploration before it calls callbacks, which may save a
            # checkpoint. A training that continues from the checkpoint draws them again, so it needs the states from
            # before.
            self._random_before_rollout = get_random_state() if self.use_sde else None
            further = (self._masks,) if self.MASKS else ()
            with self._session.user_code():  # callbacks run in SB3's loop
                return super().collect_rollouts(env, callback, rollout_buffer, n_rollout_steps, *further)
        if self.policy.training:
            self.policy.set_training_mode(False)
        if door.needs_rollouts:
            rollout_buffer.reset()
        door.on_rollout_start()
        plan = self._current_plan(env)
        if plan.mode is not Mode.COMPILED:  # `on_rollout_start` has changed the plan
            return HostRollout(self, plan, env, door, rollout_buffer, same_noise).run(has_begun=True)
        needs_steps, signals = door.needs_steps, self._session.signals
        collected = compiled_training.run_rollout(
            self, plan, rollout_buffer, n_rollout_steps, keeps_final_observation=needs_steps
        )
        with signals.waiting():
            compiled_training.write_back(self, plan, rollout_buffer, collected)
            self._record_compile_time()
            wrapped_env, steps = collected.wrapped_env, collected.steps
            return show_rollout(self, wrapped_env, door, rollout_buffer, steps, needs_steps, signals)

    def _compile_update(self, plan: Plan) -> None:
        """Start compiling the update in a thread, while the first rollout is compiled or collected."""
        # Not if SB3 has flattened the buffer, because the next rollout has other shapes. Not with user code, because
        # custom schedules must be called exactly as often as SB3 calls them.
        is_ready = plan.learner is not None and not plan.user_code and not self.rollout_buffer.generator_ready
        if self._compiling_for is not plan and is_ready:
            self._compiling = compile_meanwhile(*self._update(plan, self._settings_now()))
        self._compiling_for = plan

    def _settings_now(self) -> OnPolicySettings:
        # The learning rate that SB3's `_update_learning_rate` has set, and that callbacks may change.
        return self._settings(self._current_progress_remaining, self.policy.optimizer.param_groups[0]["lr"])

    def _update(self, plan: Plan, settings: OnPolicySettings) -> tuple[Any, ...]:
        return rollout_update(plan, self.rollout_buffer, settings, self.key, self._n_updates)

    def train(self) -> None:
        """Update the policy as SB3's `train`, in one compiled function if the policy and its optimizer allow it."""
        plan = self._current_plan(self.env)
        if plan.learner is None or not self.rollout_buffer.full:
            if self.engine == "auto" and self.device.type == "cpu":
                keep_freed_memory()
            with self._session.user_code():  # SB3's code, and hooks in the policy
                return super().train()
        # The policy stays in evaluation mode: no compiled module behaves differently in training mode, and switching
        # takes time.
        self._update_learning_rate(self.policy.optimizer)
        if self._compiling is not None:
            wait([self._compiling])
            self._compiling = None
        settings = self._settings_now()
        with self._session.signals.waiting():
            self.key, metrics = update_from_rollout(plan, self._session.on_device, *self._update(plan, settings))
        self._record_compile_time()
        self._record_updates([settings], [metrics])
        return None

    def _record_std(self) -> None:
        log_std = getattr(self.policy, "log_std", None)
        if log_std is not None:
            self.logger.record("train/std", log_std.detach().exp().mean().item())
