"""A stand-in for Ray where it is not installed: actors are processes here, which can be killed, and may hang.

It has what RayVecEnv uses, and says no more of Ray than that these calls are made: test_ray_cluster.py has Ray itself.
"""

import contextlib
import itertools
import socket
import subprocess
import sys
from multiprocessing.connection import Connection
from types import SimpleNamespace
from unittest import mock

import cloudpickle

from bridge import RayVecEnv

ACTOR = """
import pickle, sys
from multiprocessing.connection import Connection

driver = Connection(int(sys.argv[1]))
sys.path[:], make = driver.recv()
actor = pickle.loads(make)()
while True:
    try:
        number, name, arguments = driver.recv()
    except EOFError:
        break
    driver.send((number, getattr(actor, name)(*arguments)))
"""


class RayError(Exception):
    pass


class GetTimeoutError(RayError):
    pass


class RayTaskError(RayError):
    pass


class ActorDiedError(RayError):
    pass


class Actor:
    """A process, and what it has answered."""

    def __init__(self, pickled):
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-P", "-c", ACTOR, str(theirs.fileno())]
            self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        self.driver = Connection(ours.detach())
        self.driver.send((sys.path, pickled))
        self.numbers, self.answers, self.calls = itertools.count(), {}, []

    def __getattr__(self, name):
        return SimpleNamespace(remote=lambda *arguments: self.call(name, arguments))

    def call(self, name, arguments):
        number = next(self.numbers)
        self.calls.append((name, *arguments))
        with contextlib.suppress(OSError):
            self.driver.send((number, name, arguments))
        return self, number


class Ray:
    """The module.

    Attributes:
      inits: the addresses that `init` was given.
      actors: all that there were, in the order of their starts.
      options: of each.
    """

    exceptions = SimpleNamespace(
        RayError=RayError, GetTimeoutError=GetTimeoutError, RayTaskError=RayTaskError, ActorDiedError=ActorDiedError
    )
    cloudpickle = cloudpickle

    def __init__(self):
        self.inits, self.actors, self.options = [], [], []

    def is_initialized(self):
        return bool(self.inits)

    def init(self, address):
        self.inits.append(address)

    def remote(self, cls):
        def start():
            self.actors.append(Actor(cloudpickle.dumps(cls)))
            return self.actors[-1]

        def options(**given):
            self.options.append(given)
            return SimpleNamespace(remote=start)

        return SimpleNamespace(options=options)

    def get(self, reference, timeout=None):
        actor, number = reference
        while number not in actor.answers:
            try:
                if not actor.driver.poll(timeout):
                    raise GetTimeoutError
                told, answer = actor.driver.recv()
            except (EOFError, OSError):
                raise ActorDiedError(
                    f"Its process {actor.process.pid}\n\thas died. Some common causes are many."
                ) from None
            actor.answers[told] = answer
        return actor.answers[number]

    def kill(self, actor):
        actor.process.kill()
        actor.process.wait()


def make(env_fns, envs_per_actor=2, ray=None, **arguments):
    """A RayVecEnv that finds the stand-in where it looks for Ray."""
    with mock.patch.dict(sys.modules, ray=ray or Ray()):
        return RayVecEnv(env_fns, envs_per_actor, **arguments)
