"""`jaxenvs train --seeds` and `--devices`: agents in one program, in calls between which they can be stopped."""

import functools
import json
import shutil

import numpy as np
import pytest
from matplotlib.figure import Figure
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.vec_env import VecNormalize

import bridge
from bridge import make_vec_env
from bridge.app.config import TrainingConfig, load_config
from bridge.app.runs import make_env, make_model
from bridge.seeds import seed_sweep
from jaxenvs import cli
from tests.bridge.app.short_runs import error_of, same, train_and_interrupt, weights

SETTINGS = ["--num-envs", "2", "--total-timesteps", "256"]
HYPERPARAMETERS = ["--hyperparameters", "n_epochs=1", "normalize=True", "n_steps=32"]
DQN_HYPERPARAMETERS = ["--hyperparameters", "batch_size=8", "learning_starts=20", "policy_kwargs={'net_arch':[8]}"]
DQN_HYPERPARAMETERS += ["train_freq=8", "gradient_steps=2", "buffer_size=100"]
SEEDS = ["--seeds", "2", "--seed", "5"]
# Arguments of each kind of training, its class, the folders of its agents, and the steps after which it is interrupted.
KINDS = {
    "seeds": (["ppo", "CartPole-v1", *SETTINGS, *SEEDS, *HYPERPARAMETERS], PPO, ("seed-5", "seed-6"), 64),
    "dqn": (
        ["dqn", "CartPole-v1", "--total-timesteps", "160", *SEEDS, *DQN_HYPERPARAMETERS],
        DQN,
        ("seed-5", "seed-6"),
        32,
    ),
    "devices": (["ppo", "CartPole-v1", *SETTINGS, "--devices", "1", *HYPERPARAMETERS], PPO, (".",), 64),
}


def train(out, kind):
    cli.main(["train", *KINDS[kind][0], "--out", str(out)])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A function that returns the folder of a run of a kind, without an interruption."""

    @functools.cache
    def folder_of(kind):
        train(out := tmp_path_factory.mktemp("trained") / kind, kind)
        return out

    return folder_of


@pytest.fixture(scope="module")
def whole(trained):
    """The folder of a run with two seeds."""
    return trained("seeds")


@pytest.mark.thorough
def test_each_seed_has_a_zip_that_sb3_loads_and_goes_on_training(whole):
    first, second = (PPO.load(whole / f"seed-{seed}" / "model.zip") for seed in (5, 6))
    assert all(model.num_timesteps == 256 and model._n_updates == 4 for model in (first, second))
    assert not same(first.policy.state_dict(), second.policy.state_dict())
    assert json.loads((whole / "config.json").read_text())["num_seeds"] == 2
    assert (whole / "learning_curve.png").stat().st_size > 10_000
    first.set_env(make_vec_env("CartPole-v1", 2))
    first.learn(64, reset_num_timesteps=False)
    assert first.num_timesteps == 320


@pytest.mark.thorough
def test_each_seed_has_statistics_of_its_own(whole):
    first, second = (
        VecNormalize.load(str(whole / f"seed-{seed}" / "vec_normalize.pkl"), make_vec_env("CartPole-v1", 2))
        for seed in (5, 6)
    )
    assert first.obs_rms.count == pytest.approx(256 + 2, rel=1e-4)
    assert (first.obs_rms.mean != second.obs_rms.mean).all()


def test_train_seeds_of_a_model_gives_what_the_command_writes(whole):
    config = TrainingConfig.resolve(**load_config(whole / "config.json")[0] | {"seed": 99, "num_seeds": 1})
    template = make_model(config, make_env(config))
    models = bridge.train_seeds(template, 256, seeds=[5, 6])
    of_run, of_models = (bridge.plot_results(source, ax=Figure().add_subplot()) for source in (whole, models))
    assert of_run.lines[0].get_label().startswith("IQM of 2 runs")
    assert len(of_run.lines[0].get_xdata()) > 0
    np.testing.assert_array_equal(of_run.lines[0].get_xydata(), of_models.lines[0].get_xydata())
    for seed, model in zip((5, 6), models):
        saved = PPO.load(whole / f"seed-{seed}" / "model.zip")
        assert same(model.policy.state_dict(), saved.policy.state_dict())
        assert (model.seed, model.num_timesteps, model._n_updates) == (seed, 256, saved._n_updates)
        path = whole / f"seed-{seed}" / "vec_normalize.pkl"
        saved_env = VecNormalize.load(str(path), make_vec_env("CartPole-v1", 2))
        assert (model.get_env().obs_rms.mean == saved_env.obs_rms.mean).all()
    assert template.num_timesteps == 0
    assert template.get_env().obs_rms.count < 1


def test_all_seeds_are_evaluated_or_one_of_them(whole, capsys):
    cli.main(["evaluate", str(whole)])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines[:2]] == ["seed-5", "seed-6"]
    assert lines[2].startswith("Mean return of 4 episodes each: median")
    cli.main(["evaluate", str(whole / "seed-6")])
    assert capsys.readouterr().out.strip() == lines[1].removeprefix("seed-6: ")


def test_the_folder_of_a_seed_has_its_name_from_within_too(whole, capsys, monkeypatch):
    monkeypatch.chdir(whole / "seed-6")
    cli.main(["evaluate", "."])
    assert "Return of 4 episodes" in capsys.readouterr().out


def test_a_folder_that_only_looks_like_a_seeds_is_no_run(whole, capsys):
    assert "There is no such run" in error_of(capsys, "evaluate", str(whole / "seed-best"))


def test_trained_seeds_are_not_overwritten(whole, capsys):
    assert "already holds " in error_of(capsys, "train", "ppo", "CartPole-v1", "--out", str(whole))


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_ctrl_c_saves_what_was_learnt_and_a_resume_goes_on_bit_for_bit(kind, trained, tmp_path, monkeypatch, capsys):
    whole, (_, algorithm, agents, steps) = trained(kind), KINDS[kind]
    monkeypatch.setattr(seed_sweep, "MOST_ITERATIONS_PER_ROW", 4)
    train_and_interrupt(functools.partial(train, kind=kind), out := tmp_path / "interrupted")
    assert f"Interrupted after {steps} steps" in capsys.readouterr().out
    assert algorithm.load(out / agents[-1] / "model.zip").num_timesteps == steps
    assert (out / "learning_curve.png").exists()

    cli.main(["train", "--resume", str(out)])
    assert f"from {steps} on" in capsys.readouterr().out
    for agent in agents:
        assert same(weights(out / agent, algorithm), weights(whole / agent, algorithm))


@pytest.mark.thorough
def test_a_run_over_devices_leaves_a_zip_that_sb3_loads(trained, capsys):
    out = trained("devices")
    model = PPO.load(out / "model.zip")
    assert (model.num_timesteps, model._n_updates) == (256, 4)
    assert json.loads((out / "config.json").read_text())["devices"] == 1
    assert (out / "learning_curve.png").stat().st_size > 10_000
    cli.main(["evaluate", str(out)])
    assert "Return of 4 episodes" in capsys.readouterr().out


@pytest.mark.thorough
def test_seeds_leave_a_dqn_where_its_own_training_would(trained):
    two_seeds = trained("dqn")
    model = DQN.load(two_seeds / "seed-5" / "model.zip")
    assert (model.num_timesteps, model._n_updates, model._n_calls) == (160, 2 * 18, 160)
    assert model.exploration_rate == pytest.approx(0.04)
    assert json.loads((two_seeds / "config.json").read_text())["num_seeds"] == 2
    assert (two_seeds / "learning_curve.png").stat().st_size > 10_000


@pytest.mark.thorough
def test_a_number_of_iterations_that_nothing_divides_has_a_shorter_row_at_the_end(trained, tmp_path, monkeypatch):
    monkeypatch.setattr(seed_sweep, "MOST_ITERATIONS_PER_ROW", 8)
    monkeypatch.setattr(seed_sweep, "FEWEST_ITERATIONS_PER_ROW", 6)
    train(tmp_path, "dqn")
    with np.load(tmp_path / "checkpoint.npz") as file:
        assert file["metrics/timesteps"][0].tolist() == [64, 128, 160]
    assert same(weights(tmp_path / "seed-6", DQN), weights(trained("dqn") / "seed-6", DQN))


def test_seeds_do_not_go_on_with_a_config_that_was_changed_by_hand(trained, tmp_path, capsys):
    shutil.copytree(trained("dqn"), tmp_path / "run")
    path = tmp_path / "run" / "config.json"
    path.write_text(path.read_text().replace('"gamma": 0.99', '"gamma": 0.5'))
    assert "gamma was 0.99 and is 0.5" in error_of(capsys, "train", "--resume", str(path.parent))


def test_agents_whose_parameters_became_nan_are_left_out(tmp_path, capsys, monkeypatch):
    finish = seed_sweep.SeedSweep.finish
    monkeypatch.setattr(seed_sweep.SeedSweep, "finish", lambda self: [*finish(self), 1])
    out = tmp_path / "run"
    with pytest.raises(SystemExit):
        train(out, "seeds")
    said = capsys.readouterr().err
    assert "The parameters of 1 of 2 agents became NaN, so only the other agents were saved." in said
    assert [(out / folder / "model.zip").exists() for folder in KINDS["seeds"][2]] == [True, False]


@pytest.mark.thorough
def test_what_seeds_cannot_compile_is_said(tmp_path, capsys):
    message = error_of(capsys, "train", *KINDS["dqn"][0], "normalize=True", "--out", str(tmp_path))
    assert "--seeds cannot compile this training: VecNormalize is not compiled" in message
