"""The command `jaxenvs tune`: open or join a study, and work on it."""

from __future__ import annotations

import json
import logging
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import optuna
from optuna.pruners import MedianPruner, NopPruner, SuccessiveHalvingPruner
from optuna.samplers import RandomSampler, TPESampler
from optuna.storages import BaseStorage, JournalStorage, RDBStorage, RetryHeartbeatStaleTrialCallback
from optuna.storages.journal import JournalFileBackend

from bridge.app.files import make_folder, replacing
from bridge.app.tuning.study import join, work
from bridge.app.tuning.trials import Objective
from jaxenvs.cli import UserError

OPTIONS = "tuning.json"
# Seconds between two heartbeats of a worker, and after which a worker without one counts as dead: longer than tracing
# a function takes, which holds Python's lock.
HEARTBEAT_INTERVAL, GRACE_PERIOD = 10, 60
# A trial that kills its workers, for example with too large a network, is restarted at most this many times.
MAX_RETRY = 3
# When several workers create the tables of a database at once, all but one of them fail, and must try again.
ATTEMPTS = 6


def run(options: dict[str, Any], out: Path) -> str:
    """Work on a study until it has enough trials.

    Args:
      options: `storage`, `study_name`, `n_trials`, `sampler`, `pruner`, `startup_trials`; the rest are arguments of
        `Objective`.
      out: the folder for tuning.json, which `--resume` reads, and for the files of `tune`.

    Returns:
      The command that trains the best.

    Raises:
      UserError: an option is unknown or does not fit the others, or something cannot be opened or written.
      KeyboardInterrupt: Ctrl-C, after the files were written.
    """
    of_study = ("storage", "study_name", "n_trials", "sampler", "pruner", "startup_trials")
    storage, name, n_trials, sampler, pruner, startup_trials = (options[each] for each in of_study)
    before = read_object(out / OPTIONS) if (out / OPTIONS).exists() else options
    if (before["storage"], before["study_name"]) != (storage, name):
        raise UserError(
            f"{out} belongs to the study {before['study_name']} in {before['storage']}: give another --out."
        )
    make_folder(out)
    logging.getLogger("optuna.study._optimize").addFilter(lambda record: not record.exc_info)  # Ctrl-C, reported below
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # heartbeats
    samplers = {
        "random": RandomSampler(),
        # With constant_liar, workers do not try what another worker is trying.
        "tpe": TPESampler(n_startup_trials=startup_trials, constant_liar=True),
    }
    pruners = {
        # RL Baselines3 Zoo's settings: the median prunes nothing in the first third of a trial.
        "median": MedianPruner(startup_trials, options["n_evaluations"] // 3),
        "halving": SuccessiveHalvingPruner(min_resource=1, reduction_factor=4),
        "none": NopPruner(),
    }
    try:
        study = optuna.create_study(
            storage=open_storage(storage),
            sampler=samplers[sampler],
            pruner=pruners[pruner],
            study_name=name,
            direction="maximize",
            load_if_exists=True,
        )
        objective = Objective(**{each: value for each, value in options.items() if each not in of_study})
        join(study, objective)
        with replacing(out / OPTIONS) as unfinished:
            unfinished.write_text(json.dumps(options, indent=2) + "\n")
        print(
            f"Tuning {options['algorithm']} on {options['env_id']}: study {name} of {storage}, into {out}", flush=True
        )
        work(study, objective, n_trials, out)
    except KeyboardInterrupt:
        print(f"\nInterrupted. To resume: jaxenvs tune --resume {out}", file=sys.stderr)
        raise
    except optuna.exceptions.OptunaError as error:
        raise UserError(f"{storage}: {error} To resume: jaxenvs tune --resume {out}") from error
    best = out / "best.json"
    return (
        f"To train with the best hyper-parameters: jaxenvs train --config {best}"
        if best.exists()
        else "No trial has finished, so there are no best hyper-parameters."
    )


def open_storage(storage: str) -> BaseStorage:
    """Open or create the database of a URL, with heartbeats, or the journal of a path.

    Raises:
      UserError: it cannot be opened.
    """
    # SQLite: a worker waits until the others have written.
    engine = {"connect_args": {"timeout": 60}} if storage.startswith("sqlite") else {}
    retry = RetryHeartbeatStaleTrialCallback(MAX_RETRY)
    for attempt in range(ATTEMPTS):
        try:
            if "://" not in storage:
                return JournalStorage(JournalFileBackend(storage))
            return RDBStorage(
                storage,
                engine,
                heartbeat_interval=HEARTBEAT_INTERVAL,
                grace_period=GRACE_PERIOD,
                heartbeat_stale_trial_callback=retry,
            )
        except Exception as error:  # each database raises its own
            if attempt == ATTEMPTS - 1:
                raise UserError(f"Cannot open the storage {storage}: {type(error).__name__}: {error}") from error
            time.sleep(0.05 * 2**attempt)
    raise AssertionError("unreachable")


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file.

    Raises:
      UserError: the file cannot be read, or holds something else.
    """
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"Cannot read {path}, which must hold a JSON object: {error}") from error
