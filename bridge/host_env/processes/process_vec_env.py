"""ProcessVecEnv: Gymnasium environments in processes of their own, as a Stable-Baselines3 VecEnv.

Gymnasium's AsyncVectorEnv is not underneath, because what is wanted here cannot be had from it (1.4):

* it starts one process for each environment, so that cheap ones cannot share one;
* it makes the first environment in the parent too, which a library that may be loaded once, or a licence, forbids;
* it waits for each pipe in turn without a look at the processes, which it cannot start again one by one, and all it
  says of one that was killed is EOFError or that a pipe is broken; nor does it say which lane raised, but in its log;
* every step pickles actions, rewards, flags and infos for each environment, and merges the infos in Python, only for
  them to be taken apart again for SB3;
* its processes import the main module again under `spawn` and `forkserver`, and with it, here, JAX and PyTorch; under
  `fork` they hang sooner or later, since JAX has threads whose locks a child inherits without the threads.

So a worker is a fresh interpreter that runs `worker_main.py` as a script: whatever threads the parent has, without
the main module, and so without the `if __name__ == "__main__"` that scripts else need. It is in a process group of its
own: Ctrl-C does not reach it, and what its environments have started can be ended with it. The shared memory has no
name, and the workers read a socket of which the parent alone has the other end: however the parent ends, they find it
closed and end too, and nothing is left.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium

from bridge.host_env.processes.step_memory import anonymous_file
from bridge.host_env.processes.worker_handle import WorkerProcess
from bridge.host_env.processes.worker_vec_env import WorkerVecEnv
from jaxenvs.arguments import positive_int

IS_POSIX = os.name == "posix"


class ProcessVecEnv(WorkerVecEnv):
    """Gymnasium environments in other processes, one each, or some; on Linux and macOS.

    Observations, rewards and flags are in shared memory; infos are sent where there is something in them. What is
    returned, and what becomes of faults, is as WorkerVecEnv says.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], gymnasium.Env[Any, Any]]],
        envs_per_process: int = 1,
        *,
        step_timeout: float | None = None,
        on_worker_death: str = "raise",
    ) -> None:
        """
        Args:
          env_fns: functions that make the environments; sent by cloudpickle, so lambdas and closures will do.
          envs_per_process: how many environments, one after another, a process steps. More than 1 pays for those that
            take less time than waking a process does.
          step_timeout, on_worker_death: as of WorkerVecEnv.

        Raises:
          OSError: this system is not POSIX.
          ValueError: an argument, or a space of the environments, is not what it must be.
          WorkerError: an environment cannot be made.
        """
        if not IS_POSIX:
            raise OSError("ProcessVecEnv needs Linux or macOS. On other systems, use SB3's SubprocVecEnv.")
        self._file = anonymous_file()
        size = positive_int("envs_per_process", envs_per_process)
        super().__init__(env_fns, size, self._file.fileno(), step_timeout, on_worker_death)

    def _new_worker(self, lanes: range, env_fns: bytes) -> WorkerProcess:
        return WorkerProcess(lanes, env_fns, self._file.fileno(), self._step_timeout)

    @property
    def processes(self) -> list[subprocess.Popen[bytes]]:
        """The processes, in the order of their lanes; none once this is closed."""
        return [worker.process for worker in self._workers if isinstance(worker, WorkerProcess)]
