"""A training over the processes of several hosts: how one joins the others, and how it leaves when they are gone."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator
from os import _exit
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from bridge.app import last_words
from jaxenvs.cli import UserError
from jaxenvs.learn.devices import is_first_process

# A process that sends no heartbeat for so long is lost, and JAX ends the others. JAX's own 100 are long to wait.
HEARTBEAT_SECONDS = 10
HOST_BYTES = 64

_joined = False


@contextlib.contextmanager
def joined(coordinator: str | None, num_processes: int | None, process_id: int | None) -> Iterator[None]:
    """The context in which this process is one of those of a training. JAX must not have run yet.

    The first one prints; the others are silent, but for errors. If another one is lost, this one ends, with last words
    that name it.

    Args:
      coordinator, num_processes, process_id: `host:port` of the first process, how many there are, and which this one
        is; None: as JAX finds them in the environment.

    Raises:
      UserError: it cannot join.
    """
    global _joined
    try:
        jax.distributed.initialize(coordinator, num_processes, process_id, heartbeat_timeout_seconds=HEARTBEAT_SECONDS)
    except (ValueError, RuntimeError) as error:
        raise UserError(
            f"This process cannot join the others: {error} Under SLURM, Open MPI, Kubernetes or on TPUs --distributed "
            "is enough; elsewhere give --coordinator HOST:PORT, --num-processes and --process-id, too."
        ) from error
    # After JAX, which takes it for a sign to save at a time that it will name, and goes on.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    hosts = _host_names()
    with subprocess.Popen([sys.executable, "-I", last_words.__file__], stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        sys.stderr.flush()
        screen = os.dup(2)
        os.dup2(process.stdin.fileno(), 2)
        process.stdin.close()
        _joined = True
        tell(process=jax.process_index(), hosts=hosts)
        try:
            with contextlib.ExitStack() as silence:
                if not is_first_process():
                    nowhere = silence.enter_context(open(os.devnull, "w", encoding="utf-8"))
                    silence.enter_context(contextlib.redirect_stdout(nowhere))
                yield
        except SystemExit:  # after Ctrl-C, of all processes alike
            _end(screen)
            raise
        except BaseException as error:
            _leave(error)
        _end(screen)


def _end(screen: int) -> None:
    """As it was before, given the former stderr."""
    global _joined
    tell(ended=True)
    _joined = False
    os.dup2(screen, 2)
    os.close(screen)


def tell(**facts: Any) -> None:
    """Facts for last words, by the names that `last_words` has for them; nothing, where there is one process."""
    if _joined:
        sys.stderr.flush()
        os.write(2, last_words.TOLD + json.dumps(facts).encode() + b"\n")


def _host_names() -> list[str]:
    name = socket.gethostname().encode()[:HOST_BYTES].ljust(HOST_BYTES, b" ")
    told = multihost_utils.process_allgather(np.frombuffer(name, np.uint8))
    return [bytes(np.asarray(row, np.uint8)).decode(errors="replace").strip() for row in np.atleast_2d(told)]


def is_loss(error: BaseException) -> bool:
    """Whether an error is that of a process that is gone. It is of the class of who first looks at a result."""
    return isinstance(error, jax.errors.JaxRuntimeError) or last_words.PEER.search(str(error)) is not None


def _leave(error: BaseException) -> None:
    """End at once: a usual end waits for all processes, and so for those that are gone."""
    status = 1
    if is_loss(error):
        print(str(error).partition("\n")[0], file=sys.stderr)  # of which last words tell who was lost
    elif isinstance(error, UserError):
        print(f"jaxenvs: error: {' '.join(str(error).split())}", file=sys.stderr)
        tell(ended=True)
        status = 2
    elif isinstance(error, KeyboardInterrupt):
        tell(ended=True)
        status = 130
    else:
        traceback.print_exception(error, file=sys.stderr)
        tell(ended=True)
    sys.stdout.flush()
    sys.stderr.flush()
    _exit(status)
