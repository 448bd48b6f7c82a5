"""Callbacks of a training: progress, episodes, checkpoints, Ctrl-C."""

from __future__ import annotations

import contextlib
import csv
import functools
import importlib
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback
from stable_baselines3.common.vec_env import VecEnv
from tqdm import tqdm

from bridge import save_checkpoint
from bridge.app.config import TrainingConfig
from bridge.app.runs import BEST_STATISTICS, CHECKPOINT, EVALUATIONS, save_statistics, writing
from bridge.checkpoint import save_before_rollout
from bridge.engine.callbacks.callback_schedule import ScheduledCallback
from bridge.results.reading import EPISODES, read_episodes
from jaxenvs.files import replacing

CHECKPOINT_SECONDS = 10.0
# Checkpoints take at most this share of the time: they are less frequent if writing one takes long.
CHECKPOINT_SHARE = 0.05


class Stopped(Exception):
    """Ctrl-C came, and the training is at a point from which it can continue."""


class Interrupt:
    """Context in which the first Ctrl-C only sets `came`, and the second one is Python's own, which leaves at once.

    The training stops where it can be continued.
    """

    def __init__(self) -> None:
        self.came = False

    def __enter__(self) -> Self:
        self._previous = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._previous)

    def _handle(self, *_: object) -> None:
        self.came = True
        signal.signal(signal.SIGINT, signal.default_int_handler)
        print("\nStopping after this rollout. Press Ctrl-C again to stop at once.", file=sys.stderr, flush=True)


class Timer:
    """Timer that says when the next checkpoint is due."""

    def __init__(self) -> None:
        self._next = time.monotonic() + CHECKPOINT_SECONDS

    @property
    def is_due(self) -> bool:
        return time.monotonic() >= self._next

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Return a context for writing a checkpoint, whose duration determines when the next one is due."""
        start = time.monotonic()
        yield
        now = time.monotonic()
        self._next = now + max(CHECKPOINT_SECONDS, (now - start) / CHECKPOINT_SHARE)


class EpisodeLog(ScheduledCallback):
    """Callback that records the return of every episode, and the number of timesteps at which it ended."""

    def __init__(self) -> None:
        super().__init__()
        self.episodes: list[tuple[int, float]] = []

    def _on_step(self) -> bool:
        for index in np.flatnonzero(self.locals["dones"]):
            episode = self.locals["infos"][index].get("episode")
            if episode is not None:  # None if a life was lost, and the game continues
                self.episodes.append((self.num_timesteps, float(episode["r"])))
        return True

    def write(self, folder: Path) -> None:
        """Write the episodes as CSV, next to the checkpoint."""
        with replacing(folder / EPISODES) as path, path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(("timesteps", "return"))
            writer.writerows(self.episodes)

    def read(self, folder: Path, until: int) -> None:
        """Read the episodes that ended before a checkpoint was written: later ones will be repeated."""
        if (path := folder / EPISODES).exists():
            self.episodes = [episode for episode in read_episodes(path) if episode[0] <= until]


class Checkpoints(ScheduledCallback):
    """Callback that periodically writes a checkpoint before a rollout. After Ctrl-C, it raises Stopped there.

    It writes none for environments that are not JAX environments, whose state cannot be saved.
    """

    def __init__(self, config: TrainingConfig, folder: Path, episodes: EpisodeLog, interrupt: Interrupt) -> None:
        super().__init__()
        self.path, self.metadata = folder / CHECKPOINT, {"config": config.as_json()}
        self._episodes, self._interrupt, self._timer = episodes, interrupt, Timer()
        self._can_write = config.backend == "jax"

    def _on_rollout_start(self) -> None:
        if self._can_write and (self._timer.is_due or self._interrupt.came):
            self._write(save_before_rollout)
        if self._interrupt.came:
            raise Stopped

    def _on_step(self) -> bool:
        return True

    def write_last(self) -> None:
        """Write a checkpoint at the end of the training, so that it can continue with a larger budget."""
        if self._can_write:
            self._write(save_checkpoint)

    def _write(self, save: Callable[[BaseAlgorithm, Path, dict[str, Any]], None]) -> None:
        with writing(self.path.parent), self._timer.writing():
            self._episodes.write(self.path.parent)  # first, so that no episode before the checkpoint is missing
            save(self.model, self.path, self.metadata)


def evaluations(config: TrainingConfig, env: VecEnv, out: Path, begun_at: int) -> EvalCallback:
    """Return SB3's EvalCallback, which keeps best_model.zip, and the statistics of a VecNormalize then.

    Args:
      config: of the run.
      env: environments to evaluate on, like the environments of the training.
      out: the folder of the run.
      begun_at: the number of steps from which a resumed run continues: what was evaluated before is kept.
    """
    kind: Callable[..., EvalCallback] = EvalCallback
    if config.algorithm in ("maskable_ppo", "maskable_recurrent_ppo"):  # whose actions must be legal there too
        kind = importlib.import_module("sb3_contrib.common.maskable.callbacks").MaskableEvalCallback
    callback = kind(
        env,
        callback_on_new_best=SaveStatistics(out / BEST_STATISTICS),
        eval_freq=max(config.eval_freq // config.num_envs, 1),
        log_path=str(out),
        best_model_save_path=str(out),
        verbose=0,
    )
    if begun_at and (out / EVALUATIONS).exists():
        with np.load(out / EVALUATIONS) as file:
            before = file["timesteps"] <= begun_at
            times, results, lengths = (file[name][before] for name in ("timesteps", "results", "ep_lengths"))
        callback.n_calls = begun_at // config.num_envs
        callback.evaluations_timesteps = times.tolist()
        callback.evaluations_results, callback.evaluations_length = results.tolist(), lengths.tolist()
        callback.best_mean_reward = max(results.mean(1).tolist(), default=-np.inf)
    return callback


class SaveStatistics(BaseCallback):
    """Callback that saves the statistics of a VecNormalize, if there is one."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def _on_step(self) -> bool:
        save_statistics(self.model, self._path)
        return True


class ProgressUpdates(ScheduledCallback):
    """Callback that shows a progress bar of the steps, including those before a resume."""

    def __init__(self, bar: Any) -> None:
        super().__init__()
        self._bar = bar

    def _on_step(self) -> bool:
        move(self._bar, self.num_timesteps)
        return True


# On stderr, so that the command's standard output stays clean.
progress_bar = functools.partial(tqdm, unit="step", unit_scale=True)


def move(bar: Any, num_timesteps: int) -> None:
    """Move a progress bar to this number of steps, or to its end, which it shows once, when it is closed."""
    if num_timesteps < bar.total:
        bar.update(num_timesteps - bar.n)
    else:  # a last rollout may go beyond the budget, where a bar of tqdm shows no percentage
        bar.n = bar.total
