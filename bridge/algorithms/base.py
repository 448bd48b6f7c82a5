"""What all of bridge's algorithms share: the engine, `predict`, random numbers, files and pickles."""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Self

import gymnasium
import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.env_util import is_wrapped
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecEnv

import jaxenvs
from bridge.engine.compilation import compile_seconds
from bridge.engine.memory import release_freed_memory
from bridge.engine.predicting import Predictor
from bridge.factory import make_vec_env
from bridge.host_env.serial_vec_env import SerialVecEnv
from bridge.randomness import get_random_state, key_data
from bridge.vec_env.jax_vec_env import JaxVecEnv
from jaxenvs import Environment, VectorEnv
from jaxenvs.files import replacing

# Of a model, what belongs to this process alone: neither saved nor pickled.
NOT_SAVED = (
    *("_plan", "_updates", "_predictor", "_compiling", "_compiling_for", "_compiled_before", "_compiled_so_far"),
    *("_random_before_rollout", "_is_trusted", "_is_learning", "_settings_now"),
)


class CompiledAlgorithm(BaseAlgorithm):
    """Mixed into an SB3 algorithm, before it."""

    engine: str
    key: np.ndarray
    _predictor: Predictor | None = None
    _compiling: Future[Any] | None = None
    _compiled_before = 0.0
    _compiled_so_far = 0.0

    def _setup_learn(self, *args: Any, **kwargs: Any) -> Any:
        self._compiled_before, self._compiled_so_far = compile_seconds(), 0.0
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
        policy: Any = self.policy
        if self._predictor is None or not self._predictor.is_current(policy):
            self._predictor = Predictor(policy, compiles=self.engine != "torch")
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

    @property
    def random_before_rollout(self) -> dict[str, Any]:
        """The states of random generators from which a rollout draws that begins now, for a checkpoint.

        With state-dependent exploration, SB3's loop has drawn before it calls callbacks.
        """
        state: dict[str, Any] | None = getattr(self, "_random_before_rollout", None)
        return state or get_random_state()

    def _setup_model(self) -> None:
        key = vars(self).get("key")  # of a zip that is being loaded
        super()._setup_model()  # type: ignore[safe-super]
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

    def _show(self) -> None:
        """Leave all that was learned where SB3 has it, if it is elsewhere."""

    def get_parameters(self) -> Any:
        """SB3's."""
        self._show()
        return super().get_parameters()

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
        self._show()
        return {name: value for name, value in vars(self).items() if name not in NOT_SAVED}

    @staticmethod
    def _wrap_env(env: Any, verbose: int = 0, monitor_wrapper: bool = True) -> VecEnv:
        env = as_vec_env(env)
        if isinstance(env, gymnasium.Env):
            # A DummyVecEnv that takes less time, in the place where SB3 would put one.
            lane = env if not monitor_wrapper or is_wrapped(env, Monitor) else Monitor(env)
            env = SerialVecEnv([lambda: lane])
        return BaseAlgorithm._wrap_env(env, verbose, monitor_wrapper)

    # --- Logs ---------------------------------------------------------------------------------------------------

    def _record_compile_time(self) -> None:
        seconds = compile_seconds() - self._compiled_before
        if seconds > self._compiled_so_far:
            self._compiled_so_far = seconds
            release_freed_memory()
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


def has_methods_of(model: Any, cls: type, *names: str) -> bool:
    """Whether nobody has put methods of his own in the place of a class's, in a subclass or in the model."""
    return all(getattr(type(model), name) is getattr(cls, name) and name not in vars(model) for name in names)


def as_vec_env(env: Any) -> Any:
    """JAX environments where SB3 would make Gymnasium's; anything else as it is."""
    if isinstance(env, str) and env in jaxenvs.registered():
        return make_vec_env(env)
    return JaxVecEnv(env) if isinstance(env, Environment | VectorEnv) else env


def _normalizes_observations(model: BaseAlgorithm) -> bool:
    normalize = model.get_vec_normalize_env()
    if normalize is None:
        return bool(getattr(model, "normalized_observations", False))
    return bool(normalize.norm_obs)
