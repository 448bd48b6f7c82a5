"""Worlds of Box2D, and what of them changes.

A `World` is a static description, of which a program is made: dynamic bodies, each of one convex polygon; revolute
joints between them, with motor and limits; and a terrain of edges that stand still, with which all bodies collide, and
they with nothing else. Where the edges are belongs to an episode, and is an argument: (E, 4), from x, y to x, y [m].
The first ones may be boxes: then it is (E, 8), of rows that `box_rows` and `edge_rows` make.

What a world looks like, in the order in which Box2D creates it (newer proxies, joints and bodies come first in its
lists, and the order of a list is the order in which impulses are applied):

    World(
        bodies=(Body(polygon(...), density=5.0, friction=0.1), Body(box(...), density=1.0), ...),
        joints=(Joint(body_a=0, body_b=1, anchor_a=(0, 0), anchor_b=(...), lower=..., upper=..., reference=...), ...),
        body_order=(2, 0, 1),  # bodies in the island, from the newest, depth first: whose contacts come first
        joint_order=(1, 0),  # joints in the island
        edge_friction=np.array(...),  # (E,) of the edges
        edge_body=np.zeros(E, int),  # (E,) which of the static bodies an edge belongs to
        pairs=8,  # most pairs of a body and an edge whose fat boxes overlap
        boxes=0,  # how many of the edges, the first, are boxes
    )

Then `state = start(world, origins, angles, edges)` and `state = step(world, state, edges, ...)` (step.py),
for one lane; `jax.vmap` for many.
"""

from __future__ import annotations

import dataclasses
from functools import cached_property
from typing import Any

import jax
import numpy as np

from jaxenvs.environment import struct
from jaxenvs.physics2d.shapes import Polygon, mass


@dataclasses.dataclass(frozen=True, eq=False)
class Body:
    """A dynamic body of one shape. Density [kg/m²]."""

    shape: Polygon
    density: float
    friction: float = 0.2


@dataclasses.dataclass(frozen=True, eq=False)
class Joint:
    """A revolute joint with a motor and limits between bodies `body_a` and `body_b`.

    Attributes:
      anchor_a, anchor_b: where it is, in the frames of the bodies [m].
      lower, upper: of angle_b - angle_a - reference [rad].
      reference: angle_b - angle_a where the joint was made [rad].
    """

    body_a: int
    body_b: int
    anchor_a: tuple[float, float]
    anchor_b: tuple[float, float]
    lower: float
    upper: float
    reference: float = 0.0


@dataclasses.dataclass(frozen=True, eq=False)
class World:
    """What of a world is the same in all episodes; see above. Arrays made of it are float32, a row for each body."""

    bodies: tuple[Body, ...]
    joints: tuple[Joint, ...]
    body_order: tuple[int, ...]
    joint_order: tuple[int, ...]
    edge_friction: np.ndarray
    edge_body: np.ndarray
    pairs: int
    boxes: int = 0

    @cached_property
    def inverse_mass(self) -> np.ndarray:
        return np.array([mass(body.shape, body.density).inverse_mass for body in self.bodies], np.float32)

    @cached_property
    def inverse_inertia(self) -> np.ndarray:
        return np.array([mass(body.shape, body.density).inverse_inertia for body in self.bodies], np.float32)

    @cached_property
    def center(self) -> np.ndarray:
        """(B, 2), centres of mass in the frames of the bodies."""
        return np.stack([mass(body.shape, body.density).center for body in self.bodies])

    @cached_property
    def vertices(self) -> np.ndarray:
        """(B, V, 2). What a polygon has less than the others are copies of its first vertex, which win no tie."""
        return self._padded([body.shape.vertices for body in self.bodies])

    @cached_property
    def normals(self) -> np.ndarray:
        return self._padded([body.shape.normals for body in self.bodies])

    @cached_property
    def centroid(self) -> np.ndarray:
        return np.stack([body.shape.centroid for body in self.bodies])

    @cached_property
    def next_vertex(self) -> np.ndarray:
        """(B, V), int32: the number of the vertex after each."""
        numbers = np.tile(np.arange(1, self.vertices.shape[1] + 1, dtype=np.int32), (len(self.bodies), 1))
        for row, body in zip(numbers, self.bodies, strict=True):
            row[len(body.shape.vertices) - 1 :] = 0
        return numbers

    @cached_property
    def previous_vertex(self) -> np.ndarray:
        """(B, V), int32: the number of the vertex before each."""
        last = np.array([len(body.shape.vertices) - 1 for body in self.bodies], np.int32)
        numbers = np.arange(-1, self.vertices.shape[1] - 1, dtype=np.int32)
        return np.where(numbers < 0, last[:, None], numbers)

    @cached_property
    def friction(self) -> np.ndarray:
        """(B, E), of contacts."""
        bodies = np.array([body.friction for body in self.bodies], np.float32)
        friction: np.ndarray = np.sqrt(bodies[:, None] * self.edge_friction.astype(np.float32)[None])
        return friction

    def _padded(self, rows: list[np.ndarray]) -> np.ndarray:
        most = max(map(len, rows))
        padded: np.ndarray = np.stack([np.concatenate([row, np.repeat(row[:1], most - len(row), 0)]) for row in rows])
        return padded


@struct
class Pairs:
    """Pairs of a body and an edge whose fat boxes overlap, from the newest: that is the order of Box2D's list.

    Attributes:
      key: int32 (P,), number of the edge times the number of bodies + body; -1 where there is none.
      count: int32 (P,), points of contact. They touch if there is one.
      id: int32 (P, 2), which features of the shapes meet in a point.
      impulse: (P, 2, 2), of a point: along the normal and along the tangent [N s].
    """

    key: jax.Array
    count: jax.Array
    id: jax.Array
    impulse: jax.Array


@struct
class WorldState:
    """What of a world changes. float32, a row for each body or joint.

    Attributes:
      position: (B, 2), of centres of mass [m].
      angle: (B,) [rad].
      velocity: (B, 2) [m/s].
      angular_velocity: (B,) [rad/s].
      still_for: (B,), how long a body has hardly moved [s].
      joint_impulse: (J, 4), of the point, of the limit and of the motor.
      joint_limit: int32 (J,), 0 within the limits, 1 at the lower, 2 at the upper.
      fat_box: (B, 4), left, bottom, right, top of a box that is made anew when the body leaves it.
      pairs: Pairs.
      has_contact: bool (B,), what the listener was told last: that a contact began, or that one ended.
      has_touched: bool (B,), whether ever a contact began.
      awake: bool ().
    """

    position: jax.Array
    angle: jax.Array
    velocity: jax.Array
    angular_velocity: jax.Array
    still_for: jax.Array
    joint_impulse: jax.Array
    joint_limit: jax.Array
    fat_box: jax.Array
    pairs: Pairs
    has_contact: jax.Array
    has_touched: jax.Array
    awake: jax.Array

    def replace(self, **changes: Any) -> WorldState:
        """A copy with some attributes changed."""
        return dataclasses.replace(self, **changes)
