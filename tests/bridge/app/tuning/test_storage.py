"""Where studies are kept, and what becomes of trials whose worker died."""

import time
from concurrent.futures import ThreadPoolExecutor

import optuna
import pytest
from optuna.trial import TrialState

from bridge.app.tuning import storage as module
from bridge.app.tuning.storage import BEGUN, free_lost, num_running, open_storage
from jaxenvs.cli import UserError

pytestmark = [
    pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning"),
    pytest.mark.filterwarnings("ignore:Heartbeat of storage"),
]
KINDS = {"journal": "{0}/study.log", "sqlite": "sqlite:///{0}/study.db"}


def make(kind, folder):
    storage = open_storage(KINDS[kind].format(folder), heartbeat_interval=1, grace_period=1)
    return optuna.create_study(storage=storage, study_name="study", load_if_exists=True)


def states(study):
    return [trial.state for trial in study.trials]


@pytest.mark.parametrize("kind", KINDS)
def test_a_trial_is_run_again_with_its_params_once_its_heart_stops_beating(kind, tmp_path):
    study = make(kind, tmp_path)
    trial = study.ask()
    x = trial.suggest_float("x", 0, 1)
    trial.set_user_attr(BEGUN, trial.number)
    study._storage.record_heartbeat(trial._trial_id)
    other = make(kind, tmp_path)
    free_lost(other)
    assert states(other) == [TrialState.RUNNING]
    assert num_running(other) == 1
    time.sleep(2.2)
    free_lost(other)
    assert states(study) == [TrialState.FAIL, TrialState.WAITING]
    again = other.ask()
    assert (again.number, again.suggest_float("x", 0, 1)) == (1, x)
    free_lost(study)  # what it has of the worker that died is no reason to take it for dead
    assert states(study) == [TrialState.FAIL, TrialState.RUNNING]


@pytest.mark.parametrize("kind", KINDS)
def test_a_trial_is_run_again_whose_worker_died_before_its_first_heartbeat(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "GRACE_PERIOD", 1)
    study = make(kind, tmp_path)
    study.ask()
    free_lost(study)
    assert states(study) == [TrialState.RUNNING]
    time.sleep(1.2)
    free_lost(study)
    assert states(study) == [TrialState.FAIL, TrialState.WAITING]


@pytest.mark.parametrize("kind", KINDS)
def test_a_trial_is_run_again_whose_finder_died_too(kind, tmp_path, monkeypatch):
    study = make(kind, tmp_path)
    trial = study.ask()
    x = trial.suggest_float("x", 0, 1)
    trial.set_user_attr(BEGUN, trial.number)
    study.tell(trial, state=TrialState.FAIL)  # and here the finder was killed
    free_lost(study)
    assert states(study) == [TrialState.FAIL]  # as it may be about to queue the trial up
    monkeypatch.setattr(module, "GRACE_PERIOD", 0)
    for _ in range(2):
        free_lost(study)
        assert states(study) == [TrialState.FAIL, TrialState.WAITING]
    assert study.ask().suggest_float("x", 0, 1) == x


def test_a_trial_that_kills_each_of_its_workers_is_given_up(tmp_path):
    study = make("journal", tmp_path)
    for _ in range(module.MAX_RETRY + 1):
        trial = study.ask()
        trial.set_user_attr(BEGUN, trial.number)
        study._storage._grace_period = -1
        free_lost(study)
    assert states(study) == [TrialState.FAIL] * (module.MAX_RETRY + 1)


def test_workers_that_begin_at_once_make_one_database(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        studies = list(pool.map(lambda _: make("sqlite", tmp_path), range(8)))
    assert len({study._study_id for study in studies}) == 1


def test_what_cannot_be_opened_is_said_in_a_line(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "ATTEMPTS", 1)
    for storage in (f"sqlite:///{tmp_path}/nowhere/study.db", f"{tmp_path}/nowhere/study.log", "nosuch://host/db"):
        with pytest.raises(UserError, match=f"Cannot open the storage {storage}"):
            open_storage(storage)
