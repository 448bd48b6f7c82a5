"""Base class of all of bridge's algorithms: the engine, `predict`, random numbers, files and pickles."""

from __future__ import annotations

import hashlib
import inspect
import io
import os
import time
import warnings
from concurrent.futures import Future
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback, CallbackList, ConvertCallback
from stable_baselines3.common.env_util import is_wrapped
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.save_util import load_from_zip_file
from stable_baselines3.common.type_aliases import MaybeCallback
from stable_baselines3.common.vec_env import VecEnv

from bridge.algorithms.common.constructor_arguments import Policy
from bridge.algorithms.common.predicting import Predictor
from bridge.configuration import with_own_settings, without_dynamo
from bridge.engine.choices import is_slower_compiled, require_engine
from bridge.engine.plan import Plan
from bridge.engine.runtime import compile_seconds, release_freed_memory
from bridge.engine.session import Session
from bridge.engine.user_code.overrides import inner_environments, register
from bridge.environment_ids import is_jax_id
from bridge.factory import make_vec_env
from bridge.host_env.serial_vec_env import SerialVecEnv
from bridge.randomness import get_random_state, key_data
from bridge.translate.policies.off_policy import flatten_networks
from bridge.vec_env.jax_vec_env import JaxVecEnv
from jaxenvs import Environment, VectorEnv
from jaxenvs.compilation.cache import configure_by_default
from jaxenvs.files import replacing

SavePath = str | Path | io.BufferedIOBase
Class = TypeVar("Class", bound=type)

# Attributes of a model that belong to this process only. They are neither saved nor pickled.
NOT_SAVED = (
    *("_own_session", "_predictor", "_compiling", "_compiling_for", "_random_before_rollout", "_read_schedules"),
    *("_collects_on_jax", "_steps_on_jax", "_settings_on_jax", "_noise_on_jax", "_on_jax", "_has_begun", "_masks"),
    *("metrics", "_compiled_before", "_compiled_so_far", "_recorded_at"),
)


class CompiledAlgorithm(BaseAlgorithm):
    """Base class of all compiled algorithms, mixed in before the SB3 class, and with its attributes and methods."""

    engine: str
    # The argument `device`: "cpu", "cuda", or "auto" also for any other.
    asked_device: str = "auto"
    key: np.ndarray
    # Whether the model was trained on observations that a VecNormalize had normalized. `evaluate` without one reads it.
    normalized_observations: bool = False
    # What `train_seeds` stores for `plot_results`: arrays (num_rows,) with the names of `jaxenvs.learn.advance`.
    metrics: dict[str, np.ndarray] | None = None
    # Local variables of SB3's `learn` besides its arguments, which callbacks see.
    _locals_of_learn: ClassVar[dict[str, object]] = {}
    _own_session: Session | None = None
    _predictor: Predictor | None = None
    _compiling: Future[object] | None = None
    _compiled_before = _compiled_so_far = 0.0
    _recorded_at = 0
    _random_before_rollout: dict[str, object] | None = None

    @with_own_settings
    def __init__(self, policy: Policy, env: Any, *args: Any, engine: str = "auto", **kwargs: Any) -> None:
        """Create the model, with SB3's arguments and `engine`.

        Args:
          policy, env, args, kwargs: SB3's. `env` may also be the id of a jaxenvs environment, an Environment or a
            VectorEnv. Where SB3 would create a replay buffer of SB3, a `jaxenvs.sb3.ReplayBuffer` is created. `device`
            is also where compiled functions run, if JAX has a GPU; with "auto", where they run faster (docs/gpu.md).
          engine: "auto" compiles what it can, falls back for the rest, and logs why: it falls back first to one
            compiled function that acts, called at every step, and another that updates, then to SB3's own code. "xla"
            raises an error instead of falling back. "torch" compiles nothing.
        """
        self.engine = require_engine(engine)
        self.asked_device = str(kwargs.get("device", "auto")).partition(":")[0]
        given, env = env, as_vec_env(env)
        if isinstance(given, str) and env is not given and kwargs.get("verbose", 0) >= 1:
            print(f"Creating environment from the given name '{given}'")  # as SB3 does
        super().__init__(policy, env, *args, **kwargs)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}, num_timesteps={vars(self).get('num_timesteps')}>"

    # --- What is compiled ---------------------------------------------------------------------------------------

    @property
    def _session(self) -> Session:
        """The model's session, created at first use, because SB3's `load` does not call `__init__`."""
        if self._own_session is None:
            self._own_session = Session()
        return self._own_session

    @property
    @with_own_settings
    def plan(self) -> Plan:
        """The execution plan: which parts of training are compiled, and why the others are not.

        `print(model.plan)` shows it.

        Raises:
          NotCompilable: with `engine="xla"`, if not everything can be compiled.
        """
        self._session.forget()  # user code that reads it may have changed what it depends on
        return self._current_plan(self.env)

    def _current_plan(self, env: VecEnv | None) -> Plan:
        return self._session.current_plan(self, env)

    # --- SB3's methods ----------------------------------------------------------------------------------------------

    @with_own_settings
    def learn(self, *args: object, **kwargs: object) -> Self:
        """Train the model as SB3's `learn`, with the same arguments.

        Whole iterations run in one compiled function as long as no callback and no log needs to see a step in between.
        """
        arguments = inspect.signature(super().learn).bind(*args, **kwargs)  # type: ignore[safe-super]
        arguments.apply_defaults()
        shown = {"self": self, **arguments.arguments, **self._locals_of_learn}
        log_interval = arguments.arguments.pop("log_interval")
        total_timesteps, callback = self._setup_learn(**arguments.arguments)
        callback.on_training_start({**shown, "total_timesteps": total_timesteps, "callback": callback}, globals())
        with self._session.training(callback, self.env):
            self._train_until(total_timesteps, callback, log_interval)
        callback.on_training_end()
        return self

    def _train_until(self, total_timesteps: int, callback: BaseCallback, log_interval: int | None) -> None:
        """Run the loop of SB3's `learn` until `total_timesteps`."""
        raise NotImplementedError

    def _init_callback(self, callback: MaybeCallback, progress_bar: bool = False) -> BaseCallback:
        *_, inner = inner_environments(self.env)
        default = getattr(inner, "default_callback", None)
        if default is not None and not _has_callback(callback, default):
            others = callback if isinstance(callback, list) else [] if callback is None else [callback]
            callback = [
                default(),
                *(each if isinstance(each, BaseCallback) else ConvertCallback(each) for each in others),
            ]
        with warnings.catch_warnings():
            # EvalCallback compares classes. A JaxVecEnv is where SB3 would have made a DummyVecEnv of an id.
            if isinstance(self.env, JaxVecEnv):
                warnings.filterwarnings(
                    "ignore", r"Training and eval env are not of the same type.*\.DummyVecEnv object"
                )
            return super()._init_callback(callback, progress_bar)

    def _setup_learn(self, *args: Any, **kwargs: Any) -> tuple[int, BaseCallback]:
        self._compiled_before, self._compiled_so_far = compile_seconds(), 0.0
        self._recorded_at = time.time_ns()
        return super()._setup_learn(*args, **kwargs)

    def predict(
        self, observation: object, state: object = None, episode_start: object = None, deterministic: bool = False
    ) -> tuple[Any, Any]:
        """Return the policy's actions for an observation, and the next state, as SB3's `predict`.

        It is compiled where possible, and where neither the weights nor a tensor are on a GPU. For tensors and JAX
        arrays, the actions have the same type and device.

        Args:
          observation: one observation or a batch, as SB3 takes it; or a tensor or a JAX array, or a dict of these.
          state, episode_start: SB3's, which only recurrent policies use.
          deterministic: return the most likely actions instead of drawing them from PyTorch's generator.

        Returns:
          The actions, and the next state of a recurrent policy; for other policies, `state` unchanged.

        Raises:
          ValueError: a tensor or a JAX array does not have the shape of the observations.
        """
        return self._predict(observation, state, episode_start, deterministic)

    @with_own_settings
    def _predict(
        self, observation: object, state: object, episode_start: object, deterministic: bool, **further: object
    ) -> tuple[Any, object]:
        """Return the actions and the state: compiled if the policy has a translation, otherwise by SB3's code.

        Args:
          further: further arguments of this algorithm's `predict` in SB3 or sb3-contrib.
        """
        if self._predictor is None or not self._predictor.is_current(self.policy):
            self._predictor = Predictor(self.policy, self.engine != "torch", self.asked_device)
        given = self._predictor.predict(observation, deterministic, state, episode_start, **further)
        if given is None:
            given = self._predict_by_sb3(observation, state, episode_start, deterministic, **further)
        return given

    def _predict_by_sb3(
        self, observation: Any, state: Any, episode_start: Any, deterministic: bool, **further: object
    ) -> tuple[Any, object]:
        return super().predict(observation, state, episode_start, deterministic, **further)

    # --- Random numbers, files, pickles -------------------------------------------------------------------------

    @with_own_settings
    def set_random_seed(self, seed: int | None = None) -> None:
        """Seed everything that SB3 seeds, and the key from which compiled functions draw.

        Without a seed the key is computed from the state of PyTorch's generator, so that a script that seeds PyTorch
        repeats its run, and nothing is drawn from any generator.

        Args:
          seed: None: see above.
        """
        super().set_random_seed(seed)
        if seed is None:
            seed = int.from_bytes(hashlib.sha256(torch.get_rng_state().numpy().tobytes()).digest()[:4], "little")
        self.key = key_data(seed)

    @property
    def random_before_rollout(self) -> dict[str, object]:
        """The states of the random generators with which the next rollout begins, for a checkpoint.

        With state-dependent exploration, SB3's loop draws random numbers before it calls callbacks. The states are
        those from before these draws.
        """
        return self._random_before_rollout or get_random_state()

    def _setup_model(self) -> None:
        if self.engine != "torch":
            configure_by_default()
        key = vars(self).get("key")  # set if a zip is being loaded
        self._require_dicts_for_multi_input()
        with without_dynamo():
            super()._setup_model()  # type: ignore[safe-super]
        if self.engine != "torch" and not is_slower_compiled(self.policy):
            flatten_networks(self.policy)
        if key is not None:
            self.key = key

    def _require_dicts_for_multi_input(self) -> None:
        """Raise a ValueError for a MultiInputPolicy of other observations, which SB3's features extractor needs."""
        names = [name for name, cls in self.policy_aliases.items() if cls is self.policy_class and "MultiInput" in name]
        has_own = "features_extractor_class" in (self.policy_kwargs or {})
        if names and not has_own and not isinstance(self.observation_space, spaces.Dict):
            kind = names[0].removeprefix("MultiInput")
            raise ValueError(
                f"You must use `Mlp{kind}`, or `Cnn{kind}` for images, when working with the observation space "
                f"{self.observation_space}, not {names[0]}, which needs a Dict."
            )

    @classmethod
    @with_own_settings
    def load(cls, path: SavePath, *args: Any, **kwargs: Any) -> Self:
        """Load a model as SB3's `load`, with the same arguments.

        Random numbers continue from where they were when the model was saved, unless a `seed` is passed here.

        Raises:
          ValueError: the zip is from a model of another algorithm, with another kind of policy.
        """
        try:
            model = super().load(path, *args, **kwargs)
        except (AttributeError, KeyError, TypeError):
            _require_zip_of(cls, path)  # these errors do not say that the zip is from another algorithm
            raise
        if kwargs.get("seed") is not None:
            model.set_random_seed(kwargs["seed"])
        return model

    def get_parameters(self) -> dict[str, dict[str, Any]]:
        """Return the weights and the states of the optimizers, as SB3 does."""
        with without_dynamo():
            return super().get_parameters()

    def set_parameters(self, *args: Any, **kwargs: Any) -> None:
        """Set the weights and the states of the optimizers, as SB3 does, with the same arguments."""
        with without_dynamo():
            super().set_parameters(*args, **kwargs)

    def save(self, path: SavePath, *args: Any, **kwargs: Any) -> None:
        """Save the model as SB3's `save`, with the same arguments.

        A file is replaced as a whole or not at all: if the disk is full or the process is killed, the previous file
        remains.
        """
        if (normalize := self.get_vec_normalize_env()) is not None:
            self.normalized_observations = bool(normalize.norm_obs)
        if not isinstance(path, str | os.PathLike) or os.path.isdir(path):
            return super().save(path, *args, **kwargs)
        # SB3 appends ".zip" unless the name already has something that looks like a suffix.
        with replacing(path if Path(path).suffix else f"{os.fspath(path)}.zip") as unfinished:
            super().save(unfinished, *args, **kwargs)

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), *NOT_SAVED, "asked_device"]

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name not in NOT_SAVED}

    @staticmethod
    def _wrap_env(env: Any, verbose: int = 0, monitor_wrapper: bool = True) -> VecEnv:
        env = as_vec_env(env)
        if isinstance(env, gymnasium.Env):
            # Where SB3 would use a DummyVecEnv, a SerialVecEnv does the same in less time, with SB3's messages.
            has_monitor = not monitor_wrapper or is_wrapped(env, Monitor)
            if verbose >= 1 and not has_monitor:
                print("Wrapping the env with a `Monitor` wrapper")
            if verbose >= 1:
                print("Wrapping the env in a DummyVecEnv.")
            monitored = env if has_monitor else Monitor(env)
            env = SerialVecEnv([lambda: monitored])
        return BaseAlgorithm._wrap_env(env, verbose, monitor_wrapper)

    # --- Logs ---------------------------------------------------------------------------------------------------

    def dump_logs(self, *args: object) -> None:
        """Write the log, as SB3 does. The time that compiling took does not count as training time."""
        plan = self._session.plan
        if plan is not None and (plan.actor is not None or plan.learner is not None):
            self._record_compile_time()
        super().dump_logs(*args)

    def _record_compile_time(self) -> None:
        seconds, now = compile_seconds() - self._compiled_before, time.time_ns()
        if seconds > self._compiled_so_far:
            # Compiling is left out of SB3's `time/fps`, which would otherwise show the slow start for minutes. Threads
            # compile side by side, so their sum may exceed the time that has passed.
            self.start_time += min(int((seconds - self._compiled_so_far) * 1e9), now - self._recorded_at)
            self._compiled_so_far = seconds
            release_freed_memory()
        self._recorded_at = now
        self.logger.record("time/compile_s", round(seconds, 2), exclude="tensorboard")


def compiled(cls: Class) -> Class:
    """Register a class with its present methods, and show SB3's arguments in its constructor. A class decorator.

    At run time, the constructor has the signature of the SB3 class, which is the last base, and `engine`.
    """
    init = vars(cls)["__init__"]
    sb3s: Any = cls.__bases__[-1]
    arguments = inspect.signature(sb3s.__init__).parameters.values()
    init.__signature__ = inspect.Signature([*arguments, inspect.signature(init).parameters["engine"]])
    init.__doc__ = CompiledAlgorithm.__init__.__doc__
    register(cls)
    return cls


def as_vec_env(env: object) -> object:
    """Return a JaxVecEnv for ids, Environments and VectorEnvs of jaxenvs; anything else unchanged."""
    if isinstance(env, str) and is_jax_id(env):
        return make_vec_env(env)
    return JaxVecEnv(env) if isinstance(env, Environment | VectorEnv) else env


def _has_callback(callback: object, cls: type[BaseCallback]) -> bool:
    """Return whether a callback, or one in a list, is of a class."""
    if isinstance(callback, list | CallbackList):
        parts = callback if isinstance(callback, list) else callback.callbacks
        return any(_has_callback(part, cls) for part in parts)
    return isinstance(callback, cls)


def _require_zip_of(cls: type[BaseAlgorithm], path: SavePath) -> None:
    """Raise a ValueError if the policy in a zip is of no class that an algorithm can have."""
    if not isinstance(path, str | os.PathLike):
        return
    data, _, _ = load_from_zip_file(path, device="cpu")
    policy_class = (data or {}).get("policy_class")
    if isinstance(policy_class, type) and not issubclass(policy_class, tuple(cls.policy_aliases.values())):
        raise ValueError(
            f"path must be a zip that {cls.__name__} saved, got {os.fspath(path)}, with the policy class "
            f"{policy_class.__name__}: call load of the algorithm that saved it."
        )
