"""bridge.tune: trials of an Optuna study, until it has enough."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution, distribution_to_json
from optuna.study import StudyDirection
from optuna.trial import TrialState

from bridge.app.config import TrainingConfig
from bridge.app.hyperparameters import ALGORITHMS
from bridge.app.tuning.report import line, write
from bridge.app.tuning.spaces import ONE_MINUS, SPACES, Space, distributions
from bridge.app.tuning.storage import free_lost, num_running
from bridge.app.tuning.trials import Objective
from jaxenvs import arguments
from jaxenvs.cli import UserError

N_TRIALS = 100
N_SEEDS = 5
N_EVALUATIONS = 5
N_EVAL_EPISODES = 10
ENDED = (TrialState.COMPLETE, TrialState.PRUNED)
SETTINGS = "settings"  # among the user_attrs of a study: of what all its trials are
WAIT_SECONDS = 1.0


def tune(
    algorithm: str,
    env_id: str,
    study: optuna.Study | None = None,
    *,
    n_trials: int = N_TRIALS,
    num_seeds: int = N_SEEDS,
    total_timesteps: int | None = None,
    num_envs: int | None = None,
    seed: int = 0,
    env_kwargs: Mapping[str, Any] | None = None,
    hyperparameters: Mapping[str, Any] | None = None,
    space: Space | None = None,
    n_evaluations: int = N_EVALUATIONS,
    n_eval_episodes: int = N_EVAL_EPISODES,
    out: Path | str | None = None,
    verbose: bool = False,
) -> optuna.Study:
    """Search hyper-parameters with Optuna. A trial trains agents of several seeds in one program, and its value is the
    median over them of the mean return of deterministic episodes.

    Trials that differ in numbers alone, as learning rates and discounts, run as one compiled program. Any number of
    processes may work on a study in a storage that they share. For all cores, call
    `jaxenvs.learn.sweep.reserve_threads()` before JAX runs anything.

    Args:
      algorithm, env_id: as `jaxenvs train` has them: "ppo", "CartPole-v1".
      study: which maximises. Its sampler, pruner and storage are used. If not given, one in memory, with Optuna's TPE
        and its median pruner.
      n_trials: until so many have ended or were pruned, those of other processes included.
      num_seeds: agents in a trial.
      seed: of the first of them; the others have seed + 1, ...
      total_timesteps, num_envs, env_kwargs: of each agent, as `jaxenvs train` has them.
      hyperparameters: which all trials have, and are not searched; as `jaxenvs train` has them.
      space: where to search: by name, a list of choices, a range {"low": 1e-5, "high": 0.01, "log": True}, or one of
        Optuna's distributions. If not given, RL Baselines3 Zoo's ranges: `bridge.app.tuning.spaces`.
      n_evaluations: of a trial, in equal distances; after each but the last it may be pruned.
      n_eval_episodes: of each agent in each of them.
      out: a folder for trials.csv, best.json, which `jaxenvs train --config` takes, and plots; or None.
      verbose: whether to print a line for each trial.

    Returns:
      The study. Among the user_attrs of a trial that was not pruned are the `returns` of its seeds.

    Raises:
      UserError: something is unknown or does not fit together, or the study is of other settings.
      TypeError, ValueError: an argument is not what it must be.
      KeyboardInterrupt: Ctrl-C; the trial that ran is queued up again.
    """
    arguments.positive_int("n_trials", n_trials)
    if study is None:
        study = optuna.create_study(direction="maximize", pruner=optuna.pruners.MedianPruner())
    run: dict[str, Any] = {
        "num_seeds": num_seeds,
        "total_timesteps": total_timesteps,
        "num_envs": num_envs,
        "seed": seed,
    }
    given = (env_kwargs, hyperparameters, space, n_evaluations, n_eval_episodes)
    objective = begin(algorithm, env_id, study, *given, **run)
    work(study, objective, n_trials, None if out is None else Path(out), verbose)
    return study


def begin(
    algorithm: str,
    env_id: str,
    study: optuna.Study,
    env_kwargs: Mapping[str, Any] | None,
    hyperparameters: Mapping[str, Any] | None,
    space: Space | None,
    n_evaluations: int,
    n_eval_episodes: int,
    **run: Any,
) -> Objective:
    """What the trials of a study are, which is kept with it. Arguments and errors are those of `tune`."""
    for name, number in {"n_evaluations": n_evaluations, "n_eval_episodes": n_eval_episodes}.items():
        arguments.positive_int(name, number)
    arguments.instance("study", study, optuna.Study, "an optuna.Study")
    if study.directions != [StudyDirection.MAXIMIZE]:
        directions = ", ".join(each.name for each in study.directions)
        raise ValueError(f"study must have the direction maximize, got {directions}.")
    if algorithm not in ALGORITHMS:
        raise UserError(f"No algorithm {algorithm!r}. There are: {', '.join(ALGORITHMS)}.")
    given = dict(hyperparameters or {})
    searched = {name: among for name, among in (space or SPACES[algorithm]).items() if _meant_by(name) not in given}
    config = TrainingConfig.resolve(
        algorithm, env_id, dict(env_kwargs or {}), hyperparameters=_least(searched) | given, **run
    )
    among = distributions(searched, config)
    objective = Objective(config, among, n_evaluations, n_eval_episodes)
    # Whatever is wrong with a name or a choice is said before the first trial.
    objective.config_of({name: _any_of(each) for name, each in among.items()})
    _keep(
        study,
        config.as_json()
        | {"n_evaluations": n_evaluations, "n_eval_episodes": n_eval_episodes}
        | {"space": {name: json.loads(distribution_to_json(each)) for name, each in among.items()}},
    )
    return objective


def work(study: optuna.Study, objective: Objective, n_trials: int, out: Path | None, verbose: bool) -> None:
    """Run trials until the study has enough, and write what it came to. Arguments and errors are those of `tune`."""
    try:
        _work(study, objective, n_trials, verbose)
    finally:
        if out is not None:
            write(study, objective, out)


def _work(study: optuna.Study, objective: Objective, n_trials: int, verbose: bool) -> None:
    """Run trials until the study has enough; and, as one of other workers may die, wait for the last."""

    def tell(study: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
        if verbose:
            print(line(study, trial, n_trials), flush=True)

    waits = False
    while True:
        free_lost(study)
        ended = len(study.get_trials(deepcopy=False, states=ENDED))
        if ended >= n_trials:
            return
        if ended + (running := num_running(study)) >= n_trials:
            if verbose and not waits:
                print(f"Waiting for the last of other workers, {running}, should one of them die.", flush=True)
            waits = True
            time.sleep(WAIT_SECONDS)
            continue
        try:
            study.optimize(objective, n_trials=1, callbacks=[tell])
        except (optuna.exceptions.UpdateFinishedTrialError, ValueError) as error:
            # Of a worker that was stopped for so long that others took it for dead, and its trial.
            if not _was_taken(error):
                raise
            if verbose:
                print("This worker was taken for dead, and its trial is another's.", flush=True)


def _was_taken(error: Exception) -> bool:
    is_told = isinstance(error, ValueError) and str(error) == "Cannot tell a FAIL trial."
    return is_told or isinstance(error, optuna.exceptions.UpdateFinishedTrialError)


def _keep(study: optuna.Study, settings: dict[str, Any]) -> None:
    """Keep with a new study of what its trials are.

    Raises:
      UserError: the study has trials of others.
    """
    now: dict[str, Any] = json.loads(json.dumps(settings))
    before = study.user_attrs.get(SETTINGS)
    if before is None:
        study.set_user_attr(SETTINGS, now)
        return
    flat = [each | each["hyperparameters"] | {"hyperparameters": None} for each in (before, now)]
    other = [name for name in flat[1] if flat[0].get(name) != flat[1][name]]
    if other:
        changes = "; ".join(f"{name} was {flat[0].get(name)!r} and is {flat[1][name]!r}" for name in other)
        raise UserError(f"The study {study.study_name} is of other trials: {changes}. Give another study.")


def _meant_by(name: str) -> str:
    """The hyper-parameter that a name of a space means."""
    return "gradient_steps" if name == "subsample_steps" else name.removeprefix(ONE_MINUS)


def _least(space: Mapping[str, Any]) -> dict[str, Any]:
    """The least choices of what a training may be too short for, as trials have others than it is tuned for."""
    lists = {name: space.get(name) for name in ("n_steps", "learning_starts", "train_freq")}
    return {name: min(choices) for name, choices in lists.items() if isinstance(choices, list) and choices}


def _any_of(among: Any) -> Any:
    return among.choices[0] if isinstance(among, CategoricalDistribution) else among.low
