"""Former public names, which keep working for one release with a DeprecationWarning, and former names in saved states.

To rename an attribute `old` of a class: give the class `old = FormerName("new")`. For a field of a dataclass, also
decorate the class with `accept_former_names`, and add the field to `FORMER_PATHS` if it is part of saved states.
"""

from __future__ import annotations

import functools
import inspect
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")

REMOVED_IN = "0.4.0"

# Fields whose former names are in states that 0.2.0 saved.
FORMER_PATHS = {"env_states": "lanes", "env_keys": "lane_key"}
# Names in the descriptions of environments that `JaxVecEnv.get_state` returns.
FORMER_DESCRIPTIONS = {"foreign=Foreign(": "source=Source("}


def warn_renamed(former: str, current: str, stacklevel: int = 2) -> None:
    """Emit the DeprecationWarning for a former name.

    Args:
      stacklevel: 1 to name the caller's line, 2 to name the line of the caller's caller, and so on.
    """
    warnings.warn(
        f"{former} is deprecated and will be removed in jaxenvs {REMOVED_IN}: use {current}.",
        DeprecationWarning,
        stacklevel=stacklevel + 1,
    )


class FormerName:
    """Descriptor for the former name of an attribute or a method, which returns the attribute and warns.

    Args:
      current: the attribute's name.
    """

    def __init__(self, current: str) -> None:
        self.current = current

    def __set_name__(self, owner: type, name: str) -> None:
        self.owner, self.name = owner.__name__, name

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self
        self.warn(stacklevel=2)
        return getattr(instance, self.current)

    def warn(self, stacklevel: int) -> None:
        """Emit the warning for this name."""
        warn_renamed(f"{self.owner}.{self.name}", f"{self.owner}.{self.current}", stacklevel + 1)


def accept_former_names(cls: type[T]) -> type[T]:
    """Let the constructor of a dataclass, `replace` and unpickling accept the former names of its fields.

    Args:
      cls: a dataclass with a `FormerName` for each renamed field. It is changed in place.
    """
    former = {name: each for name, each in vars(cls).items() if isinstance(each, FormerName)}

    def accepting(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(self: Any, *args: Any, **changes: Any) -> Any:
            for name in former.keys() & changes.keys():
                former[name].warn(stacklevel=2)
                # Replace what `dataclasses.replace` adds under the current name.
                changes[former[name].current] = changes.pop(name)
            return method(self, *args, **changes)

        return call

    def set_state(self: Any, state: dict[str, Any]) -> None:
        self.__dict__.update({former[name].current if name in former else name: state[name] for name in state})

    for name, method in (("__init__", inspect.getattr_static(cls, "__init__")), ("replace", vars(cls)["replace"])):
        setattr(cls, name, accepting(method))
    cls.__setstate__ = set_state  # type: ignore[attr-defined]
    return cls


def with_current_paths(expected: Iterable[str], arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Return saved arrays with the current paths of fields, where they were saved under former paths.

    Args:
      expected: the paths of the leaves that a state has, as `jax.tree_util.keystr` returns them, with any prefix.
      arrays: the saved arrays by their paths.
    """
    current = dict(arrays)
    for path in expected:
        # Only the first: the path below it belongs to a user's environment.
        former = re.sub(rf"\.({'|'.join(FORMER_PATHS)})\b", lambda found: f".{FORMER_PATHS[found[1]]}", path, count=1)
        if path not in current and former in current:
            current[path] = current.pop(former)
    return current


def with_current_description(description: str) -> str:
    """Return a saved description of an environment with the current names."""
    for former, current in FORMER_DESCRIPTIONS.items():
        description = description.replace(former, current)
    return description
