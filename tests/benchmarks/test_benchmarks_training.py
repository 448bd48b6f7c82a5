"""The training benchmarks: the other libraries, the clocks, and the tables that they write."""

import json
import time

import jax
import numpy as np
import pytest
import stable_baselines3
from stable_baselines3.common.callbacks import EveryNTimesteps

from benchmarks import common, learning, learning_tasks, training
from benchmarks.learning_tasks import OURS, STOCK
from benchmarks.peers import client
from benchmarks.peers.worker import Setting, Training, sb3_training
from bridge import DQN, make_vec_env
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


def test_evaluations_come_between_rollouts_and_stop_the_clock():
    model = tiny_model()

    def evaluate():
        end = time.process_time() + 0.5
        while time.process_time() < end:
            pass
        return 1.0

    evaluations = learning.Evaluations(evaluate, every=48)
    model.learn(128, callback=evaluations)
    evaluations.measure()
    assert [timesteps for timesteps, _, _ in evaluations.curve] == [64, 96, 128]
    assert evaluations.curve[-1][1] < 0.9  # two evaluations before it took a second


@pytest.mark.parametrize("env_id", learning_tasks.PPO)
def test_both_sides_of_the_learning_table_have_the_same_settings(env_id):
    stock, ours = (learning.make_model(learning.Run(env_id, side, 0, 1)) for side in (STOCK, "bridge.PPO"))
    for name in ("n_steps", "batch_size", "n_epochs", "gamma", "gae_lambda", "ent_coef", "vf_coef", "max_grad_norm"):
        assert getattr(stock, name) == getattr(ours, name)
    assert (stock.use_sde, stock.sde_sample_freq, stock.n_envs) == (ours.use_sde, ours.sde_sample_freq, ours.n_envs)
    assert [stock.lr_schedule(p) for p in (1, 0.5)] == [ours.lr_schedule(p) for p in (1, 0.5)]
    assert [stock.clip_range(p) for p in (1, 0.5)] == [ours.clip_range(p) for p in (1, 0.5)]
    assert (stock.get_vec_normalize_env() is None) == (ours.get_vec_normalize_env() is None)


def record(seed, mean_return, curve):
    run = {"env_id": "CartPole-v1", "side": OURS, "seed": seed, "total_timesteps": 100, "algorithm": "ppo"}
    return run | {"mean_return": mean_return, "curve": curve}


def test_the_threshold_is_first_reached_by_an_evaluation():
    curve = [(10, 1.0, 100.0), (20, 2.0, 480.0), (30, 3.0, 450.0)]
    assert learning.first_at(curve, 475) == (20, 2.0)
    assert learning.first_at(curve, 500) == (float("inf"), float("inf"))


def test_a_row_tells_medians_and_leaves_out_what_half_of_the_seeds_never_reached():
    records = [
        record(0, 500.0, [(10, 1.0, 500.0)]),
        record(1, 400.0, [(10, 2.0, 9.0)]),
        record(2, 300.0, [(10, 3.0, 9.0)]),
    ]
    row = learning.summarize("CartPole-v1", OURS, records, bar=475)
    assert (row["median_return"], row["interquartile_range"], row["worst_seed"]) == (400, 100, 300)
    assert (row["steps_to_threshold"], row["cpu_seconds_to_threshold"], row["met"]) == (None, None, False)
    row = learning.summarize("CartPole-v1", OURS, [records[0]] * 2 + records[:1], bar=475)
    assert (row["steps_to_threshold"], row["cpu_seconds_to_threshold"], row["met"]) == (10, 1, True)


def test_trainings_that_are_done_are_not_done_again(tmp_path):
    path = tmp_path / "learning.jsonl"
    records = [record(seed, 500.0, [[10, 1.0, 500.0]]) for seed in range(2)]
    path.write_text("".join(json.dumps(each) + "\n" for each in records))
    runs = [learning.Run("CartPole-v1", OURS, seed, 100) for seed in (1, 0)]
    assert learning.train_all(runs, path, processes=1) == records[::-1]
    assert len(path.read_text().splitlines()) == 2


@pytest.mark.parametrize("task", learning_tasks.OFF_POLICY)
def test_both_sides_of_the_off_policy_learning_table_have_the_same_settings(task):
    algorithm, env_id = task.split()
    runs = [learning.Run(env_id, side, 0, 1, algorithm) for side in (STOCK, OURS)]
    stock, ours = map(learning.make_model, runs)
    assert (type(stock).__name__, runs[0].name) == (type(ours).__name__, task)
    for name in ("train_freq", "gradient_steps", "learning_starts", "batch_size", "buffer_size", "gamma", "tau"):
        assert getattr(stock, name) == getattr(ours, name)
    assert repr(stock.action_noise) == repr(ours.action_noise)
    assert (stock.use_sde, stock.learning_rate) == (ours.use_sde, ours.learning_rate)
    assert str(stock.policy) == str(ours.policy)


@pytest.mark.thorough
def test_evaluations_at_steps_leave_the_steps_between_to_programs():
    evaluations = learning.EvaluationsAtSteps(lambda: 1.0, every=30)
    model = DQN("MlpPolicy", make_vec_env("CartPole-v1", 2), learning_starts=200, buffer_size=100)
    model.learn(100, callback=EveryNTimesteps(30, evaluations))
    evaluations.measure()
    assert [timesteps for timesteps, _, _ in evaluations.curve] == [30, 60, 90, 104]


@pytest.mark.thorough
@pytest.mark.slow
def test_learning_quick_keeps_every_training(tmp_path):
    learning.main(["--quick", "--output", str(tmp_path), "--records", str(tmp_path / "learning.jsonl")])
    content = json.loads((tmp_path / "learning.json").read_text())
    assert [row["side"] for row in content["tables"]["learning"]] == [OURS, STOCK]
    assert len((tmp_path / "learning.jsonl").read_text().splitlines()) == 2
    assert all(8 < row["median_return"] <= 500 for row in content["tables"]["learning"])
