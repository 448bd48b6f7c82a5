"""`make gpu` says so without a GPU, runs on the CPU with tiny sizes, and loses no row."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import stable_baselines3
import torch

from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu import parts

ROOT = Path(__file__).parent.parent.parent


def run(*arguments):
    with pytest.raises(SystemExit) as ended:
        gpu.main(list(arguments))
    return ended.value.code


def rows_in(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_without_a_gpu_one_line_says_so(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert run() == 2
    assert capsys.readouterr().out == (
        "benchmarks.gpu: nothing was measured: it needs an NVIDIA GPU, and PyTorch sees none.\n"
    )


def test_the_parts_fit_into_their_minutes():
    assert sum(seconds for _, _, seconds in gpu.PARTS.values()) <= 9 * 60


def test_twelve_scripts_are_compared():
    assert len({str(cell) for group in parts.CELLS.values() for cell in group}) == 12


def test_a_row_is_on_disk_before_the_next_side_runs_and_a_side_that_fails_is_a_row(tmp_path):
    rows = parts.Rows(tmp_path / "rows.jsonl", "calls", quick=True)
    speed = rows.time(lambda: None, 10, side="fast")
    assert rows_in(rows.path) == [{"table": "calls", "side": "fast", "steps_per_second": speed, "runs": 1}]
    with rows.side(side="broken"):
        raise ValueError("no such kernel")
    with rows.side(side="other"):
        import no_such_library  # noqa: F401
    assert rows.num_failed == 1
    _, broken, other = rows_in(rows.path)
    assert broken == {"table": "calls", "side": "broken", "failed": "ValueError: no such kernel"}
    assert other["skipped"] == "ModuleNotFoundError: No module named 'no_such_library'"


def test_parts_that_fail_or_take_too_long_are_rows_too(tmp_path, monkeypatch):
    ended = iter([TimeoutError("ended after 1 s"), RuntimeError("ended with 1"), None])

    def run_in_process(name, path, *_):
        parts.Rows(path, name).add(side=name)
        if error := next(ended):
            raise error

    monkeypatch.setattr(gpu, "run_in_process", run_in_process)
    names = ["seeds", "games", "calls"]
    assert run("--quick", "--output", str(tmp_path), "--only", *names) == 1
    about, *rows = rows_in(tmp_path / "gpu.jsonl")
    assert about["machine"]["cores"] > 0
    assert [row["side"] for row in rows[::2]] == names
    assert [row["outcome"] for row in rows[1::2]] == ["ended after 1 s", "ended with 1", "done"]


def test_a_part_that_takes_too_long_is_ended(tmp_path):
    with pytest.raises(TimeoutError, match="ended after 1 s"):
        gpu.run_in_process("calls", tmp_path / "rows.jsonl", quick=True, seconds=1)


# What images with JAX and PyTorch have, without their needs.
IMAGE = ("jax", "jaxlib", "numpy", "scipy", "torch")
# In the environment of tests, packages that neither an image nor wheels.txt has are as if they were not installed.
HIDDEN = f"""
import importlib.machinery, importlib.metadata, os, re, sys

def canonical(name):
    return re.sub("[-_.]+", "-", name).lower()

def needs(name, found):
    if name not in found:
        found.add(name)
        for need in importlib.metadata.requires(name) or ():
            if "extra ==" not in need and ";" not in need or "linux" in need.lower():
                try:
                    needs(canonical(re.match("[\\w.-]+", need)[0]), found)
                except importlib.metadata.PackageNotFoundError:
                    pass
    return found

there = set().union(*(needs(name, set()) for name in {IMAGE}))
there |= {{canonical(line.strip()) for line in open({str(ROOT / "benchmarks/gpu/wheels.txt")!r}) if line[0] != "#"}}
owners = importlib.metadata.packages_distributions()

class Finder(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        package = name.partition(".")[0]
        is_ours = os.path.exists({str(ROOT)!r} + "/" + package)
        is_there = is_ours or package not in owners or there.intersection(map(canonical, owners[package]))
        return super().find_spec(name, path, target) if is_there else None

sys.meta_path[sys.meta_path.index(importlib.machinery.PathFinder)] = Finder
"""
IMPORTS = """
import importlib, json, pkgutil
missing = {}
for name in ("jaxenvs", "bridge", "benchmarks.gpu", "tests.gpu"):
    package = importlib.import_module(name)
    for module in [name, *(each.name for each in pkgutil.walk_packages(package.__path__, f"{name}."))]:
        if not module.endswith("cli.__main__"):
            try:
                importlib.import_module(module)
            except ImportError as error:
                missing[module] = error.name
print(json.dumps(missing))
"""


@pytest.fixture
def image(tmp_path):
    """The variables of a process that has only what an image and wheels.txt have."""
    (tmp_path / "sitecustomize.py").write_text(HIDDEN)
    variables = {"PYTHONPATH": f"{tmp_path}:{ROOT}", "JAX_PLATFORMS": "cpu", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return os.environ | variables


@pytest.mark.slow
@pytest.mark.skipif(
    stable_baselines3.__version__.startswith("2.6."),
    reason="this version of Stable-Baselines3 needs matplotlib, which an image has",
)
def test_the_wheels_and_an_image_are_all_that_is_imported(image):
    done = subprocess.run([sys.executable, "-c", IMPORTS], env=image, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    # Pictures and videos are not made on such a machine.
    assert set(json.loads(done.stdout.splitlines()[-1]).values()) <= {"PIL"}


@pytest.mark.thorough
@pytest.mark.slow
def test_all_parts_run_with_the_wheels_and_an_image(image, tmp_path):
    command = [sys.executable, "-m", "benchmarks.gpu", "--quick", "--minutes", "20", "--output", tmp_path]
    done = subprocess.run(command, env=image, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    rows = rows_in(tmp_path / "gpu.jsonl")
    assert [(row["part"], row["outcome"]) for row in rows if "part" in row] == [(name, "done") for name in gpu.PARTS]
    assert {row["table"] for row in rows} == {"parts", *gpu.PARTS} - {"tests"}
    assert not [row for row in rows if "failed" in row or "not compiled" in row.get("plan", "")]


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_stopping_it_loses_no_row(number, tmp_path):
    command = [sys.executable, "-m", "benchmarks.gpu", "--quick", "--only", "miscompilations", "--output", tmp_path]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    path, deadline = tmp_path / "gpu.jsonl", time.monotonic() + 200
    while not (path.exists() and path.read_text().count("\n") >= 2):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(number)
    process.wait()
    assert rows_in(path)[1]["reproducer"] == "count_wrong_sums"
