"""Tasks with an observed goal: each reports what was achieved, and computes rewards of other goals, for hindsight."""

from jaxenvs.registry import Spec

_HERE = "jaxenvs.envs.goals"

# BitFlipping sets its own limit: its number of bits.
ENVIRONMENTS = (
    Spec("BitFlipping-v0", f"{_HERE}.bit_flipping:BitFlipping"),
    Spec("BitFlippingContinuous-v0", f"{_HERE}.bit_flipping:BitFlipping", parameters={"continuous": True}),
    Spec("ArmReach-v0", f"{_HERE}.arm_reach:ArmReach", max_episode_steps=50),
)
