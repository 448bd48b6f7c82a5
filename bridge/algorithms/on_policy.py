"""What bridge.PPO and bridge.A2C share: rollouts and updates as compiled programs, in the place of SB3's own.

Between two programs everything is where SB3 has it: weights and moments in the torch policy, the rollout in the rollout
buffer, statistics in the wrappers. So whatever looks there or changes something there, a callback, a subclass, `save`,
finds and does what it would with SB3.
"""

from __future__ import annotations

import contextlib
import inspect
import math
from concurrent.futures import wait
from typing import Any, Self

import jax
import numpy as np
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.utils import explained_variance
from stable_baselines3.common.vec_env import VecEnv

from bridge.algorithms.base import CompiledAlgorithm, as_vec_env
from bridge.buffers.rollout import write_rollout
from bridge.engine.acting import JudgingActor
from bridge.engine.on_policy import host_loop, iteration_program
from bridge.engine.on_policy.rollout_program import Collected, Discounts, run_rollout
from bridge.engine.plan import Mode, Plan, require_engine
from bridge.engine.pytorch_updates import fast_update
from bridge.engine.showing import Steps, show_rollout
from bridge.engine.updates import RolloutUpdate, is_large, leave_policy
from bridge.engine.watching import Pace, looks_at_rollouts, looks_at_steps, quiet_steps
from bridge.randomness import get_random_state
from bridge.wrappers import Chain
from jaxenvs.arguments import boolean
from jaxenvs.learn import OnPolicySettings


class CompiledOnPolicyAlgorithm(CompiledAlgorithm, OnPolicyAlgorithm):
    """Mixed into an SB3 algorithm, before it: trains it with compiled programs where these do the same as SB3."""

    pipeline: bool = False  # of a model that was pickled before there was one
    _compiling_for: Plan | None = None

    def __init__(
        self, policy: Any, env: Any, *args: Any, engine: str = "auto", pipeline: bool = False, **kwargs: Any
    ) -> None:
        """
        Args:
          policy, env, args, kwargs: SB3's. `env` may also be the id of a jaxenvs environment, an Environment or a
            VectorEnv.
          engine: "auto" compiles what it can and falls back for the rest, and logs why: first to a compiled update
            and acting by a program a step, then to SB3's own code. "xla" raises instead of falling back. "torch"
            compiles neither policy nor update.
          pipeline: step a ProcessVecEnv in two groups of lanes, of which one acts while the other steps; each lane does
            what it would do without. Where that cannot be, the plan and the log say why.
        """
        self.engine, self.pipeline = require_engine(engine), boolean("pipeline", pipeline)
        super().__init__(policy, as_vec_env(env), *args, **kwargs)

    # --- Each algorithm's own -----------------------------------------------------------------------------------

    def _settings(self, progress: float, learning_rate: float) -> OnPolicySettings:
        """The settings as the compiled engine takes them, at a `_current_progress_remaining`."""
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
        """For how many steps the noise of actions stays the same: 1, but with state-dependent exploration."""
        if not self.use_sde:
            return 1
        return self.sde_sample_freq if self.sde_sample_freq > 0 else self.n_steps

    def _record(self, settings: Any, metrics: dict[str, Any]) -> None:
        """Log the metrics of an update with these settings, as SB3's `train` does."""
        raise NotImplementedError

    # --- In SB3's place -----------------------------------------------------------------------------------------

    def learn(self, *args: Any, **kwargs: Any) -> Self:
        """SB3's; but iterations run together in one program as long as no callback and no log looks in between.

        Args:
          args, kwargs: SB3's.
        """
        arguments = inspect.signature(super().learn).bind(*args, **kwargs)
        arguments.apply_defaults()
        shown = {"self": self, **arguments.arguments, "iteration": 0}
        log_interval = arguments.arguments.pop("log_interval")
        total_timesteps, callback = self._setup_learn(**arguments.arguments)
        callback.on_training_start({**shown, "total_timesteps": total_timesteps, "callback": callback}, globals())
        with self._learning():
            self._train_until(total_timesteps, callback, log_interval)
        callback.on_training_end()
        return self

    def _train_until(self, total_timesteps: int, callback: BaseCallback, log_interval: int | None) -> None:
        iteration, pace = 0, Pace()
        while self.num_timesteps < total_timesteps:
            assert self.env is not None
            until_log = math.inf
            if log_interval is not None:
                until_log = abs(log_interval) - iteration % abs(log_interval)
            count = pace.next(self._quiet_iterations(callback, total_timesteps, until_log))
            with pace.running(count):
                together = self._iterate(callback, total_timesteps, count) if count else None
            if together is None:
                count = 1
                if not self.collect_rollouts(self.env, callback, self.rollout_buffer, n_rollout_steps=self.n_steps):
                    break
            iteration += count
            self._update_current_progress_remaining(self.num_timesteps, total_timesteps)
            if until_log <= count:
                self.dump_logs(iteration)
            if together is None:
                self.train()
            else:
                self._update_learning_rate(self.policy.optimizer)
                self._record_updates(*together)

    def _quiet_iterations(self, callback: BaseCallback, total_timesteps: int, until_log: float) -> int:
        """How many of the next iterations nobody looks into, neither a callback nor a log; 0: they do not run so."""
        plan, buffer = self._current_plan(self.env), self.rollout_buffer
        if plan.mode is not Mode.PROGRAM or plan.learner is None or plan.others or buffer.buffer_size != self.n_steps:
            return 0
        assert plan.chain is not None
        if not plan.chain.goes_on or is_large(plan.learner, buffer, self) or not self._keeps_observations(plan.chain):
            return 0
        of_all = self.n_steps * self.n_envs
        quiet = quiet_steps(callback, self.num_timesteps, self.n_envs) // self.n_steps
        left = -(-(total_timesteps - self.num_timesteps) // of_all)
        # The log of an iteration comes between its rollout and its update, so there is no other beside it.
        unlogged = max(1, until_log - 1) if self.logger.output_formats else math.inf
        return int(min(quiet, left, unlogged, iteration_program.most_iterations(self.n_steps, self.n_envs)))

    def _keeps_observations(self, chain: Chain) -> bool:
        """Whether the rollout buffer does: it cuts numbers where wrappers give floats for a space of integers."""
        given = jax.tree.leaves(chain.observation_structure())
        space: Any = self.observation_space
        spaces = [space[name] for name in sorted(space)] if hasattr(space, "spaces") else [space]
        return all(np.can_cast(leaf.dtype, each.dtype, "same_kind") for leaf, each in zip(given, spaces))

    def _iterate(
        self, callback: BaseCallback, total_timesteps: int, count: int
    ) -> tuple[list[OnPolicySettings], list[dict[str, Any]]] | None:
        """Run so many iterations, but for their logs. None, and nothing changed, if each has to run by itself.

        Returns:
          The settings and the metrics of each update.
        """
        plan, buffer = self._current_plan(self.env), self.rollout_buffer
        assert plan.chain is not None
        assert plan.learner is not None
        settings = self._settings_ahead(total_timesteps, count)
        discounts = Discounts(self.gamma, buffer.gamma, buffer.gae_lambda)
        together = iteration_program.run_iterations(
            plan, self._last_obs, self.key, settings, self._steps_of_same_noise(), discounts
        )
        if together is None:
            return None
        for _ in range(count if self.use_sde else 0):
            # For `predict`, whose noise is PyTorch's, to have the present deviation.
            self.policy.reset_noise(self.n_envs)
        if self.policy.training:
            self.policy.set_training_mode(False)
        leave_policy(plan.learner, together.learner)
        starts = together.steps.dones[-self.n_steps - 1] if count > 1 else self._last_episode_starts
        write_rollout(buffer, together.rollout, starts, together.steps.dones[-self.n_steps :])
        self._leave(plan.chain, together)
        self._record_compile_time()
        show_rollout(self, plan.chain, callback, buffer, together.steps, watched=False)
        return settings, together.metrics

    def _settings_ahead(self, total_timesteps: int, count: int) -> list[OnPolicySettings]:
        """The settings of the next updates, as they will be at the progress of each."""
        settings = []
        for i in range(1, count + 1):
            num_timesteps = self.num_timesteps + i * self.n_steps * self.n_envs
            progress = 1.0 - float(num_timesteps) / float(total_timesteps)
            settings.append(self._settings(progress, self.lr_schedule(progress)))
        return settings

    def _record_updates(self, all_settings: list[OnPolicySettings], all_metrics: list[dict[str, Any]]) -> None:
        """Log updates, the last of which learnt from what is in the rollout buffer."""
        # On the host, where NaN is a number: it is what SB3 logs if the returns do not vary.
        buffer = self.rollout_buffer
        all_metrics[-1]["explained_variance"] = explained_variance(buffer.values.flatten(), buffer.returns.flatten())
        for settings, metrics in zip(all_settings, all_metrics, strict=True):
            self._record(settings, metrics)

    def collect_rollouts(
        self, env: VecEnv, callback: BaseCallback, rollout_buffer: RolloutBuffer, n_rollout_steps: int
    ) -> bool:
        """SB3's, as one program if the policy and the environments allow it."""
        # Here, and not before callbacks have begun: what these change counts.
        plan = self._current_plan(env)
        self._compile_update(plan)
        self._random_before_rollout = None
        if plan.mode is Mode.ACTING and n_rollout_steps == rollout_buffer.buffer_size:
            assert isinstance(plan.actor, JudgingActor)
            return host_loop.collect_rollouts(self, plan, env, callback, rollout_buffer, self._steps_of_same_noise())
        if plan.mode is not Mode.PROGRAM:
            # SB3 draws the matrices of state-dependent exploration before it calls callbacks, which may save a
            # checkpoint; what continues from there draws them again.
            self._random_before_rollout = get_random_state() if self.use_sde else None
            self._hand_over()  # callbacks run in SB3's loop
            return super().collect_rollouts(env, callback, rollout_buffer, n_rollout_steps)
        if self.policy.training:
            self.policy.set_training_mode(False)
        if looks_at_rollouts(callback):
            rollout_buffer.reset()  # of which nobody else sees anything
        callback.on_rollout_start()
        watched = looks_at_steps(callback)
        if watched:
            self._hand_over()
            plan = self._current_plan(env)
            if plan.mode is not Mode.PROGRAM:  # any more, and the rollout has begun
                same_noise = self._steps_of_same_noise()
                return host_loop.collect_rollouts(self, plan, env, callback, rollout_buffer, same_noise, has_begun=True)
        assert plan.chain is not None
        steps = self._collect(plan, rollout_buffer, n_rollout_steps, watched)
        self._record_compile_time()
        goes_on = show_rollout(self, plan.chain, callback, rollout_buffer, steps, watched)
        if goes_on:
            callback.on_rollout_end()
        if watched:
            self._hand_over()
        return goes_on

    def _collect(self, plan: Plan, buffer: RolloutBuffer, n_steps: int, watched: bool) -> Steps:
        """Run the program; leave its results in the environments, the buffer and `_last_obs`.

        Nothing changes before all results are there, so that a rollout that was interrupted did not take place.
        """
        chain = plan.chain
        assert chain is not None
        if self.use_sde:
            # For `predict`, whose noise is PyTorch's, to have the present deviation.
            self.policy.reset_noise(chain.base.num_envs)
        collected = run_rollout(
            plan,
            self._last_obs,
            self.key,
            n_steps,
            self._steps_of_same_noise(),
            Discounts(self.gamma, buffer.gamma, buffer.gae_lambda),
            keep_final_observation=watched,
        )
        chain.check(collected.steps.wrapper_outputs)
        write_rollout(buffer, collected.rollout, self._last_episode_starts, collected.steps.dones)
        self._leave(chain, collected)
        return collected.steps

    def _leave(self, chain: Chain, ran: Collected | iteration_program.Iterated) -> None:
        """Leave the environments, and where the model is in them, where a program ended."""
        chain.base.write_back(ran.env_state)
        chain.write_back(ran.wrapper_states)
        self.key = ran.key
        self._last_obs = ran.observation
        self._last_episode_starts = np.array(ran.steps.dones[-1])

    def _compile_update(self, plan: Plan) -> None:
        """Begin to compile the update, beside what the first rollout compiles or takes."""
        # A buffer that SB3 has flattened has other shapes than the one that will be there; and schedules of others are
        # asked as often as SB3 asks them.
        is_ready = plan.learner is not None and not plan.others and not self.rollout_buffer.generator_ready
        if self._compiling_for is not plan and is_ready:
            self._compiling = self._update(plan, self._settings_now()).compile_meanwhile()
        self._compiling_for = plan

    def _settings_now(self) -> OnPolicySettings:
        # The rate is as SB3's `_update_learning_rate` left it, which callbacks may change.
        return self._settings(self._current_progress_remaining, self.policy.optimizer.param_groups[0]["lr"])

    def _update(self, plan: Plan, settings: OnPolicySettings) -> RolloutUpdate:
        return RolloutUpdate(plan, self.rollout_buffer, settings, self.key)

    def train(self) -> None:
        """SB3's, as one program if the policy and its optimiser allow it."""
        plan = self._current_plan(self.env)
        if plan.learner is None or not self.rollout_buffer.full:
            with fast_update(self.policy) if self.engine == "auto" else contextlib.nullcontext():
                return super().train()
        # The policy stays in evaluation mode: no module that is compiled has two, and switching all of them takes time.
        self._update_learning_rate(self.policy.optimizer)
        if self._compiling is not None:
            wait([self._compiling])
            self._compiling = None
        settings = self._settings_now()
        self.key, metrics = self._update(plan, settings).run()
        self._record_compile_time()
        self._record_updates([settings], [metrics])
        return None

    def _record_std(self) -> None:
        log_std = getattr(self.policy, "log_std", None)
        if log_std is not None:
            self.logger.record("train/std", log_std.detach().exp().mean().item())
