"""The picture of a training run: what its episodes earned, over the steps taken."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

MOST_BINS = 60
EPISODES_PER_BIN = 5


def plot_learning_curve(
    timesteps: Sequence[int], returns: Sequence[float], path: Path, title: str, threshold: float | None = None
) -> None:
    """Draw episode returns as a PNG: mean, and 10th to 90th percentile, of stretches of equal length.

    Args:
      timesteps: when each episode ended, in steps of all environments together; ascending.
      returns: what each episode earned.
      threshold: the return at which the task counts as solved.
    """
    with _figure(path, title, threshold) as axes:
        if not timesteps:
            axes.text(0.5, 0.5, "no episode has ended", transform=axes.transAxes, ha="center", color="#6b7280")
            return
        at, mean, low, high = _binned(np.asarray(timesteps), np.asarray(returns))
        _draw(axes, at, mean, low, high, "10th to 90th percentile", "mean of episodes")


def plot_seeds(
    timesteps: np.ndarray,
    returns: np.ndarray,
    episodes: np.ndarray,
    path: Path,
    title: str,
    threshold: float | None = None,
) -> None:
    """Draw the episode returns of several seeds as a PNG: their mean, and the middle half of them.

    Args:
      timesteps: at the end of each rollout, (num_rollouts,).
      returns, episodes: mean return of the episodes that ended in each rollout, and their number, each
        (num_seeds, num_rollouts).
    """
    with _figure(path, title, threshold) as axes:
        chunks = np.array_split(np.arange(len(timesteps)), min(len(timesteps), MOST_BINS))
        sums = np.nan_to_num(returns) * episodes
        counts = np.stack([episodes[:, chunk].sum(1) for chunk in chunks], axis=1)
        # Of the stretches in which every seed has an episode.
        full = counts.all(axis=0)
        if not full.any():
            axes.text(0.5, 0.5, "no episode has ended", transform=axes.transAxes, ha="center", color="#6b7280")
            return
        means = np.stack([sums[:, chunk].sum(1) for chunk in chunks], axis=1)[:, full] / counts[:, full]
        at = np.array([timesteps[chunk].mean() for chunk in chunks])[full]
        low, high = np.percentile(means, [25, 75], axis=0)
        _draw(axes, at, means.mean(0), low, high, "middle half of the seeds", "mean of the seeds")


def _draw(
    axes: Axes, at: np.ndarray, mean: np.ndarray, low: np.ndarray, high: np.ndarray, band: str, line: str
) -> None:
    axes.fill_between(at, low, high, color="#2563eb", alpha=0.18, linewidth=0, label=band)
    axes.plot(at, mean, color="#2563eb", linewidth=2, marker="o" if len(at) < 3 else "", label=line)


@contextlib.contextmanager
def _figure(path: Path, title: str, threshold: float | None) -> Iterator[Axes]:
    """Axes to draw returns on, which are finished and saved afterwards."""
    figure = Figure(figsize=(7.5, 4.5), layout="constrained")
    axes = figure.add_subplot()
    yield axes
    if threshold is not None:
        axes.axhline(threshold, color="#dc2626", linestyle=(0, (5, 3)), linewidth=1.2, label=f"solved: {threshold:g}")
    axes.set_xlabel("environment steps")
    axes.set_ylabel("episode return")
    axes.set_title(title, loc="left", fontweight="bold")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xlim(left=0)
    axes.margins(y=0.08)
    axes.grid(color="#e5e7eb", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, loc="best")
    figure.savefig(path, dpi=150)


def _binned(timesteps: np.ndarray, returns: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Where the stretches are that have an episode; mean, 10th and 90th percentile of theirs."""
    count = int(np.clip(len(returns) // EPISODES_PER_BIN, 1, MOST_BINS))
    edges = np.linspace(0, timesteps[-1], count + 1)[1:-1]
    of_episode = np.digitize(timesteps, edges, right=True)
    bins = [of_episode == number for number in range(count)]
    rows = [
        (timesteps[bin].mean(), returns[bin].mean(), *np.percentile(returns[bin], [10, 90]))
        for bin in bins
        if bin.any()
    ]
    at, mean, low, high = np.array(rows).T
    return at, mean, low, high
