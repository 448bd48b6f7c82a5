"""Snapshots of modules, a cheap way to check whether what tracing made constant has changed.

The code of modules may read numbers that are no parameters: attributes of objects, containers, globals.
"""

from __future__ import annotations

import collections
import operator
from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.nn.modules import module as torch_module

from bridge.errors import NotCompilable
from bridge.originals import known_bases
from bridge.translate.pytorch.modules import BACKWARD_HOOKS, FORWARD_HOOKS
from bridge.translate.user_modules.purity import Purity
from bridge.translate.user_modules.reads import NUMBERS

# How objects whose class has no `__eq__` are compared.
_IDENTITY: object = object.__eq__
CONTAINERS = (dict, list, set, collections.deque)


class Snapshot:
    """Record of a module: submodules, attributes, hooks, and which parameters it has; not their values, nor the mode.

    SB3 sets the mode before every rollout and every update, and a compiled function has the mode of the rollout. For
    attributes that are lists, sets or dicts, a snapshot has their contents; for other objects, their identity. It
    includes what the code of a user's own modules reads elsewhere.

    Attributes:
      parameters: in the order of `named_parameters()`. They are stored, because finding them takes longer than
        everything else here.
    """

    def __init__(self, module: nn.Module, parts: Sequence[nn.Module] | None = None) -> None:
        """Take a snapshot of the present state.

        Args:
          module: will be compared.
          parts: the parts of it that matter, with everything inside them; if not given, all.
        """
        parts = [module] if parts is None else parts
        watched = dict.fromkeys([module, *(each for part in parts for each in part.modules())])
        self._purity = Purity(modules=watched)
        attributes = [vars(each) for each in watched]
        self._types = [(each, type(each), names) for each, names in zip(watched, attributes)]
        # `==` knows nothing of order, and may be users' or true for equal arrays.
        self._orders = [(each._modules, [*each._modules]) for each in watched if len(each._modules) > 1]
        inside_too = (names[part] for names in attributes for part in ("_parameters", "_buffers"))
        self._objects = [
            (names, name, value)
            for names in (*attributes, *inside_too)
            for name, value in names.items()
            if not (type(value).__eq__ is _IDENTITY or type(value) in NUMBERS or isinstance(value, CONTAINERS))
        ]
        distributions = [names["action_dist"] for names in attributes if "action_dist" in names]
        self._distributions = [(each, _numbers_of(each)) for each in distributions]
        inside = [value for each in attributes for value in each.values() if isinstance(value, CONTAINERS)]
        hooks = [getattr(torch_module, f"_global{hooks}") for hooks in (*FORWARD_HOOKS, *BACKWARD_HOOKS)]
        containers = [*inside, *hooks]
        # Most are empty, such as dicts of hooks. Checking whether one is still empty takes less time than comparing it.
        self._empty = [each for each in containers if not each]
        classes = {type(value) for each in watched for value in (each, vars(each).get("action_dist"))}
        views = [vars(cls) for cls in known_bases(classes)]
        self._now: list[object] = [*attributes, *views, *(each for each in containers if each)]
        self._then = [_copy(each) for each in self._now]
        self._modes = list(zip(attributes, self._then))
        self.parameters = [parameter for part in parts for parameter in part.parameters()]
        self._settings = [_without_empty(each) for each in map(_settings_of, self.parameters)]

    def is_current(self, learns: bool = True) -> bool:
        """Return whether the module has not changed.

        Args:
          learns: False to ignore what only concerns gradients, which takes half of the time.
        """
        try:
            # One comparison in C, which looks into an object only if its identity has changed. Leaving out modes first
            # would take as long as the comparison, so that is done only if there is a difference.
            is_same = not any(self._empty) and (self._now == self._then or self._is_same_in_another_mode())
            is_same = is_same and self._has_same_objects() and self._purity.reads.is_current()
            return is_same and (not learns or self._has_same_settings())
        except Exception:  # raised for arrays that were replaced, or by users' `__eq__`
            return False

    def require_pure(self) -> None:
        """Refuse modules whose code is not known to be pure."""
        if self._purity.reason is not None:
            raise NotCompilable(self._purity.reason)

    def _is_same_in_another_mode(self) -> bool:
        for now, then in self._modes:
            then["training"] = now["training"]
        return self._now == self._then

    def _has_same_objects(self) -> bool:
        return (
            all(type(each) is cls and each.__dict__ is names for each, cls, names in self._types)
            and all([*names] == then for names, then in self._orders)
            and all(names[name] is value for names, name, value in self._objects)
            and all(_numbers_of(each) == then for each, then in self._distributions)
        )

    def _has_same_settings(self) -> bool:
        # Hooks that were removed leave an empty dict where there was None.
        settings = list(map(_settings_of, self.parameters))
        return settings == self._settings or [_without_empty(each) for each in settings] == self._settings


def _numbers_of(distribution: object) -> dict[str, object]:
    """Return what a distribution of actions has besides the tensors of its last batch: numbers, and methods."""
    kept = vars(distribution).items()
    # A None is to become a tensor.
    return {name: each for name, each in kept if callable(each) or (type(each) in NUMBERS and each is not None)}


# The attributes of a parameter that concern its gradient.
_settings_of = operator.attrgetter("requires_grad", "dtype", "_backward_hooks", "_post_accumulate_grad_hooks")


def _without_empty(settings: tuple[object, ...]) -> tuple[object, ...]:
    is_trained, dtype, *hooks = settings
    return is_trained, dtype, *(each or None for each in hooks)


def _copy(container: object) -> Any:
    """Return an equal copy of a container; of the view of a class, a dict."""
    kind: Any = next((kind for kind in CONTAINERS if isinstance(container, kind)), dict)
    return kind(container)
