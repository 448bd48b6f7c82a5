"""The benchmark of tuning: what it counts, and that it runs."""

import json

import optuna
import pytest
from optuna.storages import RetryHeartbeatStaleTrialCallback
from optuna.trial import TrialState

from benchmarks import tune


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_a_failed_trial_is_accounted_for_only_if_it_was_run_again():
    study = optuna.create_study(direction="maximize")
    study.ask().suggest_float("x", 0, 1)
    study.tell(0, state=TrialState.FAIL)
    assert tune._account(study)["accounted_for"] == 0
    RetryHeartbeatStaleTrialCallback()(study, study.trials[0])
    assert tune._account(study) == {
        **{"trials": 2, "complete": 0, "failed": 1, "run_again": 1, "left_running": 0, "left_waiting": 1},
        "accounted_for": 1,
    }
    study.tell(study.ask(), 1.0)
    assert tune._account(study)["accounted_for"] == 2


@pytest.mark.slow
@pytest.mark.thorough
def test_the_benchmark_runs(tmp_path):
    options = ["--trials", "4", "--total-timesteps", "16384", "--kills", "1"]
    tune.main(["--quick", "--output", str(tmp_path), *options])
    content = json.loads((tmp_path / "tune.json").read_text())
    ours, one_seed, all_seeds = content["tables"]["trials"]
    assert ours["num_trials"] >= 4
    assert all_seeds["seconds"] == pytest.approx(5 * one_seed["seconds"])
    assert [row["accounted_for"] == row["trials"] for row in content["tables"]["kills"]] == [True, True]
