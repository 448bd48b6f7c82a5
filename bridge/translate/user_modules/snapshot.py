"""Snapshots of modules, by which one knows cheaply whether what tracing made constant is still so.

The code of modules may read numbers that are no parameters: attributes of objects, containers, globals.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.nn.modules import module as torch_module

from bridge.errors import NotCompilable
from bridge.originals import known_bases
from bridge.translate.pytorch.modules import BACKWARD_HOOKS, FORWARD_HOOKS
from bridge.translate.user_modules.known_objects import CONTAINERS
from bridge.translate.user_modules.reach import Reach


class Snapshot:
    """How a module is: submodules, attributes, hooks, and which parameters it has; not their values, nor the mode.

    SB3 sets the mode before every rollout and every update, and a program has that of the rollout.
    Of attributes that are lists, sets or dicts a snapshot has what is in them; of other objects, which they are. What
    the code of a user's own modules can read through its attributes, its classes and its globals is part of it, as far
    as `Reach` finds it.

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
        beyond = Reach(watched)
        watched.update(dict.fromkeys(beyond.modules))
        attributes = [vars(each) for each in watched]
        inside = [value for each in attributes for value in each.values() if isinstance(value, CONTAINERS)]
        hooks = [getattr(torch_module, f"_global{hooks}") for hooks in (*FORWARD_HOOKS, *BACKWARD_HOOKS)]
        containers = [*inside, *hooks, *(each for _, each in beyond.live)]
        # Most are empty, as those of hooks, and to ask whether one no longer is takes less than to compare it.
        self._empty = [each for each in containers if not each]
        classes = {type(value) for each in watched for value in (each, vars(each).get("action_dist"))}
        views = [vars(cls) for cls in (*known_bases(classes), *beyond.classes)]
        self._now: list[Any] = [*attributes, *views, *(each for each in containers if each)]
        self._then = [_copy(each) for each in self._now]
        self._modes = list(zip(attributes, self._then))
        self._readers = [place.read for place in beyond.places]
        self._gap = beyond.gap
        self._read = [read() for read in self._readers]
        self.parameters = [parameter for part in parts for parameter in part.parameters()]
        self._settings = [_without_empty(each) for each in map(_settings_of, self.parameters)]

    def is_current(self, learns: bool = True) -> bool:
        """Whether the module is still so.

        Args:
          learns: False, if what concerns gradients alone does not matter; then it takes half of that.
        """
        try:
            # One comparison in C, which looks into an object only where it is another than before. To leave out modes
            # first takes as long as the comparison, so that is done where there is a difference.
            is_same = not any(self._empty) and (self._now == self._then or self._is_same_in_another_mode())
            if is_same and self._readers:
                is_same = [read() for read in self._readers] == self._read
            return is_same and (not learns or self._has_same_settings())
        except Exception:  # of arrays that are other objects than before, or of users' own `__eq__`
            return False

    def require_whole(self) -> None:
        """Refuse modules whose code can read what the snapshot does not have.

        Raises:
          NotCompilable: so it can.
        """
        if self._gap is not None:
            raise NotCompilable(self._gap)

    def _is_same_in_another_mode(self) -> bool:
        for now, then in self._modes:
            then["training"] = now["training"]
        return self._now == self._then

    def _has_same_settings(self) -> bool:
        # Hooks that were removed leave an empty dict where there was None.
        settings = list(map(_settings_of, self.parameters))
        return settings == self._settings or [_without_empty(each) for each in settings] == self._settings


# What a parameter has that concerns its gradient.
_settings_of = operator.attrgetter("requires_grad", "dtype", "_backward_hooks", "_post_accumulate_grad_hooks")


def _without_empty(settings: tuple[object, ...]) -> tuple[object, ...]:
    is_trained, dtype, *hooks = settings
    return is_trained, dtype, *(each or None for each in hooks)


def _copy(container: Any) -> Any:
    """What is in a container now, in one that is equal to it; of the view of a class, a dict."""
    for kind in CONTAINERS[1:]:
        if isinstance(container, kind):
            return kind(container)
    return dict(container)
