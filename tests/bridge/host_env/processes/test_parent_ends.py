"""However the parent of worker processes ends, nothing of them is left."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.bridge.host_env.processes.test_worker_faults import is_running, wait_until_gone

PARENT = """
    import os, signal, sys, time, warnings
    import numpy as np
    from bridge import ProcessVecEnv
    from tests.bridge.host_env.host_environments import HANG, HANG_IN_C, Counting

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    warnings.simplefilter("ignore")
    faults = {"hanging": HANG, "hanging in C": HANG_IN_C}
    for way in ("exception", "interrupted", "killed", *faults):
        if os.fork() == 0:
            venv = ProcessVecEnv([Counting] * 2)
            venv.reset()
            pids = " ".join(map(str, (os.getpid(), *(process.pid for process in venv.processes))))
            os.write(1, f"{way}:{pids}\\n".encode())  # at once, whatever the others write meanwhile
            if way == "exception":
                raise SystemExit("as an exception would")
            venv.step_async(np.array([faults.get(way, 0), 0]))
            time.sleep(60)
            os._exit(1)  # not on with the loop
    for _ in range(5):
        os.wait()
"""


@pytest.mark.thorough
def test_however_the_parent_ends_neither_a_process_nor_shared_memory_is_left():
    code = textwrap.dedent(PARENT)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, process_group=0) as parent:
        pids = {}
        for _ in range(5):
            way, _, numbers = parent.stdout.readline().partition(":")
            pids[way] = [int(number) for number in numbers.split()]
        assert pids.keys() == {"exception", "interrupted", "killed", "hanging", "hanging in C"}
        maps = Path(f"/proc/{pids['killed'][-1]}/maps").read_text()
        assert "/memfd:ProcessVecEnv (deleted)" in maps  # memory without a name
        assert "/dev/shm" not in maps
        assert not wait_until_gone(pids["exception"])
        for way in ("interrupted", "killed", "hanging", "hanging in C"):
            assert all(is_running(pid) for pid in pids[way])
            os.kill(pids[way][0], signal.SIGINT if way == "interrupted" else signal.SIGKILL)
            assert not wait_until_gone(pids[way]), way


def test_ctrl_c_reaches_the_parent_alone(start):
    """A terminal sends SIGINT to all processes of its group."""
    venv = start()
    assert all(os.getpgid(process.pid) != os.getpgid(0) for process in venv.processes)
