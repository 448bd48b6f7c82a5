"""Checkpoints from which a killed run continues, with bitwise the same results.

Like the zips of Stable-Baselines3, checkpoints are pickles: their author can run any code in the process that loads
them. Load only your own.
"""

from __future__ import annotations

import copy
import io
import json
import os
import pickle
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar, cast

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.type_aliases import TrainFrequencyUnit
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper

from bridge.algorithms.common.compiled_algorithm import CompiledAlgorithm
from bridge.algorithms.common.off_policy_algorithm import CompiledOffPolicyAlgorithm
from bridge.engine.callbacks.callback_schedule import ScheduledCallback
from bridge.engine.lstm_state import read_memory, to_states
from bridge.randomness import get_random_state, set_random_state
from bridge.self_play.self_play_callback import make_room_for_league
from bridge.vec_env.jax_vec_env import JaxVecEnv
from jaxenvs import arguments
from jaxenvs.files import replacing

Algorithm = TypeVar("Algorithm", bound=BaseAlgorithm)
# Files in the zip, besides those that SB3 reads.
POSITION = "training_position.pkl"
REPLAY_BUFFER = "replay_buffer.pkl"
METADATA = "metadata.json"


def _position_of(model: BaseAlgorithm, random_state: dict[str, object]) -> dict[str, object]:
    """Return the state of a training that is neither in SB3's zip nor in a replay buffer.

    It has the state of the environments; for each wrapper around them, from the outermost on, the name of its class and
    its attributes, each pickled; the states of random generators; and the recurrent state of the policy.
    """
    env = model.get_env()
    return {
        "env": _jax_vec_env(env).get_state(),
        "wrappers": [_picklable_attributes(wrapper) for wrapper in _wrappers(env)],
        "random": random_state,
        "action_space": dict(model.action_space.np_random.bit_generator.state),
        "memory": read_memory(model),
    }


def _restore(model: BaseAlgorithm, position: dict[str, Any]) -> None:
    """Put a model that SB3 has loaded into this state, if its environments and wrappers are of the same kinds."""
    wrappers = list(_wrappers(model.get_env()))
    came, expected = ([name for name, _ in position["wrappers"]], [type(wrapper).__name__ for wrapper in wrappers])
    if came != expected:
        raise ValueError(f"env must be wrapped in the wrappers of the checkpoint, {came}, got {expected}.")
    make_room_for_league(model)
    _jax_vec_env(model.get_env()).set_state(position["env"])
    for wrapper, (_, attributes) in zip(wrappers, position["wrappers"], strict=True):
        vars(wrapper).update({name: pickle.loads(value) for name, value in attributes.items()})
    set_random_state(position["random"])
    model.action_space.np_random.bit_generator.state = position["action_space"]
    if position["memory"] is not None:
        cast(Any, model)._last_lstm_states = to_states(model, position["memory"])
    if isinstance(model, CompiledOffPolicyAlgorithm):
        model.go_on_with(copy.deepcopy(model.action_noise))


def save_checkpoint(model: BaseAlgorithm, path: str | Path, metadata: dict[str, Any] | None = None) -> None:
    """Save a model with everything that its training depends on, so that it can be resumed with the same results.

    The checkpoint is an SB3 zip that also holds the state of the environments, of the wrappers around them, of the
    random generators of PyTorch (with CUDA), NumPy and Python, and the replay buffer, if there is one.

    Call it between rollouts, as RolloutCheckpoint does: a partly filled rollout buffer is not saved. The file is
    replaced atomically, so an interrupted save loses nothing. For a replay buffer in files it holds only their
    folder, whose content may be newer.

    Args:
      model: a model of SB3 or jaxenvs.sb3 on a JaxVecEnv, also in wrappers.
      path: the path of the file; ".zip" is appended if it is missing.
      metadata: custom data that JSON can hold; `read_metadata` returns it.

    Raises:
      TypeError: `model` is not an SB3 model, or its environments are not a JaxVecEnv.
      ValueError: it has not begun to learn, so its environments have no state yet.
    """
    _save_checkpoint(model, path, get_random_state(), metadata)


def _save_checkpoint(
    model: BaseAlgorithm, path: str | Path, random_state: dict[str, object], metadata: dict[str, object] | None
) -> None:
    arguments.instance("model", model, BaseAlgorithm, "a Stable-Baselines3 model")
    _require_path(path)
    _jax_vec_env(model.get_env())
    if model._last_obs is None:
        raise ValueError(
            "model must have begun to learn, because its environments have no state to save before that: call learn() "
            "first."
        )
    position = _position_of(model, random_state)
    with replacing(_zip_path(path)) as unfinished:
        model.save(unfinished)
        # Added to the zip, and not passed to SB3, which would write it as text that may need more than memory has.
        with zipfile.ZipFile(unfinished, "a") as archive:
            _add_pickle(archive, POSITION, position)
            if (buffer := getattr(model, "replay_buffer", None)) is not None:
                _add_pickle(archive, REPLAY_BUFFER, buffer)
            if metadata is not None:
                archive.writestr(METADATA, json.dumps(metadata))


def save_before_rollout(model: BaseAlgorithm, path: str | Path, metadata: dict[str, Any] | None = None) -> None:
    """Save a checkpoint as `save_checkpoint`, in a callback's `on_rollout_start`.

    Some rollouts have drawn random numbers by then. The checkpoint has the random states from before.
    """
    state = model.random_before_rollout if isinstance(model, CompiledAlgorithm) else get_random_state()
    _save_checkpoint(model, path, state, metadata)


def load_checkpoint(algorithm: type[Algorithm], path: str | Path, env: VecEnv, **kwargs: Any) -> Algorithm:
    """Load the model of a checkpoint, ready to continue its training.

    Continue with `model.learn(total_timesteps - model.num_timesteps, reset_num_timesteps=False)`. A checkpoint is a
    pickle, like any zip of SB3: load only your own.

    Args:
      algorithm: the class of the model.
      path: the path of the file.
      env: environments like those that the model was trained on, in the same wrappers. They continue from the saved
        state.
      kwargs: further arguments of `algorithm.load`.

    Returns:
      The model.

    Raises:
      TypeError: an argument has the wrong type.
      ValueError: the file is not a checkpoint, or is one of other environments or wrappers.
    """
    if not (isinstance(algorithm, type) and issubclass(algorithm, BaseAlgorithm)):
        raise TypeError(f"algorithm must be a class of Stable-Baselines3 algorithms, got {arguments.shown(algorithm)}.")
    _require_path(path)
    arguments.instance("env", env, VecEnv, "a VecEnv")
    model = algorithm.load(path, env=env, force_reset=False, **kwargs)
    with zipfile.ZipFile(_file(path)) as archive:
        if POSITION not in archive.namelist():
            raise ValueError(
                f"{path} has no state of the environments, so training cannot continue from it: save the model with "
                "save_checkpoint."
            )
        with archive.open(POSITION) as file:
            _restore(model, pickle.load(file))
        if REPLAY_BUFFER in archive.namelist():
            # SB3 accepts no other kind of file.
            with archive.open(REPLAY_BUFFER) as file, io.BufferedReader(cast(Any, file)) as buffered:
                cast(Any, model).load_replay_buffer(buffered, truncate_last_traj=False)
    return model


def read_metadata(path: str | Path) -> dict[str, Any] | None:
    """Return the metadata of a checkpoint, or None if it was saved without any.

    Args:
      path: the path of the file, as for `save_checkpoint`.

    Raises:
      OSError, zipfile.BadZipFile: there is no such file, or it is not a zip.
    """
    _require_path(path)
    with zipfile.ZipFile(_file(path)) as archive:
        return json.loads(archive.read(METADATA)) if METADATA in archive.namelist() else None


class RolloutCheckpoint(ScheduledCallback):
    """Callback that saves a checkpoint before every n-th rollout, replacing the previous one.

    Use it to resume long trainings after a crash. A rollout of an off-policy model is `train_freq` steps, and its
    checkpoint holds the replay buffer: set `every` to some thousands. Between the rollouts before which it saves, such
    a training runs as if it had no callback.
    """

    def __init__(
        self, path: str | Path, every: int = 1, verbose: int = 0, metadata: dict[str, Any] | None = None
    ) -> None:
        """Set what is saved and when.

        Args:
          path: the path of the zip.
          every: the number of rollouts between two checkpoints.
          verbose: as in SB3's callbacks.
          metadata: as for `save_checkpoint`.

        Raises:
          TypeError, ValueError: `path` is not a path, or `every` is not a positive int.
        """
        _require_path(path)
        arguments.positive_int("every", every)
        super().__init__(verbose)
        self.path, self.every, self.rollouts, self.metadata = Path(path), every, 0, metadata
        # _next is the rollout before which it saves; _calls is n_calls at the beginning of the newest rollout.
        self._next, self._calls = 0, 0

    def steps_until_needed(self, num_timesteps: int, num_envs: int) -> int:
        """Return the number of steps for which this callback needs no call: see ScheduledCallback."""
        if (length := self._steps_of_rollout()) is None:
            return sys.maxsize
        left = (self._next - self.rollouts + 1) * length - (self.n_calls - self._calls)
        # If it is due before the next rollout, it is called there, and needs nothing until `every` rollouts later.
        return left if left > 0 else self.every * length

    def _on_rollout_start(self) -> None:
        length = self._steps_of_rollout()
        # Callbacks are called only for the first of several rollouts that were compiled together.
        passed = 1 if length is None else max(1, -(-(self.n_calls - self._calls) // length))
        self.rollouts += passed if self.rollouts else 1
        self._calls = self.n_calls
        if self.rollouts > self._next:
            self._next = ((self.rollouts - 1) // self.every + 1) * self.every
            save_before_rollout(self.model, self.path, self.metadata)

    def _on_step(self) -> bool:
        return True

    def _steps_of_rollout(self) -> int | None:
        """Return the steps in a rollout; None if it is an episode, before each of which callbacks are called."""
        train_freq = getattr(self.model, "train_freq", None)
        if train_freq is None:
            return getattr(self.model, "n_steps", None)
        return train_freq.frequency if train_freq.unit is TrainFrequencyUnit.STEP else None


def _add_pickle(archive: zipfile.ZipFile, name: str, value: object) -> None:
    with archive.open(name, "w", force_zip64=True) as file:
        pickle.dump(value, file, pickle.HIGHEST_PROTOCOL)


def _require_path(path: object) -> None:
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
    """Return a wrapper's class name and its attributes, each pickled."""
    attributes = {}
    for name, value in vars(wrapper).items():
        if name in ("venv", "env", "class_attributes"):
            continue
        try:
            attributes[name] = pickle.dumps(value)
        except (TypeError, AttributeError, pickle.PicklingError):
            continue  # a resource, such as an open file, which the next process opens itself
    return type(wrapper).__name__, attributes


def _zip_path(path: str | os.PathLike[str]) -> Path:
    """Return `path` with ".zip" appended, unless it ends so: "ppo_0.98" has no suffix to replace."""
    path = Path(path)
    return path if path.suffix == ".zip" else path.with_name(f"{path.name}.zip")


def _file(path: str | Path) -> Path:
    """Return the file that SB3 finds under a path."""
    return next((each for each in (Path(path), _zip_path(path)) if each.is_file()), Path(path))
