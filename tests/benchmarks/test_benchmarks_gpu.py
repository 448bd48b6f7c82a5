"""Without a GPU, `make gpu` says so, and its code runs on the CPU with tiny sizes."""

import json

import jax
import pytest
import torch

from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu import parts


def run(*arguments):
    with pytest.raises(SystemExit) as ended:
        gpu.main(list(arguments))
    return ended.value.code


def test_without_a_gpu_one_line_says_so(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert run() == 2
    assert capsys.readouterr().out == (
        "benchmarks.gpu: nothing was measured: it needs an NVIDIA GPU, and PyTorch sees none.\n"
    )


@pytest.mark.thorough
@pytest.mark.slow
def test_every_table_is_written(tmp_path, monkeypatch):
    # Whole trainings as one compiled function take long to compile, and other tests run them.
    monkeypatch.setattr(parts.trainings, "pure_training", lambda *_: parts.Training(lambda: None, 1, 0.0))
    monkeypatch.setattr(parts.learn, "train", lambda key, _: jax.random.uniform(key))
    names = ["stepping", "vec_env", "training_8", "seeds", "landers"]
    assert run("--quick", "--output", str(tmp_path), "--only", *names) == 0
    content = json.loads((tmp_path / "gpu.json").read_text())
    assert [(row["part"], row["outcome"]) for row in content["parts"]] == [(name, "done") for name in names]
    assert content["tables"].keys() == {"stepping", "vec_env", "training", "seeds"}
    assert all(row["steps_per_second"] > 0 for row in content["tables"]["training"])
    assert {row["side"].partition(",")[0] for row in content["tables"]["training"]} == {
        "bridge.PPO",
        "jaxenvs.learn",
        "stock SB3 on a DummyVecEnv",
        "stock SB3 on a JaxVecEnv",
    }


def test_a_part_that_fails_costs_neither_the_others_nor_what_it_had(tmp_path, monkeypatch):
    def fail(tables, quick, *_):
        tables.add("stepping", [{"num_envs": 1}])
        raise ValueError("no such kernel")

    monkeypatch.setattr(parts, "stepping", fail)
    monkeypatch.setattr(parts, "vec_env", lambda tables, quick: tables.add("vec_env", [{"num_envs": 2}]))
    assert run("--quick", "--output", str(tmp_path), "--only", "stepping", "vec_env") == 1
    content = json.loads((tmp_path / "gpu.json").read_text())
    assert content["tables"] == {"stepping": [{"num_envs": 1}], "vec_env": [{"num_envs": 2}]}
    assert [row["outcome"] for row in content["parts"]] == ["ValueError: no such kernel", "done"]


def test_a_side_that_fails_is_a_row_beside_the_others(tmp_path, monkeypatch):
    def prepare():
        raise RuntimeError("out of memory\nand a stack")

    tables = gpu.Tables(tmp_path / "training.json")
    with pytest.raises(RuntimeError, match="1 of 2 sides failed, the first with RuntimeError: out of memory"):
        parts._compare(
            tables,
            parts.SETTINGS["8 envs"],
            {"one": prepare, "other": lambda: parts.Training(lambda: None, 1)},
            quick=True,
        )
    assert [row["side"] for row in tables.tables["training"]] == ["other", "one"]


def test_a_part_that_takes_too_long_is_ended(tmp_path):
    with pytest.raises(TimeoutError, match="ended after 1 s"):
        gpu.run_in_process("vec_env", tmp_path / "vec_env.json", quick=True, seconds=1)


def test_the_parts_fit_into_their_minutes():
    assert sum(part.seconds for part in gpu.PARTS.values()) <= 9 * 60
