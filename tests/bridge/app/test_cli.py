"""The `jaxenvs` command: what it writes, that a run repeats, and what it says to mistakes."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import stable_baselines3
import torch

from bridge.algorithms.specs import ALGORITHMS
from bridge.app.config import TrainingConfig
from bridge.app.hyperparameters import check_values, parse_assignments, to_schedule, whole_number
from bridge.app.runs import locked
from bridge.app.tuned import TUNED
from jaxenvs import cli, registered
from jaxenvs.cli.user_errors import UserError
from tests.bridge.app.short_runs import TINY, error_of, same, weights

ROOT = Path(__file__).parent.parent.parent.parent


def test_train_writes_model_config_curve_and_logs(run):
    files = {"model.zip", "config.json", "learning_curve.png", "episodes.csv", "checkpoint.zip", "tensorboard"}
    assert {path.name for path in run.iterdir()} == files
    assert (run / "learning_curve.png").read_bytes().startswith(b"\x89PNG")
    assert list((run / "tensorboard").glob("events.*"))


def test_the_files_are_named_before_and_after_training(run, tmp_path, capsys):
    further = ["--eval-freq", "64", "--tensorboard-log", str(tmp_path / "logs"), "--out", str(tmp_path / "run")]
    cli.main(["train", "ppo", "CartPole-v1", *TINY, "normalize=True", *further])
    _, before, after, result = capsys.readouterr().out.splitlines()
    names = after.removeprefix(f"Wrote to {tmp_path / 'run'}: ").split(", ")
    assert before == f"It will write to {tmp_path / 'run'}: {', '.join(names)}"
    assert sorted(names) == sorted(path.name for path in (tmp_path / "run").iterdir())
    assert result.startswith("Return of 4 episodes")


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


@pytest.mark.thorough(but=["torch"])
@pytest.mark.parametrize("engine", ["auto", "xla", "torch"])
def test_the_engine_is_chosen_and_kept(engine, tmp_path):
    settings = ["--num-envs", "2", "--total-timesteps", "20", "--engine", engine]
    cli.main(["train", "a2c", "CartPole-v1", *settings, "--out", str(tmp_path)])
    assert json.loads((tmp_path / "config.json").read_text())["engine"] == engine


def test_a_trained_model_is_not_overwritten(run, capsys):
    assert "already holds " in error_of(capsys, "train", "ppo", "CartPole-v1", "--out", str(run))


PPO, SAC, DQN, TD3 = "ppo CartPole-v1 ", "sac Pendulum-v1 ", "dqn CartPole-v1 ", "td3 Pendulum-v1 "
MISTAKES = {
    "ppo CartPol-v1": "CartPole-v1",
    "pppo CartPole-v1": "Did you mean ppo?",
    "PPPO CartPole-v1": "Did you mean ppo?",
    "ppo": "jaxenvs train ppo CartPole-v1",
    PPO + "--env-kwargs gravty=5.0": "gravty",
    PPO + "--env-kwargs gravity": "name=value",
    PPO + "--hyperparameters n_step=32": "n_steps",
    PPO + "--hyperparameters gamma=high": "float",
    PPO + "--hyperparameters n_steps=1e3": "int",
    PPO + "--hyperparameters n_steps=0": "n_steps must be a positive int, got 0",
    PPO + "--hyperparameters learning_rate=cos_0.1": "lin_0.001",
    PPO + "--hyperparameters policy_kwargs={'layers':3}": "layers",
    PPO + "--hyperparameters policy_kwargs={1}": "are stored as JSON: Object of type set is not",
    PPO + "--hyperparameters policy_kwargs={1:2}": "policy_kwargs={1: 2} would become {'1': 2}, use a dict with texts",
    PPO + "--hyperparameters policy_kwargs={'activation_fn':'R'}": "'torch.nn' has no attribute 'R'",
    PPO + "--hyperparameters policy_kwargs={'activation_fn':'functional'}": "activation_fn must be a class in torch.nn",
    PPO + "--hyperparameters batch_size=300": "does not divide",
    PPO + "--hyperparameters gamma=5": "gamma must lie in [0, 1], got 5",
    PPO + "--hyperparameters clip_range=-0.1": "clip_range must lie in [0, inf], got -0.1",
    PPO + "--hyperparameters learning_rate=lin_nan": "learning_rate must be finite",
    PPO + "--hyperparameters ent_coef=1e999": "ent_coef must be finite",
    PPO + "--hyperparameters target_kl=[1]": "target_kl must be a number or",
    PPO + "--hyperparameters batch_size=0": "batch_size must be a positive int, got 0",
    PPO + "--hyperparameters frame_stack=0": "frame_stack must be at least 1, got 0",
    PPO + "--hyperparameters normalize=no": "normalize must be of type bool",
    PPO + "--seed -1": "--seed",
    PPO + "--num-envs 0": "--num-envs",
    PPO + "--engine torch --seeds 3": 'The model has engine="torch"',
    PPO + "--engine cuda": "engine must be one of 'auto', 'xla', 'torch', got 'cuda'",
    PPO + "--learning-rate 0.001 --n_steps=32 --out run": (
        "ppo takes hyper-parameters in one option: --hyperparameters learning_rate=0.001 n_steps=32"
    ),
    "--noise-std 0.1 TD3 Pendulum-v1": "td3 takes hyper-parameters in one option: --hyper",
    "sac CartPole-v1": "sac needs an environment with Box actions, but CartPole-v1 has Discrete actions",
    "dqn Pendulum-v1": "dqn needs an environment with Discrete actions, but Pendulum-v1 has Box actions",
    SAC + "--total-timesteps 100": "learning_starts=100 must be less than --total-timesteps",
    SAC + "--hyperparameters ent_coef=auto_0": "ent_coef must be a number or",
    SAC + "--hyperparameters tau=2": "tau must lie in [0, 1], got 2",
    SAC + "--hyperparameters ent_coef=-1": "ent_coef must lie in [0, inf], got -1",
    SAC + "--hyperparameters train_freq=(1,'epoch')": "`train_freq` must be either 'step' or 'episode' not 'epoch'",
    SAC + "--hyperparameters train_freq=(0,'step')": "train_freq must be a positive int, got 0",
    TD3 + "--hyperparameters noise_std=-1": "noise_std must be at least 0, got -1",
    TD3 + "--hyperparameters noise_type=pink": "normal, ornstein-uhlenbeck, got 'pink'",
    DQN + "--hyperparameters gradient_steps=-2": "gradient_steps must be an int from -1",
    DQN + "--hyperparameters noise_std=1": "dqn has no hyper-parameter 'noise_std'",
    DQN + "--seeds 2 --hyperparameters train_freq=(1,'episode')": "train_freq counts episodes",
    "--config absent.json": "absent.json",
    PPO + "--config absent.json": "not both",
    "--resume absent": "absent",
    PPO + "--resume absent": "--total-timesteps",
    "--resume absent --seed 1": "--total-timesteps",
}


@pytest.mark.parametrize(("line", "said"), MISTAKES.items(), ids=MISTAKES)
def test_mistakes_are_one_line_and_exit_code_2(line, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert said in error_of(capsys, "train", *line.split())
    assert not list(tmp_path.iterdir())


def test_an_entropy_coefficient_of_0_is_a_fixed_one():
    check_values("sac", {"ent_coef": 0.0}, {"ent_coef": "auto"})


def test_a_replay_buffer_that_is_too_large_is_said(monkeypatch, capsys, tmp_path):
    def allocate(**arguments):
        raise MemoryError("Unable to allocate 515. GiB")

    monkeypatch.setattr("bridge.app.runs.algorithm_class", lambda name: allocate)
    message = error_of(capsys, "train", "sac", "Pendulum-v1", "--out", str(tmp_path / "run"))
    assert "use a smaller buffer_size or n_steps: Unable to allocate 515. GiB" in message


def test_names_and_numbers_may_be_written_as_people_write_them(tmp_path):
    numbers = ["--n_envs", "2e0", "--total_timesteps=1.28e2", "--seed", "3"]
    cli.main(["train", "PPO", "CartPole-v1", *numbers, "--hyperparameters", "n_epochs=1", "--out", str(tmp_path)])
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["algorithm"], config["num_envs"], config["total_timesteps"], config["seed"]) == ("ppo", 2, 128, 3)


@pytest.mark.parametrize(
    ("text", "number"), [("7", 7), ("-1", -1), ("1e5", 100_000), ("2_000", 2000), ("1.5e3", 1500), ("1E+2", 100)]
)
def test_whole_numbers_are_read(text, number):
    assert whole_number(text) == number


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "ppo", "CartPole-v1", "--total-timesteps"],
        ["record", "run", "--episodes"],
        ["evaluate", "run", "--seed"],
    ],
    ids=lambda arguments: arguments[0],
)
@pytest.mark.parametrize("text", ["foo", "1.5", "1e-3", "1e300", "nan", "inf", "None"])
def test_what_is_no_whole_number_is_named(arguments, text, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main([*arguments, text])
    assert ended.value.code == 2
    said = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert f"{arguments[-1]}: expected a whole number, such as 100000 or 1e5, got {text!r}." in said


def test_where_nothing_can_be_written_is_said_before_training(tmp_path, capsys):
    file = tmp_path / "file"
    file.touch()
    for out in (file, file / "run", Path("/proc/run")):
        assert f"Cannot write {out}" in error_of(capsys, "train", "ppo", "CartPole-v1", *TINY, "--out", str(out))
    logs = ["--tensorboard-log", str(file), "--out", str(tmp_path / "run")]
    message = error_of(capsys, "train", "ppo", "CartPole-v1", *TINY, *logs)
    assert message == f"jaxenvs: error: Cannot write {file}: {file} is a file.\n"
    assert list(tmp_path.iterdir()) == [file]


def test_the_best_model_of_another_run_is_not_replaced(run, tmp_path, capsys):
    shutil.copy(run / "config.json", tmp_path)
    (tmp_path / "best_model.zip").touch()
    assert "already holds best_model.zip" in error_of(capsys, "train", "ppo", "CartPole-v1", "--out", str(tmp_path))


@pytest.mark.skipif(sys.platform == "win32", reason="folders cannot be locked there")
def test_a_folder_in_which_another_run_trains_is_refused(run, tmp_path, capsys):
    with locked(tmp_path):
        message = error_of(capsys, "train", "ppo", "CartPole-v1", *TINY, "--out", str(tmp_path))
    assert f"Another process is training in {tmp_path}: wait for it, or give another --out." in message
    assert not list(tmp_path.iterdir())
    with locked(tmp_path):  # the lock ended with the context
        pass


@pytest.mark.parametrize("name", ["config.json", "episodes.csv", "model.zip"])
def test_a_file_that_is_not_a_runs_is_not_replaced(name, tmp_path, capsys):
    (tmp_path / name).write_text('{"of": "another tool"}')
    assert name in error_of(capsys, "train", "ppo", "CartPole-v1", *TINY, "--out", str(tmp_path))
    assert (tmp_path / name).read_text() == '{"of": "another tool"}'


def test_a_budget_of_less_than_a_rollout_is_a_rollout_as_in_sb3(capsys):
    stock = stable_baselines3.PPO("MlpPolicy", "CartPole-v1", n_steps=32).learn(20)
    config = TrainingConfig.resolve("ppo", "CartPole-v1", num_envs=1, total_timesteps=20)
    assert config.total_timesteps == stock.num_timesteps == 32
    said = "1 environments x n_steps=32 make rollouts of 32 steps, more than --total-timesteps 20: training for one"
    assert said in capsys.readouterr().err
    assert TrainingConfig.resolve("ppo", "CartPole-v1", num_envs=1, total_timesteps=33).total_timesteps == 33
    assert not capsys.readouterr().err


def test_a_policy_that_cannot_be_compiled_is_evaluated_by_its_own_predict(tmp_path, capsys):
    softmax = "policy_kwargs={'activation_fn':'Softmax'}"
    cli.main(["train", "ppo", "CartPole-v1", *TINY, softmax, "normalize=True", "--out", str(tmp_path)])
    said = capsys.readouterr().out.splitlines()
    assert said[-2].startswith("Wrote to ")
    assert said[-1].startswith("Return of 4 episodes: ")


def test_a_batch_size_that_was_not_given_fits_the_rollout():
    assert TrainingConfig.resolve("ppo", "CartPole-v1", num_envs=64).hyperparameters["batch_size"] == 256
    assert TrainingConfig.resolve("ppo", "CartPole-v1", num_envs=3).hyperparameters["batch_size"] == 96


def test_a_batch_size_that_was_given_is_kept_for_other_rollouts(run, tmp_path, capsys):
    config = json.loads((run / "config.json").read_text())
    config["hyperparameters"]["batch_size"] = 8
    (tmp_path / "config.json").write_text(json.dumps(config))
    again = ["train", "--config", str(tmp_path / "config.json"), "--num-envs", "3", "--hyperparameters", "n_steps=3"]
    assert "batch_size=8 does not divide" in error_of(capsys, *again, "--out", str(tmp_path / "again"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("hyperparameters", [1]),
        ("env_kwargs", [3]),
        ("algorithm", 3),
        ("env_id", None),
        ("backend", 3),
        ("devices", "x"),
        ("versions", 3),
        ("tensorboard_log", 3),
    ],
)
def test_an_entry_of_another_type_in_a_config_is_named(name, value, run, tmp_path, capsys):
    config = json.loads((run / "config.json").read_text()) | {name: value}
    (tmp_path / "config.json").write_text(json.dumps(config))
    message = error_of(capsys, "train", "--config", str(tmp_path / "config.json"), "--out", str(tmp_path / "run"))
    assert f"{name} in {tmp_path / 'config.json'} must be of type " in message


def test_off_policy_settings_are_not_fitted_to_rollouts():
    sac = TrainingConfig.resolve("sac", "Pendulum-v1", num_envs=3)
    assert (sac.hyperparameters.get("n_steps", 1), sac.hyperparameters["batch_size"]) == (1, 256)
    assert TrainingConfig.resolve("dqn", "CartPole-v1").num_envs == 1


@pytest.mark.thorough(but=["tqc-BipedalWalker-v3"])
@pytest.mark.parametrize(
    ("algorithm", "env_id"), [(name, env_id) for name in TUNED for env_id in TUNED[name] if env_id in registered()]
)
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
    with pytest.raises(UserError, match=", ".join(ALGORITHMS)):
        TrainingConfig.resolve("quux", "CartPole-v1")
