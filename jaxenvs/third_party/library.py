"""Functions that the adapters of all libraries share: find, check and create the environments of a library."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Collection, Iterable
from typing import Any, ParamSpec, TypeVar

from jaxenvs.arguments import did_you_mean, type_name
from jaxenvs.jax_names import config
from jaxenvs.registry import UnknownEnvironment
from jaxenvs.third_party.adapter import ThirdPartyEnvironment

Adapter = TypeVar("Adapter", bound=ThirdPartyEnvironment)
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def shared(build: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Cache what a function returns for the same arguments, where they are hashable.

    A `Source` is equal only to itself, so two environments of one id would otherwise be compiled separately.
    """
    cached: Callable[..., Result] = functools.lru_cache(maxsize=64, typed=True)(
        lambda x64, *args, **kwargs: build(*args, **kwargs)
    )

    @functools.wraps(build)
    def build_or_find(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        try:
            hash((args, tuple(kwargs.values())))
        except TypeError:
            return build(*args, **kwargs)
        return cached(config.jax_enable_x64, *args, **kwargs)

    return build_or_find


def require_library(library: str, extra: str | None = None) -> Any:
    """Import the module of a library, and return it.

    Args:
      extra: the extra of jaxenvs that installs it, if it has another name.
    """
    try:
        return importlib.import_module(library)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{library}.".startswith(f"{error.name}."):
            raise  # the library is installed, but not something that it needs
        name = library.partition(".")[0]
        raise ImportError(
            f"The environments of {extra or name} need {name}, which is not installed: "
            f'pip install "jaxenvs[{extra or library}]".'
        ) from None


def refuse_wrappers(env: Any, library: str, followed: Collection[str] = (), mark: str = "reset") -> None:
    """Raise an error if `env` contains another environment, unless it is a wrapper that the adapter follows.

    Any other wrapper may reset its environment or batch it, or the functions that the adapter calls may bypass it.

    Args:
      followed: the wrappers that the adapter follows, as "module.Class".
      mark: the attribute by which, together with a method `step`, an object is known to be an environment.
    """
    while inside := [
        part
        for part in getattr(env, "__dict__", {}).values()
        if callable(getattr(part, "step", None)) and hasattr(part, mark)
    ]:
        if f"{type(env).__module__}.{type(env).__qualname__}" not in followed:
            names = [name.rpartition(".")[2] for name in followed]
            raise ValueError(
                f"env must be an environment of {library} without wrappers{' other than ' if names else ''}"
                f"{', '.join(names)}, got {type_name(env)} around {type_name(inside[0])}. Adapt the environment inside "
                "it instead, and put wrappers of jaxenvs.wrappers around the result."
            )
        env = inside[0]


def entry_points(
    library: str, names: Callable[[], Iterable[str]], build: Callable[..., Adapter]
) -> tuple[Callable[..., Adapter], Callable[[], list[str]]]:
    """Return the functions `make` and `ids` of a library, which `jaxenvs.make` and `jaxenvs.third_party.ids` call.

    `make(name, **arguments)` raises UnknownEnvironment for a name that the library does not have, and ImportError where
    the library is not installed; so does `ids()`.

    Args:
      names: the names of the library's environments.
      build: creates an adapter from a name and the further arguments of `jaxenvs.make`.
    """

    def ids() -> list[str]:
        return sorted(names())

    @functools.wraps(build)
    def make(name: str, **arguments: object) -> Adapter:
        if name not in (known := ids()):
            hint = did_you_mean(name, known, show=lambda near: f"{library}/{near}")
            hint = hint or f"`jaxenvs list {library}` lists its environments."
            raise UnknownEnvironment(f"{library} has no environment {name!r}. {hint}")
        return build(name, **arguments)

    return make, ids
