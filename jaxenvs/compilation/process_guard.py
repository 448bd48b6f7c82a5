"""The guard against faults of XLA for all that a process compiles: flags in XLA_FLAGS until XLA has read them.

    import jaxenvs     the flags are appended to XLA_FLAGS; what the user has set there stays
    JAX runs           XLA reads them
    first compilation  they are taken out again: a child process may have another jaxlib, which ends at a flag that it
                       does not know

They are missing if JAX ran before the import, or if user code has assigned XLA_FLAGS since. One line then says so.
"""

from __future__ import annotations

import importlib.util
import logging
import os

import jax
from jaxlib.version import __version__ as jaxlib_version

from jaxenvs.compilation.faults import flags, guard
from jaxenvs.jax_names import COMPILE_EVENTS, has_run, setting

VARIABLE, SWITCH = "XLA_FLAGS", "JAXENVS_GUARD"

log = logging.getLogger("jaxenvs")

# What was appended, until it is taken out again.
_appended: list[str] = []
_is_settled = True


def guard_process() -> None:
    """Append the flags that this jaxlib needs, unless JAX has run or the environment variable JAXENVS_GUARD is 0.

    Where a plugin for another device may be loaded, nothing is done: it reads XLA_FLAGS too, and may be of a version of
    XLA that ends the process.
    """
    global _is_settled
    if not guard() or os.environ.get(SWITCH) == "0" or _may_load_plugins():
        return
    _is_settled = False
    if has_run():
        _settle()
        return
    given = os.environ.get(VARIABLE, "")
    if not given or given.lstrip().startswith("-"):  # else it is the name of a file with flags
        _appended.extend(f"--{name}={value}" for name, value in guard().items() if not _is_set(name, given))
        os.environ[VARIABLE] = " ".join([*given.split(), *_appended])
    jax.monitoring.register_event_duration_secs_listener(_listen)


def _may_load_plugins() -> bool:
    if setting("jax_platforms") == "cpu":
        return False
    return any(importlib.util.find_spec(name) is not None for name in ("jax_plugins", "libtpu"))


def _listen(event: str, duration_secs: float, **_: str | int) -> None:
    if not _is_settled and event.startswith(COMPILE_EVENTS) and has_run():
        _settle()


def _settle() -> None:
    """Take the flags out again, now that XLA has read them, and say so if they were not there."""
    global _is_settled
    _is_settled = True
    given = os.environ.get(VARIABLE, "")
    is_guarded = all(_is_set(name, given) for name in guard())
    left = [each for each in given.split() if each not in _appended]
    _appended.clear()
    if left:
        os.environ[VARIABLE] = " ".join(left)
    else:
        os.environ.pop(VARIABLE, None)
    if not is_guarded and jax.default_backend() == "cpu":
        log.warning(
            "Your jaxlib (%s) can return wrong results in functions that you jit, as `jaxenvs doctor` "
            "shows. jaxenvs's own functions are safe. Import jaxenvs before JAX runs, set XLA_FLAGS=%s, or use "
            "another jaxlib. %s=0 hides this line.",
            jaxlib_version,
            flags(),
            SWITCH,
        )


def _is_set(name: str, given: str) -> bool:
    return any(each.partition("=")[0] == f"--{name}" for each in given.split())
