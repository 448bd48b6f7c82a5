"""A training over the processes of several hosts: how one joins the others, and how it ends without them."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from os import _exit

import jax

from jaxenvs.cli.user_errors import UserError, report_end
from jaxenvs.learn.devices import is_first_process

# A process without a heartbeat for this time is lost, and JAX ends the others. JAX's default is 100 s.
HEARTBEAT_SECONDS = 10


@contextlib.contextmanager
def joined(coordinator: str | None, num_processes: int | None, process_id: int | None) -> Iterator[None]:
    """Return a context in which this process is one of the processes of a training.

    JAX must not have run yet. The first process prints; the others print only errors. If another process is lost, this
    one ends with JAX's error.

    Args:
      coordinator, num_processes, process_id: `host:port` of the first process, the number of processes, and the number
        of this one; None to let JAX find them in the environment.

    Raises:
      UserError: it cannot join.
    """
    try:
        jax.distributed.initialize(coordinator, num_processes, process_id, heartbeat_timeout_seconds=HEARTBEAT_SECONDS)
    except (ValueError, RuntimeError) as error:
        raise UserError(
            f"This process cannot join the others: {error} Under SLURM, Open MPI, Kubernetes or on TPUs, "
            "--distributed is enough. Elsewhere, also give --coordinator HOST:PORT, --num-processes and --process-id."
        ) from error
    # Set after JAX's own handler, which takes SIGTERM for a request to save later, and continues.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    with contextlib.ExitStack() as silence:
        if not is_first_process():
            nowhere = silence.enter_context(open(os.devnull, "w", encoding="utf-8"))
            silence.enter_context(contextlib.redirect_stdout(nowhere))
        try:
            yield
        except SystemExit:  # after Ctrl-C, which stops all processes
            raise
        except BaseException as error:
            _leave(error)


def _leave(error: BaseException) -> None:
    """End the process immediately: a normal exit waits for all processes, also for lost ones."""
    status = report_end(error)
    sys.stdout.flush()
    sys.stderr.flush()
    _exit(status)
