"""The training benchmarks: the other libraries, the clocks, and the tables that they write."""

import json

import jax
import numpy as np
import pytest
import stable_baselines3

from benchmarks import common, training
from benchmarks.peers import client
from benchmarks.peers.worker import Setting, Training, sb3_training
from bridge import make_vec_env
from jaxenvs import learn

SETTING = Setting(4, 8, batch_size=16, n_epochs=2)

FAKE_WORKER = """
from benchmarks.peers.worker import Training, serve
runs = []
def prepare(setting, iterations, compiler_options):
    print("libraries print what they like")
    def run():
        runs.append(setting.rollout)
        if len(runs) > 2:
            raise SystemExit(7)
    return Training(run, iterations, compile_seconds=0.25)
serve(prepare, ["numpy"])
"""


@pytest.fixture
def worker(tmp_path, monkeypatch):
    (tmp_path / "fake_worker.py").write_text(FAKE_WORKER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with client.Worker("fake_worker") as worker:
        yield worker


def tiny_model():
    return stable_baselines3.PPO("MlpPolicy", make_vec_env("CartPole-v1", 4), n_steps=8, batch_size=16, n_epochs=1)


def test_a_worker_prepares_and_runs_whatever_its_libraries_print(worker):
    prepared = worker.prepare(SETTING, iterations=3)
    assert prepared.compile_seconds == 0.25
    assert prepared.iterations == 3
    assert worker.versions.keys() == {"numpy"}
    assert 0 <= prepared.run() < 1


def test_a_worker_that_ends_is_named_with_what_it_was_asked(worker):
    prepared = worker.prepare(SETTING, iterations=1)
    prepared.run()
    prepared.run()
    with pytest.raises(RuntimeError, match="fake_worker ended with 7, asked to run"):
        prepared.run()


@pytest.mark.parametrize("name", training.PEERS)
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
    [(environment, module)] = [
        (environment, modules[name]) for environment, modules in training.PEERS.items() if name in modules
    ]
    python = client.interpreter(environment, install=False)
    if python is None:
        pytest.skip(f"{name} is not installed")
    with client.Worker(module, python) as worker:
        prepared = worker.prepare(SETTING, iterations=2)
        assert prepared.compile_seconds > 0
        assert prepared.run() > 0
        assert prepared.run() > 0
        assert "jax" in worker.versions


@pytest.mark.thorough
def test_an_sb3_training_goes_on_by_its_iterations():
    model = tiny_model()
    prepared = sb3_training(model, SETTING, iterations=3, compiles=False)
    before = model.num_timesteps
    prepared.run()
    assert model.num_timesteps - before == 3 * SETTING.rollout
    assert prepared.compile_seconds is None


def test_bars_are_held_against_the_faster_stock_sb3(monkeypatch):
    seconds = {
        training.OURS: 1.0,
        training.PURE: 0.5,
        f"{training.STOCK}, 2 threads": 40.0,
        f"{training.STOCK}, 1 thread": 30.0,
    }

    def interleave(sides, rounds):
        return {name: common.Timing(side.steps, [seconds[name] * side.steps]) for name, side in sides.items()}

    for make in ("model_training", "pure_training"):
        monkeypatch.setattr(training, make, lambda *_, **__: Training(lambda: None, 1))
    monkeypatch.setattr(training.common, "interleave", interleave)
    report = common.Report("training", {}, [])
    options = training.Options(rounds=1, threads=2, quick=False, peers={})
    training.compare(
        report,
        "a",
        training.SMALL,
        options,
        training.JAX_ENVS,
        training.GYMNASIUM_ENVS,
        (training.SBX,),
        {"stock SB3": 20},
    )
    [bar] = report.content["bars"]
    assert bar["value"] == pytest.approx(30)
    assert bar["met"]
    environments = [row["environments"] for row in report.content["tables"]["training"]]
    assert environments == [training.JAX_ENVS, "VectorEnv", training.GYMNASIUM_ENVS, training.GYMNASIUM_ENVS]


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
    training.main(["--quick", "--only", "a", "--output", str(tmp_path)])  # b and c are as a
    content = json.loads((tmp_path / "training.json").read_text())
    assert set(content["tables"]) == {"training", "peers"}
    assert [row["part"] for row in content["tables"]["training"] if row["side"] == training.OURS] == ["a"]
    assert all(row["steps_per_second"] > 0 for row in content["tables"]["training"])
    assert content["bars"] == []


@pytest.mark.slow
@pytest.mark.thorough  # two scripts of few lines in processes of their own, as the examples
def test_training_quick_solves_cartpole_by_both_scripts(tmp_path):
    training.main(["--quick", "--only", "d", "--output", str(tmp_path)])
    content = json.loads((tmp_path / "training.json").read_text())
    assert {row["side"].partition(",")[0] for row in content["tables"]["solved"]} == {training.OURS, training.STOCK}
    assert content["bars"] == []
