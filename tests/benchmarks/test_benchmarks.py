"""The benchmarks run, print what they should, and give both sides the same work."""

import argparse
import contextlib
import json
import re
import subprocess
import sys

import jax
import numpy as np
import pytest

from benchmarks import __main__ as everything
from benchmarks import cells, common, extensions, host, lunar_lander, never_slower, off_policy, stepping
from benchmarks.peers import callbacks, images, jax_images, worker
from benchmarks.peers.cell import GYMNASIUM, HOST, JAX, OURS, SBX, STOCK

COMMON_KEYS = {"benchmark", "settings", "notes", "machine", "versions", "product", "tables", "bars"}


def no_peers(monkeypatch):
    for name in ("gymnax", "envpool"):
        monkeypatch.setitem(sys.modules, name, None)  # makes the import fail


def run(script, name, folder, *options):
    script.main(["--quick", "--rounds", "1", "--output", str(folder), *options])
    content = json.loads((folder / f"{name}.json").read_text())
    assert set(content) == COMMON_KEYS
    return content


@pytest.mark.thorough
def test_stepping_writes_every_side(tmp_path):
    content = run(stepping, "stepping", tmp_path)
    assert [row["vec_env"] for row in content["tables"]["vec_env"]][:4] == [
        stepping.OURS,
        stepping.MONITORED,
        stepping.BARE,
        stepping.PROCESSES,
    ]
    assert [row["side"] for row in content["tables"]["compiled"]][:1] == ["jaxenvs"]
    stepping.main(["--quick", "--parts", "compiled", "--num-envs", "4", "--rounds", "1", "--output", str(tmp_path)])
    tables = json.loads((tmp_path / "stepping.json").read_text())["tables"]
    assert {row["num_envs"] for row in tables["compiled"]} == {4, 8}
    assert {row["num_envs"] for row in tables["vec_env"]} == {8}


@pytest.mark.parametrize("env_id", stepping.ENVS)
def test_both_sides_of_a_raw_rollout_do_the_same(env_id):
    """Same actions and same shapes."""
    gymnax = pytest.importorskip("gymnax")
    num_steps, num_envs = 3, 4
    actions = stepping.draw_actions(env_id, num_steps, num_envs)
    functionals = [stepping.jaxenvs_functional(env_id, num_envs), stepping.gymnax_functional(gymnax, env_id, num_envs)]
    ours, theirs = (
        jax.eval_shape(lambda carry, actions, step=side.step: jax.lax.scan(step, carry, actions)[1], start, actions)
        for side in functionals
        for start in [jax.eval_shape(side.start)]
    )
    assert [leaf.shape for leaf in ours] == [leaf.shape for leaf in theirs]
    assert [leaf.dtype for leaf in ours] == [leaf.dtype for leaf in theirs]
    assert [leaf.shape[:2] for leaf in ours] == [(num_steps, num_envs)] * 3


@pytest.mark.thorough
def test_a_compiled_rollout_goes_on_where_it_stopped_and_compiles_no_more():
    env_id, num_envs = "CartPole-v1", 64
    side = stepping.compiled(stepping.jaxenvs_functional(env_id, num_envs), stepping.draw_actions(env_id, 8, num_envs))
    compilations = []
    first, second = (side.run() for _ in range(common.WARM_UP_ROUNDS))
    assert not np.array_equal(first[0], second[0])
    jax.monitoring.register_event_duration_secs_listener(lambda event, *_, **__: compilations.append(event))
    _, _, done = side.run()
    jax.monitoring.clear_event_listeners()
    assert done.shape == (8, num_envs)
    assert [event for event in compilations if "compile" in event] == []


@pytest.mark.thorough
def test_vec_envs_without_peers_say_so_and_go_on(tmp_path, monkeypatch, capsys):
    no_peers(monkeypatch)
    content = run(stepping, "stepping", tmp_path, "--num-envs", "65", "--parts", "vec_env")
    printed = capsys.readouterr().out
    assert "skipped: envpool is not installed (make bench installs it)" in printed
    assert f"skipped: {stepping.PROCESSES} with 65 environments" in printed
    assert [row["vec_env"] for row in content["tables"]["vec_env"]] == [
        stepping.OURS,
        stepping.MONITORED,
        stepping.BARE,
    ]


def report_in(folder, rounds=9):
    """A report of a run that is not quick, in a folder, or written nowhere."""
    options = argparse.Namespace(output=folder, quick=False, rounds=rounds)
    return common.Report("some", ["a note", "another"], options)


def test_a_row_of_results_is_a_line_once_it_is_measured(tmp_path):
    report = report_in(tmp_path)
    report.add("speeds", [{"env": "a", "steps": 1.5}, {"env": "b", "steps": None}])
    report.bar("a", 1.0, 2)
    report.add("empty", [])
    text = (tmp_path / "unfinished" / "some.json").read_text()
    assert json.loads(text) == report.content
    assert '   {"env": "b", "steps": null}\n' in text


def test_quick_figures_do_not_replace_results(capsys):
    report = common.Report("nothing", [], common.Command(None).options(["--quick"]))
    report.add("speeds", [{"env": "a"}])
    report.bar("a", 1.0, 2)
    report.at_most("b", 1.0, 0.5)
    report.finish()
    assert report.content["bars"] == []
    assert "nothing written" in capsys.readouterr().out


def test_a_run_goes_on_where_another_of_the_same_product_was_stopped(tmp_path, monkeypatch):
    first = report_in(tmp_path)
    first.add("speeds", [{"env": "a", "side": "ours", "steps_per_second": 1.0}])
    first.bar("a", 1.0, 2)
    assert not (tmp_path / "some.json").exists()
    second = report_in(tmp_path)
    assert second.has("speeds", env="a", side="ours")
    assert not second.has("speeds", env="b")
    assert not second.has("others")
    second.add("speeds", [{"env": "b", "side": "ours", "steps_per_second": 3.0}])
    second.finish()
    content = json.loads((tmp_path / "some.json").read_text())
    assert [row["env"] for row in content["tables"]["speeds"]] == ["a", "b"]
    assert [bar["what"] for bar in content["bars"]] == ["a"]
    assert report_in(tmp_path).has("speeds", env="b")
    with monkeypatch.context() as patch:
        patch.setattr(common, "machine", lambda: content["machine"] | {"cpu": "another"})
        with pytest.raises(SystemExit, match="continue there, or remove it to start on another"):
            report_in(tmp_path)
    monkeypatch.setattr(common, "product", lambda: {"jaxenvs": "another", "bridge": "state"})
    assert not report_in(tmp_path).has("speeds", env="a")


def test_all_benchmarks_run_in_processes_or_those_that_are_named(monkeypatch, capsys):
    lines = []
    done = subprocess.CompletedProcess([], 0)
    monkeypatch.setattr(everything.subprocess, "run", lambda line, **_: lines.append(line[1:]) or done)
    everything.main(["host", "training"])
    assert lines == [["-m", "benchmarks.host"], ["-m", "benchmarks.training"]]
    everything.main([])
    assert ["-m", "benchmarks.never_slower"] in lines
    assert ["-m", "benchmarks.docs"] not in lines
    with pytest.raises(SystemExit):
        everything.main(["common"])


def test_the_product_is_two_trees_of_git():
    tree = r"[0-9a-f]{40}( and changes)?"
    assert all(re.fullmatch(tree, common.product()[folder]) for folder in ("jaxenvs", "bridge"))


def test_interleave_takes_turns_and_leaves_out_the_warm_up(monkeypatch):
    monkeypatch.setattr(common.gc, "collect", lambda: None)  # which takes long after many other tests
    order = []

    def side(name):
        return common.Side(lambda: order.append(name), 10)

    timings = common.interleave({"a": side("a"), "b": side("b")}, rounds=3)
    assert order == ["a", "b"] * (common.WARM_UP_ROUNDS + 3)
    assert [len(timing.seconds) for timing in timings.values()] == [3, 3]


def test_the_peak_of_a_process_is_its_own_whoever_started_it():
    ballast = bytearray(300_000_000)
    ballast[::4096] = b"x" * len(ballast[::4096])  # resident
    peak = subprocess.run(
        [sys.executable, "-c", "from benchmarks.peers.worker import megabytes; print(megabytes('VmHWM'))"],
        cwd=common.RESULTS.parent.parent,
        capture_output=True,
        check=True,
    )
    resident = worker.megabytes("VmRSS")
    assert resident > 300
    assert worker.megabytes("VmHWM") > resident - 2  # Linux counts pages in batches, one a thread
    assert float(peak.stdout) < 100


@pytest.mark.parametrize("kind", ["image_and_vector", "wide, Box"])
def test_images_are_the_same_in_both_worlds(kind):
    ours, theirs = jax_images.Images(kind), images.Images(kind)
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    state, _ = jax.jit(ours.reset)(jax.random.key(0))
    observation, _ = theirs.reset(seed=0)
    theirs.phase = int(state.phase)
    step, ended, rewards = jax.jit(ours.step), False, 0.0
    while not ended:
        action = np.array([1.0, 0.0], np.float32) if kind.endswith("Box") else np.int32(theirs.count % images.ACTIONS)
        state, timestep = step(state, action)
        observation, reward, ended, _, _ = theirs.step(action)
        jax.tree.map(np.testing.assert_array_equal, timestep.observation, observation)
        assert (timestep.reward, timestep.terminated) == (reward, ended)
        rewards += reward
    assert rewards in ((images.LENGTH / 2,) if kind.endswith("Box") else (0, images.LENGTH))
    assert theirs.count == images.LENGTH


@pytest.fixture
def pretend(monkeypatch):
    """Put processes and turns that do nothing in the place of `never_slower`'s, as fast as they are said to be.

    Returns:
      A function of steps per second by side and threads, of the seconds of an iteration and the megabytes by side, to a
      dict that then gets what was asked of `interleave`.
    """

    def begin(rates, seconds, megabytes):
        class Worker(contextlib.nullcontext):
            def __init__(self, module, python=None):
                super().__init__()

            def __enter__(self):
                return self

            def ask(self, do, side=None, **_):
                if do == "load":
                    self.side = side
                    return {"threads": 2}
                answer = {"first_seconds": 1.0, "iteration_seconds": seconds[self.side]}
                peak = megabytes[self.side]
                return answer | {"imports_megabytes": 100.0, "peak_megabytes": peak, "kept_megabytes": 9.0}

        def interleave(sides, rounds, warm_up):
            steps = {name: side.steps for name, side in sides.items()}
            asked.update(steps=steps, rounds=rounds, warm_up=warm_up)
            return {name: common.Timing(each, [each / rates[name]]) for name, each in steps.items()}

        asked = {}
        monkeypatch.setattr(never_slower.client, "Worker", Worker)
        monkeypatch.setattr(never_slower.common, "interleave", interleave)
        return asked

    return begin


ONES = dict.fromkeys((OURS, STOCK, SBX), 1.0)


def test_a_cell_is_held_against_the_faster_stock_sb3_each_side_at_its_best_and_its_memory(pretend, capsys):
    rates = {(STOCK, 2): 10.0, (OURS, 2): 30.0, (STOCK, 1): 20.0, (OURS, 1): 25.0}
    asked = pretend(rates, {STOCK: 0.1, OURS: 1.0}, {STOCK: 50.0, OURS: 60.0})
    report = report_in(None)
    never_slower.measure(report, cells.quick_cells()[0])
    # Two rounds of three seconds each, in which stock SB3's runs have five iterations.
    assert (asked["rounds"], asked["warm_up"]) == (2, 1)
    assert asked["steps"] == {(name, threads): 40 * (1 if name == OURS else 5) for name, threads in rates}
    [row] = report.content["tables"]["cells"]
    assert (row["times"], row["threads"], row["times_MB"]) == (pytest.approx(1.5), 1, pytest.approx(1.2))
    assert row["bridge_threads"] == 2
    assert [bar["met"] for bar in report.content["bars"]] == [True, False]


def test_cells_with_callbacks_take_turns_five_times_on_one_thread(pretend, capsys):
    rates = {(STOCK, 1): 1.0, (OURS, 1): 1.0}
    asked = pretend(rates, ONES, ONES)
    cell = cells.callback_cell("SAC", JAX, callbacks.SCHEDULED)
    report = report_in(None)
    never_slower.measure(report, cell)
    assert asked["rounds"] == never_slower.FEWEST_TURNS
    assert asked["steps"] == dict.fromkeys(rates, cell.fewest_iterations * cell.rollout)
    assert len(report.content["tables"]["cells"]) == 1


def test_a_side_that_ends_is_a_bar_missed_and_the_others_go_on(tmp_path, monkeypatch, capsys):
    class Ends(contextlib.nullcontext):
        def ask(self, **_):
            raise RuntimeError("it ended with 137")

    monkeypatch.setattr(never_slower.client, "Worker", lambda *_: Ends(Ends()))
    content = run(never_slower, "never_slower", tmp_path, "--only", "^(?!jaxenvs)")
    assert len(content["bars"]) == len(cells.quick_cells())
    assert "it ended with 137" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.thorough
def test_never_slower_quick_writes_a_row_for_each_cell(tmp_path):
    content = run(never_slower, "never_slower", tmp_path, "--only", "JAX")
    [row] = content["tables"]["cells"]
    assert row["cell"] == "A2C MlpPolicy 64-64; 8 JAX"
    assert all(row[what] > 0 for what in ("times", "stock_first", "bridge_first", "stock_MB", "bridge_MB"))
    assert content["bars"] == []


def test_off_policy_is_compared_with_each_peer_on_gymnasiums_environments():
    sac = off_policy.STEPS[0]
    zoo = next(each for each in off_policy.STEPS if "gradient_steps" in each.cell.settings)
    sides = [(side, cell.environments) for side, cell in off_policy.sides_of(sac, has_sbx=True).values()]
    assert sides == [(OURS, JAX), (OURS, HOST), (STOCK, HOST), (SBX, HOST)]
    assert [side for side, _ in off_policy.sides_of(sac, has_sbx=False).values()] == [OURS, OURS, STOCK]
    assert zoo.cell.settings["gradient_steps"] == 128
    assert "policy_kwargs" not in zoo.cell.arguments  # the network's name says it
    assert "n_steps" not in zoo.cell.arguments  # which are those of returns, off-policy


def test_the_bars_of_off_policy_are_held_against_the_faster_of_each_side(pretend, capsys):
    rates = {(f"{OURS}, {kind}", threads): 36.0 for kind in (JAX, HOST) for threads in (1, 2)}
    rates |= {(f"{OURS}, {JAX}", 1): 40.0, (f"{STOCK}, {HOST}", 1): 8.0, (f"{STOCK}, {HOST}", 2): 10.0}
    rates[f"{SBX}, {HOST}", 2] = 20.0
    asked = pretend(rates, ONES, ONES)
    report = report_in(None)
    off_policy.measure(report, off_policy.STEPS[0], has_sbx=True)
    assert {*asked["steps"]} == {*rates}  # SBX only with PyTorch's default
    assert [round(bar["value"], 6) for bar in report.content["bars"]] == [4, 2, 3.6, 1.8]
    assert [bar["met"] for bar in report.content["bars"]] == [True] * 4
    assert {row["environments"] for row in report.content["tables"]["steps"]} == {f"1 {JAX}", f"1 {GYMNASIUM}"}


@pytest.mark.slow
@pytest.mark.thorough
def test_off_policy_quick_measures_steps_and_memory(tmp_path):
    tables = run(off_policy, "off_policy", tmp_path)["tables"]
    assert set(tables) == {"steps", "memory"}
    assert all(row["steps_per_second"] > 0 for row in tables["steps"])
    assert [row["side"] for row in tables["memory"]] == [OURS, STOCK]


@pytest.mark.thorough
def test_host_quick_measures_every_kind_of_vec_env(tmp_path):
    content = run(host, "host", tmp_path, "--parts", "stepping", "tensors")
    [row] = content["tables"]["stepping"]
    assert {name for name, value in row.items() if value} >= {"DummyVecEnv", "SerialVecEnv", "ProcessVecEnv"}
    assert [row["side"] for row in content["tables"]["tensors"]] == [OURS, f"{OURS}, NumPy arrays", STOCK]


@pytest.mark.slow
@pytest.mark.thorough
def test_extensions_compares_what_is_ours_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(extensions, "PAIRS", extensions.PAIRS[:1])
    extensions.main(["--quick", "--output", str(tmp_path)])
    tables = json.loads((tmp_path / "extensions.json").read_text())["tables"]
    assert {row["algorithm"] for row in tables["steps"]} == {"PQN", "PPO"}
    assert [row["side"].partition(",")[0] for row in tables["pretrain"]][:2] == ["pretrain", "PyTorch"]


@pytest.mark.slow
@pytest.mark.thorough
def test_lunar_lander_writes_the_learning_curve_of_each_side(tmp_path):
    sides = list(lunar_lander.SIDES)[:2]  # the third compiles for half a minute
    lunar_lander.main(["--quick", "--seeds", "1", "--parts", *sides, "--output", str(tmp_path)])
    content = json.loads((tmp_path / "lunar_lander.json").read_text())
    assert set(content["product"]) == {"jaxenvs", "bridge"}
    rows = content["tables"]["trainings"]
    assert [row["side"] for row in rows] == sides
    for row in rows:
        seconds, returns = zip(*row["curve"])
        assert len(seconds) == lunar_lander.POINTS
        assert list(seconds) == sorted(seconds)
        assert seconds[0] > 1  # the imports
        assert seconds[-1] == row["seconds"]
        assert returns[-1] == row["return"] < 0
