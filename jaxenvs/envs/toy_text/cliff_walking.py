"""CliffWalking: walk along a cliff without falling off."""

from __future__ import annotations

import functools

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from jaxenvs.environment import Environment, TimeStep, environment, static, struct
from jaxenvs.envs.toy_text.draws import UniformStream
from jaxenvs.envs.toy_text.pixel_art import (
    FLAG,
    INK,
    WALKER,
    box,
    draw_in_cell,
    mosaic,
    painted,
    text,
    tile,
)

ROWS = ("............", "............", "............", "SCCCCCCCCCCG")  # C is the cliff
HEIGHT, WIDTH = len(ROWS), len(ROWS[0])
START = 36  # the position of S
DIRECTIONS = ((-1, 0), (0, 1), (1, 0), (0, -1))  # of the actions: rows down, columns to the right
GROUND, FALL, END = range(3)  # the outcome of a step


@struct
class CliffWalkingState:
    """State of a CliffWalking: `position` is row * 12 + column, int32. `stream` is None on firm ground."""

    position: jax.Array
    stream: UniformStream | None


@environment
class CliffWalking(Environment[CliffWalkingState]):
    """Walk up (0), right (1), down (2) or left (3) to the other end of a cliff, as Gymnasium's CliffWalking-v1.

    On slippery ground a step goes in the chosen direction, or to either side of it, with a probability of 1/3 each.
    Observation: Discrete(48), the position. Reward: -1 per step; -100 for a fall, which leads back to the start. The
    info has `prob`, the probability of the step just taken.
    Source: Sutton & Barto (2018), example 6.6.

    Attributes:
      is_slippery: whether the ground is slippery.
    """

    is_slippery: bool = static(default=False)

    render_fps = 4
    render_size = 64 * HEIGHT, 64 * WIDTH

    @property
    def observation_space(self) -> gymnasium.spaces.Discrete:
        return gymnasium.spaces.Discrete(HEIGHT * WIDTH)

    @property
    def action_space(self) -> gymnasium.spaces.Discrete:
        return gymnasium.spaces.Discrete(4)

    def reset(self, key: jax.Array) -> tuple[CliffWalkingState, TimeStep]:
        stream = UniformStream.create(key) if self.is_slippery else None
        state = CliffWalkingState(position=jnp.asarray(START, jnp.int32), stream=stream)
        return state, TimeStep.create(state.position.astype(int), info={"prob": jnp.ones((), float)})

    def step(self, state: CliffWalkingState, action: jax.Array) -> tuple[CliffWalkingState, TimeStep]:
        stream, direction = state.stream, action.astype(jnp.int32)
        if stream is not None:
            stream, uniform = stream.next()
            direction += (uniform >= 1 / 3).astype(jnp.int32) + (uniform >= 2 / 3) - 1
        step = jnp.asarray(_steps())[4 * state.position + (direction & 3)]
        position, kind = step >> 2, step & 3
        reward = jnp.where(kind == FALL, -100.0, -1.0)
        info = {"prob": jnp.asarray(1.0 if stream is None else 1 / 3, float)}
        state = CliffWalkingState(position=position, stream=stream)
        return state, TimeStep.create(position.astype(int), reward, kind == END, info=info)

    def draw(self, state: CliffWalkingState, height: int, width: int) -> jax.Array:
        return draw_in_cell(*_pictures(), (HEIGHT, WIDTH), state.position, height, width)


@functools.cache
def _steps() -> np.ndarray:
    """Return a table of steps: int32 (positions * directions,), 4 * next position + kind, for one gather per step."""
    steps = np.empty((HEIGHT, WIDTH, 4), np.int32)
    for row, column, direction in np.ndindex(steps.shape):
        down, right = DIRECTIONS[direction]
        to_row, to_column = np.clip(row + down, 0, HEIGHT - 1), np.clip(column + right, 0, WIDTH - 1)
        kind = {"C": FALL, "G": END}.get(ROWS[to_row][to_column], GROUND)
        position = START if kind == FALL else to_row * WIDTH + to_column
        steps[row, column, direction] = 4 * position + kind
    return steps.ravel()


@functools.cache
def _pictures() -> tuple[np.ndarray, np.ndarray]:
    """Draw the land with a walker on every square except the cliff, and without a walker."""
    ground = tile(16, (196, 215, 156), (174, 196, 132))
    cliff = painted(painted(ground, box(16, 16, INK), 0, 0), box(13, 16, (168, 124, 82)), 1, 0)
    cliff = painted(cliff, box(3, 16, (128, 90, 62)), 11, 0)
    for top, left, height in ((1, 2, 1), (1, 9, 1), (5, 4, 5), (5, 11, 4)):
        cliff = painted(cliff, box(height, 1, (128, 90, 62)), top, left)
    tiles = {
        ".": ground,
        "S": painted(ground, text("S", INK), 2, 2),
        "C": cliff,
        "G": painted(painted(ground, text("G", INK), 2, 2), FLAG, 5, 7),
    }
    walked = {letter: tile if letter == "C" else painted(tile, WALKER, 4, 5) for letter, tile in tiles.items()}
    return mosaic(ROWS, walked), mosaic(ROWS, tiles)
