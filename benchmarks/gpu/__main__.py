"""Run the tests and benchmarks of an NVIDIA GPU, one process for each part, within a given number of minutes.

    python -m benchmarks.gpu [--minutes 9] [--only tests stepping ...] [--output FOLDER] [--quick]

The results of a part are in FOLDER/gpu.json as soon as it ends, successful or not. A part that fails, hangs or takes
too long does not affect the others. The exit status is 0, or 1 if a part failed, or 2 if there is no GPU.
--quick runs tiny parts in this process, on whatever JAX runs on, to check that they work.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

# JAX and PyTorch share the GPU here, and so do the processes: JAX takes memory as it needs it.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

NOTES = [
    "Every part is a separate process, in which the sides take turns after two warm-up runs. Figures are from the "
    "median run.",
    "JAX multiplies matrices on the GPU in its default precision, TF32. PyTorch multiplies them in float32.",
    "policy on the CPU, on the GPU: where the weights of the PyTorch policy are (SB3's `device`).",
    "JAX on the CPU: another process, with JAX_PLATFORMS=cpu.",
]


@dataclasses.dataclass(frozen=True)
class Part:
    """
    Attributes:
      function: of benchmarks.gpu.parts.
      seconds: the part is ended after this time, so that it cannot take the time of the others.
      arguments: of the function, besides the tables and whether it is quick.
      environment: variables of its process.
    """

    function: str
    seconds: float
    arguments: tuple[Any, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()


# In this order. Together less than 9 minutes, if each takes all that it may.
PARTS = {
    "tests": Part("tests", 160),
    "training_8": Part("training", 55, (("8 envs",),)),
    "training_256": Part("training", 50, (("256 envs",),)),
    "training_4096": Part("training", 50, (("4096 envs",),)),
    "seeds": Part("seeds", 35),
    "stepping": Part("stepping", 30, (("CartPole-v1", "Acrobot-v1", "Pendulum-v1"), (1024, 65536, 1_048_576))),
    "vec_env": Part("vec_env", 25),
    "training_on_cpu": Part("training", 40, (("8 envs", "256 envs", "4096 envs"), True), (("JAX_PLATFORMS", "cpu"),)),
    # Of whose physics a step is a loop of 180 rounds.
    "landers": Part("stepping", 60, (("LunarLander-v3",), (4096,))),
}


class Tables:
    """The tables of a part, on disk after each addition."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tables: dict[str, list[dict[str, Any]]] = {}

    def add(self, table: str, rows: list[dict[str, Any]]) -> None:
        """Print rows, append them to a table, and write all tables."""
        from benchmarks.common import markdown

        self.tables.setdefault(table, []).extend(rows)
        self.path.write_text(json.dumps(self.tables))
        print(f"\n{markdown(rows)}", flush=True)


def run_here(name: str, path: Path, quick: bool) -> None:
    """Run a part in this process; its tables go to `path`."""
    from benchmarks.gpu import parts

    getattr(parts, PARTS[name].function)(Tables(path), quick, *PARTS[name].arguments)


def run_in_process(name: str, path: Path, quick: bool, seconds: float) -> None:
    """Run a part in a separate process, which is ended after its time, with all processes that it started.

    Raises:
      RuntimeError: it failed.
      TimeoutError: it took too long.
    """
    command = [sys.executable, "-m", "benchmarks.gpu", "--part", name, "--output", str(path)]
    process = subprocess.Popen(
        command + ["--quick"] * quick, env=os.environ | dict(PARTS[name].environment), start_new_session=True
    )
    try:
        status = process.wait(seconds)
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"ended after {seconds:.0f} s") from None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if status:
        raise RuntimeError(f"ended with {status}")


def what_is_missing() -> str | None:
    """Why nothing can be measured here; None if it can."""
    try:
        import jax
        import torch
    except ImportError as error:
        return f"it needs JAX and PyTorch with CUDA, and {error.name} is not installed"
    if not torch.cuda.is_available():
        return "it needs an NVIDIA GPU, and PyTorch sees none"
    if jax.default_backend() != "gpu":
        return f"it needs an NVIDIA GPU, and JAX runs on: {jax.default_backend()}"
    return None


def gpu() -> dict[str, Any]:
    """Return the GPU as PyTorch and the driver report it; empty if there is none."""
    import torch

    if not torch.cuda.is_available():
        return {}
    properties = torch.cuda.get_device_properties(0)
    facts = {"gpu": properties.name, "gpu_memory_GB": round(properties.total_memory / 1e9), "cuda": torch.version.cuda}
    try:
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        facts["driver"] = subprocess.run(query, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        pass
    return facts


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=9, help="for all parts together; default 9")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="parts; default: all")
    parser.add_argument("--output", type=Path, help="folder of gpu.json; default benchmarks/results; quick: none")
    parser.add_argument("--quick", action="store_true", help="tiny, in this process, with or without a GPU")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)  # the process of one
    options = parser.parse_args(argv)
    if options.part:
        return run_here(options.part, options.output, options.quick)

    start = time.monotonic()
    if not options.quick and (missing := what_is_missing()):
        print(f"benchmarks.gpu: nothing was measured: {missing}.")
        sys.exit(2)
    from benchmarks import common

    settings = {"minutes": options.minutes, "parts": " ".join(options.only), "quick": options.quick}
    report = common.Report("gpu", settings, NOTES)
    report.content["machine"] |= gpu()
    installed = importlib.metadata.distributions()
    report.content["versions"] |= {
        name: each.version for each in installed if (name := each.metadata["Name"] or "").startswith("jax-cuda")
    }
    print(f"- gpu: {gpu()}", flush=True)
    output = options.output or (None if options.quick else common.RESULTS)
    outcomes: list[dict[str, Any]] = []
    report.content["parts"] = outcomes
    with tempfile.TemporaryDirectory() as folder:
        for name in options.only:
            print(f"\n## {name}", flush=True)
            path, began = Path(folder) / f"{name}.json", time.monotonic()
            left = start + 60 * options.minutes - began
            try:
                if options.quick:
                    run_here(name, path, quick=True)
                elif left < 10:
                    raise TimeoutError("no time was left")
                else:
                    run_in_process(name, path, options.quick, min(left, PARTS[name].seconds))
                outcome = "done"
            except Exception as error:
                outcome = f"{type(error).__name__}: {error}"
            outcomes.append({"part": name, "seconds": time.monotonic() - began, "outcome": outcome})
            for table, rows in (json.loads(path.read_text()) if path.exists() else {}).items():
                report.content["tables"].setdefault(table, []).extend(rows)
            if output is not None:
                report.save(output)
    print(f"\n## parts\n\n{common.markdown(outcomes)}")
    sys.exit(any(row["outcome"] != "done" for row in outcomes))


if __name__ == "__main__":
    main()
