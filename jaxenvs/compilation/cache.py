"""Compiled functions on disk, in JAX's persistent cache, so that the next process need not compile them."""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import shutil
from pathlib import Path

import platformdirs
from jax.experimental.compilation_cache import compilation_cache
from jaxlib import version as jaxlib_version

from jaxenvs.arguments import instance
from jaxenvs.jax_names import config, setting

# Off with "0"; or the folder.
CACHE_VARIABLE = "JAXENVS_CACHE"
# Larger caches lose their oldest functions; one of PPO's takes 0.1 to 1 MB. JAX's own limit, which is
# jax_compilation_cache_max_size, reads the ages of all files whenever it writes one, and there may be 70,000.
MOST_BYTES = 2**30
# A disk that is as full as this gets no more functions: JAX would leave parts of them.
FREE_BYTES = 2**28

log = logging.getLogger("jaxenvs")

_ours: str | None = None  # the folder that `configure` gave to JAX
_is_configured = False


def configure(*, cache: bool | str | os.PathLike[str] = True) -> Path | None:
    """Keep compiled functions on disk, in JAX's persistent cache, so that the next process need not compile them.

    Models, JaxVecEnv and `jaxenvs.learn` call this by themselves: call it for another folder, or for none.

    The default folder is `jaxenvs` in the user's cache folder: $XDG_CACHE_HOME or ~/.cache on Linux, ~/Library/Caches
    on macOS, %LOCALAPPDATA% on Windows. The environment variable JAXENVS_CACHE names another folder; JAXENVS_CACHE=0
    turns the cache off. In the folder, each version of jaxlib and each kind of CPU has a separate folder: code for
    one may crash another. A folder that cannot be written, or whose disk is full, is not used, nor is a default folder
    of another user or into which everyone can write: they could run code in this process. Where JAX has a cache
    already, by JAX_COMPILATION_CACHE_DIR or its configuration, JAX keeps it.

    Args:
      cache: True for the default folder, a path for another, False for none.

    Returns:
      The folder that JAX uses from now on, or None.

    Raises:
      TypeError: cache is none of these.
    """
    global _ours, _is_configured
    instance("cache", cache, (bool, str, os.PathLike), "True, False or a path")
    _is_configured = True
    present = setting("jax_compilation_cache_dir")
    if present is not None and present != _ours:
        return Path(present)
    folder = _folder(cache)
    if folder is not None and not _can_be_used(folder):
        log.info("Compiled functions are not cached on disk, because %s cannot be used or its disk is full.", folder)
        folder = None
    if folder is not None:
        _trim(folder)
        _set_unless_in_environment("jax_persistent_cache_min_compile_time_secs", 0.0)
        _set_unless_in_environment("jax_persistent_cache_min_entry_size_bytes", -1)
    _ours = None if folder is None else str(folder)
    if present != _ours:
        config.update("jax_compilation_cache_dir", _ours)
        compilation_cache.reset_cache()  # it looks at the folder once, when it first compiles
    return folder


def configure_by_default() -> None:
    """Do what `configure()` does, unless it was called before: the default of scripts that train.

    What trains calls this when it is made, not when it is imported: a process that only imports jaxenvs, or steps
    environments in its own `jax.jit`, has the cache that JAX gives it.
    """
    if not _is_configured:
        configure()


def _folder(cache: bool | str | os.PathLike[str]) -> Path | None:
    wanted = os.environ.get(CACHE_VARIABLE, "")
    if cache is False or wanted == "0":
        return None
    if cache is not True:
        root = Path(cache)
    elif wanted not in ("", "1"):
        root = Path(wanted)
    else:
        root = platformdirs.user_cache_path("jaxenvs", appauthor=False)
        # A user may have no home, and a folder that others write into may have code of theirs.
        if not root.is_absolute() or not _is_private(root):
            return None
    root = root.expanduser().absolute()
    cpu = hashlib.sha256(_cpu().encode()).hexdigest()[:12]
    return root / f"jaxlib-{jaxlib_version.__version__}-{platform.machine()}-{cpu}"


def _cpu() -> str:
    """The model of the CPU and what it can do. Compiled code uses all of it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    # The first of the cores; "Features" and "CPU part" exist on ARM.
    names = ("vendor_id", "model name", "flags", "Features", "CPU implementer", "CPU part")
    found = {name: line for line in reversed(lines) for name in names if line.startswith(name)}
    return "\n".join(found[name] for name in names if name in found)


def _can_be_used(folder: Path) -> bool:
    probe = folder / f".probe-{os.getpid()}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        probe.write_bytes(b"?")  # asks more than os.access does: of network disks, quotas and containers
        probe.unlink(missing_ok=True)  # another process may have trimmed it
        return shutil.disk_usage(folder).free >= FREE_BYTES
    except OSError:
        return False


def _is_private(folder: Path) -> bool:
    """Return whether a folder is the user's and only a group, often a private one, can write too; or does not exist."""
    if not hasattr(os, "getuid") or not folder.exists():
        return True
    stat = folder.stat()
    return stat.st_uid == os.getuid() and not stat.st_mode & 0o002


def _trim(folder: Path) -> None:
    """Remove what a killed process left empty and, of a folder that has grown too large, the older half."""
    entries = []
    try:
        with os.scandir(folder) as found:
            for entry in found:
                stat = entry.stat()
                entries.append((stat.st_mtime, stat.st_size, entry.path))
    except OSError:  # another process trims it
        return
    total, too_large = sum(size for _, size, _ in entries), False
    for _, size, path in sorted(entries):
        too_large = total > (MOST_BYTES // 2 if too_large else MOST_BYTES)
        if too_large or size == 0:
            total -= size
            try:
                os.unlink(path)
            except OSError:
                continue


def _set_unless_in_environment(name: str, value: float) -> None:
    if name.upper() not in os.environ:
        config.update(name, value)
