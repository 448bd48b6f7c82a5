"""`jaxenvs tune`, in this process, and in two at once."""

import csv
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import optuna
import pytest
from optuna.trial import TrialState

from bridge.app.config import TrainingConfig, load_config
from bridge.app.runs import make_env, make_model
from bridge.app.tuning.command import ATTEMPTS, open_storage
from bridge.app.tuning.trials import Agents
from jaxenvs import cli
from jaxenvs.cli.user_errors import UserError
from tests.bridge.app.short_runs import error_of

pytestmark = pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
TINY = ["--num-envs", "2", "--total-timesteps", "160", "--seeds", "2"]
TINY += ["--hyperparameters", "n_steps=16", "n_epochs=1", "batch_size=16", "policy_kwargs={'net_arch':[8]}"]


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """A command without its folder and the number of trials."""
    path = tmp_path_factory.mktemp("space") / "space.json"
    path.write_text('{"learning_rate": {"low": 1e-4, "high": 1e-2, "log": true}, "gamma": [0.9, 0.99]}')
    return ["tune", "ppo", "CartPole-v1", *TINY, "--space", str(path)]


@pytest.fixture(scope="module")
def out(tmp_path_factory, asked):
    """The folder of a search of two trials."""
    out = tmp_path_factory.mktemp("tune") / "cartpole"
    cli.main([*asked, "--trials", "2", "--out", str(out)])
    return out


def study_of(out, name="CartPole-v1-ppo"):
    return optuna.load_study(study_name=name, storage=f"sqlite:///{out}/study.db")


def test_a_search_leaves_a_table_and_the_best_config_which_train_takes(out):
    with (out / "trials.csv").open() as file:
        rows = list(csv.DictReader(file))
    study = study_of(out)
    assert [float(row["value"]) for row in rows] == [trial.value for trial in study.trials]
    assert [float(row["params_gamma"]) for row in rows] == [trial.params["gamma"] for trial in study.trials]
    assert [row["state"] for row in rows] == ["COMPLETE", "COMPLETE"]
    best = load_config(out / "best.json")[0]
    assert best["hyperparameters"]["learning_rate"] == study.best_params["learning_rate"]
    assert best["num_seeds"] == 1
    config = TrainingConfig.resolve(**best)
    assert config.as_json() == best
    make_model(config, make_env(config))


def test_the_same_command_goes_on_to_more_trials(asked, out, capsys):
    cli.main([*asked, "--trials", "3", "--out", str(out)])
    said = capsys.readouterr().out
    assert f"To train with the best hyper-parameters: jaxenvs train --config {out / 'best.json'}" in said
    assert [trial.state for trial in study_of(out).trials] == [TrialState.COMPLETE] * 3


def test_ctrl_c_says_how_to_go_on(asked, tmp_path, capfd, monkeypatch):
    evaluate, out = Agents.evaluate, tmp_path / "interrupted"

    def interrupted_in_the_second(self, n_episodes):
        if (out / "study.db").exists() and study_of(out).trials[-1].number == 1:
            signal.raise_signal(signal.SIGINT)
        return evaluate(self, n_episodes)

    monkeypatch.setattr(Agents, "evaluate", interrupted_in_the_second)
    with pytest.raises(SystemExit) as exit_info:
        cli.main([*asked, "--trials", "9", "--out", str(out)])
    assert exit_info.value.code == 130
    said = capfd.readouterr().err
    assert "To resume, run the same command again." in said
    assert "Traceback" not in said
    assert (out / "best.json").exists()
    assert [trial.state.name for trial in study_of(out).trials] == ["COMPLETE", "FAIL", "WAITING"]


def test_mistakes_end_in_a_line(asked, out, tmp_path, capsys):
    assert "An algorithm and an environment are missing: jaxenvs tune" in error_of(capsys, "tune")
    assert "--trials must be at least 1" in error_of(capsys, *asked, "--trials", "0")
    other = [*asked, "--storage", f"sqlite:///{out}/study.db", "--out", str(tmp_path / "other"), "--seed", "1"]
    assert "has trials with other settings: seed was 0 and is 1" in error_of(capsys, *other)
    (tmp_path / "no.json").write_text("[1]")
    wrong = [*asked[:-1], str(tmp_path / "no.json"), "--out", str(tmp_path / "wrong")]
    assert "must hold a JSON object" in error_of(capsys, *wrong)


def test_databases_have_heartbeats_and_a_path_is_a_journal(tmp_path):
    database = open_storage(f"sqlite:///{tmp_path}/study.db")
    assert (database.get_heartbeat_interval(), database.grace_period) == (10, 60)
    assert isinstance(open_storage(str(tmp_path / "study.log")), optuna.storages.JournalStorage)


def test_workers_that_begin_at_once_make_one_database(tmp_path):
    with ThreadPoolExecutor(ATTEMPTS) as pool:
        storages = list(pool.map(lambda _: open_storage(f"sqlite:///{tmp_path}/study.db"), range(ATTEMPTS)))
    studies = [optuna.create_study(storage=each, study_name="study", load_if_exists=True) for each in storages]
    assert len({study._study_id for study in studies}) == 1


@pytest.mark.parametrize("storage", ["sqlite:///{0}/nowhere/study.db", "{0}/nowhere/study.log", "nosuch://host/db"])
def test_what_cannot_be_opened_is_said_in_a_line(storage, tmp_path, monkeypatch):
    monkeypatch.setattr("bridge.app.tuning.command.ATTEMPTS", 1)
    with pytest.raises(UserError, match="Cannot open the storage"):
        open_storage(storage.format(tmp_path))


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("storage", ["sqlite:///{0}/study.db", "{0}/study.log"], ids=["sqlite", "journal"])
def test_two_processes_work_on_one_study(storage, asked, tmp_path):
    asked = ["-m", "jaxenvs.cli", *asked, "--trials", "8", "--storage", storage.format(tmp_path), "--out"]
    workers = [subprocess.Popen([sys.executable, *asked, str(tmp_path / str(number))]) for number in range(2)]
    assert [worker.wait(timeout=300) for worker in workers] == [0, 0]
    study = optuna.load_study(study_name="CartPole-v1-ppo", storage=open_storage(storage.format(tmp_path)))
    assert {trial.state for trial in study.trials} <= {TrialState.COMPLETE, TrialState.PRUNED}
    assert len(study.trials) in (8, 9)  # the other worker's last trial may end too
    assert [(tmp_path / name / "best.json").exists() for name in ("0", "1")] == [True, True]
