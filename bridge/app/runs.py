"""The folder of a run: its files, and the model in it."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.noise import ActionNoise, NormalActionNoise, OrnsteinUhlenbeckActionNoise
from stable_baselines3.common.vec_env import VecEnv, VecFrameStack, VecNormalize

from bridge import load_checkpoint
from bridge.algorithms.specs import ALGORITHMS
from bridge.app.config import TrainingConfig, algorithm_class, load_config
from bridge.app.hyperparameters import NOISE, SCHEDULED, to_schedule
from bridge.checkpoint import read_metadata
from bridge.evaluation.on_host import with_statistics
from bridge.results.reading import EPISODES, SEEDS_CHECKPOINT
from jaxenvs.arguments import instance
from jaxenvs.cli.user_errors import UserError, user_errors
from jaxenvs.files import replacing

CONFIG = "config.json"
MODEL = "model.zip"  # the trained model, which SB3 can load
STATISTICS = "vec_normalize.pkl"  # of the VecNormalize that the model was trained in
BEST_MODEL, BEST_STATISTICS = "best_model.zip", "best_vec_normalize.pkl"  # with --eval-freq
EVALUATIONS = "evaluations.npz"  # SB3's EvalCallback writes it
CHECKPOINT = "checkpoint.zip"  # from which the training continues
CURVE = "learning_curve.png"


class Agent(NamedTuple):
    """An agent of a run, with the folder that it is saved to."""

    folder: Path
    config: TrainingConfig
    model: BaseAlgorithm
    env: VecEnv


def read_run(folder: Path) -> TrainingConfig:
    """Return the config of the run in a folder; for a folder of one seed, the config of its agent.

    Raises:
      UserError: there is no config, or it cannot be read.
    """
    named = Path(os.path.abspath(folder))  # "." has no name
    of_seed = None if (folder / CONFIG).exists() else re.fullmatch(r"seed-(\d+)", named.name)
    path = (folder if of_seed is None else named.parent) / CONFIG
    require_run(folder, path)
    config = TrainingConfig.resolve(**load_config(path)[0])
    return config if of_seed is None else dataclasses.replace(config, seed=int(of_seed[1]), num_seeds=1)


def require_run(folder: Path, config: Path) -> None:
    """Raise a UserError if there is no run in a folder, with its arguments in the file `config`."""
    if not folder.is_dir():
        raise UserError(f"There is no such run: {folder}.")
    if not config.exists():
        raise UserError(f"There is no run in {folder}, because it has no {config.name}.")


def folders_of_models(folder: Path, config: TrainingConfig) -> list[tuple[Path, TrainingConfig]]:
    """Return the folder and config of each agent of a run, which has several if it was trained with --seeds."""
    if config.num_seeds == 1:
        return [(folder, config)]
    seeds = range(config.seed, config.seed + config.num_seeds)
    return [(folder / f"seed-{seed}", dataclasses.replace(config, seed=seed, num_seeds=1)) for seed in seeds]


def files_of(config: TrainingConfig) -> list[str]:
    """Return the names of the files that a run writes to its folder, as patterns of `Path.glob`."""
    normalizes = bool(config.hyperparameters["normalize"])
    models = [MODEL] + [STATISTICS] * normalizes
    if config.is_in_one_function:
        return ["seed-*/" * (config.num_seeds > 1) + name for name in models] + [CURVE, CONFIG, SEEDS_CHECKPOINT]
    best = ([BEST_MODEL] + [BEST_STATISTICS] * normalizes + [EVALUATIONS]) * (config.eval_freq > 0)
    logs = ["tensorboard"] * (config.tensorboard_log is None)
    return [*models, *best, CURVE, EPISODES, *logs, CONFIG] + [CHECKPOINT] * (config.backend == "jax")


def require_writable(folder: Path) -> None:
    """Check in advance whether something can be written to a folder, without making anything.

    Raises:
      UserError: it is a file, inside of one, or read-only.
    """
    with user_errors(OSError, f"Cannot write {folder}: "):
        existing = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not existing.is_dir():
        raise UserError(f"Cannot write {folder}: {existing} is a file.")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise UserError(f"Cannot write {folder}: {existing} is read-only.")


def refuse_used(folder: Path) -> None:
    """Raise if a run in this folder would replace files that may be needed.

    Raises:
      UserError: the folder holds a model or a checkpoint, or files that no run wrote.
    """
    names = [MODEL, f"seed-*/{MODEL}", CHECKPOINT, SEEDS_CHECKPOINT, BEST_MODEL, BEST_STATISTICS, EVALUATIONS]
    if (folder / CONFIG).exists():
        load_config(folder / CONFIG)  # raises if it is not a run's
    for name in [*names, STATISTICS, EPISODES, CURVE]:
        if any(folder.glob(name)):
            raise UserError(
                f"{folder} already holds {name}: continue a run with --resume {folder}, give another --out, or remove "
                "the folder."
            )


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Return a context for writing to a run's folder, which converts an OSError to a UserError."""
    try:
        yield
    except OSError as error:
        has_checkpoint = any((folder / name).exists() for name in (CHECKPOINT, SEEDS_CHECKPOINT))
        intact = (
            f". The last checkpoint is intact. To resume: jaxenvs train --resume {folder}" if has_checkpoint else ""
        )
        raise UserError(f"Cannot write {folder}: {error}{intact}") from error


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Return a context in which no other process trains in a folder. The lock is the folder's own, without a file.

    Raises:
      UserError: another process trains there.
    """
    with contextlib.ExitStack() as stack:
        if sys.platform != "win32":  # where folders cannot be locked
            import fcntl

            number = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, number)
            with contextlib.suppress(OSError):  # not all file systems can lock
                try:
                    fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError as error:
                    raise UserError(
                        f"Another process is training in {folder}: wait for it, or give another --out."
                    ) from error
                stack.callback(fcntl.flock, number, fcntl.LOCK_UN)  # a forked process has it open, too
        yield


def make_env(config: TrainingConfig, num_envs: int | None = None, like: VecEnv | None = None, **further: Any) -> VecEnv:
    """Make the environments of a run, to train on or to look at an agent.

    Args:
      num_envs: the number of environments, if not the config's.
      like: other environments of the run, with the statistics to normalize with, which are then not updated.
      further: arguments of the EnvironmentInfo's `make`.

    Raises:
      UserError: the environment does not accept the config.
    """
    refusals = (TypeError, ValueError, AssertionError)
    with user_errors(refusals, f"{config.env_id} cannot be made with {config.env_kwargs}: "):
        venv = config.environment.make(num_envs or config.num_envs, config.seed, **further)
        if (frames := config.hyperparameters["frame_stack"]) > 1:
            venv = VecFrameStack(venv, frames)
    normalize = config.hyperparameters["normalize"]
    if normalize and isinstance(like, VecNormalize):
        return with_statistics(venv, like)
    if normalize:
        arguments = {"gamma": config.hyperparameters.get("gamma", 0.99)}
        with user_errors(refusals, "normalize: "):
            return VecNormalize(venv, **arguments | (normalize if isinstance(normalize, dict) else {}))
    return venv


def make_model(config: TrainingConfig, env: VecEnv) -> BaseAlgorithm:
    """Make the untrained model.

    Raises:
      UserError: the algorithm does not accept the config.
    """
    use_few_threads(config)
    not_arguments = ("normalize", "frame_stack", *NOISE)
    arguments = {name: value for name, value in config.hyperparameters.items() if name not in not_arguments}
    arguments.update({name: to_schedule(arguments[name]) for name in SCHEDULED if name in arguments})
    if isinstance(arguments.get("train_freq"), list):  # as read from a config.json
        arguments["train_freq"] = tuple(arguments["train_freq"])
    if config.hyperparameters.get("noise_type") is not None:
        arguments["action_noise"] = action_noise(config.hyperparameters, env)
    refusals = (TypeError, ValueError, AssertionError, RuntimeError, AttributeError)
    too_large = user_errors(MemoryError, "The memory is too small, use a smaller buffer_size or n_steps: ")
    with too_large, user_errors(refusals, f"{config.algorithm} does not accept these hyper-parameters: "):
        if arguments.get("policy_kwargs") is not None:
            policy_kwargs = arguments["policy_kwargs"] = dict(arguments["policy_kwargs"])  # constructors write into it
            if isinstance(name := policy_kwargs.get("activation_fn"), str):  # such as "ReLU": JSON has no classes
                found = getattr(torch.nn, name)
                policy_kwargs["activation_fn"] = instance("activation_fn", found, type, "a class in torch.nn, by name")
        algorithm: Any = algorithm_class(config.algorithm)
        model: BaseAlgorithm = algorithm(env=env, seed=config.seed, engine=config.engine, **arguments)
    return model


def make_agent(folder: Path, config: TrainingConfig) -> Agent:
    """Make an untrained agent, with its environments.

    Raises:
      UserError: the environment or the algorithm does not accept the config.
    """
    env = make_env(config)
    return Agent(folder, config, make_model(config, env), env)


def action_noise(hyperparameters: Mapping[str, object], env: VecEnv) -> ActionNoise:
    """Return the action noise that `noise_type` and `noise_std` describe, as in RL Baselines3 Zoo."""
    shape = env.action_space.shape or ()
    mean, sigma = np.zeros(shape), np.full(shape, hyperparameters["noise_std"])
    is_normal = hyperparameters["noise_type"] == "normal"
    return NormalActionNoise(mean, sigma) if is_normal else OrnsteinUhlenbeckActionNoise(mean, sigma)


def load_agent(folder: Path, config: TrainingConfig, best: bool = False) -> Agent:
    """Return the agent of a run, trained or still training, in environments with the statistics of its training.

    Args:
      best: the model that was best in the evaluations of --eval-freq.

    Raises:
      UserError: there is no model, or it cannot be read.
    """
    if best and not (folder / BEST_MODEL).exists():
        raise UserError(f"{folder} holds no {BEST_MODEL}, which a training with --eval-freq writes: leave out --best.")
    found = [folder / name for name in ([BEST_MODEL] if best else [MODEL, CHECKPOINT]) if (folder / name).exists()]
    if not found:
        raise UserError(f"{folder} holds neither a {MODEL} nor a {CHECKPOINT}.")
    newest = max(found, key=lambda path: path.stat().st_mtime)
    if newest.name == CHECKPOINT:
        return read_checkpoint(folder, config)
    use_few_threads(config)
    env = make_env(config)
    with user_errors(Exception, f"Cannot load {newest.name} from {folder}: "):  # unpickling may raise anything
        model = algorithm_class(config.algorithm).load(newest)
        if isinstance(env, VecNormalize):
            env = VecNormalize.load(str(folder / (BEST_STATISTICS if best else STATISTICS)), env.venv)
    return Agent(folder, config, model, env)


def read_checkpoint(folder: Path, config: TrainingConfig) -> Agent:
    """Return the agent of a checkpoint, whose model and environments continue from the saved state.

    Raises:
      UserError: it cannot be read, or is one of another config.
    """
    use_few_threads(config)
    env = make_env(config)
    with user_errors(Exception, f"Cannot resume from {folder / CHECKPOINT}: "):  # unpickling may raise anything
        model = load_checkpoint(algorithm_class(config.algorithm), folder / CHECKPOINT, env)
    return Agent(folder, config, model, env)


def config_of_checkpoint(folder: Path) -> Any:
    """Return `TrainingConfig.as_json` of the time when a checkpoint was written.

    Raises:
      UserError: it cannot be read, or is not of a run.
    """
    with user_errors(Exception, f"Cannot resume from {folder / CHECKPOINT}: "):
        return (read_metadata(folder / CHECKPOINT) or {})["config"]


def save_model(model: BaseAlgorithm, folder: Path) -> None:
    """Write model.zip and, if there is a VecNormalize, vec_normalize.pkl."""
    save_statistics(model, folder / STATISTICS)
    model.save(folder / MODEL)


def save_statistics(model: BaseAlgorithm, path: Path) -> None:
    """Write the statistics of the VecNormalize in which a model is trained, if there is one."""
    if (normalize := model.get_vec_normalize_env()) is not None:
        with replacing(path) as unfinished:
            normalize.save(str(unfinished))


def use_few_threads(config: TrainingConfig) -> None:
    """Let PyTorch use one thread for small networks.

    More threads gain nothing, and where cores are busy they wait for each other.
    """
    # The networks of SB3's off-policy algorithms are not that small.
    is_large = ALGORITHMS[config.algorithm].is_off_policy and config.engine == "torch"
    if config.hyperparameters["policy"] == "MlpPolicy" and not is_large:
        torch.set_num_threads(1)
