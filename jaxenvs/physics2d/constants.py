"""Constants of Box2D 2.3 (Common/b2Settings.h), in float32 as in its arithmetic. Lengths [m], angles [rad]."""

from typing import Final

import numpy as np

_f = np.float32

EPSILON: Final = np.finfo(_f).eps
PI: Final = _f(3.14159265359)

LINEAR_SLOP: Final = _f(0.005)
ANGULAR_SLOP: Final = _f(2) / _f(180) * PI
RADIUS: Final = _f(2) * LINEAR_SLOP  # of polygons and edges: a skin that keeps them apart
TIMESTEP: Final = _f(1 / 50)  # s, of both environments
VELOCITY_ITERATIONS: Final = 180
POSITION_ITERATIONS: Final = 60

# The share of a position error that an iteration corrects, and the largest correction; and the errors at which they
# stop.
BAUMGARTE: Final = _f(0.2)
BAUMGARTE_OF_IMPACT: Final = _f(0.75)
MAX_LINEAR_CORRECTION: Final = _f(0.2)
MAX_ANGULAR_CORRECTION: Final = _f(8) / _f(180) * PI
LEAST_SEPARATION: Final = _f(-3) * LINEAR_SLOP
LEAST_SEPARATION_OF_IMPACT: Final = _f(-1.5) * LINEAR_SLOP

# Limits of how far a step moves and turns a body.
MAX_TRANSLATION: Final = _f(2)
MAX_ROTATION: Final = _f(0.5) * PI

SLEEP_AFTER: Final = _f(0.5)  # s
SLEEP_VELOCITY: Final = _f(0.01)  # m/s
SLEEP_ANGULAR_VELOCITY: Final = ANGULAR_SLOP  # rad/s

FAT_MARGIN: Final = _f(0.1)
FAT_MULTIPLIER: Final = _f(2)

# Two points of a contact are solved as a block if the greatest condition number allows it.
MAX_CONDITION: Final = _f(1000)

# Time of impact.
MOST_IMPACTS: Final = 8  # of a contact in one step
IMPACT_POSITION_ITERATIONS: Final = 20
IMPACT_ITERATIONS: Final = 20
GJK_ITERATIONS: Final = 20
PUSH_BACKS: Final = 16  # maxPolygonVertices, which is 8 upstream
ROOT_ITERATIONS: Final = 50
TARGET_SEPARATION: Final = max(LINEAR_SLOP, _f(2) * RADIUS - _f(3) * LINEAR_SLOP)
TARGET_TOLERANCE: Final = _f(0.25) * LINEAR_SLOP
LATEST_IMPACT: Final = _f(1) - _f(10) * EPSILON
