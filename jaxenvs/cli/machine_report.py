"""Report of this machine, in one screen, to paste into an issue: `jaxenvs doctor`."""

from __future__ import annotations

import getpass
import importlib
import importlib.util
import os
import platform
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import jax

import jaxenvs
from jaxenvs.compilation import compiler_options
from jaxenvs.compilation.cache import configure
from jaxenvs.compilation.faults import (
    copies_in_loops,
    count_wrong_rows,
    count_wrong_shifts,
    count_wrong_slices,
    count_wrong_sums,
    flags,
)
from jaxenvs.jax_names import CACHE_HIT_EVENT, setting
from jaxenvs.learn.sweep import num_cores
from jaxenvs.registry import LIBRARIES

WIDTH = 100
PACKAGES = ("jax", "jaxlib", "numpy", "gymnasium", "optax", "torch", "stable-baselines3", "sb3-contrib")
OPTIONAL = (*LIBRARIES, "envpool", "ray", "rl_zoo3", "moviepy")
# Environment variables that change how compiled functions run.
VARIABLES = re.compile("JAX|XLA|PJRT|CUDA|NCCL|OMP_|MKL_")


def report() -> str:
    """Return versions, devices, threads, settings, the compilation cache, extras, and what of SB3 is compiled here.

    At most 40 lines of 100 columns; names of users and of the machine are left out.
    """
    variables = {name: value for name, value in sorted(os.environ.items()) if VARIABLES.match(name)}
    why_no_bridge = _import_bridge()  # before JAX runs, because importing bridge changes JAX's settings
    has_bridge = why_no_bridge is None
    facts = {
        "jaxenvs": f"{jaxenvs.__version__}, Python {platform.python_version()}, {platform.platform()}",
        "packages": ", ".join(f"{name} {_version(name) or '(absent)'}" for name in PACKAGES),
        "devices": _devices(),
        "threads": f"{num_cores()} of {os.cpu_count()} cores" + (f", {_torch()}" if has_bridge else ""),
        "settings": " ".join(f"{name}={value}" for name, value in variables.items()) or "none in the environment",
        "results": _results(),
        "cache": _cache(),
        "optional": ", ".join(f"{name} {_version(name)}" for name in OPTIONAL if _version(name)) or "none",
        "compiled": why_no_bridge or 'parts of each algorithm, by environment ("all": training and environments)',
    }
    lines = []
    for name, text in facts.items():
        line = f"{name:<10}{_anonymous(text)}"
        lines += textwrap.wrap(line, WIDTH, subsequent_indent=" " * 10, break_on_hyphens=False)
    if has_bridge:
        from bridge.app.compiled import compiled_parts  # needs PyTorch and Stable-Baselines3

        rows = compiled_parts()
        lines += ["  ".join(cell.ljust(20) for cell in row).rstrip() for row in rows]
    return "\n".join(lines)


def _import_bridge() -> str | None:
    """Import bridge; return why that fails, or None."""
    if not all(map(importlib.util.find_spec, ("torch", "stable_baselines3"))):
        return "not available: jaxenvs.sb3 needs PyTorch and Stable-Baselines3"
    try:
        importlib.import_module("bridge")
    except Exception as error:  # any of them may be broken in any way
        return f"not available: jaxenvs.sb3 cannot be imported, {type(error).__name__}: {error}"
    return None


def _anonymous(text: str) -> str:
    """Remove the names of users."""
    try:
        home, user = str(Path.home()), getpass.getuser()
    except (RuntimeError, OSError, KeyError):  # a user without a home, or without a name
        return text
    text = text.replace(home, "~") if len(home) > 1 else text
    return re.sub(rf"(?<![\w-]){re.escape(user)}(?![\w-])", "USER", text)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _devices() -> str:
    try:
        kinds = Counter((device.platform, device.device_kind) for device in jax.devices())
    except RuntimeError as error:
        return f"JAX: none: {error}"
    return "JAX: " + ", ".join(f"{number} x {kind} ({on})" for (on, kind), number in kinds.items())


def _torch() -> str:
    torch = importlib.import_module("torch")
    return f"PyTorch with {torch.get_num_threads()} threads and {'CUDA' if torch.cuda.is_available() else 'no GPU'}"


def _results() -> str:
    """Say which faults of XLA this jaxlib has, and where they are avoided."""
    ours, said = compiler_options(), []
    faults: list[tuple[str, Callable[..., int]]] = [
        ("some rows of matrix products wrong (jax-ml/jax#39103)", count_wrong_rows),
        ("sums over broadcast arrays wrong (tensorflow/tensorflow#126812)", count_wrong_sums),
        ("small updates in loops as copies of the whole array (jax-ml/jax#40101)", copies_in_loops),
    ]
    for fault, has_fault in faults:
        if not has_fault():
            continue
        if has_fault(ours):
            said.append(f"jaxenvs's own functions compute {fault}: install another version of jaxlib")
        else:
            remedy = f"import jaxenvs before JAX runs, or set XLA_FLAGS={flags()}"
            said.append(f"jaxenvs's own functions compute correctly; your own jax.jit computes {fault}: {remedy}")
    if count_wrong_shifts():
        said.append(
            "your own jax.jit computes x.at[1:].set(x[:-1]).reshape(...) wrong (openxla/xla#49176): use jnp.concatenate"
        )
    if count_wrong_slices():
        said.append(
            "your own jax.jit computes dynamic slices of dynamic slices wrong where they begin outside of the array "
            "(openxla/xla#49121): use JAX 0.12 or newer"
        )
    if said and sys.version_info < (3, 12):
        said.append("JAX 0.12 has only one of these faults and is faster: it needs Python 3.12 or newer")
    return "; ".join(said) or "jax.jit has none of the known faults"


def _cache() -> str:
    """Return where compiled functions are cached, the size of the cache, and whether JAX reads from it."""
    if (folder := configure()) is None:
        return "no cache on disk"
    files = [entry.stat().st_size for entry in os.scandir(folder) if entry.is_file()] if Path(folder).is_dir() else []
    return f"{folder}: {sum(files) / 1e6:.1f} MB in {len(files)} files, {_hits()}"


def _hits() -> str:
    """Say whether JAX reads a function that it has just compiled from its cache, which it does not on some CPUs."""
    if (least := setting("jax_persistent_cache_min_compile_time_secs")) > 0:
        return f"without functions that compile in less than {least:g} s"
    events: list[str] = []
    jax.monitoring.register_event_listener(lambda event, **_: events.append(event))
    for _ in range(2):  # two functions that are compiled to the same
        jax.jit(lambda x: 3 * x + 1)(jax.numpy.arange(7.0))
    return "JAX reads it" if CACHE_HIT_EVENT in events else "JAX does not read it: see jax-ml/jax#38445"
