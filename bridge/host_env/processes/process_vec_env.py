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

import logging
import os
import pickle
import subprocess
import time
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle
import numpy as np
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvObs, VecEnvStepReturn

from bridge.host_env.episodes import EpisodeStatistics, infos_of_step
from bridge.host_env.processes.step_memory import StepMemory, anonymous_file
from bridge.host_env.processes.worker_main import CALL, RESET, STEP, StepReport, dumps
from bridge.host_env.processes.worker_process import Deadline, WorkerDied, WorkerError, WorkerProcess, shut_down
from bridge.sb3 import AnyEnv, WrapperClass
from bridge.vec_env.argument_checks import env_indices_of, require_options
from jaxenvs.arguments import number, one_of, positive_int

IS_POSIX = os.name == "posix"

# Seconds that workers have to close their environments before they are killed: in `close`, and after a fault.
SECONDS_TO_CLOSE = 30.0
SECONDS_AFTER_A_FAULT = 2.0
# A worker that dies this many times in a row before its new episodes have begun is not restarted any more.
MOST_STARTS = 10
# With a `step_timeout`, the seconds for `reset`, and for all attempts to restart a worker, unless `step_timeout` is
# longer.
SECONDS_TO_BEGIN = 60.0

log = logging.getLogger("jaxenvs.sb3")


class ProcessVecEnv(VecEnv):
    """Vectorized environment whose Gymnasium environments run in other processes, one or several in each.

    Use it for environments that take longer than waking a process, on Linux and macOS. Observations, rewards and flags
    are in shared memory; infos are sent only if they are not empty. `reset` and `step` return the same as SerialVecEnv,
    and environments with the same seeds do the same. Infos have `episode`, as if each environment were in a Monitor.

    If an environment raises in a step or a reset, a WorkerError with its traceback and index is raised. If a process is
    killed or ends at any time, a WorkerDied with the indices of its environments is raised. Then the other processes
    are shut down, and this VecEnv is closed. With `on_worker_death="restart"`, a process that died is restarted, and a
    warning is logged: its environments begin new episodes, unseeded and with the attributes that their factories set
    (by a factory's `again`, if it has one). In the next step, the previous episodes are truncated, with their last
    observation as the terminal one and a reward of 0.

    Attributes:
      restarts: the number of times that processes were restarted.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], AnyEnv]],
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
            it there is no limit; `env_method` never has one.
          on_worker_death: "raise" for a WorkerDied that closes this VecEnv; "restart" to start a process that died
            again, with new episodes in its environments.

        Raises:
          OSError: this system is not POSIX.
          ValueError: an argument, or a space of the environments, is invalid.
          WorkerError: an environment cannot be made.
        """
        if not IS_POSIX:
            raise OSError("ProcessVecEnv needs Linux or macOS. On other systems, use SB3's SubprocVecEnv.")
        size = positive_int("envs_per_process", envs_per_process)
        num_envs = positive_int("the number of env_fns", len(env_fns))
        if step_timeout is not None:
            number("step_timeout", step_timeout, above=0)
        self._step_timeout = step_timeout
        self._restart = one_of("on_worker_death", on_worker_death, ("raise", "restart")) == "restart"
        self.restarts = 0
        self._has_state = False
        self._file = anonymous_file()
        self._workers: list[WorkerProcess] = []
        self._finalizer = weakref.finalize(self, shut_down, self._workers, SECONDS_AFTER_A_FAULT)
        try:
            for first in range(0, num_envs, size):
                env_indices = range(first, min(first + size, num_envs))
                pickled = cloudpickle.dumps([env_fns[index] for index in env_indices])
                self._workers.append(WorkerProcess(env_indices, pickled, self._file.fileno(), step_timeout))
            self._worker_of = {index: worker for worker in self._workers for index in worker.env_indices}
            started = [pickle.loads(worker.receive()) for worker in self._workers]
            observation_space, action_space, metadata, _ = started[0]
            self._memory = StepMemory(self._file.fileno(), num_envs, observation_space, action_space)
            for worker in self._workers:
                worker.share(self._memory)
            for worker in self._workers:
                worker.receive()
            # The slot of the last observations; the next ones are written into the other. Then the step under way: its
            # infos, the workers that have not finished it, and their deadline.
            self._slot = 0
            self._report: StepReport | None = None
            self._pending: list[WorkerProcess] = []
            self._step_deadline: Deadline | None = None
            super().__init__(num_envs, observation_space, action_space)
        except BaseException:
            shut_down(self._workers, 0)
            raise
        self.metadata = metadata
        self._episodes = EpisodeStatistics(num_envs, all(monitored for *_, monitored in started))

    # --- Stepping -----------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        return f"<{type(self).__name__}, num_envs={self.num_envs}>"

    def reset(self) -> VecEnvObs:
        """Begin an episode in every environment. The result of a step under way is discarded.

        Raises:
          WorkerError: an environment raised.
          WorkerDied: a worker died and was not restarted.
        """
        workers = self._open()
        require_options(self._options, self.num_envs)
        shares = [slice(worker.env_indices.start, worker.env_indices.stop) for worker in workers]
        begin = [pickle.dumps((self._seeds[share], self._options[share])) for share in shares]
        self._report, self._pending = None, []
        for worker, message in zip(workers, begin):
            worker.send(RESET, self._slot, message)
        self.reset_infos = []
        deadline = self._deadline("finish its reset within", SECONDS_TO_BEGIN)
        for worker, message in zip(list(workers), begin):
            self.reset_infos += pickle.loads(self._receive(worker, self._slot, message, deadline))
            worker.new_infos = None
        self._reset_seeds()
        self._reset_options()
        self._episodes.begin()
        self._has_state = True
        return self._memory.copy_observations(self._slot, slice(None))

    def step_async(self, actions: np.ndarray) -> None:
        """Start a step of all environments, and return immediately.

        Raises:
          ValueError, TypeError: the actions have another shape, or a dtype that does not fit. No environment was
            stepped.
        """
        self._open()
        if not self._has_state:
            raise RuntimeError("Call reset() first: the environments have no state.")
        self._memory.write_actions(actions)
        self._step_deadline = self._deadline("finish its step within step_timeout =")
        self._report, self._pending = StepReport({}, {}, {}), list(self._workers)
        for worker in self._workers:
            if worker.new_infos is None:
                worker.send(STEP, 1 - self._slot)

    def step_wait(self) -> VecEnvStepReturn:
        """Return observations, rewards float32 (num_envs,), dones bool (num_envs,), and infos of the step.

        Raises:
          WorkerError: an environment raised.
          WorkerDied: a worker died and was not restarted.
        """
        self._open()
        if self._report is None:
            raise RuntimeError("step_wait was called without step_async.")
        self._collect()
        report, self._report, self._slot = self._report, None, 1 - self._slot
        memory = self._memory
        # Copied, because the infos are made when they are read, and the next step may have begun by then.
        terminated, truncated = memory.terminated.copy(), memory.truncated.copy()
        for index in (terminated | truncated).nonzero()[0].tolist():
            report.terminal[index] = memory.copy_observations("terminal", index)
        dones, infos = infos_of_step(self._episodes, memory.rewards, terminated, truncated, report, self.reset_infos)
        return memory.copy_observations(self._slot, slice(None)), memory.rewards.astype(np.float32), dones, infos

    def close(self) -> None:
        """Close the environments and end their workers."""
        shut_down(self._workers, SECONDS_TO_CLOSE)

    @property
    def processes(self) -> list[subprocess.Popen[bytes]]:
        """The processes, in the order of their environments; none after `close`."""
        return [worker.process for worker in self._workers]

    # --- Attributes ---------------------------------------------------------------------------------------------

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """Return an attribute of each environment, or of one of its wrappers.

        Raises:
          AttributeError: there is no such attribute.
          WorkerError: the environment raised another error, and nothing is shut down; or its worker died.
        """
        return self._call(indices, "get_attr", attr_name)

    def set_attr(self, attr_name: str, value: object, indices: VecEnvIndices = None) -> None:
        """Set an attribute as SerialVecEnv does. A restarted worker has the value that the factory sets."""
        self._call(indices, "set_attr", attr_name, value)

    def env_method(
        self, method_name: str, *method_args: object, indices: VecEnvIndices = None, **method_kwargs: object
    ) -> list[Any]:
        """Call a method of each environment, with the errors of `get_attr`."""
        env_indices = env_indices_of(indices, self.num_envs)
        results = self._call(env_indices, "env_method", method_name, method_args, method_kwargs)
        if method_name == "reset":
            self._has_state = True
            self._episodes.begin(env_indices)
        return results

    def env_is_wrapped(self, wrapper_class: WrapperClass, indices: VecEnvIndices = None) -> list[bool]:
        """Return SB3's result, but always True for Monitor, because the infos of ended episodes have its `episode`."""
        if issubclass(wrapper_class, Monitor):
            return [True for _ in env_indices_of(indices, self.num_envs)]
        return self._call(indices, "env_is_wrapped", wrapper_class.__module__, wrapper_class.__qualname__)

    def get_images(self) -> Sequence[np.ndarray | None]:
        """Return a picture of each environment."""
        if self.render_mode != "rgb_array":
            warnings.warn(f"get_images needs render_mode 'rgb_array', got {self.render_mode!r}.", stacklevel=2)
            return [None for _ in range(self.num_envs)]
        return self.env_method("render")

    # --- Inside -------------------------------------------------------------------------------------------------

    def _open(self) -> list[WorkerProcess]:
        if not self._workers:
            raise RuntimeError(
                "This ProcessVecEnv is closed, either by close() or after an error in a worker: make a new one."
            )
        return self._workers

    def _deadline(self, what: str, at_least: float = 0.0) -> Deadline | None:
        """Return the deadline of an operation that begins now; None without a `step_timeout`."""
        if self._step_timeout is None:
            return None
        seconds = max(at_least, self._step_timeout)
        return Deadline(time.monotonic() + seconds, f"{what} {seconds:g} s")

    def _collect(self) -> None:
        """Wait for the workers that have not finished the step under way."""
        while self._report is not None and self._pending:
            worker = self._pending[0]
            payload = b""
            if worker.new_infos is None:  # else it died before the step
                payload = self._receive(worker, 1 - self._slot, None, self._step_deadline)
            if worker.new_infos is not None:
                self._memory.truncate(worker.env_indices, self._slot)
                self._add_new_infos(worker, self._report)
            elif payload:
                infos, begun = pickle.loads(payload)
                self._report.infos.update((worker.env_indices[row], info) for row, info in infos.items())
                self._report.begun.update((worker.env_indices[row], info) for row, info in begun.items())
            self._pending.pop(0)

    def _receive(
        self, worker: WorkerProcess, slot: int, begin: bytes | None = None, deadline: Deadline | None = None
    ) -> bytes:
        """Return the answer to a command for the environments; from a restarted worker, the answer to a reset.

        If an environment raised, or a worker died and is not restarted, all workers are shut down.

        Args:
          slot: the slot of a restarted worker's first observations.
          begin: the arguments of a restarted worker's reset; unseeded if not given.
          deadline: the time until which the worker must answer, if there is one.
        """
        try:
            try:
                return worker.receive(deadline)
            except WorkerDied as error:
                if not self._restart:
                    raise
                return self._start_again(worker, error, slot, begin)
        except WorkerError:
            shut_down(self._workers, SECONDS_AFTER_A_FAULT)
            raise

    def _start_again(self, worker: WorkerProcess, error: WorkerDied, slot: int, begin: bytes | None) -> bytes:
        nothing = [None for _ in worker.env_indices]
        deadline = self._deadline("restart within", SECONDS_TO_BEGIN)
        for _ in range(MOST_STARTS):
            self.restarts += 1
            log.warning("%s It is restarted with new episodes (restart %d).", error, self.restarts)
            try:
                worker.start()
                worker.receive(deadline)
                worker.share(self._memory)
                worker.receive(deadline)
                worker.send(RESET, slot, begin or pickle.dumps((nothing, nothing)))
                infos = worker.receive(deadline)
                worker.new_infos = pickle.loads(infos)
                return infos
            except WorkerDied as next_error:
                error = next_error
                if deadline is not None and time.monotonic() > deadline.at:
                    break
            except BaseException:  # half started: the next command to it will find it dead
                worker.end()
                raise
        raise error

    def _add_new_infos(self, worker: WorkerProcess, report: StepReport) -> None:
        report.begun.update(zip(worker.env_indices, worker.new_infos or []))
        worker.new_infos = None

    def _call(self, indices: VecEnvIndices, name: str, *arguments: object) -> list[Any]:
        self._open()
        self._collect()  # as a worker answers in order
        env_indices = env_indices_of(indices, self.num_envs)
        per_worker: dict[WorkerProcess, list[int]] = {}
        for index in env_indices:
            per_worker.setdefault(self._worker_of[index], []).append(index)
        messages = {worker: dumps((name, theirs, arguments)) for worker, theirs in per_worker.items()}
        for worker, message in messages.items():
            worker.send(CALL, payload=message)
        results = {}
        for worker, message in messages.items():
            results[worker] = iter(pickle.loads(self._result(worker, message)))
        return [next(results[self._worker_of[index]]) for index in env_indices]

    def _result(self, worker: WorkerProcess, message: bytes) -> bytes:
        try:
            try:
                return worker.receive()
            except WorkerDied as error:
                if not self._restart:
                    shut_down(self._workers, SECONDS_AFTER_A_FAULT)
                    raise
                if self._report is not None:
                    self._memory.truncate_ended_step(worker.env_indices, 1 - self._slot)
                self._start_again(worker, error, 1 - self._slot, None)
                if self._report is not None:
                    self._add_new_infos(worker, self._report)
                worker.send(CALL, payload=message)
                return worker.receive()
        except WorkerError as error:
            if error.attribute_error is not None:
                raise AttributeError(error.attribute_error) from None
            raise
