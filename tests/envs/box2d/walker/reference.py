"""What the reference's world holds and pybox2d does not show: read at the pointers of Box2D 2.3.10 on x86-64."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

BODY = {
    "p": (12, 2),
    "q": (20, 2),
    "c0": (36, 2),
    "c": (44, 2),
    "a0": (52, 1),
    "a": (56, 1),
    "v": (64, 2),
    "w": (72, 1),
}
SLEEP, MASS, CENTER, BODY_FLAGS, AWAKE = 172, 144, 28, 4, 2
JOINT_IMPULSE, JOINT_LIMIT = 144, 284
PROXIES, PROXY_ID = 40, 28  # of a fixture
NODES, NODE = 103080, 40  # of the world: the broad phase's tree; the bytes of a node, which begins with its box
MANIFOLD, KIND, COUNT = 120, 176, 180  # of a contact; a point is 20 bytes: local x, y, normal and tangent impulse, id


def floats(address: int, n: int) -> np.ndarray:
    return np.frombuffer((ctypes.c_float * n).from_address(address), np.float32).copy()


def integer(address: int, kind: Any = ctypes.c_int32) -> int:
    return int(kind.from_address(address).value)


def body(b: Any) -> dict[str, np.ndarray]:
    """Fields as of `records.BODY`, with the fat box."""
    address = int(b.this)
    state = {name: floats(address + offset, n) for name, (offset, n) in BODY.items()}
    state["sleep"] = floats(address + SLEEP, 1)
    state["awake"] = np.array([bool(integer(address + BODY_FLAGS, ctypes.c_uint16) & AWAKE)])
    proxies = integer(int(b.fixtures[0].this) + PROXIES, ctypes.c_uint64)
    nodes = integer(int(b.world.this) + NODES, ctypes.c_uint64)
    state["box"] = floats(nodes + NODE * integer(proxies + PROXY_ID), 4)
    return state


def joint(j: Any) -> tuple[np.ndarray, int]:
    """The impulse (x, y, of the limit, of the motor) and the limit state."""
    return floats(int(j.this) + JOINT_IMPULSE, 4), integer(int(j.this) + JOINT_LIMIT)


def contacts(env: Any) -> list[dict[str, Any]]:
    """All contacts, the oldest first, as pybox2d lists them; fields as of `records.CONTACT`."""
    bodies = {int(b.this): i for i, b in enumerate([env.hull, *env.legs])}
    grounds = {int(b.this): i for i, b in enumerate(reversed(env.terrain))}
    found = []
    for c in env.world.contacts:
        address = int(c.this)
        points = np.frombuffer((ctypes.c_uint8 * 40).from_address(address + MANIFOLD), np.uint8).copy()
        numbers, ids = points.view(np.float32).reshape(2, 5), points.view(np.uint32).reshape(2, 5)[:, 4]
        found.append(
            {
                "body": bodies[int(c.fixtureB.body.this)],
                "ground": grounds[int(c.fixtureA.body.this)],
                "touching": bool(c.touching),
                "kind": integer(address + KIND),
                "count": integer(address + COUNT),
                "local": numbers[:, :2],
                "impulse": numbers[:, 2:4],
                "ids": ids,
            }
        )
    return found
