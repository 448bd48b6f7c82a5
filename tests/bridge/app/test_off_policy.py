"""`jaxenvs train` with DQN, SAC, TD3 and DDPG: as with PPO, and their further options."""

import functools
import re
import sys

import pytest
import stable_baselines3
from stable_baselines3.common.noise import NormalActionNoise

from bridge.app.config import TrainingConfig, load_config
from bridge.app.runs import make_env, make_model
from bridge.app.training.callbacks import Interrupt
from bridge.engine.callbacks.callback_schedule import Pace
from jaxenvs import cli
from tests.bridge.app import short_runs
from tests.bridge.app.short_runs import error_of, same, train_and_kill
from tests.stock import STOCK

SMALL = ["batch_size=8", "learning_starts=20", "policy_kwargs={'net_arch':[8]}"]
DQN = ["dqn", "CartPole-v1", "--total-timesteps", "160"]
DQN_SETTINGS = ["--hyperparameters", *SMALL, "train_freq=8", "gradient_steps=2", "buffer_size=100"]


CONTRIB = {
    "qrdqn": ("CartPole-v1", "QRDQN", ()),
    "crossq": ("Pendulum-v1", "CrossQ", ("policy_delay=2",)),
    "tqc": ("Pendulum-v1", "TQC", ("top_quantiles_to_drop_per_net=3",)),
}


def train(out, *arguments):
    cli.main(["train", *DQN, *arguments, *DQN_SETTINGS, "--out", str(out)])


weights = functools.partial(short_runs.weights, algorithm=stable_baselines3.DQN)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a short run."""
    out = tmp_path_factory.mktemp("off_policy") / "run"
    train(out)
    return out


@pytest.mark.thorough
def test_a_run_leaves_what_ppos_does_and_is_evaluated(run, capsys):
    files = {"model.zip", "config.json", "learning_curve.png", "episodes.csv", "checkpoint.zip", "tensorboard"}
    assert {path.name for path in run.iterdir()} >= files
    cli.main(["evaluate", str(run)])
    assert "Return of 4 episodes" in capsys.readouterr().out
    model = stable_baselines3.DQN.load(run / "model.zip")
    assert (model.num_timesteps, model._n_updates) == (160, 2 * 18)  # from the 24th step on, after every eighth


@pytest.mark.thorough
@pytest.mark.parametrize("name", CONTRIB)
def test_algorithms_of_sb3_contrib_leave_zips_that_it_loads(name, tmp_path):
    env_id, stock, settings = CONTRIB[name]
    arguments = ["train", name, env_id, "--total-timesteps", "40", "--out", str(tmp_path)]
    cli.main([*arguments, "--hyperparameters", *SMALL, "train_freq=8", "gradient_steps=2", *settings])
    model = getattr(STOCK, stock).load(tmp_path / "model.zip", device="cpu")
    assert (model.num_timesteps, model._n_updates) == (40, 2 * 3)
    cli.main(["evaluate", str(tmp_path), "--episodes", "2"])


def test_without_sb3_contrib_the_command_says_what_to_install(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "sb3_contrib", None)
    message = error_of(capsys, "train", "qrdqn", "CartPole-v1", "--out", str(tmp_path))
    assert 'pip install "jaxenvs[contrib]"' in message


@pytest.mark.thorough
def test_a_killed_run_goes_on_as_if_it_had_not_been(run, tmp_path, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        patch.setattr(Pace, "next", lambda self, most: min(most, 8))  # steps a program
        out = train_and_kill(train, tmp_path / "killed", after=90)
    cli.main(["train", "--resume", str(out)])
    assert re.search("from 8[3-9] on", capsys.readouterr().out)
    assert same(weights(run), weights(out))
    assert (run / "episodes.csv").read_text() == (out / "episodes.csv").read_text()


@pytest.mark.thorough
def test_ctrl_c_in_the_middle_of_an_iteration_writes_a_checkpoint_at_its_end(run, tmp_path, monkeypatch, capsys):
    enter, out, interrupts, models, after = Interrupt.__enter__, tmp_path / "interrupted", [], [], []

    def make_and_keep(*arguments):
        models.append(make_model(*arguments))
        return models[-1]

    def next_count(self, most):
        if interrupts[-1].came:
            after.append(models[-1].num_timesteps)
        elif models[-1].num_timesteps > 70:
            Interrupt._handle(interrupts[-1])
        return min(most, 5)  # so that compiled functions end within iterations of eight steps

    with monkeypatch.context() as patch:
        patch.setattr(Pace, "next", next_count)
        patch.setattr(Interrupt, "__enter__", lambda self: interrupts.append(self) or enter(self))
        patch.setattr("bridge.app.runs.make_model", make_and_keep)
        with pytest.raises(SystemExit):
            train(out)
    num_timesteps = -(-after[0] // 8) * 8
    assert f"Interrupted after {num_timesteps} steps" in capsys.readouterr().out
    cli.main(["train", "--resume", str(out)])
    assert f"from {num_timesteps} on" in capsys.readouterr().out
    assert same(weights(run), weights(out))
    assert (run / "episodes.csv").read_text() == (out / "episodes.csv").read_text()


def test_noise_by_its_name_is_that_of_the_zoo():
    config = TrainingConfig.resolve("ddpg", "Pendulum-v1", hyperparameters={"noise_std": 0.3, "buffer_size": 10})
    model = make_model(config, make_env(config))
    assert type(model.action_noise) is NormalActionNoise
    assert model.action_noise._sigma == pytest.approx([0.3])


def test_a_pair_of_train_freq_is_kept_as_json(tmp_path):
    given = {"train_freq": (2, "episode"), "buffer_size": 10}
    TrainingConfig.resolve("dqn", "CartPole-v1", hyperparameters=given).save(tmp_path / "config.json")
    config = TrainingConfig.resolve(**load_config(tmp_path / "config.json")[0])
    assert make_model(config, make_env(config)).train_freq.unit.value == "episode"
