"""What runs in an actor of a RayVecEnv: a Worker, whose rows go along with its answers.

It is sent to the actor as it is, and so are functions that it calls: a node needs Ray, NumPy, Gymnasium, and what the
environments import, but not this package, nor JAX or PyTorch.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bridge.host_env.processes.worker_main import ANSWER, PRIVATE, RESET, STEP, Worker

# What an actor answers: ANSWER or RAISED, the payload, and the rows of the StepMemory that it has written.
Answered = tuple[int, bytes, dict[Any, np.ndarray]]


class ActorMain:
    """The lanes of an actor. Calls come one after another, in order."""

    def __init__(self) -> None:
        self._worker = Worker(PRIVATE)

    def do(self, kind: int, slot: int, payload: bytes, actions: np.ndarray | None) -> Answered:
        """Carry out a command of a Worker.

        Args:
          actions: of a STEP, its lanes'.
        """
        worker = self._worker
        if actions is not None:
            worker.arrays["actions"][:] = actions
        answer, payload = worker.answer(kind, slot, payload)
        return answer, payload, self._written(kind, slot) if answer == ANSWER else {}

    def close(self) -> None:
        """Close the environments."""
        for env in self._worker.lanes.envs:
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
