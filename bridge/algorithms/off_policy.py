"""What off-policy algorithms share: acting, storing and updating as compiled programs, in the place of SB3's.

On JAX environments all three are one program, over as many steps as nobody looks at. On any other environment acting is
a program a step, and the updates that fall due together are one. Wherever code of others may run, everything is
where SB3 has it: see `CompiledAlgorithm._hand_over`.
"""

from __future__ import annotations

import contextlib
import inspect
import math
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.noise import ActionNoise
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.type_aliases import RolloutReturn, TrainFreq, TrainFrequencyUnit
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer as SB3sHerReplayBuffer

from bridge.algorithms.base import CompiledAlgorithm, SavePath
from bridge.engine.acting import Actor
from bridge.engine.compilation import HeldInterrupt
from bridge.engine.off_policy import host_loop
from bridge.engine.off_policy.program import most_steps, run_steps, update_from_samples
from bridge.engine.plan import Mode
from bridge.engine.pytorch_updates import fast_update
from bridge.engine.showing import show_steps
from bridge.engine.steps import Ran
from bridge.engine.watching import Pace, looks_at_each_step, looks_at_rollouts, looks_at_steps, quiet_steps
from bridge.errors import NotCompilable
from bridge.randomness import get_random_state
from bridge.replay import HerReplayBuffer, PrioritizedReplayBuffer, ReplayBuffer
from bridge.sb3 import SB3S_BUFFERS, Infos, NStepReplayBuffer
from bridge.translate.action_noise import export_noise_if_known, leave_noise_state, noise_state
from jaxenvs.learn.off_policy.driver import Progress
from jaxenvs.learn.off_policy.settings import OffPolicySettings

# So many gradient steps are one program on the host. More are several.
MOST_TOGETHER = 128
# Added to errors that become priorities, so that nothing is drawn never again.
LEAST_PRIORITY = 1e-6


class CompiledOffPolicyAlgorithm(CompiledAlgorithm, OffPolicyAlgorithm):
    """Mixed into an SB3 algorithm, before it: trains it with compiled programs where these do the same as SB3."""

    # Where the training is between two updates: a checkpoint in between goes on from there.
    _iteration = 0
    _step_of_iteration = 0
    _update_is_due = False
    # How many of a rollout were taken in programs before the host goes on with it; None if it begins there.
    _steps_begun: int | None = None
    _episodes_before_iteration = 0

    # --- Each algorithm's own -----------------------------------------------------------------------------------

    def _settings_now(self) -> OffPolicySettings:
        """The settings of now, as the compiled engine takes them."""
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

    @property
    def _frequency(self) -> TrainFreq:
        assert isinstance(self.train_freq, TrainFreq)  # which SB3's `_setup_model` makes of it
        return self.train_freq

    def _record(self, metrics: dict[str, float], num_before: int) -> None:
        """Log the means of updates, as SB3's `train` does.

        Args:
          num_before: how many updates there were before these.
        """
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        num_averaged = self._settings_now().num_averaged
        for name, value in metrics.items():
            if num_averaged(name, num_before, self._n_updates):
                self.logger.record(f"train/{name}", value)

    def _calls_of_interval(self) -> int:
        """How many steps each environment took, by which DQN counts; modulo whatever it counts to."""
        return 0

    def _exploration_rates(self, progress_remaining: np.ndarray) -> np.ndarray:
        """The share of random actions in each of the next steps, given what remained before it."""
        return np.zeros(progress_remaining.shape)

    def _count_step(self) -> None:
        """What SB3's `_on_step` counts and logs, but for the targets, which the program has updated."""

    # --- Files ------------------------------------------------------------------------------------------------------

    def _setup_model(self) -> None:
        # Before SB3 makes one of its own; it still names the class, so that a zip says nothing of this package.
        # A HerReplayBuffer without environments is refused, by SB3.
        is_hindsight = self.replay_buffer_class is SB3sHerReplayBuffer
        knows_class = self.replay_buffer_class in SB3S_BUFFERS and (self.env is not None or not is_hindsight)
        if self.engine != "torch" and self.replay_buffer is None and knows_class:
            arguments: dict[str, Any] = {}
            ours: type[Any] = ReplayBuffer
            if is_hindsight:
                ours, arguments = HerReplayBuffer, {"env": self.env}
            if self.replay_buffer_class is None and getattr(self, "n_steps", 1) > 1:
                arguments = {"n_steps": self.n_steps, "gamma": self.gamma}
            elif self.replay_buffer_class is not None and self.replay_buffer_class is NStepReplayBuffer:
                parameters = inspect.signature(NStepReplayBuffer).parameters
                arguments = {name: parameters[name].default for name in ("n_steps", "gamma")}
            self.replay_buffer = ours(
                self.buffer_size,
                self.observation_space,
                self.action_space,
                device=self.device,
                n_envs=self.n_envs,
                optimize_memory_usage=self.optimize_memory_usage,
                **{**arguments, **self.replay_buffer_kwargs},
            )
        super()._setup_model()

    def load_replay_buffer(self, path: SavePath, truncate_last_traj: bool = True) -> None:
        """SB3's. Where one of SB3's own buffers was saved, there is one of bridge's that holds the same."""
        super().load_replay_buffer(path, truncate_last_traj)
        assert self.replay_buffer is not None
        if self.engine != "torch" and type(self.replay_buffer) in SB3S_BUFFERS:
            ours: Any = HerReplayBuffer if type(self.replay_buffer) is SB3sHerReplayBuffer else ReplayBuffer
            self.replay_buffer = ours.from_sb3(self.replay_buffer)

    # --- In one program -----------------------------------------------------------------------------------------

    def go_on_with(self, action_noise: ActionNoise | None) -> None:
        """Let the next `learn` go on with an action noise as it is, which SB3's lets begin anew."""
        self._noise_to_go_on_with = action_noise

    def _setup_learn(self, *args: Any, **kwargs: Any) -> tuple[int, BaseCallback]:
        noise = vars(self).pop("_noise_to_go_on_with", None)
        given = super()._setup_learn(*args, **kwargs)
        if noise is not None and self.num_timesteps:
            self.action_noise = noise  # which SB3 lets begin anew
        assert self.replay_buffer is not None
        # A zip may have been saved before an update; and without what this learns from.
        if self.num_timesteps == 0 or (self._update_is_due and not self.replay_buffer.size()):
            self._begin_iteration()
        return given

    def _train_until(self, total_timesteps: int, callback: BaseCallback, log_interval: int | None) -> None:
        if getattr(self.train, "__func__", None) is CompiledOffPolicyAlgorithm.train:
            self._require_weights_known()  # before anybody waits for the first update
        pace, goes_on = Pace(), True
        try:
            while goes_on and (self.num_timesteps < total_timesteps or self._step_of_iteration):
                if self._current_plan(self.env).mode is Mode.PROGRAM:
                    goes_on = self._run_steps(callback, log_interval, pace)
                else:
                    goes_on = self._iterate(callback, log_interval)
            if goes_on:
                self._update_if_due()
        except Exception:
            self._begin_iteration()  # as in SB3, what it left undone stays so; after Ctrl-C nothing is lost
            raise
        self._begin_iteration()

    def _update_if_due(self) -> None:
        """The update for which a program waits until its next step."""
        if not self._update_is_due:
            return
        plan = self._current_plan(self.env)
        if plan.mode is not Mode.PROGRAM:  # any more
            self.train(batch_size=self.batch_size, gradient_steps=self._settings_now().num_updates(self.n_envs))
            self._update_is_due = False
            return
        with HeldInterrupt() as held:
            self._record_trained(run_steps(self, plan, 0, math.inf, is_watched=False), begun=0)
        held.deliver()

    def _iterate(self, callback: BaseCallback, log_interval: int | None, has_begun: bool = False) -> bool:
        """One iteration of SB3's `learn`.

        Args:
          has_begun: whether the callback has been told that its rollout starts.
        """
        self._update_if_due()  # of a program, whose place this takes
        # A mode that changes within an iteration takes the rest of it.
        self._steps_begun = self._step_of_iteration if has_begun or self._step_of_iteration else None
        self._begin_iteration()
        assert self.env is not None
        rollout = self.collect_rollouts(
            self.env,
            train_freq=self._frequency,
            action_noise=self.action_noise,
            callback=callback,
            learning_starts=self.learning_starts,
            replay_buffer=self.replay_buffer,
            log_interval=log_interval,
        )
        if rollout.continue_training and self.num_timesteps > self.learning_starts:
            gradient_steps = self.gradient_steps if self.gradient_steps >= 0 else rollout.episode_timesteps
            if gradient_steps > 0:
                self.train(batch_size=self.batch_size, gradient_steps=gradient_steps)
        return rollout.continue_training

    def _run_steps(self, callback: BaseCallback, log_interval: int | None, pace: Pace) -> bool:
        """Run the program for as many steps as nobody looks at, and show them. False if the callback says stop."""
        train_freq, num_envs, begun = self._frequency.frequency, self.n_envs, self._step_of_iteration
        to_end, watched = train_freq - begun, looks_at_each_step(callback)
        # Elsewhere than between two iterations nobody is shown a program but a QuietCallback.
        if begun == 0 or not watched:
            if looks_at_rollouts(callback):
                self._update_if_due()  # as SB3 does before a rollout starts
                self._hand_over()
            callback.on_rollout_start()
            if looks_at_rollouts(callback):
                self._hand_over()
        plan = self._current_plan(self.env)
        if plan.mode is not Mode.PROGRAM:  # any more, and the rollout has begun
            return self._iterate(callback, log_interval, has_begun=True)
        if watched:
            steps = to_end
        else:
            left = max(0, -(-(self._total_timesteps - self.num_timesteps) // num_envs) - to_end)
            # The iteration that reaches the end is finished, as by SB3.
            steps = to_end + -(-left // train_freq) * train_freq
            quiet = quiet_steps(callback, self.num_timesteps, num_envs, shows_ends=True)
            steps = pace.next(min(steps, most_steps(num_envs), quiet + 1))
        # A log looks at the step that ends an episode.
        episodes = math.inf
        if log_interval is not None and self.logger.output_formats:
            episodes = abs(log_interval) - self._episode_num % abs(log_interval)
        learning_starts = self.learning_starts
        with HeldInterrupt() as held:
            with pace.running(steps):
                ran = run_steps(self, plan, steps, episodes, watched, looks_at_steps(callback))
            self._record_trained(ran, begun)
            goes_on = show_steps(self, callback, log_interval, ran, watched, held)
        if looks_at_steps(callback):
            self._hand_over()
        held.deliver()
        if not goes_on:
            return False
        if self._step_of_iteration == 0 or not watched:
            callback.on_rollout_end()
            if looks_at_rollouts(callback):
                self._hand_over()
        if self.learning_starts != learning_starts and self._step_of_iteration == 0:  # a callback has changed it
            self._update_is_due = self.num_timesteps > self.learning_starts and self.gradient_steps != 0
        return True

    def _record_trained(self, ran: Ran, begun: int) -> None:
        """Log the last update of a program, and leave its learning rate where SB3 leaves that.

        Args:
          begun: how many steps of the iteration there were before the program.
        """
        self._record_compile_time()
        if ran.num_updated:
            progress = self._current_progress_remaining
            # Before which step of the program it was.
            last_update = ran.count - 1 - (begun + ran.count - 1) % self._frequency.frequency
            if last_update > 0:
                num_timesteps = self.num_timesteps + last_update * self.n_envs
                self._update_current_progress_remaining(num_timesteps, self._total_timesteps)
            self._update_learning_rate(self._optimizers())
            self._current_progress_remaining = progress
            self._record(ran.metrics, self._n_updates - ran.num_updated * self._settings_now().num_updates(self.n_envs))

    def _optimizers(self) -> list[torch.optim.Optimizer] | torch.optim.Optimizer:
        """What SB3's `train` gives to `_update_learning_rate`."""
        learner = self._current_plan(self.env).learner
        assert learner is not None
        return list(learner.optimizers.values())

    def _begin_iteration(self) -> None:
        # What was drawn for one that was broken off is not to be drawn again.
        self._iteration += self._step_of_iteration > 0
        self._step_of_iteration, self._update_is_due = 0, False

    def _progress(self) -> tuple[Progress, np.ndarray | None, np.ndarray]:
        """Where the training is, for the driver; the state of the action noise; and the key."""
        progress = Progress(
            iteration=np.int32(self._iteration),
            step=np.int32(self._step_of_iteration),
            is_due=np.bool_(self._update_is_due),
            # Beyond what an int32 holds only the order of steps counts, and that learning has started.
            num_timesteps=np.int32(min(self.num_timesteps, 2**30)),
            calls=np.int32(self._calls_of_interval()),
        )
        return progress, noise_state(self.action_noise, self.n_envs), self.key

    def _leave_progress(self, progress: Progress, action_noise: np.ndarray | None) -> None:
        self._iteration, self._step_of_iteration = int(progress.iteration), int(progress.step)
        self._update_is_due = bool(progress.is_due)
        leave_noise_state(self.action_noise, action_noise)

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
        """SB3's, with acting as one program a step if the policy allows it."""
        plan = self._current_plan(self.env)
        begun, self._steps_begun = self._steps_begun, None
        rest = replay_buffer, action_noise, learning_starts, log_interval
        # With state-dependent exploration SB3 draws before it calls callbacks, which may save a checkpoint.
        self._random_before_rollout = get_random_state() if self.use_sde else None
        if plan.actor is None:
            self._hand_over()  # callbacks run in SB3's loop
            taken = begun or 0
            left = train_freq._replace(frequency=train_freq.frequency - taken)
            rollout = super().collect_rollouts(env, callback, left, *rest)
            return rollout._replace(episode_timesteps=rollout.episode_timesteps + taken * env.num_envs)
        plan.actor.refresh()
        return host_loop.collect_rollouts(self, env, callback, train_freq, *rest, begun)

    def _sample_action(
        self, learning_starts: int, action_noise: ActionNoise | None = None, n_envs: int = 1
    ) -> tuple[np.ndarray, np.ndarray]:
        plan = self._plan
        is_random = self.num_timesteps < learning_starts
        if is_random or plan is None or plan.actor is None or self.use_sde or "predict" in plan.others:
            return super()._sample_action(learning_starts, action_noise, n_envs)
        if not self._is_sure:
            if not plan.acts_as_planned(self.policy):
                return super()._sample_action(learning_starts, action_noise, n_envs)
            plan.actor.refresh()
        return self._act(plan.actor, action_noise, n_envs)

    def _act(self, actor: Actor, action_noise: ActionNoise | None, n_envs: int) -> tuple[np.ndarray, np.ndarray]:
        """Actions as environments take them, and as they are stored."""
        noise = actor.draw_noise(n_envs, 1, 1)
        scaled, _ = actor.act(self._last_obs, noise if noise is None else noise[0])
        scaled = scaled.reshape(-1, *self.action_space.shape)  # type: ignore[misc]
        if action_noise is not None:
            scaled = np.clip(scaled + action_noise(), -1, 1)
        return self.policy.unscale_action(scaled), np.array(scaled)

    def _store_transition(
        self,
        replay_buffer: Any,
        buffer_action: np.ndarray,
        new_obs: Any,
        reward: np.ndarray,
        dones: np.ndarray,
        infos: Infos,
    ) -> None:
        plan = self._plan
        if self._vec_normalize_env is not None or dones.any() or plan is None or "replay_buffer" in plan.others:
            return super()._store_transition(replay_buffer, buffer_action, new_obs, reward, dones, infos)
        # SB3 copies the observation first, which our buffers and its own do again, and looks at each lane.
        replay_buffer.add(self._last_obs, new_obs, buffer_action, reward, dones, infos)
        self._last_original_obs = self._last_obs = new_obs
        return None

    def _require_weights_known(self) -> None:
        """
        Raises:
          NotCompilable: the buffer has priorities, and updates are SB3's, which know nothing of weights.
        """
        plan = self._current_plan(self.env)
        if plan.learner is None and isinstance(self.replay_buffer, PrioritizedReplayBuffer):
            raise NotCompilable(
                "A PrioritizedReplayBuffer needs compiled updates, or a train of your own that knows weights: "
                + " ".join(plan.reasons)
            )

    def train(self, gradient_steps: int, batch_size: int | None = None) -> None:
        """SB3's, as one program if the policy and its optimisers allow it."""
        if batch_size is None:
            batch_size = inspect.signature(super().train).parameters["batch_size"].default
        plan, buffer = self._current_plan(self.env), self.replay_buffer
        if plan.learner is None or buffer is None:
            self._require_weights_known()
            with fast_update(self.policy) if self.engine == "auto" else contextlib.nullcontext():
                return super().train(gradient_steps, batch_size)
        self._update_learning_rate(self._optimizers())
        keep, num_before = self._is_sure, self._n_updates
        settings = self._settings_now().replace(learning_rate=plan.learner.learning_rates())
        # Where their number depends on how long an episode was, each number would be a program of its own.
        is_fixed = self.gradient_steps > 0 or self._frequency.unit is TrainFrequencyUnit.STEP
        # And what comes next is drawn by the errors of what came before.
        prioritized = buffer if isinstance(buffer, PrioritizedReplayBuffer) else None
        most = MOST_TOGETHER if is_fixed and prioritized is None else 1
        sums: dict[str, float] = {}
        for first in range(0, gradient_steps, most):
            num, before = min(most, gradient_steps - first), self._n_updates
            samples: list[Any] = [buffer.sample(batch_size, env=self._vec_normalize_env) for _ in range(num)]
            self.key, metrics, errors = update_from_samples(
                plan, settings, before, samples, self.action_space, self.key, first, keep
            )
            self._n_updates += num
            if prioritized is not None and errors is not None:
                prioritized.update_priorities(samples[0].indices, errors[0] + LEAST_PRIORITY)
            for name, value in metrics.items():
                sums[name] = sums.get(name, 0.0) + value * settings.num_averaged(name, before, self._n_updates)
        self._record_compile_time()
        counts = {name: settings.num_averaged(name, num_before, self._n_updates) for name in sums}
        self._record({name: total / max(counts[name], 1) for name, total in sums.items()}, num_before)
        return None
