"""The cells of benchmarks.never_slower are what they should be, and do what they should in every run."""

import argparse
import dataclasses
import itertools
import json
import subprocess
import sys

import numpy as np
import pytest
import torch

from benchmarks import cells, common, never_slower
from benchmarks.peers import callbacks, stock_script
from benchmarks.peers.cell import CALLS, FULL_BUFFER, GYMNASIUM, JAX, OFF_POLICY, OURS, STOCK, Side
from jaxenvs import cli


def test_both_sides_of_a_cell_have_sb3s_defaults_but_for_rollouts():
    further = cells.further_cells()
    plain = [cell for cell in cells.all_cells() if cell not in further]
    assert len({str(cell) for cell in plain}) == len(plain) == 110
    assert {cell.n_steps for cell in plain if cell.algorithm == "A2C"} == {5}
    assert [cell.n_steps for cell in plain if str(cell) == "PPO MlpPolicy 64-64; 1 Gymnasium"] == [2048]
    pictures_off_policy = [cell for cell in plain if cell.algorithm in OFF_POLICY and cell.has_images]
    assert all(cell.settings == {} for cell in plain[2:] if cell not in pictures_off_policy)
    assert all(cell.rollout > cell.settings["learning_starts"] for cell in pictures_off_policy)
    assert {cell.rollout for cell in plain if cell.algorithm in OFF_POLICY} == {128, 32}
    assert all(cell.rollout % 64 == 0 for cell in plain if cell.algorithm.endswith("PPO"))


def test_each_algorithm_has_a_cell_with_each_callback_on_both_kinds_of_environments():
    further = cells.further_cells()
    assert len({str(cell) for cell in further}) == len(further)
    with_callbacks = [cell for cell in further if cell.callback and not FULL_BUFFER.items() <= cell.settings.items()]
    found = {(cell.algorithm, cell.environments, cell.callback) for cell in with_callbacks}
    algorithms = {cell.algorithm for cell in cells.all_cells()}
    assert found == set(itertools.product(algorithms, (GYMNASIUM, JAX), cells.CALLBACKS))
    assert len(algorithms) == 11
    defaults = [cell for cell in with_callbacks if not cell.settings]
    assert len(defaults) == len(with_callbacks) - 2 * len(OFF_POLICY)  # those with evaluations in long rollouts


@pytest.mark.parametrize("callback", cells.CALLBACKS)
def test_each_callback_fires_in_the_fewest_iterations_of_a_run(callback):
    for cell in (cell for cell in cells.further_cells() if cell.callback == callback):
        between = 1 if callback == callbacks.NO_OP else callbacks.CALLS_BETWEEN
        assert cell.fewest_iterations * cell.n_steps >= between
        if callback == callbacks.BELOW_ROLLOUT:
            assert 0 < cell.eval_freq < (cell.settings["train_freq"] if cell.algorithm in OFF_POLICY else cell.n_steps)
        else:
            assert cell.eval_freq >= cell.n_steps or cell.algorithm in OFF_POLICY


def cell_side(cell, side=STOCK):
    trained = Side()
    trained.load(side, cell.environments)
    trained.begin(dataclasses.asdict(cell))
    return trained


@pytest.mark.thorough
@pytest.mark.parametrize("callback", cells.CALLBACKS)
def test_a_run_in_which_a_callback_fires_too_rarely_is_an_error(callback):
    trained = cell_side(cells.callback_cell("A2C", GYMNASIUM, callback))
    if callback != callbacks.NO_OP:
        with pytest.raises(RuntimeError, match="each callback must do something, got"):
            trained.run(iterations=1, threads=torch.get_num_threads())
    trained.run(trained.cell.fewest_iterations, threads=torch.get_num_threads())


@pytest.mark.thorough
def test_a_callback_that_announces_its_steps_is_shown_them_on_both_sides():
    cell = cells.callback_cell("DQN", GYMNASIUM, callbacks.SCHEDULED)
    counts = [cell_side(cell, side)._learn(cell.fewest_iterations) for side in (STOCK, OURS)]
    assert [each["announced steps"] for each in counts] == [1, 1]
    assert all(each["ends of episodes"] > 1 for each in counts)


@pytest.mark.thorough
def test_learn_is_called_for_each_rollout(monkeypatch):
    trained = cell_side(cells.short_cell("PPO", cells.FLAT[0], GYMNASIUM))
    called, before = [], trained.model.num_timesteps
    learn = trained.model.learn
    monkeypatch.setattr(trained.model, "learn", lambda steps, **rest: (called.append(steps), learn(steps, **rest)))
    trained.run(trained.cell.fewest_iterations, threads=torch.get_num_threads())
    assert called == [1] * CALLS
    assert trained.model.num_timesteps - before == trained.cell.fewest_iterations * trained.cell.rollout


@pytest.mark.thorough
def test_stock_sb3s_script_writes_what_the_command_writes(tmp_path, monkeypatch, capsys):
    settings = {"n_envs": 2, "n_steps": 32, "batch_size": 64, "learning_rate": "lin_0.001"}
    command = ["ppo", "CartPole-v1", "--total-timesteps", "256", "--eval-freq", "64"]
    monkeypatch.setattr(sys, "argv", ["script", *command, "--out", str(tmp_path / "stock")])
    sys.argv += ["--settings", json.dumps(settings)]
    stock_script.main()
    assert "Return of 100 episodes: " in capsys.readouterr().out
    assignments = [f"{name}={value}" for name, value in settings.items() if name != "n_envs"]
    ours = ["--num-envs", "2", "--hyperparameters", *assignments, "--out", str(tmp_path / "ours")]
    cli.main(["train", *command, *ours])
    written = {side: {path.name for path in (tmp_path / side).iterdir()} for side in ("stock", "ours")}
    assert written["ours"] - written["stock"] == {"config.json", "learning_curve.png", "episodes.csv"}
    assert written["stock"] - written["ours"] == {"0.monitor.csv", "1.monitor.csv"}
    times = [np.load(tmp_path / side / "evaluations.npz")["timesteps"].tolist() for side in ("stock", "ours")]
    assert times == [[64, 128, 192, 256]] * 2


def test_a_command_is_timed_after_a_run_that_fills_the_cache(monkeypatch, capsys):
    lines = []

    def process(line, env, **_):
        lines.append((line[2:5], env["JAXENVS_CACHE"]))
        assert "JAX_ENABLE_COMPILATION_CACHE" not in env
        return subprocess.CompletedProcess(line, 0)

    report = common.Report("never_slower", [], argparse.Namespace(output=None, quick=False, rounds=9))
    monkeypatch.setattr(never_slower.subprocess, "run", process)
    monkeypatch.setenv("JAX_ENABLE_COMPILATION_CACHE", "false")
    never_slower.measure_command(report, cells.COMMANDS[0])
    assert [line for line, _ in lines[:2]] == [
        ["benchmarks.peers.stock_script", "sac", "Pendulum-v1"],
        ["jaxenvs.cli", "train", "sac"],
    ]
    assert len(lines) == 2 * (1 + never_slower.FEWEST_TURNS)
    assert len({cache for _, cache in lines}) == 1
    [row] = report.content["tables"]["commands"]
    assert (row["cell"], row["rounds"]) == (
        "jaxenvs train sac Pendulum-v1 --total-timesteps 2000",
        never_slower.FEWEST_TURNS,
    )
