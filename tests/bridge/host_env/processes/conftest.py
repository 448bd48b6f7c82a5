"""Environments in worker processes, as a fixture."""

import functools

import pytest

from bridge import ProcessVecEnv
from tests.bridge.host_env.host_environments import Counting


@pytest.fixture
def start():
    """Makes a ProcessVecEnv of three environments in two processes, with its first episode begun."""
    made = []

    def start(**arguments):
        venv = ProcessVecEnv([functools.partial(Counting, length=50)] * 3, envs_per_process=2, **arguments)
        made.append(venv)
        venv.seed(0)
        venv.reset()
        return venv

    yield start
    for venv in made:
        venv.close()
