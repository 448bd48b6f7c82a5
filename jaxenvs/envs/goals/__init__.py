"""Tasks with a goal that is observed: what was achieved, and a reward for any other goal, as hindsight needs it."""

from jaxenvs.registry import Spec

_HERE = "jaxenvs.envs.goals"

# The limit of BitFlipping is its number of bits, which it tells itself.
ENVIRONMENTS = (
    Spec("BitFlipping-v0", f"{_HERE}.bit_flipping:BitFlipping"),
    Spec("BitFlippingContinuous-v0", f"{_HERE}.bit_flipping:BitFlipping", parameters={"continuous": True}),
    Spec("ArmReach-v0", f"{_HERE}.arm_reach:ArmReach", max_episode_steps=50),
)
