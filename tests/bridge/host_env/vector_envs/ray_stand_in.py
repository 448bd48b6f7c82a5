"""A stand-in for Ray where it is not installed, and says no more of Ray than that these calls are made."""

import copy
import functools
import sys
from types import SimpleNamespace
from unittest import mock

from bridge import GymVecEnv, RayVectorEnv


class RayError(Exception):
    pass


class RayTaskError(RayError):
    pass


class GetTimeoutError(RayError):
    pass


class Ray:
    """A stand-in, whose actors are objects of this process, with the calls that RayVectorEnv makes of Ray.

    Attributes:
      actors: all that were started.
      options: of each.
      dead, late: the actors that have died, and that do not answer in time.
    """

    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError, GetTimeoutError=GetTimeoutError)

    def __init__(self):
        self.actors, self.options, self.dead, self.late, self.on = [], [], set(), set(), True

    def remote(self, cls):
        def options(**given):
            def start(*arguments, **keywords):
                self.options.append(given)
                self.actors.append(Actor(cls(*arguments, **keywords)))
                return self.actors[-1]

            return SimpleNamespace(remote=start)

        return SimpleNamespace(options=options)

    def is_initialized(self):
        return self.on

    def wait(self, calls, num_returns, timeout):
        assert num_returns == len(calls)

    def get(self, call, timeout=None):
        actor, function = call
        if actor in self.dead:
            raise RayError("its node has gone")
        if actor in self.late and timeout is not None:
            raise GetTimeoutError
        try:
            return copy.deepcopy(function())
        except Exception as error:
            raise type("TaskError", (RayTaskError, type(error)), {})(str(error)) from error

    def kill(self, actor):
        assert self.on
        self.dead.add(actor)


class Actor:
    def __init__(self, envs):
        self.envs = envs

    def __getattr__(self, name):
        method = getattr(self.envs, name)
        return SimpleNamespace(remote=lambda *given, **named: (self, functools.partial(method, *given, **named)))


def make(env_fns):
    """A VecEnv over the stand-in, with two environments in an actor."""
    with mock.patch.dict(sys.modules, ray=Ray()):
        return GymVecEnv(RayVectorEnv(env_fns, 2))
