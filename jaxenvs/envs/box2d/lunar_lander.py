"""LunarLander: bring a lander down between two flags."""

from __future__ import annotations

import dataclasses
import functools
import math

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from jaxenvs.drawing import BLACK, WHITE, Canvas
from jaxenvs.environment import Environment, TimeStep, environment, static, struct
from jaxenvs.physics2d import Body, Joint, Motors, World, WorldState, box, frame, polygon, start, step, step_in_the_air

PIXELS = 30.0  # pixels per meter of the picture, in which lengths are given
WIDTH, HEIGHT = 600 / PIXELS, 400 / PIXELS  # m, of the picture
PAD_HEIGHT = HEIGHT / 4  # m, of the ground between the flags
CHUNKS = 11  # points of the ground
FPS = 50
EDGES = 1 + CHUNKS - 1  # a base line, and the ground

_HULL = [(x / PIXELS, y / PIXELS) for x, y in ((-14, 17), (-17, 0), (-17, -10), (17, -10), (17, 0), (14, 17))]
_LEG_WIDTH, _LEG_HEIGHT = 2 / PIXELS, 8 / PIXELS  # half of them
_LEG_AWAY, _LEG_DOWN = 20 / PIXELS, 18 / PIXELS
_SIDES = (-1, 1)  # of the legs
_START_ANGLE = 0.05  # of a leg, rad

WORLD = World(
    bodies=(
        Body(polygon(_HULL), density=5.0, friction=0.1),
        *(Body(box(_LEG_WIDTH, _LEG_HEIGHT), density=1.0) for _ in _SIDES),
    ),
    joints=tuple(
        Joint(
            body_a=0,
            body_b=leg,
            anchor_a=(0.0, 0.0),
            anchor_b=(side * _LEG_AWAY, _LEG_DOWN),
            lower=0.9 - 0.5 if side == -1 else -0.9,
            upper=0.9 if side == -1 else -0.9 + 0.5,
            reference=_START_ANGLE * side,  # the angle between the two bodies when pybox2d creates the joint
        )
        for leg, side in enumerate(_SIDES, 1)
    ),
    body_order=(2, 0, 1),
    joint_order=(1, 0),
    edge_friction=np.array([0.2] + [0.1] * (EDGES - 1)),
    edge_body=np.zeros(EDGES, int),
    pairs=8,  # 7 were the most in 225,000 steps
)
_MOTORS = Motors(speed=np.array([0.3 * side for side in _SIDES], np.float32), max_torque=np.full(2, 40, np.float32))
_NO_FORCE, _NO_TORQUE = np.zeros((3, 2), np.float32), np.zeros(3, np.float32)


# Jitted, so that calls outside of compiled functions do not compile them for each step.
_step = jax.jit(functools.partial(step, WORLD))
_step_in_the_air = jax.jit(functools.partial(step_in_the_air, WORLD))


@struct
class LunarLanderState:
    """State of a LunarLander: bodies, ground, and the values of the last step that the next one needs.

    Attributes:
      world: hull, left and right leg.
      edges: (EDGES, 4), from x, y to x, y [m].
      shaping: the potential whose change is the reward.
      wind: int32 (2,), positions of wind and turbulence in their patterns.
      over: bool, the episode ended before: nothing moves any more.
      key: of the engines' noise.
    """

    world: WorldState
    edges: jax.Array
    shaping: jax.Array
    wind: jax.Array
    over: jax.Array
    key: jax.Array


@environment
class LunarLander(Environment[LunarLanderState]):
    """Bring a lander down between two flags, as Gymnasium's LunarLander-v3.

    Actions: nothing (0), left engine (1), main engine (2), right engine (3). With `continuous`, float32 (2,) from -1 to
    1: the main engine above 0, from half to full power; left below -0.5, right above 0.5.
    Observation: float32 (8,): position and velocity, scaled, angle [rad] and angular velocity, scaled, whether the left
    and the right leg touch the ground.
    Reward: for getting nearer, slower and more upright, 10 for each leg that touches, minus the cost of fuel; -100 for
    a crash or for leaving the picture, 100 for coming to rest.
    Source: Oleg Klimov's environment, as of Gymnasium 1.4, with the physics of Box2D (jaxenvs.physics2d).

    Attributes:
      gravity: m/s^2.
      wind_power: N at most.
      turbulence_power: N m at most.
      main_engine_power, side_engine_power: of their impulses, as Gymnasium's constants of these names.
      continuous: whether engines have throttles.
      enable_wind: whether there are wind and turbulence.
    """

    gravity: float = -10.0
    wind_power: float = 15.0
    turbulence_power: float = 1.5
    main_engine_power: float = 13.0
    side_engine_power: float = 0.6
    continuous: bool = static(default=False)
    enable_wind: bool = static(default=False)

    render_fps = FPS

    @property
    def observation_space(self) -> gymnasium.spaces.Box:
        high = np.array([2.5, 2.5, 10, 10, 2 * math.pi, 10, 1, 1], np.float32)
        return gymnasium.spaces.Box(np.where(np.arange(8) < 6, -high, 0), high, dtype=np.float32)

    @property
    def action_space(self) -> gymnasium.Space[object]:
        if self.continuous:
            return gymnasium.spaces.Box(-1, 1, (2,), dtype=np.float32)
        return gymnasium.spaces.Discrete(4)

    def reset(self, key: jax.Array) -> tuple[LunarLanderState, TimeStep]:
        keys = jax.random.split(key, 4)
        heights = HEIGHT / 2 * jax.random.uniform(keys[0], (CHUNKS + 1,), jnp.float32)
        force = 1000 * jax.random.uniform(keys[1], (2,), jnp.float32, minval=-1)
        wind = jax.random.randint(keys[2], (2,), -9999, 9999, jnp.int32)
        return self._start(heights, force, wind, keys[3])

    def _start(
        self, heights: jax.Array, force: jax.Array, wind: jax.Array, key: jax.Array
    ) -> tuple[LunarLanderState, TimeStep]:
        """Return the start of an episode, after its step without engines, from the random draws."""
        edges = _edges(heights)
        middle = np.array([[WIDTH / 2, HEIGHT]])
        origin = np.concatenate([middle, [middle[0] - (side * _LEG_AWAY, 0) for side in _SIDES]])
        world = start(WORLD, origin, np.array([0.0] + [_START_ANGLE * side for side in _SIDES]), edges)
        push, torque, wind = self._wind(world, wind)
        # The ground is at most 6.6 m high, 6 m below.
        world = _step_in_the_air(world, self.gravity, _MOTORS, push.at[0].add(force), torque)
        state = LunarLanderState(
            world=world,
            edges=edges,
            shaping=_shaping(_observe(world)),
            wind=wind,
            over=jnp.zeros((), bool),
            key=key,
        )
        return state, TimeStep.create(_observe(world))

    def step(self, state: LunarLanderState, action: jax.Array) -> tuple[LunarLanderState, TimeStep]:
        key, noise_key = jax.random.split(state.key)
        noise = jax.random.uniform(noise_key, (2,), jnp.float32, minval=-1)
        return self._step(dataclasses.replace(state, key=key), action, noise)

    def _step(self, state: LunarLanderState, action: jax.Array, noise: jax.Array) -> tuple[LunarLanderState, TimeStep]:
        """Take a step with the given noise of the engines (2,), from -1 to 1."""
        force, torque, wind = self._wind(state.world, state.wind)
        main, side, direction = self._throttle(action)
        world = self._fire(state.world, noise / PIXELS, main, side, direction)
        world = _step(world, state.edges, self.gravity, _MOTORS, force, torque)
        world = jax.tree.map(lambda new, old: jnp.where(state.over, old, new), world, state.world)

        observation = _observe(world)
        shaping = _shaping(observation)
        reward = shaping - state.shaping - 0.3 * main - 0.03 * side
        has_crashed = world.has_touched[0] | (jnp.abs(observation[0]) >= 1)
        reward = jnp.where(has_crashed, -100, reward)
        reward = jnp.where(world.awake, reward, 100)
        over = has_crashed | ~world.awake
        reward = jnp.where(state.over, 0, reward)  # a step after the end earns nothing
        state = dataclasses.replace(state, world=world, shaping=shaping, wind=wind, over=over)
        return state, TimeStep.create(observation, reward, over)

    def _wind(self, world: WorldState, wind: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return force (3, 2), torque (3,) and next position of the wind, which does not blow while a leg touches."""
        if not self.enable_wind:
            return jnp.asarray(_NO_FORCE), jnp.asarray(_NO_TORQUE), wind
        # The second sine repeats every 200 steps; the remainder reduces rounding errors.
        strength = jnp.tanh(jnp.sin(0.02 * wind) + jnp.sin(0.01 * math.pi * (wind % 200))).astype(jnp.float32)
        blows = ~(world.has_contact[1] | world.has_contact[2])
        force = jnp.where(blows, strength[0] * self.wind_power, 0)
        torque = jnp.where(blows, strength[1] * self.turbulence_power, 0)
        return jnp.asarray(_NO_FORCE).at[0, 0].set(force), jnp.asarray(_NO_TORQUE).at[0].set(torque), wind + blows

    def _throttle(self, action: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return the power of main and side engines, from 0 to 1, and which side engine: -1 left, 1 right."""
        if not self.continuous:
            action = jnp.asarray(action)
            main, side = action == 2, (action == 1) | (action == 3)
            return main.astype(jnp.float32), side.astype(jnp.float32), (action - 2.0).astype(jnp.float32)
        action = jnp.clip(jnp.asarray(action, jnp.float32), -1, 1)
        strength = jnp.abs(action[1])
        main = jnp.where(action[0] > 0, 0.5 * (action[0] + 1), 0)
        return main, jnp.where(strength > 0.5, strength, 0), jnp.sign(action[1])

    def _fire(
        self, world: WorldState, noise: jax.Array, main: jax.Array, side: jax.Array, direction: jax.Array
    ) -> WorldState:
        """Return the bodies after the impulses of the engines, at positions that the noise (2,) [m] shifts."""
        (x, y), angle = world.position[0], world.angle[0]
        at = frame(x, y, angle, WORLD.center[0])
        sine, cosine = at.sine, at.cosine
        along, across = 4 / PIXELS + 2 * noise[0], noise[1]
        main_x, main_y = sine * along - cosine * across, -cosine * along - sine * across
        across = 3 * noise[1] + direction * (12 / PIXELS)
        side_x, side_y = sine * noise[0] - cosine * across, -cosine * noise[0] - sine * across
        main, side = main * self.main_engine_power, side * self.side_engine_power
        engines = (
            (main * main_x, main * main_y, at.x + main_x, at.y + main_y),
            # 17 and 14 as in Gymnasium: the position of the engine, if the lander stands upright.
            (
                side * side_x,
                side * side_y,
                at.x + side_x - sine * (17 / PIXELS),
                at.y + side_y + cosine * (14 / PIXELS),
            ),
        )
        velocity, turn = world.velocity[0], world.angular_velocity[0]
        for push_x, push_y, from_x, from_y in engines:
            velocity = velocity - WORLD.inverse_mass[0] * jnp.stack([push_x, push_y])
            turn = turn - WORLD.inverse_inertia[0] * ((from_x - x) * push_y - (from_y - y) * push_x)
        return world.replace(
            velocity=jnp.concatenate([velocity[None], world.velocity[1:]]),
            angular_velocity=jnp.concatenate([turn[None], world.angular_velocity[1:]]),
        )

    def draw(self, state: LunarLanderState, height: int, width: int) -> jax.Array:
        canvas = Canvas.blank(height, width, 0.0, WIDTH, 0.0, HEIGHT, BLACK)
        ground_x = np.linspace(0, WIDTH, CHUNKS, dtype=np.float32)
        ground_y = jnp.append(state.edges[1:, 1], state.edges[-1, 3])
        canvas = canvas.area(lambda x: jnp.interp(x, ground_x, ground_y), WHITE)
        pixel = 1 / PIXELS
        for number, body in enumerate(WORLD.bodies):
            position, angle = state.world.position[number], state.world.angle[number]
            at = frame(position[0], position[1], angle, WORLD.center[number])
            corners = [at.place(x, y) for x, y in body.shape.vertices]
            size = 2 * max(math.dist(corner, WORLD.center[number]) for corner in body.shape.vertices) + pixel
            part = canvas.part(position, (size / WIDTH, size / HEIGHT)).polygon(corners, (128, 102, 230))
            canvas = canvas.put(part.line([*corners, corners[0]], (77, 77, 128), pixel))
        for x in (ground_x[CHUNKS // 2 - 1], ground_x[CHUNKS // 2 + 1]):
            top, size = PAD_HEIGHT + 50 * pixel, 52 * pixel
            flag = [(x, top), (x, top - 10 * pixel), (x + 25 * pixel, top - 5 * pixel)]
            part = canvas.part((x, top - 25 * pixel), (size / WIDTH, size / HEIGHT))
            canvas = canvas.put(part.rod((x, PAD_HEIGHT), (x, top), WHITE, pixel).polygon(flag, (204, 204, 0)))
        return canvas.picture()


def _edges(heights: jax.Array) -> jax.Array:
    """Return the base line and the ground, (EDGES, 4), from the drawn heights (CHUNKS + 1,)."""
    middle = CHUNKS // 2
    heights = jnp.where(np.abs(np.arange(CHUNKS + 1) - middle) <= 2, PAD_HEIGHT, heights)
    # 0.33 as in Gymnasium, not a third; and the last height is the left neighbor of the first.
    y = 0.33 * (jnp.roll(heights, 1) + heights + jnp.roll(heights, -1))[:CHUNKS]
    x = jnp.linspace(0, WIDTH, CHUNKS)
    ground = jnp.stack([x[:-1], y[:-1], x[1:], y[1:]], axis=1)
    return jnp.concatenate([jnp.array([[0, 0, WIDTH, 0]]), ground]).astype(jnp.float32)


def _observe(world: WorldState) -> jax.Array:
    (x, y), angle, velocity = world.position[0], world.angle[0], world.velocity[0]
    at = frame(x, y, angle, WORLD.center[0])
    return jnp.stack(
        [
            (at.x - WIDTH / 2) / (WIDTH / 2),
            (at.y - (PAD_HEIGHT + _LEG_DOWN)) / (HEIGHT / 2),
            velocity[0] * (WIDTH / 2) / FPS,
            velocity[1] * (HEIGHT / 2) / FPS,
            angle,
            20 * world.angular_velocity[0] / FPS,
            world.has_contact[1],
            world.has_contact[2],
        ]
    ).astype(jnp.float32)


def _shaping(observation: jax.Array) -> jax.Array:
    x, y, dx, dy, angle, _, left, right = observation
    nearness, slowness = jnp.sqrt(x * x + y * y), jnp.sqrt(dx * dx + dy * dy)
    shaping: jax.Array = -100 * (nearness + slowness + jnp.abs(angle)) + 10 * (left + right)
    return shaping
