"""Environments in workers, processes and actors of a stand-in for Ray, as fixtures."""

import functools
import os
import signal

import pytest

from bridge import ProcessVecEnv
from tests.bridge.host_env.cluster import ray_stand_in
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


class Actors:
    kind = "actor"

    def __init__(self):
        self.ray = ray_stand_in.Ray()

    def make(self, **arguments):
        return ray_stand_in.make(ENV_FNS, ray=self.ray, **arguments)

    def started(self, venv):
        return [actor.process for actor in self.ray.actors]

    def kill(self, venv, worker):
        self.ray.kill(self.ray.actors[worker])


@pytest.fixture(params=[Processes, Actors], ids=["process", "ray"])
def workers(request):
    """Functions that start and kill workers of each kind; folders for one kind override this fixture."""
    return request.param()


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
