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
from optuna.storages import BaseStorage, JournalStorage, RDBStorage, RetryHeartbeatStaleTrialCallback
from optuna.storages.journal import JournalFileBackend

from bridge.app.files import make_folder
from bridge.app.tuning.study import tune
from jaxenvs.cli.user_errors import UserError

# Seconds between two heartbeats of a worker, and after which a worker without one counts as dead: longer than tracing
# a function takes, which holds Python's lock.
HEARTBEAT_INTERVAL, GRACE_PERIOD = 10, 60
# A trial that kills its workers, for example with too large a network, is restarted at most this many times.
MAX_RETRY = 3
# When several workers create the tables of a database at once, all but one of them fail, and must try again.
ATTEMPTS = 6


def run(
    out: Path,
    storage: str,
    study_name: str,
    n_trials: int,
    space: Path | None,
    algorithm: str,
    env_id: str,
    settings: dict[str, Any],
) -> str:
    """Work on a study until it has enough trials.

    Args:
      out: the folder for best.json and trials.csv.
      storage, study_name, n_trials: of the study.
      space: a JSON file of where to search.
      algorithm, env_id, settings: further arguments of `tune`.

    Returns:
      The command that trains the best.

    Raises:
      UserError: an option does not fit the others or the study, or something cannot be opened or written.
      KeyboardInterrupt: Ctrl-C, after the files were written.
    """
    make_folder(out)
    logging.getLogger("optuna.study._optimize").addFilter(lambda record: not record.exc_info)  # Ctrl-C, reported below
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # heartbeats
    searched = None if space is None else _read_object(space)
    try:
        study = optuna.create_study(
            storage=open_storage(storage),
            # With constant_liar, workers do not try what another worker is trying.
            sampler=optuna.samplers.TPESampler(constant_liar=True),
            pruner=optuna.pruners.MedianPruner(n_startup_trials=10, n_warmup_steps=1),  # as in RL Baselines3 Zoo
            study_name=study_name,
            direction="maximize",
            load_if_exists=True,
        )
        print(f"Tuning {algorithm} on {env_id}: study {study_name} of {storage}, into {out}", flush=True)
        tune(algorithm, env_id, study, n_trials=n_trials, space=searched, out=out, **settings)
    except KeyboardInterrupt:
        print("\nInterrupted. To resume, run the same command again.", file=sys.stderr)
        raise
    except optuna.exceptions.OptunaError as error:
        raise UserError(f"{storage}: {error} To resume, run the same command again.") from error
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


def _read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file.

    Raises:
      UserError: the file cannot be read, or holds something else.
    """
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"Cannot read {path}, which must hold a JSON object: {error}") from error
