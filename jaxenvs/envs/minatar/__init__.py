"""MinAtar: five small versions of Atari games, with all six actions (v0) or only the effective ones (v1)."""

from jaxenvs.registry import Spec

_HERE = "jaxenvs.envs.minatar"
_CLASSES = {
    "Asterix": f"{_HERE}.asterix:Asterix",
    "Breakout": f"{_HERE}.breakout:Breakout",
    "Freeway": f"{_HERE}.freeway:Freeway",
    "Seaquest": f"{_HERE}.seaquest:Seaquest",
    "SpaceInvaders": f"{_HERE}.space_invaders:SpaceInvaders",
}

ENVIRONMENTS = tuple(
    Spec(f"MinAtar/{name}-v{int(minimal)}", entry_point, parameters={"minimal_actions": minimal})
    for name, entry_point in _CLASSES.items()
    for minimal in (False, True)
)
