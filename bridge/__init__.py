"""PyTorch and Stable-Baselines3 on top of jaxenvs."""

import ast
import contextlib
import gc
import importlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Pause Python's garbage collector while modules are imported.

    It walks through all objects again and again, and finds next to none to free: that took 0.35 of 2.2 s.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


with _without_garbage_collection():
    try:
        import stable_baselines3  # noqa: F401
        import torch
    except ImportError as error:
        raise ImportError(
            f"jaxenvs.sb3 needs PyTorch and Stable-Baselines3, but {error.name} is not installed: pip install "
            '"jaxenvs[sb3]".'
        ) from error
    from bridge.configuration import set_up_process
    from bridge.originals import remember, remember_packages

# The module of each name in the stub, which is imported when the name is asked for: all of them take half a second.
_STUB = ast.parse(Path(__file__).with_name("__init__.pyi").read_text(encoding="utf-8"))
_MODULES = {
    alias.name: each.module
    for each in _STUB.body
    if isinstance(each, ast.ImportFrom) and each.module != "typing"
    for alias in each.names
}
__all__ = [*_MODULES]


def __getattr__(name: str) -> object:
    """Import what a name needs, now that it is asked for."""
    if name in _MODULES:
        with _without_garbage_collection():
            value = getattr(importlib.import_module(_MODULES[name]), name)
    elif name == "__version__":
        value = importlib.import_module("jaxenvs").__version__
    elif name.startswith("__"):  # Python and tools ask for these
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    elif name == "CONTRIB":
        value = _contrib()
    elif name in (contrib := _contrib()):
        value = contrib[name].cls
    elif importlib.util.find_spec(f"{__name__}.{name}") is not None:
        value = importlib.import_module(f"{__name__}.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    remember_packages("stable_baselines3", "bridge")  # before user code can replace their methods
    globals()[name] = value
    return value


def _contrib() -> dict[str, Any]:
    """Return the rows of sb3-contrib's algorithms, whose classes are imported at their first use."""
    specs = importlib.import_module("bridge.algorithms.specs")
    return {name: spec for name, spec in specs.SPECS.items() if spec.library == specs.CONTRIB}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_contrib(), "CONTRIB"})


set_up_process()
# The methods that classes have now are those in whose place compiled functions run.
remember_packages("stable_baselines3")
remember(*(each for each in vars(torch.nn).values() if isinstance(each, type)))
