"""Box2D's rigid bodies in the plane, as far as Gymnasium's worlds need them: pure functions of float32.

Every order in which Box2D does things is kept, so that a step from the same state gives the same state but for
rounding: 180 rounds of velocities and 60 of positions do not get to where the order does not matter. How a world is
described stands in `world.py`, what a step is made of in `step.py`.

Source: Box2D 2.3 (Erin Catto), as the wheel box2d 2.3.10 has it, which Gymnasium 1.4 uses.
"""

from jaxenvs.physics2d.collision.boxes import box_rows, edge_rows
from jaxenvs.physics2d.geometry import frame
from jaxenvs.physics2d.island import Motors
from jaxenvs.physics2d.shapes import box, polygon
from jaxenvs.physics2d.step import start, step, step_in_the_air, step_on_the_ground
from jaxenvs.physics2d.world import Body, Joint, Pairs, World, WorldState

__all__ = [
    "Body",
    "Joint",
    "Motors",
    "Pairs",
    "World",
    "WorldState",
    "box",
    "box_rows",
    "edge_rows",
    "frame",
    "polygon",
    "start",
    "step",
    "step_in_the_air",
    "step_on_the_ground",
]
