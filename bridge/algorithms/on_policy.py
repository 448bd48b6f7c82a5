"""What bridge.PPO and bridge.A2C share: rollouts and updates as compiled programs, in the place of SB3's own.

Between two programs everything is where SB3 has it: weights and moments in the torch policy, the rollout in the rollout
buffer, statistics in the wrappers. So whatever looks there or changes something there, a callback, a subclass, `save`,
finds and does what it would with SB3.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import logging
import os
from collections.abc import Callable
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any, Self

import gymnasium
import numpy as np
import torch
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import is_wrapped
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.utils import explained_variance
from stable_baselines3.common.vec_env import VecEnv

import jaxenvs
from bridge.buffers.rollout import write_rollout
from bridge.buffers.tensor_rollout import TensorRolloutBuffer
from bridge.engine import stepping, tensors
from bridge.engine.callbacks import looks_at_steps, show_steps
from bridge.engine.channels_last import channels_last
from bridge.engine.collecting import Discounts, Steps, run_rollout
from bridge.engine.compilation import compile_seconds, release_freed_memory
from bridge.engine.plan import Plan, make_plan, require_engine
from bridge.engine.predicting import Predictor
from bridge.engine.updating import Update
from bridge.factory import make_vec_env
from bridge.files import replacing
from bridge.host_env.serial_vec_env import SerialVecEnv
from bridge.randomness import get_random_state, key_data
from bridge.translate.modules import read_parameters
from bridge.vec_env.jax_vec_env import JaxVecEnv
from jaxenvs import Environment, VectorEnv
from jaxenvs.arguments import boolean
from jaxenvs.learn import OnPolicySettings

log = logging.getLogger("bridge")

# Of a model, what belongs to this process alone: neither saved nor pickled.
NOT_SAVED = ("_plan", "_predictor", "_compiling", "_compiled_before", "_compiled_so_far", "_random_before_rollout")


class CompiledOnPolicyAlgorithm(OnPolicyAlgorithm):
    """Mixed into an SB3 algorithm, before it: trains it with compiled programs where these do the same as SB3."""

    engine: str
    pipeline: bool = False  # of a model that was pickled before there was one
    key: np.ndarray
    _plan: Plan | None = None
    _predictor: Predictor | None = None
    _compiling: Future[Any] | None = None
    _compiled_before = 0.0
    _compiled_so_far = 0.0
    _random_before_rollout: Any = None

    def __init__(
        self, policy: Any, env: Any, *args: Any, engine: str = "auto", pipeline: bool = False, **kwargs: Any
    ) -> None:
        """
        Args:
          policy, env, args, kwargs: SB3's. `env` may also be the id of a jaxenvs environment, an Environment or a
            VectorEnv.
          engine: "auto" compiles what it can and falls back for the rest, and logs why: first to a compiled update
            and acting by a program a step, then to the torch policy on tensors that stay on the device, then to SB3's
            own code.
            "xla" raises instead of falling back. "torch" compiles neither policy nor update.
          pipeline: step a ProcessVecEnv in two groups of lanes, of which one acts while the other steps; each lane does
            what it would do without. Where that cannot be, the plan and the log say why.
        """
        self.engine, self.pipeline = require_engine(engine), boolean("pipeline", pipeline)
        super().__init__(policy, _as_vec_env(env), *args, **kwargs)

    # --- Each algorithm's own -----------------------------------------------------------------------------------

    def _settings(self) -> OnPolicySettings:
        """The settings of the present progress, as the compiled engine takes them."""
        raise NotImplementedError

    def _shared_settings(self) -> dict[str, Any]:
        return {
            "n_steps": self.n_steps,
            # As SB3's `_update_learning_rate` left it, which callbacks may change.
            "learning_rate": self.policy.optimizer.param_groups[0]["lr"],
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

    def _record(self, metrics: dict[str, Any]) -> None:
        """Log the metrics of an update, as SB3's `train` does."""
        raise NotImplementedError

    # --- What is compiled ---------------------------------------------------------------------------------------

    @property
    def plan(self) -> Plan:
        """What of the training is compiled, and why the rest is not: `print(model.plan)`.

        Raises:
          NotCompilable: with `engine="xla"`, if not everything can be compiled.
        """
        return self._current_plan(self.env)

    def _current_plan(self, env: VecEnv | None) -> Plan:
        """The plan, made anew if something has changed that callbacks and users may change at any time."""
        pipeline = boolean("pipeline", self.pipeline)
        now = (require_engine(self.engine), self.policy, env, self.rollout_buffer, pipeline)
        if self._plan is None or not self._plan.is_current(*now):
            plan = make_plan(*now)
            if (plan.reasons or plan.not_pipelined) and (self._plan is None or str(plan) != str(self._plan)):
                log.warning("%s", plan)
            self._plan = plan
            self._compile_update(plan)
        return self._plan

    def _compile_update(self, plan: Plan) -> None:
        """Begin to compile the update, beside what the first rollout compiles or takes."""
        # A buffer that SB3 has flattened has other shapes than the one that will be there.
        if plan.updates and not self.rollout_buffer.generator_ready:
            self._compiling = self._update(plan).compile_meanwhile()

    def _update(self, plan: Plan) -> Update:
        assert plan.network is not None
        assert plan.optimizer is not None
        return Update(
            plan.network,
            plan.optimizer,
            self.policy.optimizer,
            plan.parameters,
            self.rollout_buffer,
            self._settings(),
            self.key,
        )

    # --- In SB3's place -----------------------------------------------------------------------------------------

    def _setup_learn(self, *args: Any, **kwargs: Any) -> Any:
        self._compiled_before, self._compiled_so_far = compile_seconds(), 0.0
        if type(self.rollout_buffer) is TensorRolloutBuffer and self.rollout_buffer_class is not TensorRolloutBuffer:
            # It was put there for an engine, which may be another now.
            self.rollout_buffer = self._make_rollout_buffer()
        return super()._setup_learn(*args, **kwargs)

    def collect_rollouts(
        self, env: VecEnv, callback: BaseCallback, rollout_buffer: RolloutBuffer, n_rollout_steps: int
    ) -> bool:
        """SB3's, as one program if the policy and the environments allow it."""
        # Here, and not before callbacks have begun: what these change counts.
        plan = self._current_plan(env)
        if plan.tensors and isinstance(env, JaxVecEnv):
            if not isinstance(rollout_buffer, TensorRolloutBuffer):
                rollout_buffer = self.rollout_buffer = TensorRolloutBuffer.like(rollout_buffer)
            return tensors.collect_rollouts(self, env, callback, rollout_buffer, n_rollout_steps)
        if plan.actor is not None and n_rollout_steps == rollout_buffer.buffer_size:
            self._random_before_rollout = None
            arguments = (env, callback, rollout_buffer, self._steps_of_same_noise())
            return stepping.collect_rollouts(self, plan.actor, plan.acts_as_planned, *arguments, plan.pipelines)
        if plan.network is None or plan.chain is None:
            # SB3 draws the matrices of state-dependent exploration before it calls callbacks, which may save a
            # checkpoint; what continues from there draws them again.
            self._random_before_rollout = get_random_state() if self.use_sde else None
            return super().collect_rollouts(env, callback, rollout_buffer, n_rollout_steps)
        self._random_before_rollout = None
        if self.policy.training:
            self.policy.set_training_mode(False)
        callback.on_rollout_start()
        steps = self._collect(plan, rollout_buffer, n_rollout_steps, watched=looks_at_steps(callback))
        self._record_compile_time()
        if not show_steps(self, plan.chain, callback, rollout_buffer, steps):
            return False
        callback.on_rollout_end()
        return True

    def _make_rollout_buffer(self) -> RolloutBuffer:
        """One as SB3's `_setup_model` makes."""
        assert self.rollout_buffer_class is not None
        return self.rollout_buffer_class(
            self.n_steps,
            self.observation_space,
            self.action_space,
            device=self.device,
            gamma=self.gamma,
            gae_lambda=self.gae_lambda,
            n_envs=self.n_envs,
            **self.rollout_buffer_kwargs,
        )

    def _collect(self, plan: Plan, buffer: RolloutBuffer, n_steps: int, watched: bool) -> Steps:
        """Run the program; leave its results in the environments, the buffer and `_last_obs`.

        Nothing changes before all results are there, so that a rollout that was interrupted did not take place.
        """
        network, chain = plan.network, plan.chain
        assert network is not None
        assert chain is not None
        if self.use_sde:
            # For `predict`, whose noise is PyTorch's, to have the present deviation.
            self.policy.reset_noise(chain.base.num_envs)
        collected = run_rollout(
            network,
            chain,
            read_parameters(plan.parameters),
            self._last_obs,
            self.key,
            n_steps,
            self._steps_of_same_noise(),
            Discounts(self.gamma, buffer.gamma, buffer.gae_lambda),
            keep_final_observation=watched,
        )
        chain.check(collected.steps.wrapper_outputs)
        write_rollout(buffer, collected.rollout, self._last_episode_starts, collected.steps.dones)
        chain.base.write_back(collected.env_state)
        chain.write_back(collected.wrapper_states)
        self.key = collected.key
        self._last_obs = collected.observation
        self._last_episode_starts = np.array(collected.steps.dones[-1])
        return collected.steps

    def train(self) -> None:
        """SB3's, as one program if the policy and its optimiser allow it."""
        plan = self._current_plan(self.env)
        if not plan.updates or isinstance(self.rollout_buffer, TensorRolloutBuffer) or not self.rollout_buffer.full:
            with channels_last(self.policy) if self.engine == "auto" else contextlib.nullcontext():
                return super().train()
        # The policy stays in evaluation mode: no module that is compiled has two, and switching all of them takes time.
        self._update_learning_rate(self.policy.optimizer)
        if self._compiling is not None:
            wait([self._compiling])
            self._compiling = None
        self.key, metrics = self._update(plan).run()
        self._record_compile_time()
        # On the host, where NaN is a number: it is what SB3 logs if the returns do not vary.
        buffer = self.rollout_buffer
        metrics["explained_variance"] = explained_variance(buffer.values.flatten(), buffer.returns.flatten())
        self._record(metrics)

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = False
    ) -> tuple[Any, Any]:
        """SB3's, as one program where the policy has one. Of tensors and JAX arrays, actions are such too.

        Args:
          observation: SB3's; or a tensor or a JAX array, or a dict of them, on whose device the actions will be.
          state, episode_start: SB3's, for recurrent policies alone.
          deterministic: the most likely actions; otherwise they are drawn, from PyTorch's generator.

        Raises:
          ValueError: a tensor or a JAX array is not of the shape of the observations.
        """
        if self._predictor is None or not self._predictor.is_current(self.policy):
            self._predictor = Predictor(self.policy, compiles=self.engine != "torch")
        actions = self._predictor.predict(observation, deterministic)
        if actions is None:
            actions, state = super().predict(observation, state, episode_start, deterministic)
        return actions, state

    # --- Random numbers, files, pickles -------------------------------------------------------------------------

    def set_random_seed(self, seed: int | None = None) -> None:
        """SB3's, and the key from which compiled programs draw.

        Without a seed the key follows from the state of PyTorch's generator, so that whoever has seeded that gets the
        same run again, and nothing is drawn from anybody's generator.
        """
        super().set_random_seed(seed)
        if seed is None:
            seed = int.from_bytes(hashlib.sha256(torch.get_rng_state().numpy().tobytes()).digest()[:4], "little")
        self.key = key_data(seed)

    def _setup_model(self) -> None:
        key = vars(self).get("key")  # of a zip that is being loaded
        super()._setup_model()
        if key is not None:
            self.key = key

    @classmethod
    def load(cls, path: Any, *args: Any, **kwargs: Any) -> Self:
        """SB3's. The random numbers go on from where they were when the model was saved, but for a `seed` given here.

        Args:
          path, args, kwargs: SB3's.
        """
        model = super().load(path, *args, **kwargs)
        if kwargs.get("seed") is not None:
            model.set_random_seed(kwargs["seed"])
        return model

    def save(self, path: Any, *args: Any, **kwargs: Any) -> None:
        """SB3's, but a file is replaced whole or not at all: a full disk or a kill leaves the one from before.

        Args:
          path, args, kwargs: SB3's.
        """
        # SB3 keeps it as an attribute, which tells `evaluate` of a model without its environments.
        self.normalized_observations = _normalizes_observations(self)
        if not isinstance(path, str | os.PathLike) or os.path.isdir(path):
            return super().save(path, *args, **kwargs)
        # As SB3 names it: what looks like a suffix is one.
        with replacing(path if Path(path).suffix else f"{os.fspath(path)}.zip") as unfinished:
            super().save(unfinished, *args, **kwargs)

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), *NOT_SAVED]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in NOT_SAVED}

    @staticmethod
    def _wrap_env(env: Any, verbose: int = 0, monitor_wrapper: bool = True) -> VecEnv:
        env = _as_vec_env(env)
        if isinstance(env, gymnasium.Env):
            # A DummyVecEnv that takes less time, in the place where SB3 would put one.
            lane = env if not monitor_wrapper or is_wrapped(env, Monitor) else Monitor(env)
            env = SerialVecEnv([lambda: lane])
        return OnPolicyAlgorithm._wrap_env(env, verbose, monitor_wrapper)

    # --- Logs ---------------------------------------------------------------------------------------------------

    def _record_std(self) -> None:
        log_std = getattr(self.policy, "log_std", None)
        if log_std is not None:
            self.logger.record("train/std", log_std.detach().exp().mean().item())

    def _record_compile_time(self) -> None:
        seconds = compile_seconds() - self._compiled_before
        if seconds > self._compiled_so_far:
            self._compiled_so_far = seconds
            release_freed_memory()
        self.logger.record("time/compile_s", round(seconds, 2), exclude="tensorboard")


def constructor_like(sb3: type[OnPolicyAlgorithm]) -> Callable[..., None]:
    """`CompiledOnPolicyAlgorithm.__init__` with the parameters of an SB3 algorithm spelled out, and our own."""

    @functools.wraps(CompiledOnPolicyAlgorithm.__init__)
    def __init__(self: CompiledOnPolicyAlgorithm, *args: Any, **kwargs: Any) -> None:
        CompiledOnPolicyAlgorithm.__init__(self, *args, **kwargs)

    signature = inspect.signature(sb3.__init__)
    ours = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=type(default))
        for name, default in (("engine", "auto"), ("pipeline", False))
    ]
    vars(__init__)["__signature__"] = signature.replace(parameters=[*signature.parameters.values(), *ours])
    return __init__


def _as_vec_env(env: Any) -> Any:
    """JAX environments where SB3 would make Gymnasium's; anything else as it is."""
    if isinstance(env, str) and env in jaxenvs.registered():
        return make_vec_env(env)
    return JaxVecEnv(env) if isinstance(env, Environment | VectorEnv) else env


def _normalizes_observations(model: OnPolicyAlgorithm) -> bool:
    normalize = model.get_vec_normalize_env()
    if normalize is None:
        return bool(getattr(model, "normalized_observations", False))
    return bool(normalize.norm_obs)
