"""Process-wide settings that `import bridge` changes, and how to keep your own.

`import bridge` sets two options, unless the variable named here is set in the environment:

* JAX_CPU_ENABLE_ASYNC_DISPATCH, to false. On a CPU, JAX hands every compiled function to another thread, which costs
  more than a step of a small VecEnv takes. The VecEnv waits for each of its steps anyway, so they run in the calling
  thread. JAX reads this once, when it first runs something.
* XLA_PYTHON_CLIENT_PREALLOCATE, to false. PyTorch and JAX share a GPU: JAX takes memory as it needs it, not three
  quarters of it at the start.

`configure` keeps compiled functions on disk. Call it to use this, as the `jaxenvs` command does.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import platform
import shutil
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache
from jaxlib import version as jaxlib_version

from jaxenvs.arguments import instance
from jaxenvs.jax_names import has_run, setting

# "0" turns the cache off; anything else is the folder.
CACHE_VARIABLE = "JAXENVS_CACHE"
# Larger caches lose their oldest functions; one of PPO's takes 0.1 to 1 MB.
MOST_BYTES = 2**30
# No functions are added to a disk with less free space, because JAX would leave incomplete files.
FREE_BYTES = 2**28

log = logging.getLogger("bridge")

_ours: str | None = None  # the folder that `configure` gave to JAX


def set_up_process() -> None:
    """Set the options that the module's docstring describes."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    if "JAX_CPU_ENABLE_ASYNC_DISPATCH" in os.environ or not setting("jax_cpu_enable_async_dispatch"):
        return
    if has_run() and jax.default_backend() == "cpu":
        warnings.warn(
            "JAX ran before `import bridge`, so each step of a small VecEnv takes about 25 µs longer. Import bridge "
            "first, or set the environment variable JAX_CPU_ENABLE_ASYNC_DISPATCH=0.",
            stacklevel=3,
        )
        return
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # type: ignore[no-untyped-call]


def configure(*, cache: bool | str | os.PathLike[str] = True) -> Path | None:
    """Keep compiled functions on disk, in JAX's persistent cache, so that later processes need not compile them.

    The default folder is `jaxenvs` in the user's cache folder ($XDG_CACHE_HOME, or ~/.cache). The environment variable
    JAXENVS_CACHE names another folder, or, if it is 0, turns the cache off everywhere. Each version of jaxlib and each
    kind of CPU has a separate folder in it, because code for one may crash another. A folder that cannot be written, or
    whose disk is full, is not used. A cache that JAX already has, by JAX_COMPILATION_CACHE_DIR or its configuration, is
    kept.

    Anyone who can write into the folder can run code in this process: keep write access to yourself.

    Args:
      cache: True for the default folder, a path for another, False for none.

    Returns:
      The folder that JAX uses from now on, or None.

    Raises:
      TypeError: `cache` is none of these.
    """
    global _ours
    instance("cache", cache, (bool, str, os.PathLike), "True, False or a path")
    present = setting("jax_compilation_cache_dir")
    if present is not None and present != _ours:
        return Path(present)
    folder = _folder(cache)
    if folder is not None and not _can_be_used(folder):
        log.info("Compiled functions are not cached on disk, because %s is not writable or its disk is full.", folder)
        folder = None
    if folder is not None:
        _trim(folder)
        _set_unless_in_environment("jax_persistent_cache_min_compile_time_secs", 0.0)
        _set_unless_in_environment("jax_persistent_cache_min_entry_size_bytes", -1)
    _ours = None if folder is None else str(folder)
    if present != _ours:
        jax.config.update("jax_compilation_cache_dir", _ours)  # type: ignore[no-untyped-call]
        compilation_cache.reset_cache()  # it looks at the folder once, when it first compiles
    return folder


@contextlib.contextmanager
def without_dynamo() -> Iterator[None]:
    """Keep PyTorch's optimizers from importing `torch._dynamo` in this context.

    That import takes longer than the import of PyTorch itself, and 80 MB. An optimizer does it to hide some of its
    methods from `torch.compile`. None of our own code compiles an optimizer, and after the context the methods are
    hidden as before. Where dynamo is imported already, nothing changes.
    """
    from torch.optim import Optimizer

    methods = [getattr(Optimizer, name) for name in ("add_param_group", "state_dict", "load_state_dict", "zero_grad")]
    # What the decorator of these methods looks for, and otherwise imports dynamo to make (torch/_compile.py).
    plain = [method.__wrapped__ for method in methods if hasattr(method, "__wrapped__")]
    ours = [] if "torch._dynamo" in sys.modules else [each for each in plain if not hasattr(each, "__dynamo_disable")]
    for each in ours:
        each.__dynamo_disable = each
    try:
        yield
    finally:
        for each in ours:
            vars(each).pop("__dynamo_disable", None)  # two threads may have set it, of which one is first here


def _folder(cache: bool | str | os.PathLike[str]) -> Path | None:
    wanted = os.environ.get(CACHE_VARIABLE, "")
    if cache is False or wanted == "0":
        return None
    if cache is not True:
        root = Path(cache)
    elif wanted not in ("", "1"):
        root = Path(wanted)
    else:
        try:
            root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jaxenvs"
        except RuntimeError:  # a user without a home
            return None
    root = root.expanduser().absolute()
    return root / f"jaxlib-{jaxlib_version.__version__}-{platform.machine()}-{_fingerprint(_cpu())}"


def _cpu() -> str:
    """Return the model of the CPU and its features, all of which compiled code may use."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    # The lines of the first core; "Features" and "CPU part" are ARM's.
    names = ("vendor_id", "model name", "flags", "Features", "CPU implementer", "CPU part")
    found = {name: line for line in reversed(lines) for name in names if line.startswith(name)}
    return "\n".join(found[name] for name in names if name in found)


def _fingerprint(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _can_be_used(folder: Path) -> bool:
    probe = folder / f".probe-{os.getpid()}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        probe.write_bytes(b"?")  # tests more than os.access does: network disks, quotas and containers
        probe.unlink()
        return shutil.disk_usage(folder).free >= FREE_BYTES
    except OSError:
        return False


def _trim(folder: Path) -> None:
    """Remove empty files of killed processes and, if the folder has grown too large, its older half."""
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
        jax.config.update(name, value)  # type: ignore[no-untyped-call]
