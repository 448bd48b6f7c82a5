"""What the reference's worlds hold and pybox2d does not show: read at the pointers of Box2D 2.3.10 on x86-64."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxenvs.physics2d import Pairs, WorldState

# Offsets of fields, and how many floats they are.
BODY = {"center": (44, 2), "angle": (56, 1), "velocity": (64, 2), "angular_velocity": (72, 1), "still_for": (172, 1)}
BODY_FLAGS, AWAKE = 4, 2
JOINT_IMPULSE, JOINT_LIMIT = 144, 284
PROXIES, PROXY_ID = 40, 28  # of a fixture
NODES, NODE = 103080, 40  # of the world: the broad phase's tree; the bytes of a node, which begins with its box
MANIFOLD, COUNT = 120, 180  # of a contact; a point is 20 bytes: local x, y, normal and tangent impulse, id


def floats(address: int, n: int) -> np.ndarray:
    return np.frombuffer((ctypes.c_float * n).from_address(address), np.float32).copy()


def integer(address: int, kind: Any = ctypes.c_int32) -> int:
    return int(kind.from_address(address).value)


def fat_box(body: Any) -> np.ndarray:
    proxies = integer(int(body.fixtures[0].this) + PROXIES, ctypes.c_uint64)
    nodes = integer(int(body.world.this) + NODES, ctypes.c_uint64)
    return floats(nodes + NODE * integer(proxies + PROXY_ID), 4)


def pairs_of(env: Any, bodies: list[Any], edge_of: Callable[[Any], int], number: int) -> Pairs:
    body_of = {int(body.this): index for index, body in enumerate(bodies)}
    key, count = np.full(number, -1, np.int32), np.zeros(number, np.int32)
    id, impulse = np.zeros((number, 2), np.int32), np.zeros((number, 2, 2), np.float32)
    for row, contact in enumerate(env.world.contacts[::-1][:number]):  # pybox2d lists the oldest first
        address = int(contact.this)
        points = np.frombuffer((ctypes.c_uint8 * 40).from_address(address + MANIFOLD), np.uint8).copy()
        numbers, ids = points.view(np.float32).reshape(2, 5), points.view(np.int32).reshape(2, 5)[:, 4]
        key[row] = edge_of(contact.fixtureA) * len(bodies) + body_of[int(contact.fixtureB.body.this)]
        count[row] = here = integer(address + COUNT)
        # Where there is no point, C++ has memory that nobody wrote, with NaN in it now and then.
        id[row, :here], impulse[row, :here] = ids[:here], numbers[:here, 2:4]
    return Pairs(key=key, count=count, id=id, impulse=impulse)


def world_of(env: Any, bodies: list[Any], joints: list[Any], edge_of: Callable[[Any], int], number: int) -> WorldState:
    """The reference's world as ours, in NumPy. It keeps neither the contacts of upper legs nor who else has touched.

    Args:
      bodies, joints: in our order.
      edge_of: the number of the edge or box that a fixture is.
      number: of pairs in our table, which holds the newest.
    """
    rows = {name: [floats(int(b.this) + at, n) for b in bodies] for name, (at, n) in BODY.items()}
    flags = integer(int(bodies[0].this) + BODY_FLAGS, ctypes.c_uint16)
    return WorldState(
        position=np.stack(rows["center"]),
        angle=np.concatenate(rows["angle"]),
        velocity=np.stack(rows["velocity"]),
        angular_velocity=np.concatenate(rows["angular_velocity"]),
        still_for=np.concatenate(rows["still_for"]),
        joint_impulse=np.stack([floats(int(joint.this) + JOINT_IMPULSE, 4) for joint in joints]),
        joint_limit=np.array([integer(int(joint.this) + JOINT_LIMIT) for joint in joints], np.int32),
        fat_box=np.stack([fat_box(body) for body in bodies]),
        pairs=pairs_of(env, bodies, edge_of, number),
        has_contact=np.array([getattr(body, "ground_contact", False) for body in bodies]),
        has_touched=np.array([env.game_over, *[False] * len(bodies[1:])]),
        awake=np.bool_(flags & AWAKE),
    )


def stacked(trees: list[Any]) -> Any:
    return jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *trees)
