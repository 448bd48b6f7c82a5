"""`jaxenvs tune`, in this process, and in two of which one is killed."""

import csv
import json
import os
import signal
import subprocess
import sys
import time

import optuna
import pytest
from optuna.trial import TrialState

from bridge.app.config import TrainingConfig, load_config
from bridge.app.runs import make_env, make_model
from bridge.app.tuning import storage as storage_module
from bridge.app.tuning.command import make_pruner, make_sampler
from bridge.app.tuning.report import line
from bridge.app.tuning.trials import Agents
from jaxenvs import cli
from jaxenvs.cli import UserError
from tests.bridge.app.short_runs import error_of

TINY = ["--num-envs", "2", "--total-timesteps", "96", "--seeds", "2", "--evaluations", "2"]
TINY += ["--hyperparameters", "n_steps=16", "n_epochs=1", "batch_size=16", "policy_kwargs={'net_arch':[8]}"]


@pytest.fixture(scope="module")
def space(tmp_path_factory):
    path = tmp_path_factory.mktemp("space") / "space.json"
    path.write_text('{"learning_rate": {"low": 1e-4, "high": 1e-2, "log": true}, "gamma": [0.9, 0.99]}')
    return path


@pytest.fixture(scope="module")
def out(tmp_path_factory, space):
    """The folder of a search of two trials."""
    out = tmp_path_factory.mktemp("tune") / "cartpole"
    cli.main(["tune", "ppo", "CartPole-v1", "--trials", "2", *TINY, "--space", str(space), "--out", str(out)])
    return out


def study_of(out, name="CartPole-v1-ppo"):
    return optuna.load_study(study_name=name, storage=f"sqlite:///{out}/study.db")


def test_a_search_leaves_a_table_plots_and_the_best_config(out):
    with (out / "trials.csv").open() as file:
        rows = list(csv.DictReader(file))
    study = study_of(out)
    assert [float(row["value"]) for row in rows] == [trial.value for trial in study.trials]
    assert [row["state"] for row in rows] == ["COMPLETE", "COMPLETE"]
    assert (out / "history.png").stat().st_size > 5_000
    best = json.loads((out / "best.json").read_text())
    assert best["hyperparameters"]["learning_rate"] == study.best_params["learning_rate"]
    assert best["num_seeds"] == 1


def test_train_takes_the_best_config(out):
    config = TrainingConfig.resolve(**load_config(out / "best.json")[0])
    assert config.as_json() == load_config(out / "best.json")[0]
    make_model(config, make_env(config))


def test_resume_goes_on_to_more_trials(out, capsys):
    cli.main(["tune", "--resume", str(out), "--trials", "3"])
    printed = capsys.readouterr().out
    assert "3 trials ended, 0 were pruned." in printed
    assert "Trial 2: " in printed
    assert "(3 of 3, 0 pruned; best" in printed
    assert len(study_of(out).trials) == 3
    assert (out / "importance.png").stat().st_size > 5_000


def test_ctrl_c_says_how_to_go_on(space, tmp_path, capfd, monkeypatch):
    evaluate, out = Agents.evaluate, tmp_path / "interrupted"

    def interrupted_in_the_second(self, n_episodes):
        if (out / "study.db").exists() and study_of(out).trials[-1].number == 1:
            signal.raise_signal(signal.SIGINT)
        return evaluate(self, n_episodes)

    monkeypatch.setattr(Agents, "evaluate", interrupted_in_the_second)
    with pytest.raises(SystemExit) as exit_info:
        cli.main(["tune", "ppo", "CartPole-v1", "--trials", "9", *TINY, "--space", str(space), "--out", str(out)])
    assert exit_info.value.code == 130
    said = capfd.readouterr().err
    assert f"To go on: jaxenvs tune --resume {out}" in said
    assert "Traceback" not in said
    assert (out / "best.json").exists()
    assert [trial.state for trial in study_of(out).trials] == [
        TrialState.COMPLETE,
        TrialState.FAIL,
        TrialState.WAITING,
    ]


def test_mistakes_end_in_a_line(out, space, tmp_path, capsys):
    folder = str(out)
    assert "only --trials can be given too" in error_of(capsys, "tune", "ppo", "CartPole-v1", "--resume", folder)
    assert "Cannot read" in error_of(capsys, "tune", "--resume", str(tmp_path))
    assert "Say what to tune on what" in error_of(capsys, "tune")
    asked = ["tune", "ppo", "CartPole-v1", *TINY, "--out"]
    assert "is of another search, with other space" in error_of(capsys, *asked, folder)
    other = str(tmp_path / "other")
    assert "--sampler must be one of tpe, random" in error_of(capsys, *asked, other, "--sampler", "grid")
    assert "--pruner must be one of median, halving, none" in error_of(capsys, *asked, other, "--pruner", "both")
    storage = ["--storage", f"sqlite:///{out}/study.db", "--space", str(space)]
    assert "is of other trials: n_evaluations was 2 and is 3" in error_of(
        capsys, *asked, other, *storage, "--evaluations", "3"
    )
    (tmp_path / "no.json").write_text("[1]")
    assert "must be an object" in error_of(capsys, *asked, other, "--space", str(tmp_path / "no.json"))


def test_samplers_and_pruners_are_optunas():
    assert isinstance(make_sampler("tpe", 5), optuna.samplers.TPESampler)
    assert isinstance(make_sampler("random", 5), optuna.samplers.RandomSampler)
    kinds = {"median": "MedianPruner", "halving": "SuccessiveHalvingPruner", "none": "NopPruner"}
    for name, kind in kinds.items():
        assert type(make_pruner(name, 5, 6)).__name__ == kind
    with pytest.raises(UserError):
        make_pruner("half", 5, 6)


def test_a_line_says_how_a_trial_ended():
    study = optuna.create_study(direction="maximize")
    study.add_trial(optuna.create_trial(state=TrialState.COMPLETE, value=-3.0))
    study.add_trial(optuna.create_trial(state=TrialState.PRUNED, intermediate_values={1: -9.0, 2: -8.0}))
    study.add_trial(optuna.create_trial(state=TrialState.PRUNED))
    study.add_trial(optuna.create_trial(state=TrialState.COMPLETE, value=-1.5))
    assert [line(study, trial, 9).partition(" (")[0] for trial in study.trials] == [
        "Trial 0: -3.00",
        "Trial 1: pruned at evaluation 2 with -8.00",
        "Trial 2: diverged",
        "Trial 3: -1.50",
    ]
    assert line(study, study.trials[0], 9).endswith("(4 of 9, 2 pruned; best -1.50 of trial 3)")


WORKER = """
import sys
from bridge.app.config import TrainingConfig, load_config
from bridge.app.runs import make_env, make_model
from bridge.app.tuning import storage
storage.GRACE_PERIOD, storage.open_storage.__defaults__ = 4, (1, 4)
from jaxenvs.cli import main
main(sys.argv[1:])
"""


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("storage", ["sqlite:///{0}/study.db", "{0}/study.log"], ids=["sqlite", "journal"])
def test_of_two_workers_one_is_killed_and_the_other_takes_its_trial_up(storage, space, tmp_path):
    storage = storage.format(tmp_path)
    asked = ["tune", "ppo", "CartPole-v1", "--trials", "8", *TINY, "--space", str(space), "--pruner", "none"]
    asked += ["--total-timesteps", "20000", "--storage", storage]
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, *asked, "--out", str(tmp_path / f"worker-{number}")],
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    try:
        for printed in workers[0].stdout:
            if printed.startswith("Trial "):
                break
        time.sleep(0.2)
        os.kill(workers[0].pid, signal.SIGKILL)
        printed, _ = workers[1].communicate(timeout=300)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    assert workers[1].returncode == 0, printed
    with pytest.warns(optuna.exceptions.ExperimentalWarning):
        opened = storage_module.open_storage(storage)
    study = optuna.load_study(study_name="CartPole-v1-ppo", storage=opened)
    counts = {state: sum(trial.state == state for trial in study.trials) for state in TrialState}
    assert counts[TrialState.COMPLETE] == 8
    assert counts[TrialState.RUNNING] == counts[TrialState.WAITING] == 0
    assert counts[TrialState.FAIL] <= 1
    for lost in (trial for trial in study.trials if trial.state == TrialState.FAIL):
        (again,) = [trial for trial in study.trials if trial.system_attrs.get("retry_history") == [lost.number]]
        assert again.params == lost.params
