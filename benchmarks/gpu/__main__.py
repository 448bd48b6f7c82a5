"""Test and measure on an NVIDIA GPU, with a process for each part, within a given number of minutes.

    python -m benchmarks.gpu [--minutes 9] [--only tests ppo ...] [--output FOLDER] [--quick]

Each row is in FOLDER/gpu.jsonl as soon as it is measured: stopping this at any time loses nothing. A part that fails,
hangs or takes too long does not affect the others. The exit status is 0, or 1 if a part failed, or 2 without a GPU.
--quick runs tiny sizes on whatever JAX runs on, to check that the parts work.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
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

# Name -> function of `parts`, its further arguments, and the seconds after which it is ended, so that it cannot take
# the time of the others: together 9 minutes. --quick has no such limits.
PARTS: dict[str, tuple[str, list[str], float]] = {
    "miscompilations": ("miscompilations", [], 15),
    "tests": ("tests", [], 115),
    "cells_ppo": ("cells", ["ppo"], 65),
    "cells_others": ("cells", ["others"], 75),
    "cells_pictures": ("cells", ["pictures"], 60),
    "ppo": ("ppo", [], 60),
    "off_policy": ("off_policy", [], 40),
    "seeds": ("seeds", [], 30),
    "games": ("games", [], 40),
    "calls": ("calls", [], 40),
}

NOTES = [
    "Each part is a separate process. After a warm-up, each side runs for about 3 seconds, and at most 5 times. "
    "Figures are from the median run.",
    "JAX multiplies matrices on the GPU in its default precision, TF32. PyTorch multiplies them in float32.",
    "cells: the same scripts with `bridge` and stock SB3. `bridge` has the default, device='auto'. The faster of stock "
    "SB3's devices counts.",
    "rejax, PureJaxRL's style and SBX take part if they can be imported.",
]


def run_in_process(name: str, path: Path, quick: bool, seconds: float) -> None:
    """Run a part in a separate process, which is ended after its time, with all processes that it started.

    Raises:
      RuntimeError: it failed.
      TimeoutError: it took too long.
    """
    command = [sys.executable, "-m", "benchmarks.gpu", "--part", name, "--output", str(path)]
    process = subprocess.Popen(command + ["--quick"] * quick, start_new_session=True)
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


def about(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the machine, the GPU as PyTorch reports it, the versions, and how rows are measured."""
    import torch

    from benchmarks import common

    machine, installed = common.machine(), importlib.metadata.distributions()
    if torch.cuda.is_available():
        card = torch.cuda.get_device_properties(0)
        machine |= {"gpu": card.name, "gpu_memory_GB": round(card.total_memory / 1e9), "cuda": torch.version.cuda}
    versions = common.versions() | {
        name: each.version for each in installed if (name := each.metadata["Name"] or "").startswith("jax-cuda")
    }
    notes = [f"Measured on {datetime.date.today()}.", *NOTES]
    return {"settings": settings, "machine": machine, "versions": versions, "notes": notes}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=9, help="for all parts together; default 9")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="parts; default: all")
    parser.add_argument("--output", type=Path, help="folder of gpu.jsonl; default benchmarks/results; quick: none")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, with or without a GPU")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)  # the process of one
    options = parser.parse_args(argv)
    if not options.quick and (missing := what_is_missing()):
        print(f"benchmarks.gpu: nothing was measured: {missing}.")
        sys.exit(2)
    from benchmarks.gpu import parts

    if options.part:
        function, arguments, seconds = PARTS[options.part]
        signal.alarm(0 if options.quick else round(seconds) + 5)  # if nothing is left that would end this process
        rows = parts.Rows(options.output, options.part, options.quick)
        getattr(parts, function)(rows, *arguments)
        sys.exit(rows.num_failed > 0)
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        output = options.output or (Path(folder) if options.quick else Path(__file__).parent.parent / "results")
        output.mkdir(parents=True, exist_ok=True)
        rows = parts.Rows(output / "gpu.jsonl", "parts", options.quick)
        rows.add(**about({"minutes": options.minutes, "parts": " ".join(options.only), "quick": options.quick}))
        for name in options.only:
            began = time.monotonic()
            left = start + 60 * options.minutes - began
            try:
                if left < 10:
                    raise TimeoutError("no time was left")
                run_in_process(name, rows.path, options.quick, left if options.quick else min(left, PARTS[name][2]))
                outcome = "done"
            except (RuntimeError, TimeoutError) as error:
                rows.num_failed += 1
                outcome = str(error)
            rows.add(part=name, seconds=time.monotonic() - began, outcome=outcome)
    sys.exit(rows.num_failed > 0)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # which ends the part that runs
    main()
