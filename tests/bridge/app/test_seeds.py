"""`jaxenvs train --seeds`: many agents in one program, in calls between which they can be stopped."""

import json

import numpy as np
import pytest
from matplotlib.figure import Figure
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import VecNormalize

import bridge
from bridge import make_vec_env
from bridge.app.config import TrainingConfig, load_config
from bridge.app.runs import make_env, make_model
from jaxenvs import cli
from tests.bridge.app.short_runs import error_of, same, train_and_interrupt, weights

SETTINGS = ["--num-envs", "2", "--total-timesteps", "256", "--seeds", "2", "--seed", "5"]
SETTINGS += ["--hyperparameters", "n_epochs=1", "normalize=True", "n_steps=32"]


def train(out):
    cli.main(["train", "ppo", "CartPole-v1", *SETTINGS, "--out", str(out)])


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a run without an interruption."""
    out = tmp_path_factory.mktemp("seeds") / "whole"
    train(out)
    return out


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
def test_ctrl_c_saves_what_was_learnt_and_a_resume_goes_on_bit_for_bit(whole, tmp_path, capsys):
    train_and_interrupt(train, out := tmp_path / "interrupted")
    assert "Interrupted after 64 steps" in capsys.readouterr().out
    assert PPO.load(out / "seed-6" / "model.zip").num_timesteps == 64
    assert (out / "learning_curve.png").exists()

    cli.main(["train", "--resume", str(out)])
    assert "from 64 on" in capsys.readouterr().out
    for seed in ("seed-5", "seed-6"):
        assert same(weights(out / seed), weights(whole / seed))
