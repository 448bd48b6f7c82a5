"""Run a module of the tests in a process whose CPU plays several devices."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def results_of(module, *arguments, num_devices):
    """Return what `python -m module` printed last, which is JSON."""
    flags = f"--xla_force_host_platform_device_count={num_devices} --xla_backend_optimization_level=0"
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"XLA_FLAGS": flags, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
