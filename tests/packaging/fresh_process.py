"""Python processes that have none of the settings of this one."""

import os
import subprocess
import sys


def python(code, **environment):
    """Start Python without the tests' variables of JAX, caches and jaxenvs, and with these."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "JAXENVS_", "XDG_"))}
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env={**own, "JAX_PLATFORMS": "cpu", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def output(started):
    """Wait for a process, which must not fail, and return its stdout and stderr."""
    out, err = started.communicate(timeout=240)
    assert started.returncode == 0, err
    return out, err
