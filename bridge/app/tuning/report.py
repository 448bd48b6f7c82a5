"""What a study came to: a line for each trial, a table, plots, and a config of the best."""

from __future__ import annotations

import csv
import dataclasses
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optuna
from optuna.importance import PedAnovaImportanceEvaluator
from optuna.trial import FrozenTrial, TrialState

from bridge.app.files import make_folder, replacing

if TYPE_CHECKING:
    from bridge.app.tuning.trials import Objective

BEST, TRIALS, HISTORY, IMPORTANCE = "best.json", "trials.csv", "history.png", "importance.png"


def line(study: optuna.Study, trial: FrozenTrial, n_trials: int) -> str:
    """A trial that ended, and how far the study is."""
    trials = study.get_trials(deepcopy=False)
    pruned = sum(each.state == TrialState.PRUNED for each in trials)
    completed = [each for each in trials if each.state == TrialState.COMPLETE]
    if trial.state == TrialState.COMPLETE:
        came_to = f"{trial.value:.2f}"
    elif trial.state == TrialState.PRUNED and trial.intermediate_values:
        last = max(trial.intermediate_values)
        came_to = f"pruned at evaluation {last} with {trial.intermediate_values[last]:.2f}"
    else:
        came_to = "diverged" if trial.state == TrialState.PRUNED else trial.state.name.lower()
    best = max(completed, key=lambda each: each.value or 0.0, default=None)
    of_best = "" if best is None else f"; best {best.value:.2f} of trial {best.number}"
    return f"Trial {trial.number}: {came_to} ({len(completed) + pruned} of {n_trials}, {pruned} pruned{of_best})"


def describe(study: optuna.Study) -> str:
    """What a study came to, in some lines."""
    completed = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    pruned = study.get_trials(deepcopy=False, states=(TrialState.PRUNED,))
    lines = [f"{len(completed)} trials ended, {len(pruned)} were pruned."]
    if completed:
        best = study.best_trial
        params = ", ".join(f"{name}={_shown(value)}" for name, value in best.params.items())
        lines.append(f"Best: {best.value:.2f} of trial {best.number}, with {params}")
    return "\n".join(lines)


def write(study: optuna.Study, objective: Objective, folder: Path) -> None:
    """trials.csv; and, once a trial has ended, best.json, history.png and importance.png.

    Raises:
      UserError: nothing can be written there.
    """
    make_folder(folder)
    _write_table(study, folder / TRIALS)
    completed = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    if completed:
        best = objective.config_of(study.best_trial.params)
        dataclasses.replace(best, num_seeds=1).save(folder / BEST)
        _plot(study, folder, with_importance=len({trial.value for trial in completed}) > 1)


def _write_table(study: optuna.Study, path: Path) -> None:
    trials = study.get_trials(deepcopy=False)
    names = sorted({name for trial in trials for name in trial.params})
    with replacing(path) as unfinished, unfinished.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("number", "state", "value", "seconds", *names))
        for trial in trials:
            seconds = trial.duration.total_seconds() if trial.duration else None
            params = (trial.params.get(name) for name in names)
            writer.writerow((trial.number, trial.state.name, trial.value, seconds, *params))


def _plot(study: optuna.Study, folder: Path, with_importance: bool) -> None:
    from matplotlib import pyplot  # here, because it takes long to import
    from optuna.visualization.matplotlib import plot_optimization_history, plot_param_importances

    plots: dict[str, Callable[[], Any]] = {HISTORY: lambda: plot_optimization_history(study)}
    if with_importance:
        plots[IMPORTANCE] = lambda: plot_param_importances(study, evaluator=PedAnovaImportanceEvaluator())
    for name, plot in plots.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            figure = plot().figure
        with replacing(folder / name) as unfinished:
            figure.savefig(unfinished, format="png", bbox_inches="tight")
        pyplot.close(figure)


def _shown(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
