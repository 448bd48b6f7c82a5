"""XLA_FLAGS while a process starts: the guard is there when XLA reads it, and what users set stays."""

import subprocess
import sys

import jax
import pytest

from jaxenvs.compilation import faults

pytestmark = pytest.mark.skipif(jax.default_backend() != "cpu", reason="the faults are in XLA for CPUs")

OWN = "--xla_force_host_platform_device_count=2"
# An option that every version knows stands for the guard.
GUARD = "--xla_backend_optimization_level=1"
BEGIN = """
import logging, os, subprocess, sys
logging.basicConfig(format="said %(message)s")
os.environ["JAXENVS_GUARD"] = "0"
import jaxenvs
from jaxenvs.compilation import faults, process_guard
faults.GUARDS = {faults.jaxlib_version: {"xla_backend_optimization_level": "1"}}
del os.environ["JAXENVS_GUARD"]
import jax
def show():
    print(os.environ.get("XLA_FLAGS"))
"""
CASES = {
    "alone": ("", "process_guard.guard_process(); show(); jax.numpy.zeros(3) + 1; show()", [GUARD, "None"], False),
    "with a flag of the user": (
        OWN,
        "process_guard.guard_process(); show(); jax.numpy.zeros(3) + 1; show(); print(len(jax.devices()))",
        [f"{OWN} {GUARD}", OWN, "2"],
        False,
    ),
    "with the same flag": (
        "--xla_backend_optimization_level=2",
        "process_guard.guard_process(); show(); jax.numpy.zeros(3) + 1; show()",
        ["--xla_backend_optimization_level=2"] * 2,
        False,
    ),
    "switched off": (
        "",
        "os.environ['JAXENVS_GUARD'] = '0'; process_guard.guard_process(); show(); jax.numpy.zeros(3) + 1",
        ["None"],
        False,
    ),
    "with a plugin, which reads the flags too": (
        "",
        "import tempfile; folder = tempfile.mkdtemp(); os.mkdir(folder + '/jax_plugins'); sys.path.append(folder);"
        "jax.config.update('jax_platforms', None); process_guard.guard_process(); show();"
        "jax.config.update('jax_platforms', 'cpu'); process_guard.guard_process(); show()",
        ["None", GUARD],
        False,
    ),
    "after JAX has run": ("", "jax.devices(); process_guard.guard_process(); show()", ["None"], True),
    "assigned later": (
        "",
        f"process_guard.guard_process(); os.environ['XLA_FLAGS'] = '{OWN}'; jax.numpy.zeros(3) + 1; show()",
        [OWN],
        True,
    ),
    "with another jaxlib": (
        "",
        "faults.GUARDS = {'0.0.1': {}}; process_guard.guard_process(); show(); jax.numpy.zeros(3) + 1",
        ["None"],
        False,
    ),
    "a child process afterwards": (
        "",
        "process_guard.guard_process(); jax.devices(); jax.numpy.zeros(3) + 1; sys.stdout.flush();"
        "subprocess.run([sys.executable, '-c', 'import os; print(os.environ.get(\"XLA_FLAGS\"))'])",
        ["None"],
        False,
    ),
    "a fork before JAX runs": (
        "",
        "process_guard.guard_process(); pid = os.fork(); pid and os.waitpid(pid, 0); jax.numpy.zeros(3) + 1; show();"
        "sys.stdout.flush(); pid or os._exit(0)",
        ["None"] * 2,
        False,
    ),
}


def run(script, monkeypatch, flags):
    monkeypatch.setenv("XLA_FLAGS", flags)
    if not flags:
        monkeypatch.delenv("XLA_FLAGS")
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines(), result.stderr.count("said Your jaxlib")


@pytest.mark.thorough
@pytest.mark.parametrize("name", CASES)
def test_flags_are_there_until_xla_has_read_them(name, monkeypatch):
    flags, script, shown, is_told = CASES[name]
    assert run(BEGIN + script, monkeypatch, flags) == (shown, int(is_told))


@pytest.mark.thorough
def test_what_users_compile_is_right(monkeypatch):
    monkeypatch.delenv("JAXENVS_GUARD")
    script = (
        "import jaxenvs\n"
        "from jaxenvs.compilation.faults import copies_in_loops, count_wrong_rows, count_wrong_sums\n"
        "print(count_wrong_rows(), count_wrong_sums(), copies_in_loops())"
    )
    assert run(script, monkeypatch, "") == (["0 0 False"], 0)


@pytest.mark.thorough
def test_the_versions_that_have_a_fault_by_default_are_known(monkeypatch):
    monkeypatch.setenv("JAXENVS_GUARD", "0")
    script = (
        "from jaxenvs.compilation.faults import *\n"
        "print(count_wrong_rows() > 0, copies_in_loops(), count_wrong_slices() > 0, count_wrong_shifts())"
    )
    version = faults.jaxlib_version
    # Once the number differs, a jaxlib is out that shifts right: say so in docs/pure-jax.md.
    slices = version in ("0.10.1", "0.10.2", "0.11.0", "0.11.1", "0.11.2")
    assert run(script, monkeypatch, "") == ([f"{version == '0.10.2'} {version == '0.11.1'} {slices} 96"], 0)
