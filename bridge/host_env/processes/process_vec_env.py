"""ProcessVecEnv: a Stable-Baselines3 VecEnv of Gymnasium environments in separate processes.

It is not built on Gymnasium's AsyncVectorEnv, which (in Gymnasium 1.4) lacks what is needed here:

* It starts one process for each environment, so cheap environments cannot share one.
* It also makes the first environment in the parent, which fails if a library may be loaded only once, or a licence used
  only once.
* It waits for one pipe after the other without checking the processes, and cannot restart a single one. For a killed
  process, it only reports EOFError or a broken pipe; which environment raised is only in its log.
* Every step pickles actions, rewards, flags and infos for each environment, and merges the infos in Python, although
  SB3 needs them separately.
* Under `spawn` and `forkserver`, its processes import the main module again, and with it JAX and PyTorch. Under `fork`,
  they hang sooner or later, because a child inherits the locks of JAX's threads, but not the threads.

So a worker is a fresh interpreter that runs `worker_main.py` as a script. It does not depend on the parent's threads
and does not import the main module, so scripts do not need `if __name__ == "__main__"`. It has a separate process
group: Ctrl-C does not reach it, and the processes that its environments started can be ended with it. The shared memory
has no name, and the workers read a socket whose other end only the parent has: however the parent ends, they find it
closed and end too, and nothing is left over.
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
    """Vectorized environment whose Gymnasium environments run in other processes, one or several in each.

    Use it for environments that take longer than waking a process, on Linux and macOS. Observations, rewards and flags
    are in shared memory; infos are sent only if they are not empty. Results, and what happens when an environment
    raises or a process dies, are as in WorkerVecEnv.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], gymnasium.Env[Any, Any]]],
        envs_per_process: int = 1,
        *,
        step_timeout: float | None = None,
        on_worker_death: str = "raise",
    ) -> None:
        """Start the processes, and make the environments in them.

        Args:
          env_fns: functions that make the environments; cloudpickle sends them, so lambdas and closures work.
          envs_per_process: the number of environments that a process steps, one after another. More than 1 is faster if
            a step takes less time than waking a process.
          step_timeout: seconds that a step, with the resets in it, may take. A process that takes longer is killed, and
            counts as dead. `reset` and restarting a process may take 60 s, or `step_timeout` if it is longer. Without
            it there is no limit.
          on_worker_death: "raise" for a WorkerDied that closes this VecEnv; "restart" to start a process that died
            again, with new episodes in its environments.

        Raises:
          OSError: this system is not POSIX.
          ValueError: an argument, or a space of the environments, is invalid.
          WorkerError: an environment cannot be made.
        """
        if not IS_POSIX:
            raise OSError("ProcessVecEnv needs Linux or macOS. On other systems, use SB3's SubprocVecEnv.")
        self._file = anonymous_file()
        size = positive_int("envs_per_process", envs_per_process)
        super().__init__(env_fns, size, self._file.fileno(), step_timeout, on_worker_death)

    def _new_worker(self, env_indices: range, env_fns: bytes) -> WorkerProcess:
        return WorkerProcess(env_indices, env_fns, self._file.fileno(), self._step_timeout)

    @property
    def processes(self) -> list[subprocess.Popen[bytes]]:
        """The processes, in the order of their environments; none after `close`."""
        return [worker.process for worker in self._workers if isinstance(worker, WorkerProcess)]
