"""Every script in examples/ runs to its end. New files are found by themselves."""

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from jaxenvs import cli

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
SCRIPTS = sorted(EXAMPLES.rglob("*.py"))


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_script_runs(script, tmp_path):
    if list(script.parent.glob("*.c")) and shutil.which("cc") is None:
        pytest.skip("there is no C compiler, cc")
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.thorough
@pytest.mark.slow
def test_a_study_is_continued_and_its_best_settings_train(tmp_path):
    def tune(trials):
        tiny = ["--batch", "3", "--seeds", "2", "--total-timesteps", "512", "--storage", "study.log"]
        command = [sys.executable, EXAMPLES / "tune.py", *tiny, "--trials", str(trials)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    assert tune(2)[0].startswith("2 trials, best value ")
    five, six, best, command = tune(6)
    assert (five.partition(",")[0], six.partition(",")[0]) == ("5 trials", "6 trials")
    study = optuna.load_study(study_name=None, storage=JournalStorage(JournalFileBackend(str(tmp_path / "study.log"))))
    assert {trial.state for trial in study.trials} == {TrialState.COMPLETE}
    assert len({trial.params["learning_rate"] for trial in study.trials}) == 6
    assert len({trial.params["n_steps"] for trial in study.trials[2:5]}) == 1  # a batch
    assert best.startswith(f"Trial {study.best_trial.number} has the best value, {study.best_value:.1f}.")
    cli.main([*shlex.split(command)[1:], "--total-timesteps", "1024", "--out", str(tmp_path / "run")])
    trained = json.loads((tmp_path / "run" / "config.json").read_text())["hyperparameters"]
    assert trained["n_steps"] == study.best_params["n_steps"]
    assert trained["gamma"] == pytest.approx(1 - study.best_params["one_minus_gamma"], rel=1e-5)
