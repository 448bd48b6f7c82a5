"""What all of bridge's algorithms share: the engine, `predict`, random numbers, files and pickles."""

from __future__ import annotations

import functools
import hashlib
import inspect
import io
import os
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, ClassVar, Self

import gymnasium
import jax
import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import is_wrapped
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecEnv

from bridge.algorithms.common.predicting import Predictor
from bridge.engine.compilation import compile_seconds, release_freed_memory
from bridge.engine.plan import Plan, require_engine
from bridge.engine.session import CallbackDoor, Session
from bridge.environment_ids import is_jax_id
from bridge.factory import make_vec_env
from bridge.host_env.serial_vec_env import SerialVecEnv
from bridge.randomness import get_random_state, key_data
from bridge.vec_env.jax_vec_env import JaxVecEnv
from jaxenvs import Environment, VectorEnv
from jaxenvs.files import replacing

SavePath = str | Path | io.BufferedIOBase

# Of a model, what belongs to this process alone: neither saved nor pickled.
NOT_SAVED = (
    *("_own_session", "_predictor", "_compiling", "_compiling_for", "_random_before_rollout"),
    *("_steps_begun", "_masks", "metrics"),
    *("_compiled_before", "_compiled_so_far", "_recorded_at"),
)

# SB3's messages, with verbose=1.
MONITOR_MESSAGE = "Wrapping the env with a `Monitor` wrapper"
DUMMY_MESSAGE = "Wrapping the env in a DummyVecEnv."


class CompiledAlgorithm(BaseAlgorithm):
    """Mixed into an SB3 algorithm, before it."""

    engine: str
    key: np.ndarray
    # Whether the model trained on observations that a VecNormalize had normalised, for `evaluate` without one.
    normalized_observations: bool = False
    # Of `train_seeds`, for `plot_results`: arrays (num_rows,), named as `jaxenvs.learn.training.advance` names them.
    metrics: dict[str, np.ndarray] | None = None
    # What SB3's `learn` has among its locals besides its arguments.
    _locals_of_learn: ClassVar[dict[str, Any]] = {}
    _own_session: Session | None = None
    _predictor: Predictor | None = None
    _compiling: Future[object] | None = None
    _compiled_before = _compiled_so_far = 0.0
    _recorded_at = 0
    _random_before_rollout: dict[str, Any] | None = None

    def __init__(self, policy: Any, env: Any, *args: Any, engine: str = "auto", **kwargs: Any) -> None:
        """
        Args:
          policy, env, args, kwargs: SB3's. `env` may also be the id of a jaxenvs environment, an Environment or a
            VectorEnv. In the place of SB3's own replay buffers there is a bridge.ReplayBuffer.
          engine: "auto" compiles what it can and falls back for the rest, and logs why: first to acting by a program a
            step and updates by another, then to SB3's own code. "xla" raises instead of falling back. "torch" compiles
            nothing.
        """
        self.engine = require_engine(engine)
        given, env = env, as_vec_env(env)
        if isinstance(given, str) and env is not given and kwargs.get("verbose", 0) >= 1:
            print(f"Creating environment from the given name '{given}'")  # as SB3
        super().__init__(policy, env, *args, **kwargs)

    # --- What is compiled ---------------------------------------------------------------------------------------

    @property
    def _session(self) -> Session:
        """Made when it is first asked for: SB3's `load` calls no `__init__`."""
        if self._own_session is None:
            self._own_session = Session()
        return self._own_session

    @property
    def plan(self) -> Plan:
        """What of the training is compiled, and why the rest is not: `print(model.plan)`.

        Raises:
          NotCompilable: with `engine="xla"`, if not everything can be compiled.
        """
        with self._session.user_code():  # which may look at it, and change it
            return self._current_plan(self.env)

    def _current_plan(self, env: VecEnv | None) -> Plan:
        return self._session.current_plan(self, env)

    # --- In SB3's place ---------------------------------------------------------------------------------------------

    def learn(self, *args: Any, **kwargs: Any) -> Self:
        """SB3's; but whole iterations are one program as long as no callback and no log looks in between."""
        arguments = inspect.signature(super().learn).bind(*args, **kwargs)  # type: ignore[safe-super]
        arguments.apply_defaults()
        shown = {"self": self, **arguments.arguments, **self._locals_of_learn}
        log_interval = arguments.arguments.pop("log_interval")
        total_timesteps, callback = self._setup_learn(**arguments.arguments)
        door = CallbackDoor(self._session, callback)
        door.on_training_start({**shown, "total_timesteps": total_timesteps, "callback": callback}, globals())
        with self._session.training(callback):
            self._train_until(total_timesteps, door, log_interval)
        door.on_training_end()
        return self

    def _train_until(self, total_timesteps: int, door: CallbackDoor, log_interval: int | None) -> None:
        """The loop of SB3's `learn`."""
        raise NotImplementedError

    def _setup_learn(self, *args: Any, **kwargs: Any) -> tuple[int, BaseCallback]:
        self._compiled_before, self._compiled_so_far = compile_seconds(), 0.0
        self._recorded_at = time.time_ns()
        return super()._setup_learn(*args, **kwargs)

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
        return self._predict(observation, state, episode_start, deterministic)

    def _predict(
        self, observation: Any, state: Any, episode_start: Any, deterministic: bool, **further: Any
    ) -> tuple[Any, Any]:
        """
        Args:
          further: what SB3's `predict` of this algorithm takes besides.
        """
        policy: Any = self.policy
        if self._predictor is None or not self._predictor.is_current(policy):
            self._predictor = Predictor(policy, compiles=self.engine != "torch")
        given = self._predictor.predict(observation, deterministic, state, episode_start, **further)
        if given is None:
            given = self._predict_by_sb3(observation, state, episode_start, deterministic, **further)
        return given

    def _predict_by_sb3(
        self, observation: Any, state: Any, episode_start: Any, deterministic: bool, **further: Any
    ) -> tuple[Any, Any]:
        return super().predict(observation, state, episode_start, deterministic, **further)

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

    @property
    def random_before_rollout(self) -> dict[str, Any]:
        """The states of random generators from which a rollout draws that begins now, for a checkpoint.

        With state-dependent exploration, SB3's loop has drawn before it calls callbacks.
        """
        return self._random_before_rollout or get_random_state()

    def _setup_model(self) -> None:
        key = vars(self).get("key")  # of a zip that is being loaded
        super()._setup_model()  # type: ignore[safe-super]
        if key is not None:
            self.key = key

    @classmethod
    def load(cls, path: SavePath, *args: Any, **kwargs: Any) -> Self:
        """SB3's. Random numbers go on from where they were when the model was saved, but for a `seed` given here."""
        model = super().load(path, *args, **kwargs)
        if kwargs.get("seed") is not None:
            model.set_random_seed(kwargs["seed"])
        return model

    def get_parameters(self) -> Any:
        """SB3's."""
        with self._session.user_code():
            return super().get_parameters()

    def set_parameters(self, *args: Any, **kwargs: Any) -> None:
        """SB3's."""
        with self._session.user_code():
            super().set_parameters(*args, **kwargs)

    def save(self, path: SavePath, *args: Any, **kwargs: Any) -> None:
        """SB3's, but a file is replaced whole or not at all: a full disk or a kill leaves the one from before."""
        if (normalize := self.get_vec_normalize_env()) is not None:
            self.normalized_observations = bool(normalize.norm_obs)
        if not isinstance(path, str | os.PathLike) or os.path.isdir(path):
            return super().save(path, *args, **kwargs)
        # As SB3 names it: what looks like a suffix is one.
        with replacing(path if Path(path).suffix else f"{os.fspath(path)}.zip") as unfinished:
            super().save(unfinished, *args, **kwargs)

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), *NOT_SAVED]

    def __getstate__(self) -> dict[str, Any]:
        with self._session.user_code():
            return {name: value for name, value in vars(self).items() if name not in NOT_SAVED}

    @staticmethod
    def _wrap_env(env: Any, verbose: int = 0, monitor_wrapper: bool = True) -> VecEnv:
        env = as_vec_env(env)
        if isinstance(env, gymnasium.Env):
            # A DummyVecEnv that takes less time, in the place where SB3 would put one, with SB3's messages.
            has_monitor = not monitor_wrapper or is_wrapped(env, Monitor)
            if verbose >= 1:
                print(*([] if has_monitor else [MONITOR_MESSAGE]), DUMMY_MESSAGE, sep="\n")
            lane = env if has_monitor else Monitor(env)
            env = SerialVecEnv([lambda: lane])
        return BaseAlgorithm._wrap_env(env, verbose, monitor_wrapper)

    # --- Logs ---------------------------------------------------------------------------------------------------

    def dump_logs(self, *args: Any) -> None:
        """Write the log, as in SB3. The first one does not count what acting took to compile as time of training."""
        plan = self._session.plan
        if plan is not None and (plan.actor is not None or plan.learner is not None):
            self._record_compile_time()
        super().dump_logs(*args)

    def _record_compile_time(self) -> None:
        seconds, now = compile_seconds() - self._compiled_before, time.time_ns()
        if seconds > self._compiled_so_far:
            # Not part of SB3's `time/fps`, which would tell of a slow start for minutes. Threads compile side by side.
            self.start_time += min(int((seconds - self._compiled_so_far) * 1e9), now - self._recorded_at)
            self._compiled_so_far = seconds
            release_freed_memory()
        self._recorded_at = now
        self.logger.record("time/compile_s", round(seconds, 2), exclude="tensorboard")


def constructor_like(ours: type[CompiledAlgorithm], sb3: type[BaseAlgorithm]) -> Callable[..., None]:
    """`ours.__init__` with the parameters of an SB3 algorithm spelled out, and the keywords of our own."""
    init = ours.__init__

    @functools.wraps(init)
    def __init__(self: CompiledAlgorithm, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)

    parameters = [*inspect.signature(sb3.__init__).parameters.values()]
    keywords = [each for each in inspect.signature(init).parameters.values() if each.kind is each.KEYWORD_ONLY]
    vars(__init__)["__signature__"] = inspect.Signature([*parameters, *keywords])
    return __init__


def as_vec_env(env: Any) -> Any:
    """JAX environments where SB3 would make Gymnasium's; anything else as it is."""
    if isinstance(env, str) and is_jax_id(env):
        # On a CPU a program of whole rollouts is the faster one, also where a step by itself is not.
        return make_vec_env(env, backend="jax" if jax.default_backend() == "cpu" else "auto")
    return JaxVecEnv(env) if isinstance(env, Environment | VectorEnv) else env
