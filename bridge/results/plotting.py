"""plot_results: learning curves over seeds, with their uncertainty.

The interquartile mean and its bootstrapped interval are from Agarwal et al. 2021, Deep Reinforcement Learning at the
Edge of the Statistical Precipice, https://arxiv.org/abs/2108.13264.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from bridge.results.reading import Run, is_metrics, read
from jaxenvs import arguments

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# SB3's names, and the labels of the axis.
X_AXES = {"timesteps": "environment steps", "episodes": "episodes", "walltime_hrs": "hours"}
AGGREGATES = ("iqm", "median")

MOST_STRETCHES = 60
EPISODES_PER_STRETCH = 5
NUM_RESAMPLES = 2000
INTERVAL = (2.5, 97.5)  # percentiles: 95 % of the resampled means


def plot_results(
    dirs: object,
    num_timesteps: int | None = None,
    x_axis: str = "timesteps",
    task_name: str = "",
    figsize: tuple[float, float] = (7.5, 4.5),
    *,
    aggregate: str = "iqm",
    ax: Axes | None = None,
) -> Axes:
    """Draw learning curves: returns of episodes over training, with the uncertainty of a few seeds.

    For example: `plot_results({"PPO": ["logs/0", "logs/1"], "A2C": sweep(train, keys)}, task_name="CartPole-v1")`.

    The steps up to the end of the shortest training are divided into intervals of equal length. In each interval, a
    seed's value is the mean of its episodes. The line is the interquartile mean (IQM) of the seeds, the mean of their
    middle half, and the band is the middle 95 % of such means of seeds drawn with replacement. A seed that ended no
    episode in an interval keeps its previous value. For a single training, the line is the mean of the episodes, and
    the band reaches from their 10th to their 90th percentile.

    Args:
      dirs: a training, a list of trainings that differ only in their seed, or a dict from names to either, with a curve
        for each name. A training is a folder with files of SB3's Monitor or VecMonitor, as `load_results` reads them,
        or one that `jaxenvs train` wrote; metrics of `learn.train`, (num_rows,), or of `learn.sweep`, (num_seeds,
        num_rows), of which the curve shows `iteration_episode_return`; or an object with such `metrics`: a
        `learn.Result`, or a model of `train_seeds`.
      num_timesteps: leave out what came after this number of steps.
      x_axis: "timesteps"; "episodes"; or, for monitor files, "walltime_hrs".
      task_name: the title.
      figsize: width and height of a new figure, in inches.
      aggregate: "iqm", as above; or "median" of the seeds, with their quartiles.
      ax: the axes to draw on. If not given, on a new figure of pyplot, which notebooks show.

    Returns:
      The axes: `plot_results(...).figure.savefig("curves.png")`.

    Raises:
      FileNotFoundError: a folder holds no training.
      TypeError, ValueError: an argument is invalid.
    """
    arguments.one_of("x_axis", x_axis, X_AXES)
    arguments.one_of("aggregate", aggregate, AGGREGATES)
    if num_timesteps is not None:
        num_timesteps = arguments.positive_int("num_timesteps", num_timesteps)
    curves = {name: _runs(each, num_timesteps, x_axis) for name, each in _named(dirs).items()}
    if ax is None:
        from matplotlib import pyplot  # here, because it takes long to import

        _, ax = pyplot.subplots(figsize=figsize, layout="constrained")
    for name, runs in curves.items():
        _draw(ax, name, runs, aggregate)
    _finish(ax, x_axis, task_name)
    return ax


def interquartile_mean(values: np.ndarray) -> np.ndarray:
    """Return the mean of the middle half over the first axis, without the lowest and highest quarter, rounded down."""
    cut = len(values) // 4
    mean: np.ndarray = np.sort(values, axis=0)[cut : len(values) - cut].mean(axis=0)
    return mean


def bootstrap(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the ends of the 95 % interval of the interquartile mean, over the first axis; deterministic."""
    drawn = np.random.default_rng(0).integers(len(values), size=(len(values), NUM_RESAMPLES))
    # A column at a time: for hundreds of seeds, all columns at once would take a gigabyte.
    low, high = np.transpose([np.percentile(interquartile_mean(column[drawn]), INTERVAL) for column in values.T])
    return low, high


def _named(dirs: object) -> Mapping[str, object]:
    """Return curves by name; a single curve needs no name."""
    named = dirs if isinstance(dirs, Mapping) and not is_metrics(dirs) else {"": dirs}
    if not named:
        raise ValueError("dirs must hold at least one training, got none.")
    return named


def _runs(sources: object, num_timesteps: int | None, x_axis: str) -> list[Run]:
    sources = sources if isinstance(sources, list | tuple) else [sources]
    if not sources:
        raise ValueError("dirs must hold at least one training, got none.")
    return [run for source in sources for run in read(source, num_timesteps, x_axis)]


def _draw(ax: Axes, name: str, runs: list[Run], aggregate: str) -> None:
    """Draw one curve, whose label says what it shows."""
    at, means, low, high = _stretches(runs)
    number = len(runs)
    if not len(at):
        what = "no episode has ended" if number == 1 else f"not all of {number} runs have ended an episode"
        line, low, high = means.sum(axis=0), None, None
    elif number == 1:
        what = "mean of episodes" + ("" if low is None else ", 10th to 90th percentile")
        line = means[0]
    elif aggregate == "iqm":
        what, line = f"IQM of {number} runs, 95 % interval", interquartile_mean(means)
        low, high = bootstrap(means)
    else:
        what = f"median of {number} runs, quartiles"
        low, line, high = np.percentile(means, [25, 50, 75], axis=0)
    label = f"{name}: {what}" if name else what
    (drawn,) = ax.plot(at, line, linewidth=2, marker="o" if len(at) < 3 else "", label=label)
    if low is not None and high is not None:
        ax.fill_between(at, low, high, color=drawn.get_color(), alpha=0.18, linewidth=0)


def _stretches(runs: list[Run]) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, np.ndarray | None]:
    """Divide the runs into intervals of equal length, beginning where each run has ended an episode.

    Returns:
      The middle of each interval, (num_stretches,); the mean return of each run, (num_runs, num_stretches); and the
        10th and 90th percentile of the episodes, if there is one run and its rows are single episodes.
    """
    if not all(len(run.x) for run in runs):
        return np.empty(0), np.empty((len(runs), 0)), None, None
    end = min(run.x[-1] for run in runs)
    most = min(min(len(run.x), int(run.episodes.sum()) // EPISODES_PER_STRETCH) for run in runs)
    count = int(np.clip(most, 1, MOST_STRETCHES))
    edges = np.linspace(0, end, count + 1)
    # The place `count` is beyond the end.
    places = [np.digitize(run.x, edges[1:], right=True) for run in runs]
    episodes = np.array([_sums(place, run.episodes, count) for place, run in zip(places, runs)])
    returns = np.array([_sums(place, run.returns * run.episodes, count) for place, run in zip(places, runs)])
    # For each interval, the last one up to it in which an episode ended: late in a training, episodes are long and
    # rare.
    newest = np.maximum.accumulate(np.where(episodes > 0, np.arange(count), -1), axis=1)
    begun = (newest >= 0).all(axis=0)
    newest = newest[:, begun]
    means = np.take_along_axis(returns, newest, axis=1) / np.take_along_axis(episodes, newest, axis=1)
    low = high = None
    if len(runs) == 1 and (runs[0].episodes == 1).all():
        within = [runs[0].returns[places[0] == number] for number in newest[0]]
        low, high = np.transpose([np.percentile(each, [10, 90]) for each in within])
    return ((edges[:-1] + edges[1:]) / 2)[begun], means, low, high


def _sums(places: np.ndarray, values: np.ndarray, count: int) -> np.ndarray:
    return np.bincount(places, weights=values, minlength=count)[:count]


def _finish(ax: Axes, x_axis: str, task_name: str) -> None:
    from matplotlib.ticker import EngFormatter

    ax.set_xlabel(X_AXES[x_axis])
    ax.set_ylabel("episode return")
    ax.set_title(task_name, loc="left", fontweight="bold")
    if x_axis != "walltime_hrs":
        ax.xaxis.set_major_formatter(EngFormatter(sep=""))
    ax.set_xlim(left=0)
    ax.margins(y=0.08)
    ax.grid(color="#e5e7eb", linewidth=0.8)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, loc="best")
