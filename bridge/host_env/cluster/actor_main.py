"""What runs in an actor of a RayVecEnv: a Worker, whose rows go along with its answers.

It is sent to the actor as it is, and so are functions that it calls: a node needs Ray, NumPy, Gymnasium, and what the
environments import, but not this package, nor PyTorch; JAX only for whole rollouts.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np

from bridge.host_env.processes.worker_main import ANSWER, PRIVATE, RAISED, RESET, STEP, Worker, dumps
from bridge.vec_env.actions import as_sb3_gives

# What acts: a program, serialised by `jax.export`, and its parameters by name.
Policy = tuple[bytes, dict[str, np.ndarray]]

# What an actor answers: ANSWER or RAISED, the payload, and the rows of the StepMemory that it has written, or those of
# all steps of a rollout.
Answered = tuple[int, bytes, dict[Any, np.ndarray]]


class ActorMain:
    """The lanes of an actor. Calls come one after another, in order."""

    def __init__(self) -> None:
        self._worker = Worker(PRIVATE)
        self._program = b""
        self._act: Any = None
        self._put: Any = None

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

    def roll_out(self, slot: int, policy: Policy, noise: np.ndarray, last: Any) -> Answered:
        """Act and step as often as there is noise.

        The payload has, of each step, what a STEP's has; it is None if the policy gave NaN. The rows have the leading
        axes of steps and lanes; last observations of episodes are one after another, step by step.

        Args:
          noise: (n_steps, lanes, ...).
          last: what the policy acts on first: an array, or a dict of arrays.
        """
        program, params = policy
        if program != self._program:
            self._load(program)
        try:
            return self._roll_out(slot, self._put(params), noise, last)
        except Exception as error:
            return RAISED, self._worker.raised(error), {}

    def _load(self, program: bytes) -> None:
        if "jax" not in sys.modules:
            os.environ.setdefault("JAX_PLATFORMS", "cpu")  # a GPU is the environments'
        import jax
        from jax import export

        act, cpu = jax.jit(export.deserialize(bytearray(program)).call), jax.devices("cpu")[0]

        def act_on_cpu(*arguments: Any) -> Any:
            with jax.default_device(cpu):
                return act(*arguments)

        self._program, self._act, self._put = program, act_on_cpu, lambda params: jax.device_put(params, cpu)

    def _roll_out(self, slot: int, params: Any, noise: np.ndarray, observation: Any) -> Answered:
        worker, arrays = self._worker, self._worker.arrays
        space = worker.lanes.envs[0].action_space
        steps: dict[Any, list[np.ndarray]] = {}
        told = []
        for step_noise in noise:
            action, to_env, was_nan, _ = self._act(params, observation, step_noise)
            if np.asarray(was_nan):
                return ANSWER, dumps(None), {}
            np.copyto(arrays["actions"], as_sb3_gives(to_env, space), casting="unsafe")
            told.append(worker.do(STEP, slot, b""))
            steps.setdefault("actions", []).append(np.asarray(action))
            ended = arrays["terminated"] | arrays["truncated"]
            parts = {}
            for name, rows in self._written(STEP, slot).items():
                if name[0] == slot:
                    parts[name[1]] = rows
                    name = "observations", name[1]
                steps.setdefault(name, []).append(rows[ended] if name[0] == "terminal" else rows.copy())
            observation = parts.get(None, parts)
        taken = {n: np.concatenate(each) if n[0] == "terminal" else np.stack(each) for n, each in steps.items()}
        return ANSWER, dumps(told), taken

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
