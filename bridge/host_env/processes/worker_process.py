"""The parent's side of a process of a ProcessVecEnv: commands, answers and failures."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

from bridge.host_env.processes import worker_main
from bridge.host_env.processes.step_memory import StepMemory
from bridge.host_env.processes.worker_main import ANSWER, SHARE, START, Channel
from bridge.sb3 import Infos

# How often a silent worker is checked for still running. A worker that dies closes its socket at once, unless a process
# that its environment started holds the socket too.
SECONDS_BETWEEN_LOOKS = 0.5
# Time that a process has to end after it closed its socket.
SECONDS_TO_END = 1.0


class WorkerError(RuntimeError):
    """An environment in another process raised an error; the message contains its traceback.

    Attributes:
      env_indices: the indices of the worker's environments, or of the one that raised.
      attribute_error: the message of the environment's error, if it was an AttributeError.
    """

    __module__ = "jaxenvs.sb3"  # the public name, which tracebacks show

    def __init__(self, message: str, env_indices: Sequence[int], attribute_error: str | None = None) -> None:
        super().__init__(message)
        self.env_indices = list(env_indices)
        self.attribute_error = attribute_error


class WorkerDied(WorkerError):
    """A process with environments was killed, ended, or took longer than `step_timeout`.

    Attributes:
      exit_code: as in subprocess: for a process that a signal killed, minus the signal's number. None for a Ray actor,
        which may have gone with its node.
    """

    __module__ = "jaxenvs.sb3"

    def __init__(self, message: str, env_indices: Sequence[int], exit_code: int | None) -> None:
        super().__init__(message, env_indices)
        self.exit_code = exit_code


class Deadline(NamedTuple):
    """The time of `time.monotonic` until which a worker must have answered, and what it otherwise did not do."""

    at: float
    what: str


class WorkerProcess:
    """A process that has some of the environments. It answers commands in order.

    Attributes:
      env_indices: the indices of its environments.
      new_infos: if it was restarted since the last step, the infos of its environments' resets.
      process: the process.
    """

    def __init__(self, env_indices: range, env_fns: bytes, memory: int, step_timeout: float | None) -> None:
        """Start the process, and let it make its environments with a pickled list of functions.

        `memory` is the descriptor of the file whose memory is shared.
        """
        self.env_indices = env_indices
        self.new_infos: Infos | None = None
        self._parent = os.getpid()
        self._env_fns, self._memory, self._step_timeout = env_fns, memory, step_timeout
        self.start(again=False)

    @property
    def is_ours(self) -> bool:
        """True if this process started it. A process forked from it only shares the open files."""
        return self._parent == os.getpid()

    def start(self, again: bool = True) -> None:
        """Start the process, and send the command to make its environments, the first time or again."""
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", worker_main.__file__, str(theirs.fileno()), str(self._memory)],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), self._memory),
                process_group=0,
            )
        # The system's own timeout, because Python's would cost another system call for each message.
        seconds = max(0.001, min(SECONDS_BETWEEN_LOOKS, self._step_timeout or SECONDS_BETWEEN_LOOKS))
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", int(seconds), int(seconds % 1 * 1e6)))
        self._channel = Channel(ours)
        self._sequence = 0
        self.send(START, payload=pickle.dumps((sys.path, self.env_indices[0], self._env_fns, again)))

    def send(self, kind: int, slot: int = 0, payload: bytes = b"") -> None:
        """Send a command. If the process has gone, `receive` raises, and not this method."""
        self._sequence = (self._sequence + 1) % 256
        with contextlib.suppress(OSError):
            self._channel.send(kind, self._sequence, slot, payload)

    def share(self, memory: StepMemory) -> None:
        """Send the command to exchange steps through this memory."""
        self.send(SHARE, payload=memory.layout)

    def receive(self, deadline: Deadline | None = None) -> bytes:
        """Return the answer to the last command.

        Raises:
          WorkerDied: the process ended, or the deadline passed, and the process was killed.
          WorkerError: an environment raised.
        """
        while True:
            try:
                kind, sequence, _, payload = self._channel.receive()
            except BlockingIOError:
                if self.process.poll() is not None:
                    raise self._died() from None
                if deadline is not None and time.monotonic() > deadline.at:
                    self.end()
                    raise self._died(f"did not {deadline.what}") from None
                continue
            except (EOFError, OSError):
                raise self._died() from None
            if sequence == self._sequence:  # else it answers a command that Ctrl-C interrupted
                break
        if kind == ANSWER:
            return payload
        index, attribute_error, text = pickle.loads(payload)
        message = f"Environment {index} raised an error in its process:\n\n{text}"
        raise WorkerError(message, [index], attribute_error)

    def close(self) -> None:
        """Send the command to close the environments and end. Does not wait."""
        with contextlib.suppress(OSError):  # the worker has gone
            self._channel.socket.shutdown(socket.SHUT_WR)

    def end(self, deadline: float = 0.0) -> int:
        """Wait for the process's end, or kill it at the deadline, and kill the processes that its environments started.

        Returns its exit code.
        """
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(max(0.0, deadline - time.monotonic()))
        with contextlib.suppress(ProcessLookupError, PermissionError):  # PermissionError: macOS, for ended processes
            os.killpg(self.process.pid, signal.SIGKILL)
        code = self.process.wait()
        self._channel.socket.close()
        return code

    def _died(self, how: str = "") -> WorkerDied:
        code = self.end(time.monotonic() + SECONDS_TO_END)
        if not how:
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else "ended"
        first, last = self.env_indices[0], self.env_indices[-1]
        who = f"environment {first}" if first == last else f"environments {first} to {last}"
        return WorkerDied(f"The process of {who} {how} (exit code {code}).", self.env_indices, code)


def shut_down(workers: list[WorkerProcess], seconds: float) -> None:
    """Let workers close their environments and end; kill workers that take longer. Empties the list."""
    if not all(worker.is_ours for worker in workers):
        return
    for worker in workers:
        worker.close()
    deadline = time.monotonic() + seconds
    while workers:
        workers[-1].end(deadline)
        workers.pop()
