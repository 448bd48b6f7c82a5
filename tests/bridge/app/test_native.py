"""`jaxenvs` on EnvPool: train, evaluate and record with --backend native, and what these cannot do; its list of ids."""

import importlib.util
import json
import sys

import pytest
from PIL import Image
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import VecFrameStack, VecNormalize

import jaxenvs
from bridge.app import environments
from bridge.app.config import TrainingConfig
from bridge.app.runs import make_env, make_model
from bridge.app.training import train_run
from bridge.app.training.callbacks import Interrupt
from bridge.app.tuned import GAMES, TUNED
from jaxenvs import cli
from tests.bridge.app.short_runs import error_of

needs_envpool = pytest.mark.skipif(importlib.util.find_spec("envpool") is None, reason="needs envpool")
NATIVE = ["--backend", "native"]
SHORT = ["--num-envs", "2", "--total-timesteps", "64", "--hyperparameters", "n_steps=16", "n_epochs=1"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a short run on EnvPool."""
    out = tmp_path_factory.mktemp("native") / "lander"
    cli.main(["train", "ppo", "LunarLander-v3", *NATIVE, *SHORT, "normalize=True", "--out", str(out)])
    return out


@needs_envpool
def test_a_run_is_trained_evaluated_and_kept_without_a_checkpoint(run, capsys):
    files = {"model.zip", "vec_normalize.pkl", "config.json", "learning_curve.png", "episodes.csv", "tensorboard"}
    assert {path.name for path in run.iterdir()} == files
    assert json.loads((run / "config.json").read_text())["backend"] == "native"
    cli.main(["evaluate", str(run), "--seed", "5"])
    cli.main(["evaluate", str(run), "--seed", "5"])
    first, second = capsys.readouterr().out.splitlines()[-2:]
    assert first == second
    assert first.startswith("Return of 4 episodes")


@needs_envpool
def test_it_cannot_be_resumed_and_says_so_in_a_line(run, tmp_path, capsys, monkeypatch):
    said = error_of(capsys, "train", "--resume", str(run), "--total-timesteps", "128")
    assert "cannot be resumed, because the state of environments that are not JAX environments" in said

    class Stopping(Interrupt):
        came = True

        def __init__(self):
            pass

    monkeypatch.setattr(train_run, "Interrupt", Stopping)
    with pytest.raises(SystemExit):
        cli.main(["train", "ppo", "CartPole-v1", *NATIVE, *SHORT, "--out", str(tmp_path / "stopped")])
    said = capsys.readouterr().out
    assert "writes no checkpoints and cannot be resumed" in said
    assert "the agent so far is saved" in said
    assert "--resume" not in said
    assert PPO.load(tmp_path / "stopped" / "model.zip").num_timesteps == 0


@needs_envpool
def test_it_is_filmed_by_envpool(run, tmp_path, capsys):
    cli.main(["record", str(run), "--out", str(tmp_path / "film.gif")])
    assert "Wrote" in capsys.readouterr().out
    with Image.open(tmp_path / "film.gif") as film:
        assert film.n_frames > 10
        assert film.width == 300


@needs_envpool
def test_a_game_has_the_zoos_settings_in_a_frame_stack():
    config = TrainingConfig.resolve("dqn", "PongNoFrameskip-v4", backend="native")
    assert (config.num_envs, config.total_timesteps) == (1, 10_000_000)
    chosen = config.hyperparameters
    assert (chosen["policy"], chosen["frame_stack"], chosen["buffer_size"]) == ("CnnPolicy", 4, 100_000)
    env = make_env(config)
    assert isinstance(env, VecFrameStack)
    assert env.observation_space.shape == (4, 84, 84)
    assert env.unwrapped.vector_env.config["episodic_life"]


@needs_envpool
def test_a_robot_has_the_zoos_settings_and_its_activation_is_named():
    config = TrainingConfig.resolve("ppo", "HalfCheetah-v5", backend="native")
    assert (config.num_envs, config.hyperparameters["n_steps"], config.hyperparameters["gamma"]) == (1, 512, 0.98)
    assert json.loads(json.dumps(config.as_json())) == config.as_json()
    env = make_env(config)
    assert isinstance(env, VecNormalize)
    layers = [type(layer).__name__ for layer in make_model(config, env).policy.mlp_extractor.policy_net]
    assert layers == ["Linear", "ReLU", "Linear", "ReLU"]


@needs_envpool
@pytest.mark.parametrize("algorithm", TUNED)
def test_settings_of_robots_resolve(algorithm):
    for env_id in TUNED[algorithm].keys() - {*jaxenvs.registered(), GAMES}:
        resolved = TrainingConfig.resolve(algorithm, env_id, backend="native")
        again = TrainingConfig.resolve(algorithm, env_id, hyperparameters=resolved.hyperparameters, backend="native")
        assert again == resolved


@needs_envpool
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["ppo", "HalfCheeta-v5", *NATIVE], "EnvPool has no environment 'HalfCheeta-v5'. `jaxenvs list envpool PART`"),
        (["ppo", "Adventure-v5"], "EnvPool has it: add --backend native"),
        (["ppo", "HalfCheetah-v3"], "EnvPool has it: add --backend native."),
        (["ppo", "HalfCheetah-v5", *NATIVE, "--env-kwargs", "gravty=5.0"], "HalfCheetah-v5 has no option 'gravty'."),
        (["ppo", "Go9x9-v1", *NATIVE], "Go9x9-v1 has 2 players"),
        (["ppo", "HalfCheetah-v5", *NATIVE, "--seeds", "3"], "cannot be compiled"),
        (["sac", "PongNoFrameskip-v4", *NATIVE], "sac needs an environment with Box actions"),
        (["ppo", "HalfCheetah-v5", *NATIVE, "--hyperparameters", "policy_kwargs={'activation_fn':'R'}"], "torch.nn"),
    ],
)
def test_mistakes_are_one_line(arguments, said, capsys, tmp_path):
    assert said in error_of(capsys, "train", *arguments, "--out", str(tmp_path / "run"))


@needs_envpool
def test_list_shows_ids_with_a_part_and_the_names_of_their_references(capsys):
    cli.main(["list", "envpool", "cheetah-v5", "Pong-v?"])
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert rows == [["HalfCheetah-v5", "mujoco.gym", "HalfCheetah-v5"], ["Pong-v5", "atari", "ALE/Pong-v5"]]
    assert "EnvPool has no id that contains Chetah" in error_of(capsys, "list", "envpool", "Chetah")


def test_a_game_by_its_name_in_ale_py_is_found(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(environments.envpool, "ids", lambda: ("Pong-v5",))
    said = error_of(capsys, "train", "ppo", "ALE/Pong-v5", "--out", str(tmp_path / "run"))
    assert "EnvPool has it: add --backend native" in said


def test_without_envpool_it_is_said_what_to_install(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(environments.envpool, "ids", lambda: ())
    out = ["--out", str(tmp_path / "run")]
    assert 'pip install "jaxenvs[envpool]"' in error_of(capsys, "train", "ppo", "HalfCheetah-v5", *NATIVE, *out)
    assert "--backend must be one of auto, jax, serial, process, native, got gpu" in error_of(
        capsys, "train", "ppo", "CartPole-v1", "--backend", "gpu", *out
    )
    monkeypatch.setitem(sys.modules, "envpool", None)
    assert 'pip install "jaxenvs[envpool]"' in error_of(capsys, "list", "envpool")


def test_settings_of_games_are_arguments_of_the_algorithms():
    for algorithm, tuned in TUNED.items():
        if GAMES in tuned:
            known = TrainingConfig.resolve(algorithm, "CartPole-v1").hyperparameters.keys() | {"n_envs", "n_timesteps"}
            assert tuned[GAMES].keys() <= known
