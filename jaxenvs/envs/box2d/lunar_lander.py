"""LunarLander: bring a lander down between two flags."""

from __future__ import annotations

import numpy as np

from jaxenvs.physics2d import Body, Joint, World, box, polygon

SCALE = 30.0  # pixels of Gymnasium's picture in a metre
EDGES = 11  # the base line of the moon and ten of its surface

_HULL = ((-14, 17), (-17, 0), (-17, -10), (17, -10), (17, 0), (14, 17))
_SIDE = {1: -1, 2: 1}  # of the legs
WORLD = World(
    bodies=(
        Body(
            polygon(
                [(x / SCALE, y / SCALE) for x, y in ((-14, 17), (-17, 0), (-17, -10), (17, -10), (17, 0), (14, 17))]
            ),
            density=5.0,
            friction=0.1,
        ),
        *(Body(box(2 / SCALE, 8 / SCALE), density=1.0) for _ in _SIDE),
    ),
    joints=tuple(
        Joint(
            body_a=0,
            body_b=leg,
            anchor_a=(0.0, 0.0),
            anchor_b=(side * 20 / SCALE, 18 / SCALE),
            lower=0.9 - 0.5 if side == -1 else -0.9,
            upper=0.9 if side == -1 else -0.9 + 0.5,
            reference=0.05 * side,  # the angle between the bodies where pybox2d makes the joint
        )
        for leg, side in _SIDE.items()
    ),
    body_order=(2, 0, 1),
    joint_order=(1, 0),
    edge_friction=np.array([0.2] + [0.1] * (EDGES - 1)),
    edge_body=np.zeros(EDGES, int),
    pairs=8,
)
