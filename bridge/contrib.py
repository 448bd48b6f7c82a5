"""sb3-contrib, which need not be installed, and is imported by whoever asks for one of its algorithms alone."""

from __future__ import annotations

import sys
from typing import Any


class Absent:
    """Stands for a class that nobody has imported yet: nothing is an instance of it."""


def contrib_class(module: str, name: str) -> Any:
    """A class of sb3-contrib if its module has been imported, which has happened if there is an instance; else Absent.

    Args:
      module: within the package, as "common.maskable.policies".
    """
    return getattr(sys.modules.get(f"sb3_contrib.{module}"), name, Absent)


def is_maskable(policy: object) -> bool:
    """Whether a policy is one of MaskablePPO's."""
    return isinstance(policy, contrib_class("common.maskable.policies", "MaskableActorCriticPolicy"))


def is_recurrent(policy: object) -> bool:
    """Whether a policy is one of RecurrentPPO's."""
    return isinstance(policy, contrib_class("common.recurrent.policies", "RecurrentActorCriticPolicy"))
