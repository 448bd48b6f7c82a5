"""`jaxenvs train --resume`: a run that was killed continues bit for bit."""

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from stable_baselines3.common.vec_env import VecNormalize

from bridge import make_vec_env
from jaxenvs import cli
from tests.bridge.app.short_runs import error_of, same, train_and_kill, weights

ROOT = Path(__file__).parent.parent.parent.parent
SETTINGS = ["--num-envs", "2", "--hyperparameters", "n_epochs=1", "normalize=True"]
STEPS = 256  # four rollouts


def train(out, *arguments, engine="auto", steps=STEPS):
    budget = ["--total-timesteps", str(steps), "--engine", engine, "--eval-freq", "64"]
    cli.main(["train", "ppo", "CartPole-v1", *SETTINGS, *budget, *arguments, "--out", str(out)])


def statistics(folder):
    return VecNormalize.load(str(folder / "vec_normalize.pkl"), make_vec_env("CartPole-v1", 2)).obs_rms


@pytest.mark.thorough
@pytest.mark.parametrize("engine", ["auto", "torch"])
def test_a_killed_run_goes_on_as_if_it_had_not_been(engine, tmp_path, capsys):
    out = train_and_kill(functools.partial(train, engine=engine), tmp_path / "killed", after=150)
    train(tmp_path / "whole", engine=engine)
    expected = capsys.readouterr().out.splitlines()[-1]
    cli.main(["train", "--resume", str(out)])
    said = capsys.readouterr().out
    assert "from 128 on" in said
    assert said.splitlines()[-1] == expected  # what the evaluation came to
    assert same(weights(out), weights(tmp_path / "whole"))
    np.testing.assert_array_equal(statistics(out).mean, statistics(tmp_path / "whole").mean)
    for file in ("episodes.csv", "config.json"):
        assert (out / file).read_text() == (tmp_path / "whole" / file).read_text()
    with np.load(out / "evaluations.npz") as went_on, np.load(tmp_path / "whole/evaluations.npz") as expected:
        assert went_on["timesteps"].tolist() == expected["timesteps"].tolist() == [64, 128, 192, 256]
        assert (went_on["results"][:2] == expected["results"][:2]).all()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a run that ended after two rollouts."""
    out = tmp_path_factory.mktemp("finished") / "run"
    train(out, steps=128)
    return out


@pytest.mark.thorough
def test_a_run_that_ended_goes_on_to_a_larger_budget_only(finished, tmp_path, capsys):
    shutil.copytree(finished, tmp_path / "run")
    cli.main(["train", "--resume", str(tmp_path / "run"), "--total-timesteps", "256"])
    assert "for 256 steps from 128 on" in capsys.readouterr().out
    assert json.loads((tmp_path / "run" / "config.json").read_text())["total_timesteps"] == 256
    assert "at least 256" in error_of(capsys, "train", "--resume", str(tmp_path / "run"), "--total-timesteps", "128")
    before = weights(tmp_path / "run")
    cli.main(["train", "--resume", str(tmp_path / "run")])  # nothing is left to do
    assert f"{tmp_path / 'run'} is finished, after 256 steps. To train longer, add" in capsys.readouterr().out
    assert same(before, weights(tmp_path / "run"))


def test_an_unfinished_run_is_not_overwritten_can_be_evaluated_and_damaged(tmp_path, capsys):
    out = train_and_kill(train, tmp_path / "killed", after=150)
    assert f"--resume {out}" in error_of(capsys, "train", "ppo", "CartPole-v1", "--out", str(out))
    cli.main(["evaluate", str(out)])
    assert "Return of 4 episodes" in capsys.readouterr().out
    (out / "checkpoint.zip").write_bytes((out / "checkpoint.zip").read_bytes()[:1000])
    assert "Cannot resume from" in error_of(capsys, "train", "--resume", str(out))


@pytest.mark.parametrize(("name", "value"), [("num_envs", 4), ("learning_rate", 0.5), ("env_kwargs", {"gravity": 1})])
def test_a_config_that_was_changed_by_hand_is_not_gone_on_with(name, value, finished, tmp_path, capsys):
    shutil.copytree(finished, tmp_path / "changed")
    path = tmp_path / "changed" / "config.json"
    config = json.loads(path.read_text())
    (config if name in config else config["hyperparameters"])[name] = value
    path.write_text(json.dumps(config))
    assert f"and is {value!r}. --resume needs the settings" in error_of(capsys, "train", "--resume", str(path.parent))


@pytest.mark.slow
@pytest.mark.thorough
def test_after_kill_9_and_after_ctrl_c_the_run_ends_with_the_same_weights(tmp_path):
    long = ["ppo", "CartPole-v1", *SETTINGS, "--total-timesteps", "20000", "--out"]
    # A checkpoint before every rollout, so that there is one to kill after.
    always = (
        "from bridge.app.training import callbacks; callbacks.CHECKPOINT_SECONDS = 0; callbacks.CHECKPOINT_SHARE = 1e9"
    )
    begin = [sys.executable, "-c", f"{always}; from jaxenvs import cli; cli.main()", "train", *long]
    run = {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": str(ROOT)}, "stderr": subprocess.DEVNULL}
    for name, number, code in (("killed", signal.SIGKILL, -9), ("interrupted", signal.SIGINT, 130)):
        process = subprocess.Popen([*begin, name], **run, stdout=subprocess.PIPE, text=True)
        try:
            while not (tmp_path / name / "checkpoint.zip").exists() and process.poll() is None:
                time.sleep(0.01)
            process.send_signal(number)
            said, _ = process.communicate(timeout=60)
        finally:
            process.kill()
        assert process.returncode == code
        if number == signal.SIGINT:
            assert said.splitlines()[-1].startswith("Interrupted after")  # before it, the progress bar
            assert {"model.zip", "learning_curve.png"} <= {path.name for path in (tmp_path / name).iterdir()}
        cli.main(["train", "--resume", str(tmp_path / name)])
    cli.main(["train", *long, str(tmp_path / "whole")])
    for name in ("killed", "interrupted"):
        assert same(weights(tmp_path / name), weights(tmp_path / "whole"))
