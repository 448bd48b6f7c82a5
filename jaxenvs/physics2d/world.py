"""Worlds of Box2D, and the state that changes.

A `World` is a static description, part of the compiled function: dynamic bodies, each of one convex polygon; revolute
joints between them, with motor and limits; and a terrain of static edges. Bodies collide with the edges, and with
nothing else. The positions of the edges belong to an episode, and are an argument: (E, 4), from x, y to x, y [m]. The
first edges may be boxes: then it is (E, 8), of rows that `box_rows` and `edge_rows` make.

A World is described in the order in which Box2D creates it (newer proxies, joints and bodies come first in its lists,
and impulses are applied in the order of a list):

    World(
        bodies=(Body(polygon(...), density=5.0, friction=0.1), Body(box(...), density=1.0), ...),
        joints=(Joint(body_a=0, body_b=1, anchor_a=(0, 0), anchor_b=(...), lower=..., upper=..., reference=...), ...),
        body_order=(2, 0, 1),  # bodies in the island, from the newest, depth first: the order of their contacts
        joint_order=(1, 0),  # joints in the island
        edge_friction=np.array(...),  # (E,) of the edges
        edge_body=np.zeros(E, int),  # (E,) the static body of each edge
        pairs=8,  # most pairs of a body and an edge whose fat boxes overlap
        boxes=0,  # how many of the edges, the first, are boxes
    )

Then `state = start(world, origins, angles, edges)` and `state = step(world, state, edges, ...)` (step.py) work for one
environment; use `jax.vmap` for many.
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
    """Dynamic body of one shape. Density [kg/m²]."""

    shape: Polygon
    density: float
    friction: float = 0.2


@dataclasses.dataclass(frozen=True, eq=False)
class Joint:
    """Revolute joint with a motor and limits between bodies `body_a` and `body_b`.

    Attributes:
      anchor_a, anchor_b: its position, in the frames of the bodies [m].
      lower, upper: bounds of angle_b - angle_a - reference [rad].
      reference: angle_b - angle_a when the joint was created [rad].
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
    """Static description of bodies, joints and edges, the same in all episodes; the module's docstring has an example.

    Arrays computed from it are float32, with a row for each body.
    """

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
        """Centers of mass in the frames of the bodies, (B, 2)."""
        return np.stack([mass(body.shape, body.density).center for body in self.bodies])

    @cached_property
    def vertices(self) -> np.ndarray:
        """Vertices, (B, V, 2). Smaller polygons are padded with copies of their first vertex, which win no tie."""
        return self._padded([body.shape.vertices for body in self.bodies])

    @cached_property
    def normals(self) -> np.ndarray:
        return self._padded([body.shape.normals for body in self.bodies])

    @cached_property
    def centroid(self) -> np.ndarray:
        return np.stack([body.shape.centroid for body in self.bodies])

    @cached_property
    def next_vertex(self) -> np.ndarray:
        """Number of the vertex after each, (B, V), int32."""
        numbers = np.tile(np.arange(1, self.vertices.shape[1] + 1, dtype=np.int32), (len(self.bodies), 1))
        for row, body in zip(numbers, self.bodies, strict=True):
            row[len(body.shape.vertices) - 1 :] = 0
        return numbers

    @cached_property
    def previous_vertex(self) -> np.ndarray:
        """Number of the vertex before each, (B, V), int32."""
        last = np.array([len(body.shape.vertices) - 1 for body in self.bodies], np.int32)
        numbers = np.arange(-1, self.vertices.shape[1] - 1, dtype=np.int32)
        return np.where(numbers < 0, last[:, None], numbers)

    @cached_property
    def friction(self) -> np.ndarray:
        """Friction of contacts, (B, E)."""
        bodies = np.array([body.friction for body in self.bodies], np.float32)
        friction: np.ndarray = np.sqrt(bodies[:, None] * self.edge_friction.astype(np.float32)[None])
        return friction

    def _padded(self, rows: list[np.ndarray]) -> np.ndarray:
        most = max(map(len, rows))
        return np.stack([np.concatenate([row, np.repeat(row[:1], most - len(row), 0)]) for row in rows])


@struct
class Pairs:
    """Pairs of a body and an edge whose fat boxes overlap, from the newest, which is the order of Box2D's list.

    Attributes:
      key: int32 (P,), number of the edge times the number of bodies + body; -1 where there is none.
      count: int32 (P,), points of contact. The pair touches if there is one.
      id: int32 (P, 2), which features of the shapes meet in a point.
      impulse: (P, 2, 2), of a point: along the normal and along the tangent [N s].
    """

    key: jax.Array
    count: jax.Array
    id: jax.Array
    impulse: jax.Array


@struct
class WorldState:
    """State of bodies, joints and pairs. float32, a row for each body or joint.

    Attributes:
      position: (B, 2), of centers of mass [m].
      angle: (B,) [rad].
      velocity: (B, 2) [m/s].
      angular_velocity: (B,) [rad/s].
      still_for: (B,), how long a body has hardly moved [s].
      joint_impulse: (J, 4), of the point, of the limit and of the motor.
      joint_limit: int32 (J,), 0 within the limits, 1 at the lower, 2 at the upper.
      fat_box: (B, 4), left, bottom, right, top of a box that is recomputed when the body leaves it.
      pairs: Pairs.
      has_contact: bool (B,), the last report of a contact listener: True if a contact began, False if one ended.
      has_touched: bool (B,), whether a contact ever began.
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
        """Return a copy with some attributes changed."""
        return dataclasses.replace(self, **changes)
