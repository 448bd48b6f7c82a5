"""Snapshots of modules, by which one knows cheaply whether what tracing made constant is still so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as torch_module

from bridge.translate.modules import BACKWARD_HOOKS, FORWARD_HOOKS
from bridge.translate.namespaces import CONTAINERS, Namespaces


class Snapshot:
    """How a module is: submodules, attributes, hooks, and which parameters it has; not their values, nor the mode.

    SB3 sets the mode before every rollout and every update, and a program has that of the rollout.
    Of attributes that are lists, sets or dicts a snapshot has what is in them; of other objects, which they are. What
    the code of a user's own modules can read through its attributes, its classes and its globals is part of it, as far
    as `Namespaces` finds it.

    Attributes:
      parameters: in the order of `named_parameters()`, and at hand: to find them takes longer than all this.
    """

    def __init__(self, module: nn.Module, parts: Sequence[nn.Module] | None = None) -> None:
        """Take the snapshot of now.

        Args:
          module: what will be watched.
          parts: those of its parts that matter, and all within them; if not given, all.
        """
        parts = [module] if parts is None else parts
        watched = dict.fromkeys([module, *(each for part in parts for each in part.modules())])
        attributes = [vars(each) for each in watched]
        inside = [value for each in attributes for value in each.values() if isinstance(value, CONTAINERS)]
        hooks = [getattr(torch_module, f"_global{hooks}") for hooks in (*FORWARD_HOOKS, *BACKWARD_HOOKS)]
        beyond = Namespaces(watched)
        containers = [*inside, *hooks, *beyond.live]
        # Most are empty, as those of hooks, and to ask whether one no longer is takes less than to compare it.
        self._empty = [each for each in containers if not each]
        self._now: list[Any] = [*attributes, *(each for each in containers if each)]
        self._then = [_copy(each) for each in self._now]
        self._modes = list(zip(attributes, self._then))
        self._readers = beyond.readers
        self._read = [read() for read in self._readers]
        self.parameters = [parameter for part in parts for parameter in part.parameters()]
        self._settings = self._read_settings()

    def is_current(self, learns: bool = True) -> bool:
        """Whether the module is still so.

        Args:
          learns: False, if what concerns gradients alone does not matter; then it takes half of that.
        """
        for now, then in self._modes:
            then["training"] = now["training"]
        try:
            # One comparison in C, which looks into an object only where it is another than before.
            is_same = not any(self._empty) and self._now == self._then
            if is_same and self._readers:
                is_same = [read() for read in self._readers] == self._read
            return is_same and (not learns or self._read_settings() == self._settings)
        except Exception:  # of arrays that are other objects than before, or of users' own `__eq__`
            return False

    def _read_settings(self) -> list[tuple[bool, torch.dtype, bool, bool]]:
        return [
            (each.requires_grad, each.dtype, bool(each._backward_hooks), bool(each._post_accumulate_grad_hooks))
            for each in self.parameters
        ]


def _copy(container: Any) -> Any:
    """What is in a container now, in one that is equal to it; of the view of a class, a dict."""
    for kind in CONTAINERS[1:]:
        if isinstance(container, kind):
            return kind(container)
    return dict(container)
