"""The benchmarks run, say what they should, and give both sides the same work."""

import contextlib
import json
import sys

import jax
import numpy as np
import pytest

from benchmarks import common, raw_stepping, vec_env

COMMON_KEYS = {"benchmark", "settings", "notes", "machine", "versions", "tables", "bars"}


def no_peers(monkeypatch):
    for name in ("gymnax", "envpool"):
        monkeypatch.setitem(sys.modules, name, None)  # makes the import fail


def run(script, name, folder, *options):
    script.main(["--quick", "--rounds", "1", "--output", str(folder), *options])
    content = json.loads((folder / f"{name}.json").read_text())
    assert set(content) == COMMON_KEYS
    return content


def test_raw_stepping_writes_every_side_and_bar(tmp_path, capsys):
    content = run(raw_stepping, "raw_stepping", tmp_path, "--lanes", "1024")
    rows = {row["side"]: row for row in content["tables"]["stepping"]}
    assert {"compiled, stacked: jaxenvs", "compiled, reduced: jaxenvs", "calls: jaxenvs"} <= set(rows)
    assert all(row["steps_per_second"] > 0 for row in rows.values())
    assert all(20 < row["ends_per_1000_steps"] < 60 for row in rows.values())  # of random CartPoles: about 45
    bars = sum(f"compiled, {form}: gymnax" in rows for form in ("stacked", "reduced"))
    bars += any("EnvPool" in side for side in rows)
    assert len(content["bars"]) == bars
    assert "WARNING" not in capsys.readouterr().out


def test_raw_stepping_without_peers_says_so_and_goes_on(tmp_path, monkeypatch, capsys):
    no_peers(monkeypatch)
    content = run(raw_stepping, "raw_stepping", tmp_path, "--lanes", "8")
    printed = capsys.readouterr().out
    for name in ("gymnax", "envpool"):
        assert f'skipped: {name} is not installed (pip install "jaxenvs[bench]")' in printed
    assert content["bars"] == []
    assert not any(peer in row["side"] for row in content["tables"]["stepping"] for peer in ("gymnax", "EnvPool"))


@pytest.mark.parametrize("env_id", raw_stepping.ENVS)
def test_both_sides_of_a_raw_rollout_do_the_same(env_id):
    """Same actions and same shapes; and from the third run on, nothing compiles."""
    gymnax = pytest.importorskip("gymnax")
    num_steps, num_envs = 3, 4
    actions = raw_stepping.draw_actions(env_id, num_steps, num_envs)
    ages = np.zeros(num_envs, np.int32)
    functionals = [
        raw_stepping.jaxenvs_functional(env_id, num_envs, ages),
        raw_stepping.gymnax_functional(gymnax, env_id, num_envs, ages),
    ]
    ours, theirs = (
        jax.eval_shape(lambda carry, actions, step=side.step: jax.lax.scan(step, carry, actions)[1], start, actions)
        for side in functionals
        for start in [jax.eval_shape(side.start)]
    )
    assert [leaf.shape for leaf in ours] == [leaf.shape for leaf in theirs]
    assert [leaf.dtype for leaf in ours] == [leaf.dtype for leaf in theirs]
    assert [leaf.shape[:2] for leaf in ours] == [(num_steps, num_envs)] * 3


def test_runs_that_are_timed_do_not_compile():
    gymnax = pytest.importorskip("gymnax")
    env_id, num_envs = "Pendulum-v1", 4  # whose gymnax state changes its weak types
    actions = raw_stepping.draw_actions(env_id, 3, num_envs)
    with contextlib.ExitStack() as closing:
        sides = raw_stepping.make_sides(env_id, num_envs, actions, 3, gymnax, None, closing)
        compilations = []
        for _ in range(common.WARM_UP_ROUNDS):
            for side in sides.values():
                side.run()
        jax.monitoring.register_event_duration_secs_listener(lambda event, *_, **__: compilations.append(event))
        for side in sides.values():
            side.run()
        jax.monitoring.clear_event_listeners()
    assert [event for event in compilations if "compile" in event] == []


def test_vec_env_writes_every_part(tmp_path):
    content = run(vec_env, "vec_env", tmp_path, "--lanes", "8")
    assert set(content["tables"]) == {"steps", "ppo", "memory"}
    compared = [row["vec_env"] for row in content["tables"]["steps"]]
    assert compared[:4] == [vec_env.OURS, vec_env.MONITORED, vec_env.BARE, vec_env.PROCESSES]
    assert all(row["collection_ms"] > 0 and row["update_ms"] > 0 for row in content["tables"]["ppo"])
    assert [row["calls_of_step"] for row in content["tables"]["memory"]] == ["20", "200", "2000"]
    assert len(content["bars"]) == 3


def test_vec_env_without_peers_says_so_and_goes_on(tmp_path, monkeypatch, capsys):
    no_peers(monkeypatch)
    content = run(vec_env, "vec_env", tmp_path, "--lanes", "65", "--parts", "steps")
    printed = capsys.readouterr().out
    assert 'skipped: envpool is not installed (pip install "jaxenvs[bench]")' in printed
    assert f"skipped: {vec_env.PROCESSES} with 65 lanes" in printed
    assert [row["vec_env"] for row in content["tables"]["steps"]] == [vec_env.OURS, vec_env.MONITORED, vec_env.BARE]


def test_the_envpool_adapter_keeps_the_contract_of_a_vec_env():
    """The terminal observation is where the episode ended, the observation beside it where the next one starts."""
    envpool = pytest.importorskip("envpool")
    venv = vec_env.EnvPoolVecEnv(envpool, "CartPole-v1", 4)
    venv.reset()
    lengths, ended = np.zeros(4, int), 0
    for _ in range(60):
        observation, reward, done, infos = venv.step(np.ones(4, int))
        lengths += 1
        assert (reward == 1).all()
        for lane in done.nonzero()[0]:
            assert infos[lane]["episode"]["l"] == infos[lane]["episode"]["r"] == lengths[lane]
            assert abs(infos[lane]["terminal_observation"][2]) > 0.2
            assert (abs(observation[lane]) <= 0.05).all()
            assert not infos[lane]["TimeLimit.truncated"]
            lengths[lane] = 0
            ended += 1
        assert all("terminal_observation" not in infos[lane] for lane in (~done).nonzero()[0])
    venv.close()
    assert ended > 4


def test_quick_figures_do_not_replace_results(monkeypatch, capsys):
    report = common.Report("nothing", {}, [])
    report.finish(None)
    assert "nothing written" in capsys.readouterr().out


def test_interleave_takes_turns_and_leaves_out_the_warm_up():
    order = []

    def side(name):
        return common.Side(lambda: order.append(name) or 1, 10, int)

    timings = common.interleave({"a": side("a"), "b": side("b")}, rounds=3)
    assert order == ["a", "b"] * (common.WARM_UP_ROUNDS + 3)
    assert [len(timing.seconds) for timing in timings.values()] == [3, 3]
    assert timings["a"].ends == 3
