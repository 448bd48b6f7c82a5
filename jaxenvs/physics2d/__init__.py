"""Box2D's rigid bodies in the plane, as far as Gymnasium's environments need them: pure functions of float32.

Box2D's order of operations is kept everywhere, so that a step from the same state gives the same state up to rounding:
after 180 rounds of velocities and 60 of positions, the result still depends on the order. `world.py` describes worlds,
`step.py` the parts of a step.

Source: Box2D 2.3 (Erin Catto), as in the wheel box2d 2.3.10, which Gymnasium 1.4 uses.
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
