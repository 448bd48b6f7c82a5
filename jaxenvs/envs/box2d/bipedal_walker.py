"""BipedalWalker: walk on two legs, with motors in hips and knees, over uneven ground, and over obstacles."""

from __future__ import annotations

import dataclasses
import math

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from jaxenvs import physics2d
from jaxenvs.drawing import BLACK, Canvas
from jaxenvs.drawing.canvas import Color
from jaxenvs.environment import Environment, TimeStep, environment, static, struct
from jaxenvs.envs.box2d import obstacles, terrain
from jaxenvs.physics2d import Body, Joint, Motors, World, WorldState

SCALE = 30.0  # the reference's lengths are in 1 / SCALE [m]; its picture has SCALE pixels per meter
FPS = 50
LEG_HEIGHT, HIP_BELOW = 34 / SCALE, 8 / SCALE  # m
START_X, START_Y = terrain.STEP * terrain.START / 2, terrain.LEVEL + 2 * LEG_HEIGHT  # m, of the hull
WIDTH, HEIGHT = 600 / SCALE, 400 / SCALE  # m, of the picture
GOAL = terrain.STEP * (terrain.POINTS - 10)  # m

_HULL_CORNERS = [(x / SCALE, y / SCALE) for x, y in [(-30, 9), (6, 9), (34, 1), (34, -8), (-30, -8)]]
_HALF_WIDTHS = 4 / SCALE, 0.8 * 4 / SCALE  # m, of upper and lower legs
_UPPER, _LOWER = (Body(physics2d.box(width, LEG_HEIGHT / 2), density=1.0) for width in _HALF_WIDTHS)
HULL, LOWER_LEGS = 0, (2, 4)  # numbers of bodies
_LEAN = 0.05  # rad, initial angle of the legs


def _hip(leg: int, lean: float) -> Joint:
    return Joint(HULL, leg, (0.0, -HIP_BELOW), (0.0, LEG_HEIGHT / 2), lower=-0.8, upper=1.1, reference=lean)


def _knee(leg: int) -> Joint:
    return Joint(leg, leg + 1, (0.0, -LEG_HEIGHT / 2), (0.0, LEG_HEIGHT / 2), lower=-1.6, upper=-0.1)


WORLD = World(
    bodies=(Body(physics2d.polygon(_HULL_CORNERS), density=5.0, friction=0.1), _UPPER, _LOWER, _UPPER, _LOWER),
    joints=(_hip(1, -_LEAN), _knee(1), _hip(3, _LEAN), _knee(3)),
    body_order=(4, 3, 0, 1, 2),
    joint_order=(3, 2, 0, 1),
    edge_friction=np.full(terrain.POINTS - 1, 2.5, np.float32),
    edge_body=np.arange(terrain.POINTS - 1),  # each edge is a separate body
    pairs=32,  # 20 were seen at most
)
_GROUNDS = obstacles.BOXES + terrain.POINTS - 1
HARDCORE = dataclasses.replace(
    WORLD,
    edge_friction=np.full(_GROUNDS, 2.5, np.float32),
    edge_body=np.arange(_GROUNDS),
    pairs=48,  # 29 were seen at most
    boxes=obstacles.BOXES,
)


@struct
class BipedalWalkerState:
    """State of a BipedalWalker.

    Attributes:
      terrain: the heights of its points [m], float32 (POINTS,).
      boxes: of obstacles, float32 (n, 4), as `obstacles.boxes` returns them; without hardcore (0, 4).
      world: the bodies.
      clouds: their seed, uint32.
    """

    terrain: jax.Array
    boxes: jax.Array
    world: WorldState
    clouds: jax.Array


@environment
class BipedalWalker(Environment[BipedalWalkerState]):
    """Walk to the far end with torques, float32 (4,) from -1 to 1, at hip, knee, hip, knee, as BipedalWalker-v3.

    An action's sign is the direction of a motor, its size the share of the greatest torque.
    Observation: float32 (24,): the hull's angle and velocities; for each leg, angle and speed of hip and knee and
    whether it stands on the ground; ten distances of a lidar. Reward: the distance forward, 300 in total, minus a cost
    of torques and of a leaning hull; -100 for a fall, which ends the episode, as does the end of the terrain.
    Source: `gymnasium/envs/box2d/bipedal_walker.py` (Oleg Klimov), on Box2D 2.3; physics of `jaxenvs.physics2d`.

    Attributes:
      gravity: m/s^2, upwards.
      max_torque: N m.
      hip_speed, knee_speed: rad/s, target speeds of the motors, and units of the speeds in observations.
      hardcore: whether there are stumps, pits and stairs, as in BipedalWalkerHardcore-v3.
    """

    gravity: float = -10.0
    max_torque: float = 80.0
    hip_speed: float = 4.0
    knee_speed: float = 6.0
    hardcore: bool = static(default=False)

    render_fps = FPS

    @property
    def observation_space(self) -> gymnasium.spaces.Box:
        leg = [math.pi, 5, math.pi, 5, 5]
        high = np.array([math.pi, 5, 5, 5, *leg, *leg, *terrain.RAYS * [1]], np.float32)
        low = -high
        low[[8, 13]] = 0
        return gymnasium.spaces.Box(low, high, dtype=np.float32)

    @property
    def action_space(self) -> gymnasium.spaces.Box:
        return gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)

    def reset(self, key: jax.Array) -> tuple[BipedalWalkerState, TimeStep]:
        terrain_key, push_key, cloud_key = jax.random.split(key, 3)
        push = 5 * jax.random.uniform(push_key, (), jnp.float32, -1.0, 1.0)
        clouds = jax.random.bits(cloud_key, (), jnp.uint32)
        # The reference takes a step, in which the legs, created too high, are pulled to their joints and to the ground.
        made = terrain.build(terrain.draw(terrain_key, self.hardcore))
        boxes = obstacles.boxes(made) if self.hardcore else jnp.zeros((0, 4), jnp.float32)
        state, timestep = self.step(_stand(made.heights, boxes, push, clouds), jnp.zeros(4))
        return state, TimeStep.create(timestep.observation)

    def step(self, state: BipedalWalkerState, action: jax.Array) -> tuple[BipedalWalkerState, TimeStep]:
        action = jnp.asarray(action, jnp.float32)
        effort = jnp.minimum(jnp.abs(action), 1)
        speeds = jnp.stack([jnp.asarray(speed, jnp.float32) for speed in 2 * (self.hip_speed, self.knee_speed)])
        before = state.world.replace(awake=jnp.ones((), bool))  # setting a motor wakes its bodies
        motors = Motors(speeds * jnp.sign(action), self.max_torque * effort)
        world = HARDCORE if self.hardcore else WORLD
        ground = _ground(state.terrain, state.boxes)
        after = physics2d.step_on_the_ground(world, before, ground, self.gravity, motors)
        state = dataclasses.replace(state, world=after)
        (x0, _), (x, _) = _origin(before), _origin(after)
        lean = jnp.abs(after.angle[HULL]) - jnp.abs(before.angle[HULL])
        reward = 130 / SCALE * (x - x0) - 5 * lean - 0.00035 * 80 * jnp.sum(effort)
        has_fallen = after.has_touched[HULL] | (x < 0)
        reward = jnp.where(has_fallen, -100, reward)
        return state, TimeStep.create(self._observe(state), reward, has_fallen | (x > GOAL))

    def _observe(self, state: BipedalWalkerState) -> jax.Array:
        world = state.world
        velocity, turn = world.velocity[HULL], world.angular_velocity
        parts = [world.angle[HULL], 2 / FPS * turn[HULL]]
        parts += [0.3 * WIDTH / FPS * velocity[0], 0.3 * HEIGHT / FPS * velocity[1]]
        for number, joint in enumerate(WORLD.joints):
            is_knee = number % 2 == 1
            angle = world.angle[joint.body_b] - world.angle[joint.body_a] - np.float32(joint.reference)
            speed = turn[joint.body_b] - turn[joint.body_a]
            parts += [angle + 1 if is_knee else angle, speed / (self.knee_speed if is_knee else self.hip_speed)]
            if is_knee:
                parts.append(world.has_contact[joint.body_b])
        position = jnp.stack(_origin(world))
        near = terrain.window(terrain.edges(state.terrain), position[0], 1, 14)
        body = jnp.stack([jnp.asarray(part, jnp.float32) for part in parts])
        rays = terrain.lidar(near, position)
        if self.hardcore:
            rays = jnp.minimum(rays, obstacles.lidar(state.boxes, position))
        return jnp.concatenate([body, rays])

    # --- Picture ------------------------------------------------------------------------------------------------------

    def draw(self, state: BipedalWalkerState, height: int, width: int) -> jax.Array:
        world = state.world
        scroll = _origin(world)[0] - 4
        left = jnp.maximum(scroll, 0)
        canvas = Canvas.blank(height, width, left, left + WIDTH, 0.0, HEIGHT, (215, 215, 255))
        for corners in _clouds(state.clouds) + jnp.stack([scroll / 2, 0]):
            canvas = _with_cloud(canvas, corners)

        def ground(x: jax.Array, is_shown: jax.Array | bool = True) -> jax.Array:
            place = x / terrain.STEP
            under = jnp.clip(jnp.floor(place).astype(jnp.int32), 0, terrain.POINTS - 2)
            start, end = state.terrain[under], state.terrain[under + 1]
            is_there = (place <= terrain.POINTS - 1) & (is_shown == True)  # noqa: E712
            return jnp.where(is_there, start + (place - under) * (end - start), -1)

        canvas = canvas.area(ground, (102, 153, 76))
        for odd, color in enumerate([(76, 255, 76), (76, 204, 76)]):

            def grass(x: jax.Array, odd: int = odd) -> jax.Array:
                return ground(x, jnp.floor(x / terrain.STEP) % 2 == odd)

            canvas = canvas.graph(grass, color, 1 / SCALE)
        if self.hardcore:
            half = 0.5 / SCALE
            for start, bottom, end, top in obstacles.shown(state.boxes, left):
                part = canvas.part(((start + end) / 2, (bottom + top) / 2), _share(obstacles.LARGEST + 2 * half))
                part = part.box(start - half, end + half, bottom - half, top + half, (153, 153, 153))
                canvas = canvas.put(part.box(start + half, end - half, bottom + half, top - half, (255, 255, 255)))
        for body in (1, 2, 3, 4, HULL):
            fill, outline = _COLORS[body]
            x, y = world.position[body]
            at = physics2d.frame(x, y, world.angle[body], WORLD.center[body])
            shape = WORLD.bodies[body].shape.vertices
            placed = [at.place(*corner) for corner in shape]
            size = 2 * max(math.dist(corner, WORLD.center[body]) for corner in shape) + 1 / SCALE
            part = canvas.part((x, y), _share(size)).polygon(placed, fill)
            canvas = canvas.put(part.line([*placed, placed[0]], outline, 1 / SCALE))
        x, foot, tip = 3 * terrain.STEP, terrain.LEVEL, terrain.LEVEL + 50 / SCALE
        flag = [(x, tip), (x, tip - 10 / SCALE), (x + 25 / SCALE, tip - 5 / SCALE)]
        part = canvas.part((x, (foot + tip) / 2), _share(52 / SCALE)).rod((x, foot), (x, tip), BLACK, 1 / SCALE)
        part = part.polygon(flag, (230, 51, 0)).line([*flag, flag[0]], BLACK, 1 / SCALE)
        return canvas.put(part).picture()


def _share(size: float) -> tuple[float, float]:
    """Return the shares of the picture's width and height that a length [m] takes."""
    return size / WIDTH, size / HEIGHT


# Fill and outline of bodies; the leg behind is darker.
_COLORS: list[tuple[Color, Color]] = [
    ((127, 51, 229), (76, 76, 127)),
    *2 * [((178, 101, 152), (127, 76, 101))],
    *2 * [((128, 51, 102), (77, 26, 51))],
]


def _ground(heights: jax.Array, boxes: jax.Array) -> jax.Array:
    """Return the edges for a World: boxes, if there are any, and the terrain."""
    edges = terrain.edges(heights)
    if not len(boxes):
        return edges
    return jnp.concatenate([physics2d.box_rows(boxes), physics2d.edge_rows(edges)])


def _stand(heights: jax.Array, boxes: jax.Array, push: jax.Array, clouds: jax.Array) -> BipedalWalkerState:
    """Return a new walker above the ground [m], with the velocity that a force [N] at the hull causes in one step."""
    legs = [START_Y + HIP_BELOW - LEG_HEIGHT * part for part in (0.5, 1.5)]
    origins = np.stack([np.full(5, START_X), [START_Y, *legs, *legs]], 1).astype(np.float32)
    angles = np.array([0, -_LEAN, -_LEAN, _LEAN, _LEAN], np.float32)
    description = HARDCORE if len(boxes) else WORLD
    world = physics2d.start(description, jnp.asarray(origins), jnp.asarray(angles), _ground(heights, boxes))
    velocity = world.velocity.at[HULL, 0].set(push * WORLD.inverse_mass[HULL] / FPS)
    return BipedalWalkerState(terrain=heights, boxes=boxes, world=world.replace(velocity=velocity), clouds=clouds)


def _origin(world: WorldState) -> tuple[jax.Array, jax.Array]:
    """Return the position of the hull's origin [m]."""
    at = physics2d.frame(world.position[HULL, 0], world.position[HULL, 1], world.angle[HULL], WORLD.center[HULL])
    return at.x, at.y


def _clouds(seed: jax.Array) -> jax.Array:
    """Return the corners of ten clouds [m], (10, 5, 2)."""
    place, shape = jax.random.split(jax.random.key(seed))
    middles = jax.random.uniform(place, (10,), jnp.float32) * terrain.POINTS * terrain.STEP
    offsets = jax.random.uniform(shape, (10, 5, 2), jnp.float32) * 5 * terrain.STEP
    turns = 3.14 * 2 * np.arange(5) / 5
    x = middles[:, None] + 15 * terrain.STEP * np.sin(turns) + offsets[..., 0]
    y = 10 + 5 * terrain.STEP * np.cos(turns) + offsets[..., 1]
    return jnp.stack([x, y], axis=2)


def _with_cloud(canvas: Canvas, corners: jax.Array) -> Canvas:
    """Draw a cloud with these corners [m], (5, 2), if it is in the picture: most clouds are not."""
    least, most = corners.min(0), corners.max(0)

    def cloud(canvas: Canvas) -> Canvas:
        # As wide and high as the largest that `_clouds` draws: 30 sin 72° + 5 and 5 + 5 cos 36° + 5 steps.
        part = canvas.part((least + most) / 2, (34 * terrain.STEP / WIDTH, 15 * terrain.STEP / HEIGHT))
        return canvas.put(part.polygon(list(corners), (255, 255, 255)))

    is_shown = (most[0] > canvas.x[0, 0] - canvas.pixel[0]) & (least[0] < canvas.x[0, -1] + canvas.pixel[0])
    with_it: Canvas = jax.lax.cond(is_shown, cloud, lambda canvas: canvas, canvas)
    return with_it
