"""Former name of `jaxenvs.third_party`. It works until 0.4.0, with a DeprecationWarning wherever a name is used."""

from typing import Any

from jaxenvs import third_party
from jaxenvs.deprecated import warn_renamed

# Names that changed too.
CURRENT = {"ForeignEnvironment": "ThirdPartyEnvironment", "ForeignState": "ThirdPartyState"}

__all__ = [
    *CURRENT,
    *(name for name in third_party.__all__ if name not in CURRENT.values()),
]

__path__ = third_party.__path__  # for `import jaxenvs.foreign.brax`


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    current = CURRENT.get(name, name)
    value = getattr(third_party, current)
    warn_renamed(f"{__name__}.{name}", f"{third_party.__name__}.{current}")
    return value


def __dir__() -> list[str]:
    return __all__
