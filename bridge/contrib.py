"""Access to sb3-contrib, which is optional, and only imported when one of its algorithms is used."""

from __future__ import annotations

import sys
from typing import Any

# A module within the package, and the name of a class in it.
MASKABLE_POLICY = "common.maskable.policies", "MaskableActorCriticPolicy"
RECURRENT_POLICY = "common.recurrent.policies", "RecurrentActorCriticPolicy"


class Absent:
    """Stands for a class that was not imported: nothing is an instance of it."""


def contrib_class(module: str, name: str) -> Any:
    """Return a class of sb3-contrib if its module was imported, which instances imply; else Absent."""
    return getattr(sys.modules.get(f"sb3_contrib.{module}"), name, Absent)


def maskable_recurrent_policy() -> Any:
    """Return the class of MaskableRecurrentPPO's policies if its module was imported; else Absent."""
    module = sys.modules.get("bridge.stock.pytorch_maskable_recurrent_ppo")
    return getattr(module, "MaskableRecurrentActorCriticPolicy", Absent)


def is_maskable(policy: object) -> bool:
    """Return whether a policy takes masks of legal actions, as MaskablePPO's and MaskableRecurrentPPO's do."""
    return isinstance(policy, (contrib_class(*MASKABLE_POLICY), maskable_recurrent_policy()))


def is_recurrent(policy: object) -> bool:
    """Return whether a policy is recurrent, as RecurrentPPO's and MaskableRecurrentPPO's are."""
    return isinstance(policy, contrib_class(*RECURRENT_POLICY))
