"""What bridge.PPO and bridge.A2C share: rollouts and updates as compiled programs, in the place of SB3's own.

Between two programs everything is where SB3 has it: weights and moments in the torch policy, the rollout in the rollout
buffer, statistics in the wrappers. So whatever looks there or changes something there, a callback, a subclass, `save`,
finds and does what it would with SB3.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import logging
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, Self, cast

import jax
import numpy as np
from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import VecEnv

import jaxenvs
from bridge.buffers.tensor_rollout import TensorRolloutBuffer
from bridge.engine import tensors
from bridge.engine.callbacks import replay
from bridge.engine.compilation import compile_meanwhile, compile_seconds
from bridge.engine.rollouts import LARGE_UPDATE, Steps, fill, programs, rollout_in, to_host
from bridge.translate.optimizers import export_optimizer, read_optimizer, write_optimizer
from bridge.translate.policies import ExportedPolicy, NotCompilable, export_policy, read_parameters, write_parameters
from bridge.vec_env.factory import make_vec_env
from bridge.vec_env.jax_vec_env import JaxVecEnv
from bridge.wrappers.compiled_env import CompiledEnv
from jaxenvs import Environment, VectorEnv
from jaxenvs.learn import LearnerState, OnPolicy

ENGINES = ("auto", "xla", "torch")

# Those that a compiled rollout fills.
BUFFERS = (RolloutBuffer, DictRolloutBuffer, TensorRolloutBuffer)

log = logging.getLogger("bridge")


@dataclasses.dataclass
class Plan:
    """How a model trains.

    Attributes:
      network, optimizer: if the update is compiled.
      env: if collecting is compiled.
      tensors: whether to collect with the torch policy on tensors that stay on the device.
      reasons: why not everything is compiled.
    """

    network: ExportedPolicy | None = None
    optimizer: Any = None
    env: CompiledEnv | None = None
    tensors: bool = False
    reasons: list[str] = dataclasses.field(default_factory=list)

    def __str__(self) -> str:
        is_compiled = self.env is not None and self.network is not None
        collects = "tensors on the device" if self.tensors else "XLA" if is_compiled else "SB3's code"
        updates = "SB3's code" if self.optimizer is None else "XLA"
        return f"Collecting by {collects}, updating by {updates}: {' '.join(self.reasons)}"


class CompiledOnPolicyAlgorithm(OnPolicyAlgorithm):
    """Mixed into an SB3 algorithm, before it: trains it with compiled programs where these do the same as SB3."""

    engine: str
    _compiling: Future[Any] | None = None
    _compiled_before = 0.0

    def __init__(self, policy: Any, env: Any, *args: Any, engine: str = "auto", **kwargs: Any) -> None:
        """
        Args:
          policy, env, args, kwargs: SB3's. `env` may also be the id of a jaxenvs environment, an Environment or a
            VectorEnv.
          engine: "auto" compiles what it can and falls back for the rest, and logs why: first to a compiled update
            with SB3's collection, then to the torch policy on tensors that stay on the device, then to SB3's own code.
            "xla" raises instead of falling back. "torch" compiles neither policy nor update.
        """
        self.engine = _checked(engine)
        self._plan: Plan | None = None
        self._planned_for: tuple[Any, ...] = ()
        super().__init__(policy, _as_vec_env(env), *args, **kwargs)

    # --- Each algorithm's own -----------------------------------------------------------------------------------

    def _learner(self, **common: Any) -> OnPolicy:
        """The settings as the compiled engine takes them."""
        raise NotImplementedError

    def _record(self, metrics: dict[str, Any]) -> None:
        """Log the metrics of an update, as SB3's `train` does."""
        raise NotImplementedError

    def noise_steps(self, n_steps: int) -> int:
        """For how many steps of a rollout the noise of actions stays the same: 1, but with state-dependent exploration.

        Args:
          n_steps: of the rollout.
        """
        if not self.use_sde:
            return 1
        return self.sde_sample_freq if self.sde_sample_freq > 0 else n_steps

    # --- In SB3's place -----------------------------------------------------------------------------------------

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

    @staticmethod
    def _wrap_env(env: Any, verbose: int = 0, monitor_wrapper: bool = True) -> VecEnv:
        return OnPolicyAlgorithm._wrap_env(_as_vec_env(env), verbose, monitor_wrapper)

    def collect_rollouts(
        self, env: VecEnv, callback: BaseCallback, rollout_buffer: RolloutBuffer, n_rollout_steps: int
    ) -> bool:
        """SB3's, as one program if the policy and the environments allow it."""
        plan = self._planned(env)
        # Not as the plan says: it may have changed, but the buffer changes between calls of learn only.
        if isinstance(rollout_buffer, TensorRolloutBuffer) and type(env) is JaxVecEnv:
            return tensors.collect_rollouts(self, env, callback, rollout_buffer, n_rollout_steps)
        if isinstance(rollout_buffer, TensorRolloutBuffer) or plan.env is None or plan.network is None:
            return super().collect_rollouts(env, callback, rollout_buffer, n_rollout_steps)
        if self.policy.training:
            self.policy.set_training_mode(False)
        callback.on_rollout_start()
        steps = self._collect(plan.network, plan.env, rollout_buffer, n_rollout_steps)
        self._record_compile_time()
        if not replay(self, plan.env, callback, rollout_buffer, steps):
            return False
        callback.on_rollout_end()
        return True

    def train(self) -> None:
        """SB3's, as one program if the policy and its optimiser allow it."""
        plan = self._planned(self.env)
        has_tensors = isinstance(self.rollout_buffer, TensorRolloutBuffer)
        if has_tensors or plan.network is None or plan.optimizer is None:
            return super().train()
        # The policy stays in evaluation mode: no module that is compiled has two, and switching all of them takes time.
        self._update_learning_rate(self.policy.optimizer)
        metrics = self._update(plan.network, plan.optimizer)
        self._record_compile_time()
        self._record(metrics)

    def _setup_model(self) -> None:
        key = vars(self).get("key")  # of a zip that is being loaded
        super()._setup_model()
        if key is not None:
            self.key = key

    def set_random_seed(self, seed: int | None = None) -> None:
        """SB3's, and the key from which compiled programs draw."""
        super().set_random_seed(seed)
        if seed is None:
            seed = int(np.random.randint(2**31))  # noqa: NPY002
        self.key = np.array(jax.random.key_data(jax.random.key(seed)))

    def _setup_learn(self, *args: Any, **kwargs: Any) -> Any:
        self._compiled_before = compile_seconds()
        plan = self._planned(self.env, anew=True)
        has_tensors = isinstance(self.rollout_buffer, TensorRolloutBuffer)
        if plan.tensors and not has_tensors:
            self.rollout_buffer = TensorRolloutBuffer.like(self.rollout_buffer)
        elif has_tensors and not plan.tensors:
            self.rollout_buffer = self._make_rollout_buffer()
        self._compile_update(plan)
        return super()._setup_learn(*args, **kwargs)

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

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "_plan", "_planned_for", "_compiling", "_compiled_before"]

    # --- What is compiled, and why not --------------------------------------------------------------------------

    def _planned(self, env: VecEnv | None, anew: bool = False) -> Plan:
        """The plan, made anew if asked to, or if something changed that callbacks change."""
        optimizer = self.policy.optimizer
        frozen = [not parameter.requires_grad for group in optimizer.param_groups for parameter in group["params"]]
        now = (self.engine, self.policy, optimizer, frozen, env, type(self.rollout_buffer) in BUFFERS)
        if self._plan is None or anew or now != self._planned_for:
            plan = self._make_plan(env)
            if plan.reasons and (self._plan is None or str(plan) != str(self._plan)):
                log.warning("%s", plan)
            self._plan, self._planned_for = plan, now
        return self._plan

    def _make_plan(self, env: VecEnv | None) -> Plan:
        plan = Plan()
        own_buffer = type(self.rollout_buffer) in BUFFERS
        if not own_buffer:
            plan.reasons.append(f"The rollout buffer is a {type(self.rollout_buffer).__name__}, not SB3's.")
        if _checked(self.engine) == "torch":
            plan.tensors = own_buffer and type(env) is JaxVecEnv
            return plan
        if own_buffer:
            try:
                plan.network = _first_of_its_kind(export_policy(self.policy))
                if plan.network.has_active_dropout:
                    plan.reasons.append("Dropout is random in an update; a compiled one has none.")
                else:
                    plan.optimizer = export_optimizer(self.policy.optimizer)
            except NotCompilable as reason:
                plan.reasons.append(str(reason))
            try:
                plan.env = CompiledEnv(env) if env is not None else None
            except NotCompilable as reason:
                plan.reasons.append(str(reason))
        if self.engine == "xla" and plan.reasons:
            raise NotCompilable(f'engine="xla" cannot compile this model: {" ".join(plan.reasons)}')
        # On a CPU NumPy arrays are tensors without a copy, and SB3's own loop is the faster one.
        on_cpu = jax.default_backend() == "cpu"
        plan.tensors = own_buffer and plan.network is None and type(env) is JaxVecEnv and not on_cpu
        return plan

    # --- Collecting ---------------------------------------------------------------------------------------------

    def _collect(self, network: ExportedPolicy, env: CompiledEnv, rollout_buffer: RolloutBuffer, n_steps: int) -> Steps:
        """Run the program; leave its results in the environments, the buffer and `_last_obs`.

        Nothing changes before all results are there, so that a rollout that was interrupted did not take place.
        """
        if self.use_sde:
            # For `predict`, whose noise is PyTorch's, to have the present deviation.
            self.policy.reset_noise(env.base.num_envs)
        learner = self._learner(
            venv=env.base.venv,
            network=network,
            n_steps=n_steps,
            noise_steps=self.noise_steps(n_steps),
            total_timesteps=0,
        )
        packed, *results = programs().collect(
            env.base.programs.state,
            env.changes_observations,
            learner,
            read_parameters(self.policy),
            env.base.packed_state,
            env.observation_of(self._last_obs),
            env.normalizer(),
            self.key,
        )
        key, normalizer, rollout, steps = to_host(results)
        env.base.go_on_from(packed)
        self.key = np.array(key)
        env.put_back(normalizer, steps.raw_observation, steps.raw_rewards[-1])
        fill(rollout_buffer, rollout, self._last_episode_starts, steps.dones)
        self._last_obs = jax.tree.map(np.array, env.as_given(steps.last_observation))
        self._last_episode_starts = np.array(steps.dones[-1])
        return cast(Steps, steps)

    # --- Updating -----------------------------------------------------------------------------------------------

    def _update(self, network: ExportedPolicy, optimizer: Any) -> dict[str, Any]:
        """Run the program on what is in the buffer; leave its results in the policy and its optimiser."""
        if self._compiling is not None:
            wait([self._compiling])
            self._compiling = None
        state, key, metrics = to_host(self._update_program(network)(*self._update_arguments(network, optimizer)))
        write_parameters(self.policy, state.params)
        write_optimizer(self.policy.optimizer, state.optimizer_state)
        self.key = np.array(key)
        return {name: value.item() for name, value in metrics.items()}

    def _update_program(self, network: ExportedPolicy) -> Any:
        size = self.n_steps * self.n_envs
        rows = min(getattr(self, "batch_size", size), size)
        is_large = rows * network.num_parameters >= LARGE_UPDATE
        return programs().large_update if is_large else programs().update

    def _update_arguments(self, network: ExportedPolicy, optimizer: Any) -> tuple[Any, ...]:
        learner = self._learner(
            venv=None,
            network=network,
            optimizer=optimizer,
            learning_rate=self.policy.optimizer.param_groups[0]["lr"],
            total_timesteps=0,
        )
        state = LearnerState(read_parameters(self.policy), read_optimizer(self.policy.optimizer))
        return learner, state, rollout_in(self.rollout_buffer), self.key

    def _compile_update(self, plan: Plan) -> None:
        """Begin to compile the update, beside what the first rollout compiles."""
        buffer = self.rollout_buffer
        # A buffer that SB3 has flattened has other shapes than the one that will be there.
        if plan.network is not None and plan.optimizer is not None and not buffer.generator_ready:
            arguments = self._update_arguments(plan.network, plan.optimizer)
            self._compiling = compile_meanwhile(self._update_program(plan.network), *arguments)

    def _record_std(self) -> None:
        log_std = getattr(self.policy, "log_std", None)
        if log_std is not None:
            self.logger.record("train/std", log_std.detach().exp().mean().item())

    def _record_compile_time(self) -> None:
        seconds = compile_seconds() - self._compiled_before
        self.logger.record("time/compile_s", round(seconds, 2), exclude="tensorboard")


def constructor_like(sb3: type[OnPolicyAlgorithm]) -> Callable[..., None]:
    """`CompiledOnPolicyAlgorithm.__init__` with the parameters of an SB3 algorithm spelled out, and `engine`."""

    @functools.wraps(CompiledOnPolicyAlgorithm.__init__)
    def __init__(self: CompiledOnPolicyAlgorithm, *args: Any, **kwargs: Any) -> None:
        CompiledOnPolicyAlgorithm.__init__(self, *args, **kwargs)

    signature = inspect.signature(sb3.__init__)
    engine = inspect.Parameter("engine", inspect.Parameter.KEYWORD_ONLY, default="auto", annotation=str)
    vars(__init__)["__signature__"] = signature.replace(parameters=[*signature.parameters.values(), engine])
    return __init__


@functools.lru_cache(maxsize=64)
def _first_of_its_kind(network: ExportedPolicy) -> ExportedPolicy:
    """Of equal ones always the same, because JAX compares them in every call of a program, deeply if it must."""
    return network


def _checked(engine: str) -> str:
    if engine not in ENGINES:
        raise ValueError(f"engine must be one of {', '.join(map(repr, ENGINES))}, got {engine!r}.")
    return engine


def _as_vec_env(env: Any) -> Any:
    """JAX environments where SB3 would make Gymnasium's; anything else as it is."""
    if isinstance(env, str) and env in jaxenvs.registered():
        return make_vec_env(env)
    return JaxVecEnv(env) if isinstance(env, Environment | VectorEnv) else env
