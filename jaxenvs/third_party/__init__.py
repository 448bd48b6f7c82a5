"""Environments of other JAX libraries as Environments of this one: `jaxenvs.make("brax/ant")`.

There is a file for each library, which is imported when one of its environments is created. Its functions are `make`
and `ids`, which `library.entry_points` creates, and `from_LIBRARY(env)` for an existing object.
"""

import importlib
from typing import TYPE_CHECKING, Any

from jaxenvs.arguments import one_of
from jaxenvs.registry import LIBRARIES
from jaxenvs.third_party.adapter import ThirdPartyEnvironment, ThirdPartyState

if TYPE_CHECKING:
    from jaxenvs.third_party.brax import from_brax
    from jaxenvs.third_party.craftax import from_craftax
    from jaxenvs.third_party.gymnax import from_gymnax
    from jaxenvs.third_party.jaxmarl import from_jaxmarl
    from jaxenvs.third_party.jumanji import from_jumanji
    from jaxenvs.third_party.navix import from_navix
    from jaxenvs.third_party.pgx import from_pgx
    from jaxenvs.third_party.playground import from_playground
    from jaxenvs.third_party.xminigrid import from_xminigrid

__all__ = [
    "ThirdPartyEnvironment",
    "ThirdPartyState",
    "from_brax",
    "from_craftax",
    "from_gymnax",
    "from_jaxmarl",
    "from_jumanji",
    "from_navix",
    "from_pgx",
    "from_playground",
    "from_xminigrid",
    "ids",
]


def ids(library: str) -> list[str]:
    """Return the ids of a library's environments, as `jaxenvs.make` takes them.

    Args:
      library: as "brax".

    Raises:
      ImportError: the library is not installed; the message says how to install it.
    """
    adapters = importlib.import_module(f"jaxenvs.third_party.{one_of('library', library, tuple(LIBRARIES))}")
    return [f"{library}/{name}" for name in adapters.ids()]


def __getattr__(name: str) -> Any:
    """Import a function `from_LIBRARY` from its file at its first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{name.removeprefix('from_')}"), name)


def __dir__() -> list[str]:
    return __all__
