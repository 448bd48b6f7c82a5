"""Returns of a training, read from monitor files, a run of the command, or metrics of a compiled training."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from stable_baselines3.common.monitor import LoadMonitorResultsError, load_results

# Files in the folder of a run of the command: of one agent, and of several trained in one compiled function.
EPISODES = "episodes.csv"
SEEDS_CHECKPOINT = "checkpoint.npz"
METRICS = "metrics/"  # prefix of their names among the arrays of SEEDS_CHECKPOINT

# What is read of metrics: the returns of each row's own episodes, because `episode_return` is a mean over rows before.
COLUMNS = {"timesteps": "timesteps", "episodes": "episodes", "returns": "iteration_episode_return"}


@dataclass(frozen=True)
class Run:
    """Returns of the episodes of one training; each array is (num_rows,), in chronological order.

    Attributes:
      x: the position on the x-axis: `timesteps`, `episodes` or `walltime_hrs`.
      returns: the return of an episode, or the mean of the episodes that ended in a rollout.
      episodes: the number of episodes in each row.
    """

    x: np.ndarray
    returns: np.ndarray
    episodes: np.ndarray


def read(source: object, num_timesteps: int | None, x_axis: str) -> list[Run]:
    """Return the trainings of a source of `plot_results`, with its `num_timesteps` and `x_axis`: one, or several seeds.

    A source is a folder, metrics of a compiled training, or an object with such `metrics`.
    """
    if isinstance(source, str | os.PathLike):
        tables = _of_folder(Path(source))
    else:
        metrics = source if isinstance(source, Mapping) else getattr(source, "metrics", None)
        if not isinstance(metrics, Mapping):
            raise TypeError(
                "dirs must be folders, the metrics that learn.train returns, or objects with metrics, such as a "
                f"learn.Result or a model of train_seeds, got {type(source).__name__}."
            )
        tables = _of_metrics(metrics)
    return [_run(table, num_timesteps, x_axis) for table in tables]


def read_episodes(path: Path) -> list[tuple[int, float]]:
    """Return, for each episode of a run, the number of timesteps at which it ended, and its return."""
    with path.open(newline="", encoding="utf-8") as file:
        return [(int(row["timesteps"]), float(row["return"])) for row in csv.DictReader(file)]


def is_metrics(source: object) -> bool:
    """Return whether a source is a mapping of metrics, rather than one from names to curves."""
    return isinstance(source, Mapping) and "episode_return" in source


Table = dict[str, np.ndarray]  # the columns of a Run, by name


def _of_folder(folder: Path) -> list[Table]:
    if (folder / EPISODES).exists():
        rows = np.array(read_episodes(folder / EPISODES), float).reshape(-1, 2)
        return [_of_episodes(rows[:, 0], rows[:, 1])]
    if (folder / SEEDS_CHECKPOINT).exists():
        with np.load(folder / SEEDS_CHECKPOINT) as file:
            names = [name for name in file.files if name.startswith(METRICS)]
            return _of_metrics({name.removeprefix(METRICS): file[name] for name in names})
    try:
        frame = load_results(str(folder))
    except LoadMonitorResultsError:
        raise FileNotFoundError(
            f"{folder} holds neither monitor files (*monitor.csv) nor a run of `jaxenvs train` ({EPISODES} or "
            f"{SEEDS_CHECKPOINT})."
        ) from None
    lengths, returns, seconds = (frame[name].to_numpy(float) for name in ("l", "r", "t"))
    return [_of_episodes(lengths.cumsum(), returns) | {"walltime_hrs": seconds / 3600}]


def _of_episodes(timesteps: np.ndarray, returns: np.ndarray) -> Table:
    return {"timesteps": timesteps, "episodes": np.ones(len(returns)), "returns": returns}


def _of_metrics(metrics: Mapping[str, object]) -> list[Table]:
    """A table for each row of seeds; of one seed there may be no axis."""
    names = COLUMNS.values()
    missing = [name for name in names if name not in metrics]
    if missing:
        raise ValueError(f"Metrics must have {', '.join(names)}, but {missing[0]} is missing from {sorted(metrics)}.")
    arrays = [np.atleast_2d(np.asarray(metrics[name], float)) for name in names]
    shapes = {array.shape for array in arrays}
    if len(shapes) != 1 or arrays[0].ndim != 2:
        raise ValueError(
            f"Metrics must all have one shape, (num_rows,) or (num_seeds, num_rows), got {sorted(shapes)}."
        )
    return [dict(zip(COLUMNS, rows)) for rows in zip(*arrays)]


def _run(table: Table, num_timesteps: int | None, x_axis: str) -> Run:
    x = table["episodes"].cumsum() if x_axis == "episodes" else table.get(x_axis)
    if x is None:
        raise ValueError(f"x_axis={x_axis!r} needs monitor files, because nothing else holds the times of episodes.")
    has_ended = table["episodes"] > 0  # of the others the return is NaN
    if num_timesteps is not None:
        has_ended &= table["timesteps"] <= num_timesteps
    return Run(x[has_ended], table["returns"][has_ended], table["episodes"][has_ended])
