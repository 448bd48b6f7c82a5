"""The worker's side of a ProcessVecEnv: the loop over its environments, and the answers to its parent.

A worker runs this file as a script. It imports neither `bridge` nor JAX and PyTorch, which `bridge` imports, unless its
environments do: it starts in a third of a second and takes 40 MB, where those imports take seconds and hundreds of MB.
`SerialVecEnv` runs the same loop.
"""

from __future__ import annotations

import copy
import mmap
import os
import pickle
import select
import signal
import socket
import struct
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np

# The header of every message, both ways: its kind, the number of the command that it is or answers, the slot of the
# observations, and how many bytes follow. Most steps are one header there and one back.
HEADER = struct.Struct("<BBBQ")
START, SHARE, RESET, STEP, CALL = range(5)
ANSWER, RAISED = range(2)

# Time that a worker has to finish its step and close its environments after its parent has gone.
SECONDS_TO_CLOSE = 2.0

# Types of values in an info that cannot be modified.
IMMUTABLE = {type(None), bool, int, float, str, bytes, np.bool_, np.float32, np.float64, np.int32, np.int64}

# Arrays with the leading axis of the environments: one under the key None, or the parts of a Dict or Tuple by key.
Key = str | int | None
Observations = Mapping[Key, np.ndarray]


class StepReport(NamedTuple):
    """The infos and last observations of a step, by environment.

    Attributes:
      infos: the infos that are not empty.
      terminal: the last observations of episodes that ended.
      begun: the infos with which next episodes began, if they are not empty.
    """

    infos: dict[int, dict[str, object]]
    terminal: dict[int, Any]
    begun: dict[int, dict[str, object]]


class SerialEnvs:
    """Gymnasium environments that are stepped one after another, into arrays of the caller.

    Attributes:
      envs: the environments.
      failed: the index of the environment that raised, after it did.
    """

    def __init__(self, envs: list[gymnasium.Env[Any, Any]]) -> None:
        self.envs = envs
        self.failed = 0

    @property
    def monitored(self) -> bool:
        """True if all environments are in SB3's Monitor, which writes `episode` into their infos."""
        return all(is_wrapped(env, "stable_baselines3.common.monitor", "Monitor") for env in self.envs)

    def reset(
        self, seeds: Iterable[int | None], options: Iterable[dict[str, Any] | None], observations: Observations
    ) -> list[dict[str, Any]]:
        """Begin an episode in every environment, and return the infos."""
        plain, infos = observations.get(None), []
        index = 0
        try:
            for index, (env, seed, option) in enumerate(zip(self.envs, seeds, options)):
                observation, info = env.reset(seed=seed, options=option) if option else env.reset(seed=seed)
                infos.append(info)
                _write(observations, plain, index, observation)
        except Exception:
            self.failed = index
            raise
        return infos

    def step(
        self,
        actions: Iterable[object],
        observations: Observations,
        rewards: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
    ) -> StepReport:
        """Step every environment, and begin the next episode where one ended; write results into the arrays."""
        plain = observations.get(None)
        report = StepReport({}, {}, {})
        terminated.fill(False)
        truncated.fill(False)
        index = 0
        try:
            for index, (env, action) in enumerate(zip(self.envs, actions)):
                observation, reward, is_terminated, is_truncated, info = env.step(action)
                rewards[index] = float(reward)  # NumPy would make NaN of None
                if info or type(info) is not dict:
                    report.infos[index] = _own(info)
                if is_terminated or is_truncated:
                    terminated[index], truncated[index] = is_terminated, is_truncated
                    # Copied before the reset, which may overwrite the same memory.
                    is_array = type(observation) is np.ndarray
                    report.terminal[index] = observation.copy() if is_array else copy.deepcopy(observation)
                    observation, info = env.reset()
                    if info:
                        report.begun[index] = info
                _write(observations, plain, index, observation)
        except Exception:
            self.failed = index
            raise
        return report


def _write(observations: Observations, plain: np.ndarray | None, index: int, observation: Any) -> None:
    """Write an observation into row `index` of the arrays, of which `plain` is the only one, if there is only one."""
    if plain is not None:
        plain[index] = observation
    else:
        for key, array in observations.items():
            array[index] = observation[key]


def _own(info: Mapping[str, object]) -> dict[str, object]:
    """Return a copy, as environments may modify theirs. For plain numbers `copy.deepcopy` takes much longer."""
    return {key: value if type(value) in IMMUTABLE else copy.deepcopy(value) for key, value in info.items()}


def is_wrapped(env: object, module: str, name: str) -> bool:
    """Return whether one of an environment's wrappers is of the named class or a subclass of it."""
    while isinstance(env, gymnasium.Wrapper):
        if is_a(env, module, name):
            return True
        env = env.env
    return False


def is_a(value: object, module: str, name: str) -> bool:
    """Return whether a value is of the named class or a subclass of it, without importing the class."""
    return any((cls.__module__, cls.__qualname__) == (module, name) for cls in type(value).__mro__)


def set_attribute(env: Any, name: str, value: object) -> None:
    """Set an attribute of the outermost wrapper, as SB3 does; a JAX environment's parameter where it takes effect."""
    inner = env.unwrapped
    is_parameter = is_a(inner, "jaxenvs.gym.env", "GymnasiumEnv") and inner.is_parameter(name)
    setattr(inner if is_parameter else env, name, value)


# --- Between processes ----------------------------------------------------------------------------------------------


class Channel:
    """Messages through a socket. An interrupted read loses no part of a message."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self._buffer = bytearray()

    def send(self, kind: int, sequence: int, slot: int = 0, payload: bytes = b"") -> None:
        """Send a message, and read meanwhile: the other side may be sending too, and read only after that."""
        rest = memoryview(HEADER.pack(kind, sequence, slot, len(payload)) + payload)
        while True:
            try:
                sent = self.socket.send(rest, socket.MSG_DONTWAIT)
            except BlockingIOError:
                sent = 0
            rest = rest[sent:]
            if not rest:
                return
            self._read_until_writable()

    def _read_until_writable(self) -> None:
        ready = select.poll()
        ready.register(self.socket, select.POLLIN | select.POLLOUT)
        [(_, events)] = ready.poll()
        if events & ~select.POLLOUT:
            chunk = self.socket.recv(2**16, socket.MSG_DONTWAIT)
            if not chunk:
                raise BrokenPipeError
            self._buffer += chunk

    def receive(self) -> tuple[int, int, int, bytes]:
        """Return the next message: kind, sequence, slot, payload.

        Raises:
          EOFError: the other side has gone.
          BlockingIOError: the socket's timeout passed.
        """
        buffer = self._buffer
        needed = HEADER.size
        while True:
            if len(buffer) >= HEADER.size:
                kind, sequence, slot, length = HEADER.unpack_from(buffer)
                needed = HEADER.size + length
                if len(buffer) >= needed:
                    payload = bytes(buffer[HEADER.size : needed])
                    del buffer[:needed]
                    return kind, sequence, slot, payload
            chunk = self.socket.recv(max(needed - len(buffer), 4096))
            if not chunk:
                raise EOFError
            buffer += chunk


def shared_arrays(file: int, fields: Mapping[object, tuple[str, tuple[int, ...]]]) -> dict[object, np.ndarray]:
    """Return arrays of these dtypes and shapes in a file's memory: the same for all processes that have the file."""
    offsets, size = [], 0
    for dtype, shape in fields.values():
        offsets.append(size)
        size += -(-np.dtype(dtype).itemsize * int(np.prod(shape)) // 64) * 64  # no two share a cache line
    os.ftruncate(file, size)
    memory = mmap.mmap(file, size)
    return {
        name: np.frombuffer(memory, dtype, int(np.prod(shape)), offset).reshape(shape)
        for (name, (dtype, shape)), offset in zip(fields.items(), offsets)
    }


def dumps(value: object) -> bytes:
    """Return `value` pickled, with cloudpickle only if pickle fails, because cloudpickle takes longer."""
    try:
        return pickle.dumps(value)
    except Exception:  # the type depends on the object
        import cloudpickle

        pickled: bytes = cloudpickle.dumps(value)
        return pickled


# --- In the worker --------------------------------------------------------------------------------------------------

CALLS: dict[str, Callable[..., object]] = {
    "get_attr": lambda env, name: env.get_wrapper_attr(name),
    "set_attr": set_attribute,
    "env_method": lambda env, name, args, kwargs: env.get_wrapper_attr(name)(*args, **kwargs),
    "env_is_wrapped": is_wrapped,
}


class Worker:
    """Some environments of a ProcessVecEnv, and the commands that their parent sends.

    Attributes:
      serial_envs: the environments; none before the first command.
      first: the index of the first of them among all environments.
    """

    def __init__(self, memory: int) -> None:
        self._memory = memory
        self.serial_envs = SerialEnvs([])
        self.first = 0

    def answer(self, kind: int, slot: int, payload: bytes) -> tuple[int, bytes]:
        """Carry out a command; return ANSWER and the answer, or RAISED and the error of an environment."""
        try:
            return ANSWER, self.do(kind, slot, payload)
        except Exception as error:
            text = "".join(traceback.format_exception(error))
            attribute_error = str(error) if isinstance(error, AttributeError) else None
            return RAISED, pickle.dumps((self.first + self.serial_envs.failed, attribute_error, text))

    def do(self, kind: int, slot: int, payload: bytes) -> bytes:
        """Carry out a command, and return the answer."""
        if kind == STEP:
            report = self.serial_envs.step(self._read_actions(), self._observations[slot], *self._outcome)
            for index, observation in report.terminal.items():
                for key, array in self._terminal.items():
                    array[index] = observation if key is None else observation[key]
            return dumps((report.infos, report.begun)) if report.infos or report.begun else b""
        if kind == CALL:
            name, env_indices, arguments = pickle.loads(payload)
            results = []
            for index in env_indices:
                self.serial_envs.failed = index - self.first
                results.append(CALLS[name](self.serial_envs.envs[index - self.first], *arguments))
            return dumps(results)
        if kind == RESET:
            seeds, options = pickle.loads(payload)
            return dumps(self.serial_envs.reset(seeds, options, self._observations[slot]))
        if kind == SHARE:
            return self._share(*pickle.loads(payload))
        return self._start(*pickle.loads(payload))

    def _start(self, path: list[str], first: int, pickled: bytes, again: bool) -> bytes:
        """Make the environments; if a previous process had them, with a factory's `again` where it has one.

        `path` is a `sys.path` for the modules that the factories need; empty to leave `sys.path` as it is.
        """
        sys.path[:] = path or sys.path  # before the factories are unpickled
        self.first, envs = first, []
        for index, make in enumerate(pickle.loads(pickled)):
            self.serial_envs.failed = index
            env = (getattr(make, "again", make) if again else make)()
            if not isinstance(env, gymnasium.Env):
                raise TypeError(f"env_fns must return Gymnasium environments, got {env!r}.")
            envs.append(env)
        self.serial_envs = SerialEnvs(envs)
        env = envs[0]
        return dumps((env.observation_space, env.action_space, env.metadata, self.serial_envs.monitored))

    def _share(
        self, fields: dict[object, tuple[str, tuple[int, ...]]], keys: Sequence[Key], shape: tuple[int, ...]
    ) -> bytes:
        own = slice(self.first, self.first + len(self.serial_envs.envs))
        arrays = {name: array[own] for name, array in shared_arrays(self._memory, fields).items()}
        self._actions, self._dtype, self._shape = arrays["actions"], arrays["dtype"], shape
        self._name_of_dtype = b""
        self._outcome = arrays["rewards"], arrays["terminated"], arrays["truncated"]
        self._observations = [{key: arrays[slot, key] for key in keys} for slot in range(2)]
        self._terminal = {key: arrays["terminal", key] for key in keys}
        return b""

    def _read_actions(self) -> list[Any]:
        if (name := self._dtype[0]) != self._name_of_dtype:
            self._name_of_dtype, dtype = name, np.dtype(name.decode())
            num_bytes = dtype.itemsize * int(np.prod(self._shape))
            self._typed_actions = self._actions[:, :num_bytes].view(dtype).reshape(-1, *self._shape)
        return list(self._typed_actions.copy())  # which environments may keep


def serve(worker: Worker, channel: Channel) -> None:
    """Carry out the commands of a parent until it has closed its end."""
    while True:
        try:
            kind, sequence, slot, payload = channel.receive()
        except (EOFError, ConnectionResetError):
            return
        answer, payload = worker.answer(kind, slot, payload)
        try:
            channel.send(answer, sequence, 0, payload)
        except (BrokenPipeError, ConnectionResetError):
            return


def _watch_parent(end: int) -> None:
    """Let another process end this one after the parent has gone. A thread needs the GIL, which a step may hold."""
    worker = os.pidfd_open(os.getpid())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns of threads, which are idle ones of NumPy here
        child = os.fork()
    if child:
        os.waitpid(child, 0)
        os.close(worker)
        return
    try:  # only the worker runs on, even if this raises
        if os.fork() == 0:  # not a child of the worker, whose environments may wait for theirs
            _end_with_parent(end, worker)
    finally:
        os._exit(0)


def _end_with_parent(end: int, worker: int | None = None) -> None:
    """Wait for the parent's end, then end the worker and the processes of its environments.

    Args:
      worker: a descriptor of the worker's process, if it is not this one.
    """
    # A parent that closes a worker closes one direction, which this poll does not report. A dead parent closes both.
    gone, ended = select.poll(), select.poll()
    gone.register(end, 0)
    if worker is not None:
        gone.register(worker, select.POLLIN)
        ended.register(worker, select.POLLIN)
    if worker in dict(gone.poll()) or ended.poll(1000 * SECONDS_TO_CLOSE):
        return
    os.killpg(0, signal.SIGKILL)


def main(end: int, memory: int) -> None:
    """Run a worker at an end of a socket pair, until the parent has gone."""
    for descriptor in (end, memory):  # so that processes that environments start do not inherit them
        os.set_inheritable(descriptor, False)
    try:
        _watch_parent(end)
    except (AttributeError, OSError):  # not on macOS, nor where a container forbids it
        threading.Thread(target=_end_with_parent, args=(end,), daemon=True).start()
    worker = Worker(memory)
    try:
        serve(worker, Channel(socket.socket(fileno=end)))
    finally:
        for env in worker.serial_envs.envs:
            env.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
