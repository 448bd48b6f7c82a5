"""Subclasses as users write them: methods of their own that call what they override and do something beside it."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from tests.differential.operations import writing
from tests.stock import STOCK

# Of those that call the overridden method and count; what else they do is `doing`'s.
METHODS = (
    "train",
    "_on_step",
    "collect_rollouts",
    "_store_transition",
    "_sample_action",
    "_update_learning_rate",
    "_update_info_buffer",
    "_setup_learn",
    "predict",
    "dump_logs",
)


def count(model: Any, name: str) -> None:
    model.calls[name] = model.calls.get(name, 0) + 1


def counting(name: str, doing: tuple[Any, ...]) -> Any:
    """A method that calls the overridden one, counts, and then writes.

    Args:
      doing: () or of an operation that writes.
    """

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        count(self, name)
        result = getattr(super(self.overriding, self), name)(*args, **kwargs)
        if doing:
            writing.write(self, *doing)
        return result

    return method


def predict_none(self: Any, observation: Any, *args: Any, **kwargs: Any) -> Any:
    """Exploration of one's own: the same action whatever is seen."""
    count(self, "predict")
    num_envs = len(next(iter(observation.values())) if isinstance(observation, dict) else observation)
    if hasattr(self.action_space, "n"):
        return np.ones(num_envs, np.int64), None
    return np.full((num_envs, *self.action_space.shape), 0.5, np.float32), None


def collect_as_sb3(self: Any, *args: Any, **kwargs: Any) -> Any:
    """A copy of Stable-Baselines3's loop."""
    count(self, "collect_rollouts")
    theirs = getattr(STOCK, self.overriding.__mro__[1].__name__)
    return theirs.collect_rollouts(self, *args, **kwargs)


def rates_apart(self: Any, optimizers: Any) -> None:
    """A learning rate of its own for each optimiser."""
    count(self, "_update_learning_rate")
    rate = 0.0 if self.lr_schedule(1.0) == 0 else 0.01
    for i, optimizer in enumerate(optimizers if isinstance(optimizers, list) else [optimizers]):
        for group in optimizer.param_groups:
            group["lr"] = rate * (i + 1)


def more_reward(self: Any, replay_buffer: Any, action: Any, new_obs: Any, reward: Any, dones: Any, infos: Any) -> None:
    """Intrinsic rewards."""
    count(self, "_store_transition")
    super(self.overriding, self)._store_transition(replay_buffer, action, new_obs, reward + 1, dones, infos)


SPECIAL = {
    "predict none": ("predict", predict_none),
    "collect as sb3": ("collect_rollouts", collect_as_sb3),
    "rates apart": ("_update_learning_rate", rates_apart),
    "more reward": ("_store_transition", more_reward),
}


def subclass(base: type, overrides: tuple[tuple[Any, ...], ...]) -> type:
    """A class with methods of its own, which stands in this module, where pickles find it.

    Args:
      overrides: of each, its name: of METHODS, with what it writes; or of SPECIAL.
    """
    if not overrides:
        return base
    name = f"{base.__module__}_{base.__name__}_{overrides}".replace(".", "_")  # as pickles look behind each dot
    found = vars(sys.modules[__name__]).get(name)
    if found is None:
        methods: dict[str, Any] = {"__module__": __name__, "__qualname__": name}
        for override, *doing in overrides:
            method, function = SPECIAL.get(override, (override, None))
            methods[method] = function or counting(override, tuple(doing))
        found = type(name, (base,), methods)
        found.overriding = found
        setattr(sys.modules[__name__], name, found)
    return found
