"""`jaxenvs zoo`: RL-Zoo's commands as its users type them, with bridge's algorithms and, where it has them, its
environments."""

import importlib.util
import sys

import gymnasium
import pytest
import stable_baselines3
from matplotlib import pyplot

from bridge import JaxVecEnv
from bridge.algorithms.specs import SPECS
from jaxenvs import cli
from tests.bridge.app.short_runs import error_of

needs_zoo = pytest.mark.skipif(importlib.util.find_spec("rl_zoo3") is None, reason="needs rl_zoo3")

SMALL = "policy_kwargs:dict(net_arch=[8])"
ROLLOUTS = ["-params", SMALL, "n_steps:16", "n_envs:2"]
LSTM = ["-params", "policy_kwargs:dict(lstm_hidden_size=8)", "n_steps:16", "n_envs:2"]
REPLAY = ["-params", SMALL, "learning_starts:20", "batch_size:8", "train_freq:8", "gradient_steps:2", "buffer_size:500"]
GOALS = ["-params", SMALL, "learning_starts:110", "buffer_size:500", "batch_size:8"]
GAMES = ["-params", "learning_starts:20", "batch_size:8", "buffer_size:500"]
SEARCH = ["-optimize", "--n-trials", "2", "--n-startup-trials", "1", "--n-evaluations", "1", "--no-optim-plots"]
SETTINGS = """
CartPole-v1:
  env_wrapper: gymnasium.wrappers.TimeAwareObservation
  policy: MlpPolicy
  n_timesteps: 1000
  n_envs: 2
  n_steps: 16
MountainCar-v0:
  callback:
    - stable_baselines3.common.callbacks.CheckpointCallback: {save_freq: 16, save_path: written}
  policy: MlpPolicy
  n_timesteps: 1000
  n_envs: 2
  n_steps: 16
jaxenvs/ArmReach-v0:
  policy: MultiInputPolicy
  n_timesteps: 1000
  replay_buffer_class: HerReplayBuffer
  replay_buffer_kwargs: "dict(goal_selection_strategy='future', n_sampled_goal=4)"
"""

# Algorithm, environment, steps and further arguments; whether the environments are ours; what is written; and the
# module that has the environment.
COMMANDS = {
    "best model": ("ppo CartPole-v1 128 --eval-freq 64", ROLLOUTS, True, "best_model.zip", None),
    "checkpoints": ("ppo CartPole-v1 128 --save-freq 64 -P", ROLLOUTS, True, "rl_model_128_steps.zip", None),
    "processes": ("ppo CartPole-v1 64 --vec-env subproc", ROLLOUTS, False, "0.monitor.csv", None),
    "normalized": ("ppo Acrobot-v1 64 --eval-freq 32", ROLLOUTS, True, "Acrobot-v1/vecnormalize.pkl", None),
    "parameters": ("ppo Pendulum-v1 64 --env-kwargs g:9.0", ROLLOUTS, True, "monitor.csv", None),
    "tensorboard": ("a2c CartPole-v1 64 -tb tb --log-interval 1", ROLLOUTS, True, "monitor.csv", None),
    "a2c": ("a2c Pendulum-v1 64", ROLLOUTS, True, "Pendulum-v1/vecnormalize.pkl", None),
    "wrapper": ("a2c CartPole-v1 64 -conf own.yml", [], False, "0.monitor.csv", None),
    "callback": ("ppo MountainCar-v0 64 -conf own.yml", [], True, "../../../written/rl_model_32_steps.zip", None),
    "no velocities": ("ppo_lstm CartPoleNoVel-v1 64", LSTM, False, "0.monitor.csv", None),
    "ppo_lstm": ("ppo_lstm Acrobot-v1 64", LSTM, True, "monitor.csv", None),
    "dqn": ("dqn CartPole-v1 64", REPLAY, True, "monitor.csv", None),
    "qrdqn": ("qrdqn CartPole-v1 64", REPLAY, True, "monitor.csv", None),
    "sac": ("sac Pendulum-v1 64 --eval-freq 32", REPLAY, True, "best_model.zip", None),
    "td3": ("td3 Pendulum-v1 64", REPLAY, True, "monitor.csv", None),
    "ddpg": ("ddpg Pendulum-v1 64", REPLAY, True, "monitor.csv", None),
    "tqc": ("tqc Pendulum-v1 64", REPLAY, True, "monitor.csv", None),
    "crossq": ("crossq Pendulum-v1 64", REPLAY, True, "monitor.csv", None),
    "goals": ("tqc jaxenvs/ArmReach-v0 128 -conf own.yml", GOALS, True, "monitor.csv", None),
    "parking": ("tqc parking-v0 512", [*GOALS, "learning_starts:505"], False, "0.monitor.csv", "highway_env"),
    "game": ("ppo BreakoutNoFrameskip-v4 32", ["-params", "n_steps:8", "n_envs:2"], False, "0.monitor.csv", "ale_py"),
    "game, replayed": ("dqn BreakoutNoFrameskip-v4 32", GAMES, False, "0.monitor.csv", "ale_py"),
    "another algorithm": ("trpo CartPole-v1 64", ROLLOUTS, True, "monitor.csv", None),
}


@pytest.fixture(scope="module", autouse=True)
def gymnasium_afterwards():
    """Undo what RL-Zoo changes in Gymnasium's classes for the whole process when it is imported."""
    places = (gymnasium.wrappers, gymnasium.wrappers.common)
    limits = [place.TimeLimit for place in places]
    yield
    for place, limit in zip(places, limits):
        place.TimeLimit = limit


@pytest.fixture
def trained(monkeypatch, tmp_path):
    """The models that RL-Zoo's trainings end with, in an empty folder."""
    manager = pytest.importorskip("rl_zoo3.exp_manager").ExperimentManager
    save, models = manager.save_trained_model, []
    monkeypatch.setattr(manager, "save_trained_model", lambda self, model: models.append(model) or save(self, model))
    monkeypatch.chdir(tmp_path)
    return models


def train(line, further=()):
    algorithm, env_id, steps, *others = line.split()
    cli.main(["zoo", "train", "--algo", algorithm, "--env", env_id, "-n", steps, "--seed", "1", *others, *further])


@pytest.mark.thorough
@needs_zoo
@pytest.mark.parametrize("name", COMMANDS)
def test_a_training_of_the_zoo_is_one_of_bridge(name, trained, tmp_path, capsys):
    line, further, is_ours, written, module = COMMANDS[name]
    if module is not None:
        pytest.importorskip(module)
    (tmp_path / "own.yml").write_text(SETTINGS)
    train(line, further)
    (model,) = trained
    kind = SPECS[type(model).__name__].cls if type(model).__name__ in SPECS else sys.modules["sb3_contrib"].TRPO
    assert type(model) is kind
    assert isinstance(model.get_env().unwrapped, JaxVecEnv) == is_ours
    if line.startswith("ppo Pendulum"):
        assert model.get_env().get_attr("gravity") == [9.0, 9.0]
    algorithm, env_id, *_ = line.split()
    (folder,) = (tmp_path / "logs" / algorithm).rglob("*_1")
    assert (folder / written).exists()
    assert (folder / f"{env_id.replace('/', '-')}.zip").exists()
    assert ("-tb" in line) == (tmp_path / "tb").exists()
    assert ("the JAX ones refuse: " in capsys.readouterr().err) == (name == "wrapper")


@needs_zoo
@pytest.mark.thorough
def test_a_replay_buffer_is_saved_and_the_training_goes_on_with_it(trained, tmp_path):
    train("sac Pendulum-v1 64 --save-replay-buffer", REPLAY)
    folder = tmp_path / "logs/sac/Pendulum-v1_1"
    assert (folder / "replay_buffer.pkl").exists()
    train(f"sac Pendulum-v1 32 -i {folder}/Pendulum-v1.zip", REPLAY)
    first, second = trained
    assert (first.replay_buffer.size(), second.replay_buffer.size()) == (64, 96)


@needs_zoo
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("line", "further"),
    [("ppo CartPole-v1 64", ROLLOUTS), ("sac Pendulum-v1 64 --storage study.log --study-name own", REPLAY)],
)
def test_hyperparameters_are_optimized(line, further, trained, tmp_path):
    train(line, [*SEARCH, *further])
    assert not trained
    (report,) = (tmp_path / "logs").rglob("report_*.csv")
    assert len(report.read_text().splitlines()) == 3
    assert ("--storage" in line) == (tmp_path / "study.log").exists()


@needs_zoo
def test_an_agent_is_enjoyed_recorded_and_plotted(trained, tmp_path, monkeypatch, capsys):
    train("ppo CartPole-v1 128", ROLLOUTS)
    stable_baselines3.PPO.load(tmp_path / "logs/ppo/CartPole-v1_1/CartPole-v1.zip")
    of_run = ["--algo", "ppo", "--env", "CartPole-v1", "-f", "logs", "-n", "40"]
    cli.main(["zoo", "enjoy", *of_run, "--no-render"])
    assert "Mean reward" in capsys.readouterr().out
    pytest.importorskip("moviepy")
    cli.main(["zoo", "record", *of_run])
    assert list((tmp_path / "logs/ppo/CartPole-v1_1/videos").glob("*.mp4"))
    pytest.importorskip("seaborn")
    shown = []
    monkeypatch.setattr(pyplot, "show", lambda: shown.append(pyplot.gca().lines))
    cli.main(["zoo", "plot", "-a", "ppo", "-e", "CartPole-v1", "-f", "logs", "-w", "1"])
    assert len(shown[0]) == 1


@needs_zoo
def test_a_package_may_be_in_the_current_folder(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each])
    (tmp_path / "package_of_zoo.py").touch()
    line = ["zoo", "train", "--env", "CartPol-v1", "--gym-packages", "package_of_zoo"]
    assert "No module 'absent', neither in" in error_of(capsys, *line, "absent", "--seed", "1")
    assert "RL-Zoo says: CartPol-v1 not found" in error_of(capsys, *line)


def test_what_is_missing_is_one_line(capsys, monkeypatch):
    cli.main(["zoo", "--help"])
    assert "For example: jaxenvs zoo train --algo ppo" in capsys.readouterr().out
    assert "jaxenvs zoo needs one of train, enjoy, record, plot" in error_of(capsys, "zoo")
    assert "got paint: jaxenvs zoo train --help" in error_of(capsys, "zoo", "paint")
    if importlib.util.find_spec("rl_zoo3"):
        said = error_of(capsys, "zoo", "train", "--env", "CartPol-v1")
        assert "RL-Zoo says: CartPol-v1 not found in gym registry, you maybe meant CartPole-v1?" in said
    monkeypatch.setitem(sys.modules, "rl_zoo3", None)
    cli.main(["zoo", "train", "--help"])
    assert 'pip install "jaxenvs[zoo]"' in capsys.readouterr().out
    monkeypatch.setitem(sys.modules, "rl_zoo3.utils", None)
    assert 'pip install "jaxenvs[zoo]"' in error_of(capsys, "zoo", "train")
