"""Environments in processes, as fixtures."""

import functools
import os
import signal

import pytest

from bridge import ProcessVecEnv
from tests.bridge.host_env.host_environments import Counting

ENV_FNS = [functools.partial(Counting, length=50)] * 3


class Processes:
    kind = "process"

    def make(self, **arguments):
        return ProcessVecEnv(ENV_FNS, envs_per_process=2, **arguments)

    def started(self, venv):
        return list(venv.processes)

    def kill(self, venv, worker):
        os.kill(venv.processes[worker].pid, signal.SIGKILL)


@pytest.fixture
def workers():
    """Functions that start and kill processes."""
    return Processes()


@pytest.fixture
def start(workers):
    """Makes a VecEnv of three environments in two workers, with its first episode begun."""
    made = []

    def start(**arguments):
        made.append(workers.make(**arguments))
        made[-1].seed(0)
        made[-1].reset()
        return made[-1]

    yield start
    for venv in made:
        venv.close()
