"""Pickle networks whose activation is a compiled function of JAX, which pickle cannot find by itself."""

from __future__ import annotations

import importlib


class PicklableActivation:
    """Dataclass with an `activation`, which is pickled by its name if it is a function of a module."""

    def __getstate__(self) -> dict[str, object]:
        activation = self.__dict__["activation"]
        name = (getattr(activation, "__module__", ""), getattr(activation, "__name__", ""))
        return self.__dict__ | {"activation": name if _find(*name) is activation else activation}

    def __setstate__(self, state: dict[str, object]) -> None:
        activation = state["activation"]
        if isinstance(activation, tuple):
            module, name = activation
            activation = getattr(importlib.import_module(module), name)  # raises where there is no such function
        self.__dict__.update(state | {"activation": activation})


def _find(module: str, name: str) -> object:
    try:
        return getattr(importlib.import_module(module), name, None)
    except (ImportError, ValueError):
        return None
