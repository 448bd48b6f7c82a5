"""The `jaxenvs` command: what it writes, that a run repeats, and what it says to mistakes."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import VecNormalize

import jaxenvs
from bridge import make_vec_env
from jaxenvs.app import cli
from jaxenvs.app.config import TrainingConfig, UserError
from jaxenvs.app.hyperparameters import TUNED, parse_assignments, to_schedule

ROOT = Path(__file__).parent.parent.parent
TINY = ["--num-envs", "2", "--total-timesteps", "128", "--hyperparameters", "n_epochs=1"]


@pytest.fixture(scope="module", autouse=True)
def few_evaluation_episodes():
    """An evaluation of a mountain car that has learnt nothing would take longer than all the tests here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jaxenvs.app.training.EVALUATION_EPISODES", 4)
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a short run."""
    out = tmp_path_factory.mktemp("runs") / "cartpole"
    cli.main(["train", "ppo", "CartPole-v1", *TINY, "--seed", "3", "--env-kwargs", "gravity=5.0", "--out", str(out)])
    return out


def weights(folder):
    return PPO.load(folder / "model.zip", device="cpu").policy.state_dict()


def same(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def error_of(capsys, *argv):
    with pytest.raises(SystemExit) as exit_info:
        cli.main(list(argv))
    assert exit_info.value.code == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    return message


def test_train_writes_model_config_curve_and_logs(run):
    assert {path.name for path in run.iterdir()} == {"model.zip", "config.json", "learning_curve.png", "tensorboard"}
    assert (run / "learning_curve.png").read_bytes().startswith(b"\x89PNG")
    assert list((run / "tensorboard").glob("events.*"))


def test_config_holds_all_arguments_and_versions(run):
    config = json.loads((run / "config.json").read_text())
    assert config["env_kwargs"] == {"gravity": 5.0}
    assert (config["num_envs"], config["total_timesteps"], config["seed"]) == (2, 128, 3)
    assert config["hyperparameters"]["n_epochs"] == 1  # given
    assert config["hyperparameters"]["learning_rate"] == "lin_0.001"  # tuned
    assert config["hyperparameters"]["vf_coef"] == 0.5  # SB3's
    assert config["versions"]["jaxenvs"]
    # Which of its builds it is, as in 2.13.0+cu130, not every package says of itself.
    assert torch.__version__.startswith(config["versions"]["torch"])


def test_config_repeats_the_run_to_the_same_weights(run, tmp_path):
    cli.main(["train", "--config", str(run / "config.json"), "--out", str(tmp_path / "again")])
    assert same(weights(run), weights(tmp_path / "again"))
    assert (run / "config.json").read_text() == (tmp_path / "again" / "config.json").read_text()


def test_arguments_beside_config_change_what_they_name(run, tmp_path):
    cli.main(["train", "--config", str(run / "config.json"), "--seed", "4", "--out", str(tmp_path / "other")])
    assert json.loads((tmp_path / "other" / "config.json").read_text())["seed"] == 4
    assert not same(weights(run), weights(tmp_path / "other"))


def test_normalized_run_saves_its_statistics(tmp_path, capsys):
    out = tmp_path / "car"
    cli.main(["train", "ppo", "MountainCar-v0", *TINY, "--out", str(out)])
    env = VecNormalize.load(str(out / "vec_normalize.pkl"), make_vec_env("MountainCar-v0"))
    assert env.obs_rms.count > 100
    assert "-200.00 ± 0.00" in capsys.readouterr().out  # the reward as it is, not normalised


def test_a2c_trains(tmp_path):
    cli.main(["train", "a2c", "Pendulum-v1", "--total-timesteps", "80", "--out", str(tmp_path / "a2c")])
    assert (tmp_path / "a2c" / "model.zip").exists()


def test_seeds_are_trained_in_one_program_and_each_has_a_zip_that_sb3_loads(tmp_path, capsys):
    out = tmp_path / "seeds"
    cli.main(["train", "ppo", "CartPole-v1", *TINY, "--seeds", "3", "--seed", "5", "--out", str(out)])
    assert "quartiles" in capsys.readouterr().out
    models = [PPO.load(out / f"seed-{seed}" / "model.zip") for seed in (5, 6, 7)]
    assert all(model.num_timesteps == 128 and model._n_updates == 2 for model in models)
    weights = [model.policy.action_net.weight.detach().numpy() for model in models]
    assert not (weights[0] == weights[1]).all()
    assert (out / "learning_curve.png").stat().st_size > 10_000
    assert json.loads((out / "config.json").read_text())["num_seeds"] == 3
    models[0].set_env(make_vec_env("CartPole-v1", 2))
    models[0].learn(128, reset_num_timesteps=False)
    with pytest.raises(SystemExit):
        cli.main(["train", "--config", str(out / "config.json"), "--out", str(out)])


def test_seeds_with_normalisation_save_the_statistics_of_each(tmp_path):
    out = tmp_path / "seeds"
    settings = ["--hyperparameters", "n_epochs=1", "normalize=True", "n_steps=32"]
    arguments = ["--num-envs", "2", "--total-timesteps", "128", "--seeds", "2", *settings]
    cli.main(["train", "ppo", "CartPole-v1", *arguments, "--out", str(out)])
    first, second = (
        VecNormalize.load(str(out / f"seed-{seed}" / "vec_normalize.pkl"), make_vec_env("CartPole-v1", 2))
        for seed in (0, 1)
    )
    assert first.obs_rms.count == pytest.approx(128 + 2, rel=1e-4)
    assert (first.obs_rms.mean != second.obs_rms.mean).all()


@pytest.mark.parametrize("engine", ["auto", "xla", "torch"])
def test_the_engine_is_chosen_and_kept(engine, tmp_path):
    cli.main(
        [
            "train",
            "a2c",
            "CartPole-v1",
            "--num-envs",
            "2",
            "--total-timesteps",
            "20",
            "--engine",
            engine,
            "--out",
            str(tmp_path),
        ]
    )
    assert json.loads((tmp_path / "config.json").read_text())["engine"] == engine


def test_a_trained_model_is_not_overwritten(run, capsys):
    assert "holds a trained model" in error_of(capsys, "train", "ppo", "CartPole-v1", "--out", str(run))


@pytest.mark.slow
def test_interrupt_saves_the_model(tmp_path):
    endless = ["train", "ppo", "CartPole-v1", "--total-timesteps", "100000000", "--out", "run"]
    process = subprocess.Popen(
        [sys.executable, "-m", "jaxenvs.app.cli", *endless],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert "Training ppo on 8 x CartPole-v1" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert said.splitlines()[-1].startswith("Interrupted after")  # before it, the progress bar
    assert {"model.zip", "config.json", "learning_curve.png"} <= {path.name for path in (tmp_path / "run").iterdir()}
    assert PPO.load(tmp_path / "run" / "model.zip").num_timesteps > 0


def test_list_shows_every_environment(capsys):
    cli.main(["list"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == jaxenvs.registered()
    pendulum = next(line for line in lines if line.startswith("Pendulum-v1"))
    assert "Box(-2.0, 2.0, (1,), float32)" in pendulum


def test_bench_runs_the_scripts_named(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(cli, "CHECKOUT", tmp_path)
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "__init__.py").touch()
    (tmp_path / "benchmarks" / "common.py").write_text("print('no benchmark')")
    for name in ("one", "two"):
        (tmp_path / "benchmarks" / f"{name}.py").write_text(f"\ndef main():\n    print('{name}')\n\nmain()")
    cli.main(["bench", "two"])
    assert capfd.readouterr().out == "two\n"
    cli.main(["bench"])
    assert capfd.readouterr().out == "one\ntwo\n"


def test_bench_outside_a_checkout_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cli, "CHECKOUT", tmp_path)
    assert "source checkout" in error_of(capsys, "bench")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["ppo", "CartPol-v1"], "CartPole-v1"),
        (["pppo", "CartPole-v1"], "Did you mean ppo?"),
        (["ppo"], "jaxenvs train ppo CartPole-v1"),
        (["ppo", "CartPole-v1", "--env-kwargs", "gravty=5.0"], "gravty"),
        (["ppo", "CartPole-v1", "--env-kwargs", "gravity"], "name=value"),
        (["ppo", "CartPole-v1", "--hyperparameters", "n_step=32"], "n_steps"),
        (["ppo", "CartPole-v1", "--hyperparameters", "gamma=high"], "float"),
        (["ppo", "CartPole-v1", "--hyperparameters", "n_steps=1e3"], "int"),
        (["ppo", "CartPole-v1", "--hyperparameters", "n_steps=0"], "at least 1"),
        (["ppo", "CartPole-v1", "--hyperparameters", "learning_rate=cos_0.1"], "lin_0.001"),
        (["ppo", "CartPole-v1", "--hyperparameters", "policy_kwargs={'layers':3}"], "layers"),
        (["ppo", "CartPole-v1", "--hyperparameters", "batch_size=300"], "does not divide"),
        (["ppo", "CartPole-v1", "--num-envs", "0"], "--num-envs"),
        (["ppo", "CartPole-v1", "--total-timesteps", "100"], "rollouts of 256 steps"),
        (["--config", "absent.json"], "absent.json"),
        (["ppo", "CartPole-v1", "--config", "absent.json"], "not both"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(arguments, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert said in error_of(capsys, "train", *arguments)
    assert not list(tmp_path.iterdir())


def test_a_batch_size_that_was_not_given_fits_the_rollout():
    assert TrainingConfig.resolve("ppo", "CartPole-v1", num_envs=64).hyperparameters["batch_size"] == 256
    assert TrainingConfig.resolve("ppo", "CartPole-v1", num_envs=3).hyperparameters["batch_size"] == 96


@pytest.mark.parametrize(("algorithm", "env_id"), [(name, env_id) for name in TUNED for env_id in TUNED[name]])
def test_tuned_hyperparameters_resolve(algorithm, env_id):
    resolved = TrainingConfig.resolve(algorithm, env_id)
    assert TrainingConfig.resolve(algorithm, env_id, hyperparameters=resolved.hyperparameters) == resolved


def test_assignments_are_python_literals_or_words():
    assert parse_assignments(["a=1", "b=[1, 2]", "c=lin_2.5e-4", "d=true", "e='x y'", "f=None"]) == {
        "a": 1,
        "b": [1, 2],
        "c": "lin_2.5e-4",
        "d": True,
        "e": "x y",
        "f": None,
    }


def test_linear_schedule_falls_to_zero():
    schedule = to_schedule("lin_0.2")
    assert [schedule(1.0), schedule(0.5), schedule(0.0)] == [0.2, 0.1, 0.0]


def test_unknown_algorithm_lists_the_known_ones():
    with pytest.raises(UserError, match="a2c, ppo"):
        TrainingConfig.resolve("quux", "CartPole-v1")
