"""A training run of the command line: train, save, evaluate."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import configure
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

import jaxenvs
from bridge.evaluation import evaluate
from bridge.vec_env.factory import make_vec_env
from jaxenvs.app.config import ALGORITHMS, TrainingConfig, UserError
from jaxenvs.app.hyperparameters import SCHEDULED, to_schedule

EVALUATION_EPISODES = 100


class Interrupted(Exception):
    """Ctrl-C during training. What was learnt until then is saved."""


def train(config: TrainingConfig, out: Path) -> tuple[float, float]:
    """Train, and write model.zip, config.json, learning_curve.png, tensorboard/ and, with `normalize`,
    vec_normalize.pkl into the folder `out`.

    Returns:
      Mean and standard deviation of the returns of EVALUATION_EPISODES episodes of the trained model.

    Raises:
      UserError: the environment or the algorithm does not accept the config.
      Interrupted: by Ctrl-C during training; everything was written all the same.
    """
    if config.hyperparameters["policy"] == "MlpPolicy":
        # Threads gain nothing on networks this small, and where cores are busy they wait for each other.
        torch.set_num_threads(1)
    env = make_env(config)
    model = make_model(config, env)
    out.mkdir(parents=True, exist_ok=True)
    config.save(out / "config.json")
    episodes, interrupt = EpisodeRecorder(), StopOnInterrupt()
    previous = signal.signal(signal.SIGINT, interrupt.handle)
    try:
        print(
            f"Training {config.algorithm} on {config.num_envs} x {config.env_id} for {config.total_timesteps} steps, "
            f"seed {config.seed}, into {out}",
            flush=True,
        )
        model.set_logger(configure(str(out / "tensorboard"), ["tensorboard"]))
        model.learn(config.total_timesteps, callback=[episodes, interrupt], progress_bar=True)
        _save(config, out, model, episodes)
    finally:
        signal.signal(signal.SIGINT, previous)
    if interrupt.came:
        raise Interrupted(f"Interrupted after {model.num_timesteps} steps; saved what was learnt in {out}.")
    return evaluate_model(config, model)


def evaluate_model(config: TrainingConfig, model: BaseAlgorithm) -> tuple[float, float]:
    """Mean and standard deviation of the returns of deterministic episodes on fresh environments."""
    env = jaxenvs.make(config.env_id, **config.env_kwargs)
    # Lane i of the training has the seed `seed + i`: start after the last of them.
    result = evaluate(model, env, EVALUATION_EPISODES, seed=config.seed + config.num_envs)
    return result.mean, result.std


class EpisodeRecorder(BaseCallback):
    """The return of every episode, and the number of timesteps at which it ended."""

    def __init__(self) -> None:
        super().__init__()
        self.timesteps: list[int] = []
        self.returns: list[float] = []

    def _on_step(self) -> bool:
        for lane in np.flatnonzero(self.locals["dones"]):
            self.timesteps.append(self.num_timesteps)
            self.returns.append(self.locals["infos"][lane]["episode"]["r"])
        return True


class StopOnInterrupt(BaseCallback):
    """Ends the training after the step in which Ctrl-C came; a second Ctrl-C is Python's own and leaves at once."""

    def __init__(self) -> None:
        super().__init__()
        self.came = False

    def handle(self, *_: Any) -> None:
        """The handler of SIGINT."""
        self.came = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def _on_step(self) -> bool:
        return not self.came


def make_env(config: TrainingConfig) -> VecEnv:
    """The environments to train on.

    Raises:
      UserError: the environment does not accept the config.
    """
    try:
        env = make_vec_env(config.env_id, config.num_envs, seed=config.seed, env_kwargs=config.env_kwargs)
    except (TypeError, ValueError) as error:
        raise UserError(f"{config.env_id} with {config.env_kwargs}: {error}") from error
    if config.hyperparameters["normalize"]:
        return VecNormalize(env, gamma=config.hyperparameters.get("gamma", 0.99))
    return env


def make_model(config: TrainingConfig, env: VecEnv) -> BaseAlgorithm:
    """The untrained model.

    Raises:
      UserError: the algorithm does not accept the config.
    """
    arguments = {name: value for name, value in config.hyperparameters.items() if name != "normalize"}
    arguments.update({name: to_schedule(arguments[name]) for name in SCHEDULED if name in arguments})
    try:
        algorithm: Any = ALGORITHMS[config.algorithm]
        model: BaseAlgorithm = algorithm(env=env, seed=config.seed, engine=config.engine, **arguments)
        return model
    except (TypeError, ValueError, AssertionError) as error:
        raise UserError(f"{config.algorithm} does not accept these hyper-parameters: {error}") from error


def save_model(model: BaseAlgorithm, out: Path) -> None:
    """model.zip and, if there is one, vec_normalize.pkl."""
    model.save(out / "model.zip")
    normalize = model.get_vec_normalize_env()
    if normalize is not None:
        normalize.save(str(out / "vec_normalize.pkl"))


def _save(config: TrainingConfig, out: Path, model: BaseAlgorithm, episodes: EpisodeRecorder) -> None:
    from jaxenvs.app.learning_curve import plot_learning_curve  # here, because matplotlib takes long to import

    save_model(model, out)
    plot_learning_curve(
        episodes.timesteps,
        episodes.returns,
        out / "learning_curve.png",
        title=f"{config.env_id}, {config.algorithm}, seed {config.seed}",
        threshold=jaxenvs.spec(config.env_id).reward_threshold,
    )
