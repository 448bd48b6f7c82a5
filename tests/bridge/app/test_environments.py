"""The command with environments of the user's, as module:id or module:Class, and with Gymnasium's; the best model."""

import json
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from PIL import Image
from stable_baselines3 import PPO

from bridge import JaxVecEnv, ProcessVecEnv, SerialVecEnv
from bridge.app.config import TrainingConfig
from bridge.app.environments import find
from bridge.app.runs import make_env
from jaxenvs import cli
from jaxenvs.cli.user_errors import find_environment
from tests.bridge.app.short_runs import error_of

SETTINGS = ["--num-envs", "2", "--n-timesteps", "1.28e2", "--hyperparameters", "n_epochs=1", "n_steps=32"]
OWN_GYMNASIUM = """
import gymnasium, numpy as np


class Reach(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-2, 2, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}

    def __init__(self, goal=1.0, render_mode=None):
        self.goal, self.render_mode = goal, render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x = self.np_random.uniform(-1, 1)
        return np.array([self.x, self.goal], np.float32), {}

    def step(self, action):
        self.x = float(np.clip(self.x + 0.1 * float(action[0]), -2, 2))
        return np.array([self.x, self.goal], np.float32), -abs(self.x - self.goal), False, False, {}

    def render(self):
        picture = np.zeros((20, 40, 3), np.uint8)
        picture[:, int(20 + 9 * self.x)] = 255
        return picture


gymnasium.register("{name}-v0", Reach, max_episode_steps=20, reward_threshold=-1.0)
"""


@pytest.fixture(scope="module")
def own_gymnasium(tmp_path_factory):
    """The name of a module in the current directory with a class, which it also registers."""
    folder = tmp_path_factory.mktemp("gymnasium")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        name = f"own_{folder.name}"  # a module is imported once in a process
        (folder / f"{name}.py").write_text(OWN_GYMNASIUM.replace("{name}", name))
        yield name
    gymnasium.registry.pop(f"{name}-v0", None)


@pytest.fixture(scope="module")
def run(own_gymnasium):
    """The folder of a run by an id that the module registers."""
    further = ["--eval-freq", "64", "--tensorboard-log", "logs", "--out", "run"]
    cli.main(["train", "ppo", f"{own_gymnasium}:{own_gymnasium}-v0", *SETTINGS, "normalize=True", *further])
    return "run"


def test_an_id_of_gymnasium_is_trained_evaluated_and_filmed(run, own_gymnasium, capsys):
    config = json.loads(Path(run, "config.json").read_text())
    assert (config["backend"], config["total_timesteps"]) == ("serial", 128)
    assert PPO.load(f"{run}/model.zip").num_timesteps == 128
    assert TrainingConfig.resolve("ppo", f"{own_gymnasium}:{own_gymnasium}-v0").environment.reward_threshold == -1.0
    cli.main(["evaluate", run])
    assert "Return of 4 episodes" in capsys.readouterr().out
    cli.main(["record", run])
    assert "return" in capsys.readouterr().out
    with Image.open(f"{run}/agent.gif") as film:
        assert film.n_frames > 1
        assert film.width == 40
    assert "the state of environments that are not JAX environments cannot be saved" in error_of(
        capsys, "train", "--resume", run
    )


def test_the_best_model_is_kept_with_its_statistics(run, capsys, monkeypatch):
    with np.load(f"{run}/evaluations.npz") as file:
        assert file["timesteps"].tolist() == [64, 128]
        assert file["results"].shape == (2, 5)
        best = file["timesteps"][file["results"].mean(1).argmax()]
    assert PPO.load(f"{run}/best_model.zip").num_timesteps == best
    cli.main(["evaluate", run, "--best"])
    assert "Return of 4 episodes" in capsys.readouterr().out
    monkeypatch.setattr("bridge.app.recording._require_pictures", lambda config: None)  # the test before did
    cli.main(["record", run, "--best", "--out", "best.gif"])
    assert "Wrote best.gif" in capsys.readouterr().out


def test_tensorboards_folder_has_a_folder_for_each_run(run):
    (folder,) = Path("logs").iterdir()
    assert folder.name == run
    assert list(folder.glob("events.*"))


@pytest.mark.parametrize("kind", [ConnectionError, ValueError, TypeError])
def test_an_environment_that_breaks_is_named_and_the_agent_saved(kind, own_gymnasium, tmp_path, capsys, monkeypatch):
    def step(self, action):
        raise kind("the simulator is gone")

    reach = find_environment(f"{own_gymnasium}:Reach")
    working, command = reach.step, ["train", "ppo", f"{own_gymnasium}:Reach", *SETTINGS, "--out", str(tmp_path / "run")]
    counter = iter(range(10**6))
    monkeypatch.setattr(reach, "step", lambda *given: (working if next(counter) < 100 else step)(*given))
    with pytest.raises(TypeError if kind is TypeError else SystemExit):  # of a TypeError, the traceback is shown
        cli.main(command)
    if kind is not TypeError:
        said = capsys.readouterr().err.splitlines()[-1]  # before it, the progress bar
        saved = f"and the last saved agent is {tmp_path / 'run' / 'model.zip'}"
        place = f"{kind.__name__}: the simulator is gone ({__file__}, line "
        assert f"Training stopped after 100 steps, {saved}: {place}" in said
    assert PPO.load(tmp_path / "run" / "model.zip").num_timesteps == 100
    assert (tmp_path / "run" / "episodes.csv").exists()


def test_a_class_is_trained_whose_episodes_never_end(own_gymnasium, capsys, monkeypatch):
    monkeypatch.setattr("bridge.app.evaluation.MOST_STEPS", 30)
    further = ["--env-kwargs", "goal=0.5", "--eval-freq", "64", "--out", "endless"]
    cli.main(["train", "ppo", f"{own_gymnasium}:Reach", *SETTINGS, *further])
    assert "(4 of them cut after 30 steps)" in capsys.readouterr().out
    with np.load("endless/evaluations.npz") as file:
        assert file["ep_lengths"].tolist() == [[30] * 5] * 2


@pytest.mark.parametrize(
    ("env_id", "backend", "kind"),
    [
        ("CartPole-v1", "auto", JaxVecEnv),
        ("CartPole-v1", "serial", SerialVecEnv),
        ("CartPole-v1", "process", ProcessVecEnv),
        ("jaxenvs.envs.classic_control.cartpole:CartPole", "auto", JaxVecEnv),
        ("gymnasium.envs.classic_control:CartPoleEnv", "auto", SerialVecEnv),
    ],
)
def test_the_backend_is_that_of_the_environment_or_the_one_given(env_id, backend, kind):
    config = TrainingConfig.resolve("ppo", env_id, num_envs=1, backend=backend)
    env = make_env(config)
    assert type(env.unwrapped) is kind
    assert config.backend == {JaxVecEnv: "jax", SerialVecEnv: "serial", ProcessVecEnv: "process"}[kind]
    assert config.environment.has_time_limit == (env_id == "CartPole-v1")
    env.close()


def test_games_are_made_in_atari_wrapper():
    pytest.importorskip("ale_py")
    environment = find("auto", "ale_py:BreakoutNoFrameskip-v4", {})
    assert environment.is_game
    assert environment.make(1, 0).observation_space.shape == (84, 84, 1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["{own}:Other-v0"], "{own} was imported, but does not register the environment. No environment 'Other-v0'"),
        (["{own}:Reach", "--env-kwargs", "gol=1"], "got an unexpected keyword argument 'gol'"),
        (["{own}:Reach", "--backend", "jax"], "--backend jax needs an environment of jaxenvs"),
        (["CartPole-v1", "--seeds", "2", "--eval-freq", "8"], "--seeds compiles a whole training"),
        (["CartPole-v1", "--eval-freq", "-1"], "--eval-freq must be a non-negative int, got -1"),
        (
            ["{own}:Reach", "--devices", "1"],
            "supports a JaxVecEnv, optionally wrapped in VecNormalize; got SerialVecEnv",
        ),
        (["ALE/Pong-v99"], "No environment 'ALE/Pong-v99'. Atari games need EnvPool: pip install"),
        (["dict:Reach"], "No module 'dict'"),
        (["json:dumps"], "cannot be made"),
    ],
)
def test_mistakes_are_one_line(arguments, said, own_gymnasium, capsys):
    env_id, *others = (each.replace("{own}", own_gymnasium) for each in arguments)
    assert said.replace("{own}", own_gymnasium) in error_of(capsys, "train", "ppo", env_id, *others, "--out", "no")


# --- JAX environments in a module of the user's -------------------------------------------------------------------


@pytest.mark.thorough
def test_it_is_listed_trained_evaluated_and_filmed(own_environment, tmp_path, capsys):
    cli.main(["list", own_environment])
    assert f"{own_environment}-v0" in capsys.readouterr().out
    env_id = f"{own_environment}:{own_environment}-v0"
    cli.main(["train", "ppo", env_id, *SETTINGS])
    trained = capsys.readouterr().out.splitlines()[-1]
    run = f"runs/{own_environment}-v0-ppo-0"
    cli.main(["evaluate", run])
    assert capsys.readouterr().out.strip() == trained
    cli.main(["record", run, "--episodes", "2"])
    assert "return" in capsys.readouterr().out
    with Image.open(tmp_path / run / "agent.gif") as film:
        assert film.format == "GIF"
        assert film.n_frames > 2


@pytest.mark.thorough
def test_a_parameter_that_is_a_tuple_is_one_after_a_config_json_too(own_environment, capsys):
    env_id = f"{own_environment}:{own_environment}-v0"
    cli.main(["train", "ppo", env_id, *SETTINGS, "--env-kwargs", "size=(7, (8, 9))", "--out", "run"])
    trained = capsys.readouterr().out.splitlines()[-1]
    cli.main(["train", "--resume", "run"])
    assert capsys.readouterr().out.splitlines()[-1] == trained


@pytest.mark.thorough
def test_without_a_time_limit_an_evaluation_ends_all_the_same(own_environment, capsys, monkeypatch):
    monkeypatch.setattr("bridge.app.evaluation.MOST_STEPS", 30)
    endless = f"{own_environment}:{own_environment}Endless-v0"
    cli.main(["train", "ppo", endless, *SETTINGS, "--env-kwargs", "goal=9.0", "--out", "run"])
    assert "(4 of them cut after 30 steps)" in capsys.readouterr().out
    assert "cannot be drawn: define Walk.draw" in error_of(capsys, "record", "run")


@pytest.mark.parametrize(
    ("env_id", "said"),
    [
        ("no_such_module:Walk-v0", "No module 'no_such_module'"),
        ("{own}:Wlk-v0", "{own} was imported, but does not register the environment. No environment 'Wlk-v0'"),
        ("{own}-broken:Walk-v0", "NameError: name 'missing' is not defined"),
        ("{own}_importing:Walk-v0", "ModuleNotFoundError: No module named 'no_such_module'"),
    ],
)
def test_what_is_wrong_with_a_module_is_one_line(env_id, said, own_environment, tmp_path, capsys):
    (tmp_path / f"{own_environment}-broken.py").write_text("import jax\nmissing\n")
    (tmp_path / f"{own_environment}_importing.py").write_text("import no_such_module\n")
    message = error_of(capsys, "train", "ppo", env_id.replace("{own}", own_environment))
    assert said.replace("{own}", own_environment) in message
    if "missing" in said:
        assert "broken.py, line 2" in message


def test_a_tuple_of_observations_becomes_a_vector():
    """SB3's algorithms reject a Tuple, and the page of Blackjack trains it from the shell."""
    environment = find("auto", "Blackjack-v1", {})
    assert environment.observation_space.shape == (32 + 11 + 2,)
    assert environment.make(2, 0).reset().shape == (2, 45)
