"""The actor's side of a RayVecEnv: a Worker, which sends its rows along with its answers.

Its code, and the functions that it calls, are sent to the actor by value: a node needs Ray, NumPy, Gymnasium, and the
environments' imports, but not this package, JAX or PyTorch.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bridge.host_env.processes.worker_main import ANSWER, PRIVATE, RESET, STEP, Worker

# An actor's answer: ANSWER or RAISED, the payload, and the rows of the StepMemory that it has written.
Answered = tuple[int, bytes, dict[Any, np.ndarray]]


class ActorMain:
    """The environments of an actor. Calls run one after another, in order."""

    def __init__(self) -> None:
        self._worker = Worker(PRIVATE)

    def do(self, kind: int, slot: int, payload: bytes, actions: np.ndarray | None) -> Answered:
        """Carry out a command of a Worker; for a STEP, with the actions of the actor's environments."""
        worker = self._worker
        if actions is not None:
            worker.arrays["actions"][:] = actions
        answer, payload = worker.answer(kind, slot, payload)
        return answer, payload, self._written(kind, slot) if answer == ANSWER else {}

    def close(self) -> None:
        """Close the environments."""
        for env in self._worker.serial_envs.envs:
            env.close()

    def _written(self, kind: int, slot: int) -> dict[Any, np.ndarray]:
        arrays = self._worker.arrays
        if kind == RESET:
            places: tuple[Any, ...] = (slot,)
        elif kind == STEP:
            ended = bool((arrays["terminated"] | arrays["truncated"]).any())
            places = "rewards", "terminated", "truncated", slot, *(["terminal"] if ended else [])
        else:
            return {}
        # Observations are named by their place and key.
        return {name: rows for name, rows in arrays.items() if (name[0] if type(name) is tuple else name) in places}
