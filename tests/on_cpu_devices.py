"""Run a module of the tests in a process whose CPU plays several devices."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def started(module, *arguments, num_devices):
    """Return the process of `python -m module`, which has so many devices."""
    flags = f"--xla_force_host_platform_device_count={num_devices} --xla_backend_optimization_level=0"
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | {"XLA_FLAGS": flags, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
    )


def printed_by(process):
    """Return what a process printed last, which is JSON."""
    output, errors = process.communicate(timeout=1100)
    assert process.returncode == 0, errors
    return json.loads(output.splitlines()[-1])


def results_of(module, *arguments, num_devices):
    """Return what `python -m module` printed last, which is JSON."""
    return printed_by(started(module, *arguments, num_devices=num_devices))
