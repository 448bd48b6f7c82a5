"""Checkpoints from which a run that was killed continues bit for bit."""

from __future__ import annotations

import copy
import io
import os
import pickle
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar, cast

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper

from bridge.randomness import get_random_state, set_random_state
from bridge.vec_env.jax_vec_env import JaxVecEnv
from jaxenvs import arguments
from jaxenvs.files import replacing

Algorithm = TypeVar("Algorithm", bound=BaseAlgorithm)
REPLAY_BUFFER = "replay_buffer.pkl"  # in the zip


def save_checkpoint(model: BaseAlgorithm, path: str | Path) -> None:
    """Save a model with all that its training depends on: an SB3 zip that also holds the state of the
    environments, of the wrappers around them, of the random generators of PyTorch (CUDA's too), NumPy and Python, and
    the replay buffer, if there is one.

    Call it between rollouts, as RolloutCheckpoint does: a rollout buffer that is half full is not saved. The file is
    replaced at once or not at all, so that being killed here loses nothing; but of a replay buffer in files it holds
    their folder alone, where these may be newer.

    Args:
      path: of the file; ".zip" is added if it is not there.

    Raises:
      TypeError: `model` is no SB3 model, or its environments are not a JaxVecEnv.
      ValueError: it has not begun to learn, so that its environments have no state yet.
    """
    _save_checkpoint(model, path, get_random_state())


def _save_checkpoint(model: BaseAlgorithm, path: str | Path, random_state: dict[str, Any]) -> None:
    arguments.instance("model", model, BaseAlgorithm, "a Stable-Baselines3 model")
    _require_path(path)
    env = model.get_env()
    base = _jax_vec_env(env)
    if model._last_obs is None:
        raise ValueError("model must have begun to learn: before it does, its environments have no state to save.")
    checkpoint = {
        "env": base.get_state(),
        "wrappers": [_picklable_attributes(wrapper) for wrapper in _wrappers(env)],
        "random": random_state,
        "action_space": model.action_space.np_random.bit_generator.state,
    }
    vars(model)["_checkpoint"] = checkpoint  # SB3 saves every attribute that it does not know
    try:
        with replacing(_zip_path(path)) as unfinished:
            model.save(unfinished)
            _add_replay_buffer(model, unfinished)
    finally:
        del vars(model)["_checkpoint"]


def load_checkpoint(algorithm: type[Algorithm], path: str | Path, env: VecEnv, **kwargs: Any) -> Algorithm:
    """The model of a checkpoint, ready to go on:
    `model.learn(total_timesteps - model.num_timesteps, reset_num_timesteps=False)`.

    Args:
      env: environments like those it was trained on, wrapped in the same wrappers. They continue where it was.
      kwargs: for `algorithm.load`.

    Raises:
      ValueError: the file is not a checkpoint, or of other environments or wrappers.
    """
    if not (isinstance(algorithm, type) and issubclass(algorithm, BaseAlgorithm)):
        raise TypeError(f"algorithm must be a class of Stable-Baselines3 models, got {arguments.shown(algorithm)}.")
    _require_path(path)
    arguments.instance("env", env, VecEnv, "a VecEnv")
    model = algorithm.load(path, env=env, force_reset=False, **kwargs)
    if not hasattr(model, "_checkpoint"):
        raise ValueError(f"{path} is a model without a state of its environments: save it with save_checkpoint.")
    checkpoint = vars(model).pop("_checkpoint")
    _jax_vec_env(model.get_env()).set_state(checkpoint["env"])
    wrappers = list(_wrappers(model.get_env()))
    came, expected = ([name for name, _ in checkpoint["wrappers"]], [type(wrapper).__name__ for wrapper in wrappers])
    if came != expected:
        raise ValueError(f"The checkpoint has the wrappers {came}, env has {expected}.")
    for wrapper, (_, attributes) in zip(wrappers, checkpoint["wrappers"], strict=True):
        vars(wrapper).update({name: pickle.loads(value) for name, value in attributes.items()})
    random_state = checkpoint["random"]
    if isinstance(random_state, tuple):  # as 0.2.0 wrote it
        random_state = dict(zip(("torch", "numpy", "python"), random_state))
    set_random_state(random_state)
    if "action_space" in checkpoint:
        model.action_space.np_random.bit_generator.state = checkpoint["action_space"]
    _load_replay_buffer(model, path)
    if getattr(model, "action_noise", None) is not None:
        vars(model)["_noise_of_checkpoint"] = copy.deepcopy(vars(model)["action_noise"])
    return model


class RolloutCheckpoint(BaseCallback):
    """Save a checkpoint before every n-th rollout, over the one before.

    A rollout of an off-policy model is `train_freq` steps, and its checkpoint holds the replay buffer: let `every` be
    some thousands.
    """

    def __init__(self, path: str | Path, every: int = 1, verbose: int = 0) -> None:
        """
        Args:
          path: of the zip file.
          every: so many rollouts.

        Raises:
          TypeError, ValueError: `path` is none, or `every` no positive int.
        """
        _require_path(path)
        arguments.positive_int("every", every)
        super().__init__(verbose)
        self.path, self.every, self.rollouts = Path(path), every, 0

    def _on_rollout_start(self) -> None:
        if self.rollouts % self.every == 0:
            # With state-dependent exploration, SB3's loop has drawn from the generators already; it will draw again.
            before = getattr(self.model, "_random_before_rollout", None)
            _save_checkpoint(self.model, self.path, before or get_random_state())
        self.rollouts += 1

    def _on_step(self) -> bool:
        return True


def _add_replay_buffer(model: Any, path: Path) -> None:
    """Beside what SB3 reads of a zip, and not among it: that is text, which takes more room than memory may have."""
    buffer = getattr(model, "replay_buffer", None)
    if buffer is not None:
        with zipfile.ZipFile(path, "a") as archive, archive.open(REPLAY_BUFFER, "w", force_zip64=True) as file:
            pickle.dump(buffer, file, pickle.HIGHEST_PROTOCOL)


def _load_replay_buffer(model: Any, path: str | Path) -> None:
    name = next(each for each in (Path(path), _zip_path(path)) if each.is_file())
    with zipfile.ZipFile(name) as archive:
        if REPLAY_BUFFER in archive.namelist():
            # SB3 takes no other kind of file.
            with archive.open(REPLAY_BUFFER) as file, io.BufferedReader(cast(Any, file)) as buffered:
                model.load_replay_buffer(buffered, truncate_last_traj=False)


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
        raise TypeError(f"A checkpoint needs a model on a JaxVecEnv, got {type(inner).__name__}.")
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
