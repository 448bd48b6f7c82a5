"""Checkpoints from which a run that was killed continues bit for bit.

They are pickles, as the zips of Stable-Baselines3 are: whoever wrote one can run anything in the process that loads it.
Load only your own.
"""

from __future__ import annotations

import copy
import dataclasses
import io
import json
import os
import pickle
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self, TypeVar, cast

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.type_aliases import TrainFrequencyUnit
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper

from bridge.algorithms.common.compiled_algorithm import CompiledAlgorithm
from bridge.algorithms.common.off_policy_algorithm import CompiledOffPolicyAlgorithm
from bridge.engine.callbacks.callback_schedule import QuietCallback
from bridge.engine.lstm_state import read_memory, to_states
from bridge.randomness import get_random_state, set_random_state
from bridge.vec_env.jax_vec_env import JaxVecEnv
from jaxenvs import arguments
from jaxenvs.files import replacing

Algorithm = TypeVar("Algorithm", bound=BaseAlgorithm)
# In the zip, beside what SB3 reads of it.
POSITION = "training_position.pkl"
REPLAY_BUFFER = "replay_buffer.pkl"
METADATA = "metadata.json"


@dataclasses.dataclass
class TrainingPosition:
    """Where a training is: all that its rest depends on and that neither SB3's zip nor a replay buffer holds.

    Attributes:
      env: the state of the environments, as `JaxVecEnv.get_state` gives it.
      wrappers: of those around them, from the outermost on, the name of the class, and the attributes, pickled one by
        one.
      random: the states of random generators, as `get_random_state` gives them.
      action_space: that of the generator of the action space.
      memory: what a recurrent policy remembers, as `read_memory` gives it.
    """

    env: dict[str, Any]
    wrappers: list[tuple[str, dict[str, bytes]]]
    random: dict[str, Any]
    action_space: dict[str, Any] | None = None
    memory: Any = None

    @classmethod
    def of(cls, model: BaseAlgorithm, random_state: dict[str, Any]) -> Self:
        """Where the training of a model is now."""
        env = model.get_env()
        return cls(
            env=_jax_vec_env(env).get_state(),
            wrappers=[_picklable_attributes(wrapper) for wrapper in _wrappers(env)],
            random=random_state,
            action_space=dict(model.action_space.np_random.bit_generator.state),
            memory=read_memory(model),
        )

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> Self:
        """That of its fields by name, also as 0.2.0 wrote them, with random states as a tuple."""
        known = {field.name for field in dataclasses.fields(cls)}
        position = cls(**{name: value for name, value in fields.items() if name in known})
        if isinstance(position.random, tuple):
            position.random = dict(zip(("torch", "numpy", "python"), position.random))
        return position

    def restore(self, model: BaseAlgorithm) -> None:
        """Go on from here, with a model that SB3 has loaded.

        Raises:
          ValueError: its environments, or the wrappers around them, are others. Nothing changed.
        """
        wrappers = list(_wrappers(model.get_env()))
        came, expected = ([name for name, _ in self.wrappers], [type(wrapper).__name__ for wrapper in wrappers])
        if came != expected:
            raise ValueError(f"env must be wrapped in the wrappers of the checkpoint, {came}, got {expected}.")
        _jax_vec_env(model.get_env()).set_state(self.env)
        for wrapper, (_, attributes) in zip(wrappers, self.wrappers, strict=True):
            vars(wrapper).update({name: pickle.loads(value) for name, value in attributes.items()})
        set_random_state(self.random)
        if self.action_space is not None:
            model.action_space.np_random.bit_generator.state = self.action_space
        if self.memory is not None:
            cast(Any, model)._last_lstm_states = to_states(model, self.memory)
        if isinstance(model, CompiledOffPolicyAlgorithm):
            model.go_on_with(copy.deepcopy(model.action_noise))


def save_checkpoint(model: BaseAlgorithm, path: str | Path, metadata: dict[str, Any] | None = None) -> None:
    """Save a model with all that its training depends on: an SB3 zip that also holds the state of the
    environments, of the wrappers around them, of the random generators of PyTorch (CUDA's too), NumPy and Python, and
    the replay buffer, if there is one.

    Call it between rollouts, as RolloutCheckpoint does: a rollout buffer that is half full is not saved. The file is
    replaced at once or not at all, so that being killed here loses nothing; but of a replay buffer in files it holds
    their folder alone, where these may be newer.

    Args:
      model: one of SB3's or bridge's, on a JaxVecEnv, also in wrappers.
      path: of the file; ".zip" is added if it is not there.
      metadata: of your own, as JSON has it; `read_metadata` gives it back.

    Raises:
      TypeError: `model` is no SB3 model, or its environments are not a JaxVecEnv.
      ValueError: it has not begun to learn, so that its environments have no state yet.
    """
    _save_checkpoint(model, path, get_random_state(), metadata)


def _save_checkpoint(
    model: BaseAlgorithm, path: str | Path, random_state: dict[str, Any], metadata: dict[str, Any] | None
) -> None:
    arguments.instance("model", model, BaseAlgorithm, "a Stable-Baselines3 model")
    _require_path(path)
    _jax_vec_env(model.get_env())
    if model._last_obs is None:
        raise ValueError(
            "model must have begun to learn, because its environments have no state to save before that: call learn() "
            "first."
        )
    position = TrainingPosition.of(model, random_state)
    with replacing(_zip_path(path)) as unfinished:
        model.save(unfinished)
        # Beside what SB3 reads of a zip, and not among it: that is text, which takes more room than memory may have.
        with zipfile.ZipFile(unfinished, "a") as archive:
            # By their names, for other versions to read what they know.
            fields = {field.name: getattr(position, field.name) for field in dataclasses.fields(position)}
            _add_pickle(archive, POSITION, fields)
            if (buffer := getattr(model, "replay_buffer", None)) is not None:
                _add_pickle(archive, REPLAY_BUFFER, buffer)
            if metadata is not None:
                archive.writestr(METADATA, json.dumps(metadata))


def load_checkpoint(algorithm: type[Algorithm], path: str | Path, env: VecEnv, **kwargs: Any) -> Algorithm:
    """The model of a checkpoint, ready to go on:
    `model.learn(total_timesteps - model.num_timesteps, reset_num_timesteps=False)`.

    A checkpoint is a pickle, as any zip of SB3's: load only your own.

    Args:
      algorithm: the class of the model.
      path: of the file.
      env: environments like those it was trained on, wrapped in the same wrappers. They continue where it was.
      kwargs: for `algorithm.load`.

    Raises:
      ValueError: the file is not a checkpoint, or of other environments or wrappers.
    """
    if not (isinstance(algorithm, type) and issubclass(algorithm, BaseAlgorithm)):
        raise TypeError(f"algorithm must be a class of Stable-Baselines3 algorithms, got {arguments.shown(algorithm)}.")
    _require_path(path)
    arguments.instance("env", env, VecEnv, "a VecEnv")
    model = algorithm.load(path, env=env, force_reset=False, **kwargs)
    with zipfile.ZipFile(_file(path)) as archive:
        fields = vars(model).pop("_checkpoint", None)  # where 0.2.0 had them
        if POSITION in archive.namelist():
            with archive.open(POSITION) as file:
                fields = pickle.load(file)
        if fields is None:
            raise ValueError(
                f"{path} has no state of the environments, so training cannot continue from it: save the model with "
                "save_checkpoint."
            )
        TrainingPosition.from_fields(fields).restore(model)
        if REPLAY_BUFFER in archive.namelist():
            # SB3 takes no other kind of file.
            with archive.open(REPLAY_BUFFER) as file, io.BufferedReader(cast(Any, file)) as buffered:
                cast(Any, model).load_replay_buffer(buffered, truncate_last_traj=False)
    return model


def read_metadata(path: str | Path) -> dict[str, Any] | None:
    """The metadata of a checkpoint; None if it was saved without any.

    Args:
      path: as `save_checkpoint` takes it.

    Raises:
      OSError, zipfile.BadZipFile: there is no such file, or it is no zip.
    """
    _require_path(path)
    with zipfile.ZipFile(_file(path)) as archive:
        return json.loads(archive.read(METADATA)) if METADATA in archive.namelist() else None


class RolloutCheckpoint(QuietCallback):
    """Save a checkpoint before every n-th rollout, over the one before.

    A rollout of an off-policy model is `train_freq` steps, and its checkpoint holds the replay buffer: let `every` be
    some thousands. Until the rollout before which it saves, such a training runs as if it had no callback.
    """

    def __init__(
        self, path: str | Path, every: int = 1, verbose: int = 0, metadata: dict[str, Any] | None = None
    ) -> None:
        """
        Args:
          path: of the zip file.
          every: so many rollouts.
          verbose: as of SB3's callbacks.
          metadata: as for `save_checkpoint`.

        Raises:
          TypeError, ValueError: `path` is none, or `every` no positive int.
        """
        _require_path(path)
        arguments.positive_int("every", every)
        super().__init__(verbose)
        self.path, self.every, self.rollouts, self.metadata = Path(path), every, 0, metadata
        self._next, self._calls = 0, 0  # the rollout before which it saves; n_calls where the newest one began

    def quiet_steps(self, num_timesteps: int, num_envs: int) -> int:
        """See QuietCallback."""
        if (length := self._steps_of_rollout()) is None:
            return 0
        left = (self._next - self.rollouts + 1) * length - (self.n_calls - self._calls)
        return max(0, left - 1)

    def _on_rollout_start(self) -> None:
        model, length = self.model, self._steps_of_rollout()
        if getattr(model, "_step_of_iteration", 0):  # a compiled function begins within a rollout
            return
        # Of those that were compiled together, this callback hears of the first alone.
        passed = 1 if length is None else max(1, -(-(self.n_calls - self._calls) // length))
        self.rollouts += passed if self.rollouts else 1
        self._calls = self.n_calls
        if self.rollouts > self._next:
            self._next = ((self.rollouts - 1) // self.every + 1) * self.every
            state = model.random_before_rollout if isinstance(model, CompiledAlgorithm) else get_random_state()
            _save_checkpoint(model, self.path, state, self.metadata)

    def _on_step(self) -> bool:
        return True

    def _steps_of_rollout(self) -> int | None:
        """How many steps a rollout of an off-policy model has; None if each rollout is told to callbacks."""
        train_freq = getattr(self.model, "train_freq", None)
        return train_freq.frequency if train_freq and train_freq.unit is TrainFrequencyUnit.STEP else None


def _add_pickle(archive: zipfile.ZipFile, name: str, value: Any) -> None:
    with archive.open(name, "w", force_zip64=True) as file:
        pickle.dump(value, file, pickle.HIGHEST_PROTOCOL)


def _require_path(path: Any) -> None:
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"path must be a str or a Path, got {arguments.shown(path)}.")


def _wrappers(env: VecEnv | None) -> Iterator[VecEnvWrapper]:
    while isinstance(env, VecEnvWrapper):
        yield env
        env = env.venv


def _jax_vec_env(env: VecEnv | None) -> JaxVecEnv:
    inner = None if env is None else env.unwrapped
    if not isinstance(inner, JaxVecEnv):
        raise TypeError(f"A checkpoint needs a model that trains on a JaxVecEnv, got {type(inner).__name__}.")
    return inner


def _picklable_attributes(wrapper: VecEnvWrapper) -> tuple[str, dict[str, bytes]]:
    """What cannot be pickled is a resource, as an open file, of which the next process has its own."""
    attributes = {}
    for name, value in vars(wrapper).items():
        if name in ("venv", "env", "class_attributes"):
            continue
        try:
            attributes[name] = pickle.dumps(value)
        except (TypeError, AttributeError, pickle.PicklingError):
            continue
    return type(wrapper).__name__, attributes


def _zip_path(path: str | os.PathLike[str]) -> Path:
    """`path` with ".zip" behind it, unless it ends so. Not instead of what looks like a suffix, as in "ppo_0.98"."""
    path = Path(path)
    return path if path.suffix == ".zip" else path.with_name(f"{path.name}.zip")


def _file(path: str | Path) -> Path:
    """The file that SB3 finds under a path."""
    return next((each for each in (Path(path), _zip_path(path)) if each.is_file()), Path(path))
