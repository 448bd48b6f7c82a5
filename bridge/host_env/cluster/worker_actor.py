"""The parent's side of a worker of a RayVecEnv: an actor on the Ray cluster."""

from __future__ import annotations

import contextlib
import importlib
import pickle
import time
from collections.abc import Iterator, Mapping
from typing import Any

from bridge.host_env.cluster import actor_main
from bridge.host_env.processes import worker_main
from bridge.host_env.processes.step_memory import StepMemory
from bridge.host_env.processes.worker_handle import Deadline, WorkerDied, WorkerError, WorkerHandle
from bridge.host_env.processes.worker_main import START, STEP


def import_ray() -> Any:
    """Import and return Ray, an optional dependency."""
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise ImportError(
            f'backend="ray" needs Ray, but {error.name} is not installed: pip install "jaxenvs[ray]".'
        ) from error


class WorkerActor(WorkerHandle):
    """An actor with some of the environments.

    Ray itself must not restart actors or repeat calls: an environment that is stepped twice, or that has begun anew and
    is stepped further, would yield a transition that never happened.
    """

    def __init__(self, env_indices: range, env_fns: bytes, options: Mapping[str, Any]) -> None:
        """Start an actor with options of Ray's `ActorClass.options`, and make its environments."""
        self._ray = import_ray()
        self._options = {**options, "max_restarts": 0, "max_task_retries": 0}
        self._actor: Any = None
        super().__init__(env_indices, env_fns)

    def start(self, again: bool = True) -> None:
        if again:
            self.end()
        self._memory: StepMemory | None = None
        with _sent_as_they_are(self._ray):
            self._actor = self._ray.remote(actor_main.ActorMain).options(**self._options).remote()
        # The path is empty because Ray has already sent this process's module path to its actors.
        self.send(START, payload=pickle.dumps(([], self.env_indices[0], self._env_fns, again)))

    def share(self, memory: StepMemory) -> None:
        super().share(memory)
        self._memory = memory

    def send(self, kind: int, slot: int = 0, payload: bytes = b"") -> None:
        own = None
        if kind == STEP:
            assert self._memory is not None
            own = self._memory.actions[self.env_indices.start : self.env_indices.stop]
        # If the answer to the previous command was not fetched, it is not needed any more.
        self._answer = self._actor.do.remote(kind, slot, payload, own)

    def receive(self, deadline: Deadline | None = None) -> bytes:
        errors = self._ray.exceptions
        try:
            left = None if deadline is None else max(0.0, deadline.at - time.monotonic())
            kind, payload, rows = self._ray.get(self._answer, timeout=left)
        except errors.GetTimeoutError:
            assert deadline is not None
            self.end()
            raise self._died(f"did not {deadline.what}") from None
        except errors.RayTaskError as error:  # raised by this package's code, not by an environment
            raise WorkerError(f"The actor of {self.envs_in_words} failed:\n\n{error}", self.env_indices) from None
        except errors.RayError as error:
            # Also for an actor that is temporarily unreachable, and for answers that were lost with a node.
            self.end()
            what, _, _ = str(error).partition("Some common causes")  # without Ray's long advice
            raise self._died(f"died: {' '.join(what.split()).rstrip('.')}") from None
        if rows:
            assert self._memory is not None
            for name, array in rows.items():
                self._memory.arrays[name][self.env_indices.start : self.env_indices.stop] = array
        return self._answered(kind, payload)

    def close(self) -> None:
        if self._ray.is_initialized():  # else all actors have ended, and a call would start Ray again
            self._answer = self._actor.close.remote()

    def end(self, deadline: float = 0.0) -> None:
        if not self._ray.is_initialized():
            return
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.get(self._answer, timeout=max(0.0, deadline - time.monotonic()))
        self._ray.kill(self._actor)

    def _died(self, how: str) -> WorkerDied:
        return WorkerDied(f"The actor of {self.envs_in_words} {how}.", self.env_indices, None)


@contextlib.contextmanager
def _sent_as_they_are(ray: Any) -> Iterator[None]:
    """Let Ray send the code of an actor by value; by name, a node would have to import this package."""
    modules = actor_main, worker_main
    for module in modules:
        ray.cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules:
            ray.cloudpickle.unregister_pickle_by_value(module)
