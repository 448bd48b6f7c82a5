"""Where a study is kept, and how trials of workers that died are found and run again."""

from __future__ import annotations

import copy
import time
import warnings
from datetime import datetime, timedelta
from typing import Any

import optuna
from optuna.storages import BaseStorage, JournalStorage, RDBStorage, RetryHeartbeatStaleTrialCallback
from optuna.storages._heartbeat import BaseHeartbeat, is_heartbeat_enabled  # what `Study.optimize` looks for
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from jaxenvs.cli import UserError

# A worker shows so often that it lives, in seconds, and is taken for dead after so long. Longer than tracing a program
# with Python's lock held takes, and than the 30 s for which Optuna's journal waits for a dead worker's lock.
HEARTBEAT_INTERVAL, GRACE_PERIOD = 10, 60
# So often is a trial run again whose worker died: what kills its workers, as with too large a network, ends there.
MAX_RETRY = 3
# Of workers that make the tables of a database at once, all but one fail; they are there at the next attempt.
ATTEMPTS = 8

BEGUN = "begun"  # among a trial's user_attrs: its number, once its heart beats


class HeartbeatJournalStorage(JournalStorage, BaseHeartbeat):
    """A journal with heartbeats, which Optuna's databases alone have: entries of the trial that runs.

    The clocks of all workers must agree within the grace period.
    """

    def __init__(self, path: str, heartbeat_interval: int, grace_period: int, callback: Any) -> None:
        super().__init__(JournalFileBackend(path))
        self._interval, self._grace_period, self._callback = heartbeat_interval, grace_period, callback

    def record_heartbeat(self, trial_id: int) -> None:
        """See Optuna."""
        self.set_trial_system_attr(trial_id, "heartbeat", time.time())

    def _get_stale_trial_ids(self, study_id: int) -> list[int]:
        running = self.get_all_trials(study_id, deepcopy=False, states=(TrialState.RUNNING,))
        return [trial._trial_id for trial in running if time.time() - self._seen(trial) > self._grace_period]

    @staticmethod
    def _seen(trial: FrozenTrial) -> float:
        """When its worker last showed that it lived. One that is run again has an entry of the worker that died."""
        assert trial.datetime_start is not None
        return float(max(trial.datetime_start.timestamp(), trial.system_attrs.get("heartbeat", 0.0)))

    def get_heartbeat_interval(self) -> int:
        """See Optuna."""
        return self._interval

    def get_heartbeat_stale_trial_callback(self) -> Any:
        """See Optuna."""
        return self._callback


def open_storage(
    storage: str, heartbeat_interval: int = HEARTBEAT_INTERVAL, grace_period: int = GRACE_PERIOD
) -> BaseStorage:
    """Optuna's storage, with heartbeats.

    Args:
      storage: the URL of a database, as sqlite:///study.db; or the path of a journal file, which is made.

    Raises:
      UserError: it cannot be opened.
    """
    retry = RetryHeartbeatStaleTrialCallback(MAX_RETRY)
    try:
        if "://" not in storage:
            return HeartbeatJournalStorage(storage, heartbeat_interval, grace_period, retry)
        # SQLite lets a worker wait for others that write.
        engine = {"connect_args": {"timeout": 60}} if storage.startswith("sqlite") else {}
        for attempt in range(ATTEMPTS):
            try:
                return RDBStorage(
                    storage,
                    engine,
                    heartbeat_interval=heartbeat_interval,
                    grace_period=grace_period,
                    heartbeat_stale_trial_callback=retry,
                )
            except Exception:  # whatever that database raises
                if attempt == ATTEMPTS - 1:
                    raise
                time.sleep(0.05 * 2**attempt)
    except Exception as error:
        raise UserError(f"Cannot open the storage {storage}: {type(error).__name__}: {error}") from error
    raise AssertionError("unreachable")


def free_lost(study: optuna.Study) -> None:
    """Let trials run again whose worker died: those that Optuna finds, those that had no heartbeat yet, and those of
    which another worker found out, and died before it had queued them up again."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        optuna.storages.fail_stale_trials(study)
    for trial in study.get_trials(states=(TrialState.RUNNING,)):
        if trial.datetime_start is None or trial.user_attrs.get(BEGUN) == trial.number:
            continue
        if datetime.now() - trial.datetime_start < timedelta(seconds=GRACE_PERIOD):
            continue
        try:
            study.tell(trial.number, state=TrialState.FAIL)
        except ValueError:  # another worker has
            continue
        _retry(study, trial)
    trials = study.get_trials(deepcopy=False)
    again = {number for trial in trials for number in RetryHeartbeatStaleTrialCallback.retry_history(trial)}
    for trial in trials:
        if trial.state is not TrialState.FAIL or trial.number in again or trial.user_attrs.get(BEGUN) != trial.number:
            continue
        assert trial.datetime_complete is not None
        if datetime.now() - trial.datetime_complete > timedelta(seconds=GRACE_PERIOD):
            _retry(study, copy.deepcopy(trial))


def _retry(study: optuna.Study, trial: FrozenTrial) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        RetryHeartbeatStaleTrialCallback(MAX_RETRY)(study, trial)


def num_running(study: optuna.Study) -> int:
    """Trials of workers that live; 0 where nobody would find out that they do not."""
    if not is_heartbeat_enabled(study._storage):
        return 0
    return len(study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)))
