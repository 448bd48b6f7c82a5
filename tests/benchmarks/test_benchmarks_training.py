"""The training benchmarks: the other libraries, the clocks, and the tables that they write."""

import argparse
import dataclasses
import json

import jax
import numpy as np
import pytest

from benchmarks import common, training
from benchmarks.peers import client
from benchmarks.peers.cell import GYMNASIUM, JAX, Cell
from benchmarks.peers.worker import Setting, Side
from jaxenvs import learn

SETTING = Setting(4, 8, batch_size=16, n_epochs=2)

FAKE_WORKER = """
from benchmarks.peers.worker import Side, serve
runs = []
def prepare(setting, iterations, compiler_options):
    print("libraries print what they like")
    def run():
        runs.append(setting.rollout)
        if len(runs) > 2:
            raise SystemExit(7)
    return Side(run, iterations * setting.rollout, compile_seconds=0.25)
serve(prepare)
"""


@pytest.fixture
def worker(tmp_path, monkeypatch):
    (tmp_path / "fake_worker.py").write_text(FAKE_WORKER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with client.Worker("fake_worker") as worker:
        yield worker


def test_a_worker_prepares_and_runs_whatever_its_libraries_print(worker):
    prepared = worker.prepare(SETTING, 3, {})
    assert (prepared.compile_seconds, prepared.steps) == (0.25, 3 * SETTING.rollout)
    prepared.run()


def test_a_worker_that_ends_is_named_with_what_it_was_asked(worker):
    prepared = worker.prepare(SETTING, 1, {})
    prepared.run()
    prepared.run()
    with pytest.raises(RuntimeError, match="fake_worker ended with 7, asked to run"):
        prepared.run()


@pytest.mark.parametrize("name", ["rejax", "sbx"])
def test_a_peer_that_is_not_installed_is_skipped_with_a_line(name, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(client, "ENVIRONMENTS", client.CHECKOUT / ".bench" / "nowhere")
    assert client.interpreter(name, install=False) is None
    assert f"skipped: {name} is not installed" in capsys.readouterr().out


def test_the_versions_that_a_peer_needs_come_before_ours():
    constraints = client.constraints_beside("# a comment\ngymnasium==1.3.0\nnumpy\n")
    assert "gymnasium==" not in constraints
    assert "numpy==" in constraints


@pytest.mark.slow
@pytest.mark.parametrize("name", training.DIFFERENCES)
def test_a_peer_trains(name):
    _, library, packages = training.DIFFERENCES[name]
    python = client.interpreter(library)
    if python is None:
        pytest.skip(f"{name} is not installed")
    assert "jax " in client.versions(python, packages)
    if name == training.SBX:
        with client.Worker("benchmarks.peers.cell", python) as worker:
            worker.ask(do="load", side=name, environments=GYMNASIUM)
            cell = Cell("PPO", "MlpPolicy 64-64", GYMNASIUM, 4, 8, settings={"batch_size": 16, "n_epochs": 2})
            assert worker.ask(do="begin", cell=dataclasses.asdict(cell))["first_seconds"] > 0
            return
    with client.Worker(training.PEERS[name], python) as worker:
        prepared = worker.prepare(SETTING, 2, {})
        assert prepared.compile_seconds > 0
        prepared.run()
        prepared.run()


def test_bars_are_held_against_the_faster_stock_sb3(monkeypatch):
    rates = {(training.OURS, 2): 30.0, (training.PURE, 0): 60.0, (training.STOCK, 2): 0.75, (training.STOCK, 1): 1.0}

    def time_cells(sides, options, threads, others):
        assert {*sides, *others} == {name for name, _ in rates}
        assert threads == {training.OURS: (None,)}
        begun = {name: {"first_seconds": 3.0, "iteration_seconds": 1.0} for name in sides}
        return {name: common.Timing(1, [1 / rate]) for name, rate in rates.items()}, begun

    monkeypatch.setattr(training, "time_cells", time_cells)
    report = common.Report("training", [], argparse.Namespace(output=None, quick=False, rounds=1))
    kinds = {training.OURS: JAX, training.STOCK: GYMNASIUM}
    others = {training.PURE: Side(lambda: None, 1, compile_seconds=9.0)}
    training.compare(report, "a", training.SMALL, kinds, others, {"stock SB3": 20, "SBX": 10})
    [bar] = report.content["bars"]
    assert (bar["value"], bar["met"]) == (pytest.approx(30), True)
    rows = report.content["tables"]["training"]
    assert [row["environments"] for row in rows] == ["JaxVecEnv", "VectorEnv", "DummyVecEnv", "DummyVecEnv"]
    assert [row["compile_seconds"] for row in rows] == [2, 9, None, None]
    assert [row["side"] for row in rows[2:]] == ["stock SB3, 2 threads", "stock SB3, 1 thread"]


@pytest.mark.thorough
def test_a_pure_training_goes_on_with_its_parameters():
    prepared = training.pure_training(SETTING, iterations=3)
    first, second = prepared.run(), prepared.run()
    assert int(first.metrics["timesteps"][-1]) == 3 * SETTING.rollout
    expected = jax.jit(learn.train)(jax.random.key(0), training.learner(SETTING, 3), first.params)
    for leaf, like in zip(jax.tree.leaves(second.params), jax.tree.leaves(expected.params), strict=True):
        np.testing.assert_allclose(leaf, like, rtol=1e-4, atol=1e-5)
    assert prepared.compile_seconds > 0


@pytest.mark.thorough
@pytest.mark.slow
def test_training_quick_writes_its_tables(tmp_path, monkeypatch):
    monkeypatch.setattr(client, "ENVIRONMENTS", client.CHECKOUT / ".bench" / "nowhere")
    training.main(["--quick", "--parts", "a", "--output", str(tmp_path)])  # b and c are as a
    content = json.loads((tmp_path / "training.json").read_text())
    assert set(content["tables"]) == {"training", "peers"}
    assert [row["part"] for row in content["tables"]["training"] if row["side"] == training.OURS] == ["a"]
    assert all(row["steps_per_second"] > 0 for row in content["tables"]["training"])
    assert content["bars"] == []


@pytest.mark.slow
@pytest.mark.thorough  # two scripts of few lines in processes of their own, as the examples
def test_training_quick_solves_cartpole_by_both_scripts(tmp_path):
    training.main(["--quick", "--parts", "d", "--output", str(tmp_path)])
    content = json.loads((tmp_path / "training.json").read_text())
    assert {row["side"].partition(",")[0] for row in content["tables"]["solved"]} == {training.OURS, training.STOCK}
    assert content["bars"] == []
