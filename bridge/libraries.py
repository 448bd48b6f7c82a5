"""Distinguishes libraries from packages with user code."""

from __future__ import annotations

import sys
import sysconfig

# Packages besides the standard library whose objects and classes are not user code.
LIBRARIES = {"torch", "numpy", "jax", "jaxlib", "optax", "gymnasium", "stable_baselines3", "sb3_contrib"}
LIBRARIES |= {"bridge", "jaxenvs", "typing_extensions"}

_STANDARD = tuple({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")})


def is_library(package: str) -> bool:
    """Return whether a package is one of LIBRARIES or of the standard library."""
    if package not in sys.stdlib_module_names:
        return package in LIBRARIES
    file = getattr(sys.modules.get(package), "__file__", None)  # a user may have a package called `test` too
    return file is None or file.startswith(_STANDARD)


def root_of(value: object) -> str:
    """Return the package of a class or a function."""
    module = getattr(value, "__module__", None)
    return module.partition(".")[0] if isinstance(module, str) else ""
