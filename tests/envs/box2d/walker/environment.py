"""BipedalWalker-v3 on the scalar world: the reference's draws in its order, its Python in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tests.envs.box2d.walker import records, shapes
from tests.envs.box2d.walker.contacts import box_at
from tests.envs.box2d.walker.world import step

f = np.float32
SCALE, FPS = 30.0, 50
STEP = 14 / SCALE
LENGTH, STARTPAD, GRASS_LENGTH = 200, 20, 10
GRASS, STUMP, STAIRS, PIT = range(4)
HEIGHT = 400 / SCALE / 4
LEG_DOWN, LEG_H = -8 / SCALE, 34 / SCALE
LIDAR_RANGE = 160 / SCALE
HULL = shapes.polygon([(x / SCALE, y / SCALE) for x, y in [(-30, 9), (6, 9), (34, 1), (34, -8), (-30, -8)]])
UPPER = shapes.box(8 / SCALE / 2, LEG_H / 2)
LOWER = shapes.box(0.8 * 8 / SCALE / 2, LEG_H / 2)
ISLAND, ISLAND_JOINTS = (4, 3, 0, 1, 2), (3, 2, 0, 1)
HIP, KNEE = (-0.8, 1.1), (-1.6, -0.1)


def terrain(random: np.random.Generator, hardcore: bool) -> tuple[list[float], list[list[tuple[float, float]]]]:
    """Heights of the points, and corners of boxes. Each stretch begins with a point that neither moves nor draws."""
    kind, y, velocity, left, first = GRASS, HEIGHT, 0.0, STARTPAD, False
    heights, boxes = [], []
    steps = width = rise = 0
    before = 0.0
    for i in range(LENGTH):
        x = i * STEP
        if kind == GRASS and not first:
            velocity = 0.8 * velocity + 0.01 * np.sign(HEIGHT - y)
            if i > STARTPAD:
                velocity += random.uniform(-1, 1) / SCALE
            y += velocity
        elif kind == STUMP and first:
            left = random.integers(1, 3)
            boxes.append(box(x, y, x + left * STEP, y + left * STEP))
        elif kind == STAIRS and first:
            rise = 1 if random.random() > 0.5 else -1
            width, steps, before = random.integers(4, 5), random.integers(3, 5), y
            for s in range(steps):
                start, end = x + (s * width) * STEP, x + ((1 + s) * width) * STEP
                boxes.append(box(start, y + (-1 + s * rise) * STEP, end, y + (s * rise) * STEP))
            left = steps * width
        elif kind == STAIRS:
            y = before + ((steps * width - left - rise) / width * rise) * STEP
        elif kind == PIT and first:
            left, before = random.integers(3, 5), y
            boxes.append(box(x, y - 4 * STEP, x + STEP, y))
            boxes.append(box(x + STEP * left, y - 4 * STEP, x + STEP + STEP * left, y))
            left += 2
        elif kind == PIT:
            y = before - 4 * STEP if left > 1 else before
        heights.append(y)
        left -= 1
        first = left == 0
        if first:
            left = random.integers(GRASS_LENGTH // 2, GRASS_LENGTH)
            kind = random.integers(1, 4) if kind == GRASS and hardcore else GRASS
    return heights, boxes


def box(left: float, bottom: float, right: float, top: float) -> list[tuple[float, float]]:
    return [(left, bottom), (right, bottom), (right, top), (left, top)]


def draw_clouds(random: np.random.Generator) -> None:
    """Draws for the picture, which come before the push at the hull."""
    for _ in range(LENGTH // 20):
        random.uniform(0, LENGTH)
        for _ in range(10):
            random.uniform(0, 5 * STEP)


class Walker:
    """Steps like the reference, from `reset` on, whose draws it takes from a generator. `world` is what it moves."""

    def __init__(self, hardcore: bool = False):
        self.hardcore = hardcore

    def reset(self, random: np.random.Generator) -> np.ndarray:
        heights, boxes = terrain(random, self.hardcore)
        points = np.array([(i * STEP, y) for i, y in enumerate(heights)]).astype(f)
        draw_clouds(random)
        grounds = np.concatenate([shapes.boxes(boxes, 2.5), shapes.edges(points, 2.5)])
        grounds["body"] = np.arange(len(grounds))
        for ground in grounds:
            corners = ground["vertices"][: ground["n"]]
            ground["box"][:2] = corners.min(0) - records.RADIUS - records.BOX_EXTENSION
            ground["box"][2:] = corners.max(0) + records.RADIUS + records.BOX_EXTENSION
        bodies = np.concatenate(
            [
                shapes.body_of(HULL, 5.0, 0.1),
                *2 * [shapes.body_of(UPPER, 1.0, 0.2), shapes.body_of(LOWER, 1.0, 0.2)],
            ]
        )
        x, y = STEP * STARTPAD / 2, HEIGHT + 2 * LEG_H
        for b, (body, up) in enumerate(zip(bodies, (0.0, 0.5, 1.5, 0.5, 1.5), strict=True)):
            angle = f(0 if b == 0 else -0.05 if b < 3 else 0.05)
            body["a"] = body["a0"] = angle
            body["p"] = x, y if b == 0 else y - LEG_H * up - LEG_DOWN
            put(bodies[b : b + 1])
        bodies[0]["force"][0] = random.uniform(-5, 5)
        joints = np.zeros(4, records.JOINT)
        for j, joint in enumerate(joints):
            knee = j % 2 == 1
            a, b = (j, j + 1) if knee else (0, j + 1)
            joint["a"], joint["b"] = a, b
            joint["anchor_a"] = np.array([0, -LEG_H / 2 if knee else LEG_DOWN]).astype(f) - bodies[a]["center"]
            joint["anchor_b"] = np.array([0, LEG_H / 2]).astype(f) - bodies[b]["center"]
            joint["reference"] = bodies[b]["a"] - bodies[a]["a"]
            joint["lower"], joint["upper"] = KNEE if knee else HIP
        self.world = records.World(
            bodies=bodies,
            grounds=grounds,
            alpha0=np.zeros(len(grounds), f),
            joints=joints,
            contacts=np.zeros(64, records.CONTACT),
            n_contacts=np.zeros(1, np.int64),
            island=np.array(ISLAND),
            island_joints=np.array(ISLAND_JOINTS),
            fallen=np.zeros(1, np.bool_),
            legs=np.zeros(5, np.bool_),
            counts=np.zeros(6, np.int64),
        )
        self.ratio, self.shaping = f(0), None
        return self.step(np.zeros(4))[0]

    def step(self, action: Any) -> tuple[np.ndarray, Any, bool]:
        world = self.world
        for j, a in enumerate(action):
            world.joints[j]["speed"] = float((4, 6, 4, 6)[j] * np.sign(a))
            world.joints[j]["max_torque"] = float(80 * np.clip(np.abs(a), 0, 1))
        for body in world.bodies:  # each setting of a motor wakes its bodies
            if not body["awake"]:
                body["awake"], body["sleep"] = True, 0
        h = f(1 / FPS)
        step(world, h, f(-10), self.ratio, 180, 60)
        self.ratio = (f(1) / h) * h
        hull = world.bodies[0]
        angle, x = float(hull["a"]), float(hull["p"][0])
        observation = [angle, 2.0 * float(hull["w"]) / FPS]
        x_speed, y_speed = float(hull["v"][0]), float(hull["v"][1])
        observation += [0.3 * x_speed * (600 / SCALE) / FPS, 0.3 * y_speed * (400 / SCALE) / FPS]
        for j, joint in enumerate(world.joints):
            a, b = world.bodies[joint["a"]], world.bodies[joint["b"]]
            turned, speed = float(b["a"] - a["a"] - joint["reference"]), float(b["w"] - a["w"])
            observation += [turned + 1.0, speed / 6] if j % 2 else [turned, speed / 4]
            if j % 2:
                observation.append(float(world.legs[j + 1]))
        observation += [float(fraction) for fraction in lidar(world.grounds, hull["p"])]
        shaping = 130 * x / SCALE - 5.0 * abs(angle)
        reward = 0 if self.shaping is None else shaping - self.shaping
        self.shaping = shaping
        for a in action:
            reward -= 0.00035 * 80 * np.clip(np.abs(a), 0, 1)
        fallen = bool(world.fallen[0]) or x < 0
        return np.array(observation, f), -100 if fallen else reward, fallen or x > (LENGTH - GRASS_LENGTH) * STEP


def put(body: Any) -> None:
    """Place a body whose origin and angle are given: centre, transform, and the fat box of its creation."""
    one = body[0]
    _place_at_origin(body)
    box = np.zeros(4, f)
    box_at(one, (one["p"][0], one["p"][1]), (one["q"][0], one["q"][1]), box)
    one["box"] = box + np.array([-1, -1, 1, 1], f) * records.BOX_EXTENSION


@records.njit
def _place_at_origin(body):  # type: ignore[no-untyped-def]
    one = body[0]
    q = records.rotation(one.a)
    records.set2(one.q, q)
    records.set2(one.c, records.transform(one.p, q, one.center))
    records.set2(one.c0, (one.c[0], one.c[1]))


def lidar(grounds: Any, position: np.ndarray) -> np.ndarray:
    """How far each of ten rays goes until it meets ground: the least that `RayCast` finds of any shape."""
    polygons, grounds = grounds[grounds["n"] > 2], grounds[grounds["n"] == 2]
    v1, v2 = grounds["vertices"][:, 0], grounds["vertices"][:, 1]
    e = v2 - v1
    n = np.stack([e[:, 1], -e[:, 0]], 1)
    n *= (f(1) / np.sqrt(n[:, 0] * n[:, 0] + n[:, 1] * n[:, 1]))[:, None]
    start, fractions = position.astype(f), []
    for k in range(10):
        way = math.sin(1.5 * k / 10.0) * LIDAR_RANGE, -math.cos(1.5 * k / 10.0) * LIDAR_RANGE
        d = np.array([float(start[0]) + way[0], float(start[1]) + way[1]]).astype(f) - start
        up = n[:, 0] * (v1[:, 0] - start[0]) + n[:, 1] * (v1[:, 1] - start[1])
        down = n[:, 0] * d[0] + n[:, 1] * d[1]
        with np.errstate(all="ignore"):
            t = up / down
            q = start + t[:, None] * d
            s = (q[:, 0] - v1[:, 0]) * e[:, 0] + (q[:, 1] - v1[:, 1]) * e[:, 1]
            s /= e[:, 0] * e[:, 0] + e[:, 1] * e[:, 1]
        meets = (down != 0) & (t >= 0) & (t <= 1) & (s >= 0) & (s <= 1)
        found = [t[meets].min()] if meets.any() else []
        found += [hit for polygon in polygons if (hit := cast(polygon, start, d)) is not None]
        fractions.append(min(found, default=f(1)))
    return np.array(fractions, f)


def cast(polygon: Any, start: np.ndarray, way: np.ndarray) -> Any:
    """Where a ray enters a polygon, as a share of its way (`b2PolygonShape::RayCast`); None if it does not."""
    lower, upper, enters = f(0), f(1), False
    n = polygon["n"]
    for normal, vertex in zip(polygon["normals"][:n], polygon["vertices"][:n], strict=True):
        apart = vertex - start
        above = normal[0] * apart[0] + normal[1] * apart[1]
        along = normal[0] * way[0] + normal[1] * way[1]
        if along == 0 and above < 0:
            return None
        if along < 0 and above < lower * along:
            lower, enters = above / along, True
        elif along > 0 and above < upper * along:
            upper = above / along
        if upper < lower:
            return None
    return lower if enters else None
