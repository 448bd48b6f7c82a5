"""The learning curve of a run: the returns of its episodes over the steps."""

from __future__ import annotations

from pathlib import Path

from bridge import plot_results
from bridge.app.config import TrainingConfig
from bridge.app.runs import CURVE
from jaxenvs.files import replacing

SOLVED = "#dc2626"


def draw_learning_curve(config: TrainingConfig, out: Path) -> None:
    """Draw the results in the folder of a run as learning_curve.png.

    A line shows the return at which the task counts as solved.
    """
    from matplotlib.figure import Figure  # imported here, because it takes long

    figure = Figure(figsize=(7.5, 4.5), layout="constrained")  # not pyplot's, which may open a window
    seeds = f"seed {config.seed}" if config.num_seeds == 1 else f"{config.num_seeds} seeds"
    axes = plot_results(out, task_name=f"{config.env_id}, {config.algorithm}, {seeds}", ax=figure.add_subplot())
    threshold = config.environment.reward_threshold
    if threshold is not None:
        axes.axhline(threshold, color=SOLVED, linestyle=(0, (5, 3)), linewidth=1.2, label=f"solved: {threshold:g}")
        axes.legend(frameon=False, loc="best")
    with replacing(out / CURVE) as unfinished:
        figure.savefig(unfinished, dpi=150)
