"""bridge.tune: run trials of an Optuna study until it has enough, and write what they found."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import optuna
from optuna.study import StudyDirection
from optuna.trial import TrialState

from bridge.app.files import make_folder, replacing
from bridge.app.tuning.spaces import Space
from bridge.app.tuning.trials import Objective
from jaxenvs import arguments
from jaxenvs.cli.user_errors import UserError

SETTINGS = "settings"  # the user attribute of a study that holds the settings of all its trials
ENDED = (TrialState.COMPLETE, TrialState.PRUNED)


def tune(
    algorithm: str,
    env_id: str,
    study: optuna.Study | None = None,
    *,
    n_trials: int = 100,
    num_seeds: int = 5,
    total_timesteps: int | None = None,
    num_envs: int | None = None,
    seed: int = 0,
    env_kwargs: Mapping[str, Any] | None = None,
    hyperparameters: Mapping[str, Any] | None = None,
    space: Space | None = None,
    n_evaluations: int = 5,
    n_eval_episodes: int = 10,
    out: Path | str | None = None,
) -> optuna.Study:
    """Search hyperparameters with Optuna, with trials of several seeds in one compiled function.

    The value of a trial is the median over its agents of the mean return of deterministic episodes. Trials that differ
    only in numbers, such as learning rates and discounts, share a compiled function. Several processes can work on one
    study if its storage is shared. To use all cores, call `jaxenvs.learn.sweep.reserve_threads()` before JAX runs
    anything.

    Args:
      algorithm, env_id: as for `jaxenvs train`: "ppo", "CartPole-v1".
      study: a study that maximizes, with the sampler, pruner and storage to use. If not given, a study in memory with
        Optuna's default sampler (TPE) and pruner (the median).
      n_trials: stop when this many trials have ended or were pruned, including trials in other processes.
      num_seeds: the number of agents in a trial.
      seed: the seed of the first agent; the others have seed + 1, ...
      total_timesteps, num_envs, env_kwargs: of each agent, as for `jaxenvs train`.
      hyperparameters: values that all trials have and that are not searched, as for `jaxenvs train`.
      space: where to search: by name, a list of choices, a range {"low": 1e-5, "high": 0.01, "log": True}, or one of
        Optuna's distributions. If not given, the ranges of RL Baselines3 Zoo: `bridge.app.tuning.spaces`.
      n_evaluations: the number of evaluations of a trial, at equal intervals; after each but the last, it may be
        pruned.
      n_eval_episodes: the number of episodes of each agent in each evaluation.
      out: a folder for trials.csv and best.json, which `jaxenvs train --config` takes; or None.

    Returns:
      The study. `user_attrs["returns"]` of a trial that was not pruned holds the mean return of each seed.

    Raises:
      UserError: an argument is unknown or does not fit the others, or the study has trials with other settings.
      TypeError, ValueError: an argument has the wrong type or value.
      KeyboardInterrupt: Ctrl-C; the trial that ran is queued up again.
    """
    arguments.positive_int("n_trials", n_trials)
    if study is None:
        study = optuna.create_study(direction="maximize")
    arguments.instance("study", study, optuna.Study, "an optuna.Study")
    run: dict[str, Any] = {"num_envs": num_envs, "total_timesteps": total_timesteps, "seed": seed}
    run |= {"num_seeds": num_seeds, "env_kwargs": dict(env_kwargs or {})}
    objective = Objective(algorithm, env_id, hyperparameters, space, n_evaluations, n_eval_episodes, **run)
    _join(study, objective)
    try:
        while len(study.get_trials(deepcopy=False, states=ENDED)) < n_trials:
            study.optimize(objective, n_trials=1)
    finally:
        if out is not None:
            write(study, objective, Path(out))
    return study


def _join(study: optuna.Study, objective: Objective) -> None:
    """Keep the settings of the objective with a new study.

    Raises:
      UserError: the study has trials with other settings.
      ValueError: the study does not maximize.
    """
    if study.directions != [StudyDirection.MAXIMIZE]:
        directions = ", ".join(each.name for each in study.directions)
        raise ValueError(f"study must have the direction maximize, got {directions}.")
    before, now = study.user_attrs.get(SETTINGS), json.loads(json.dumps(objective.settings))
    if before is None:
        study.set_user_attr(SETTINGS, now)
        return
    before, now = (each | each["hyperparameters"] | {"hyperparameters": None} for each in (before, now))
    changes = [f"{name} was {before.get(name)!r} and is {now[name]!r}" for name in now if before.get(name) != now[name]]
    if changes:
        raise UserError(f"{study.study_name} has trials with other settings: {'; '.join(changes)}. Use another study.")


def write(study: optuna.Study, objective: Objective, folder: Path) -> None:
    """Write trials.csv and, if a trial has a value, best.json.

    Raises:
      UserError: the folder or a file cannot be written.
    """
    make_folder(folder)
    with replacing(folder / "trials.csv") as unfinished:
        study.trials_dataframe(("number", "state", "value", "duration", "params")).to_csv(unfinished, index=False)
    if study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)):
        dataclasses.replace(objective.config_of(study.best_params), num_seeds=1).save(folder / "best.json")
