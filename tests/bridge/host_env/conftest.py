"""Environments in processes, as a fixture."""

import functools

import pytest

from bridge import ProcessVecEnv
from tests.bridge.host_env.host_environments import Counting


@pytest.fixture
def start():
    """Makes a VecEnv of three environments in two processes, with its first episode begun."""
    made = []

    def start(**arguments):
        made.append(ProcessVecEnv([functools.partial(Counting, length=50)] * 3, envs_per_process=2, **arguments))
        made[-1].seed(0)
        made[-1].reset()
        return made[-1]

    yield start
    for venv in made:
        venv.close()
