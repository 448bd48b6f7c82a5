"""Breakout: a paddle at the bottom sends a ball back up to bricks."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jaxenvs.environment import environment, struct
from jaxenvs.envs.minatar.game import LEFT, NONE, RIGHT, SIZE, Draws, Game, GameState, uniform

BRICK_ROWS = (1, 2, 3)
ALL_BRICKS = 2 ** (len(BRICK_ROWS) * SIZE) - 1
# For each element of a raveled observation, the bit of the brick that it shows; 0 for none.
SHOWN_BRICK = np.zeros((SIZE, SIZE, 4), np.uint32)
SHOWN_BRICK[BRICK_ROWS, :, 3] = 1 << np.arange(len(BRICK_ROWS) * SIZE).reshape(-1, SIZE)

# The directions of the ball, numbered so that a reflection is an exclusive or.
UP_LEFT, UP_RIGHT, DOWN_RIGHT, DOWN_LEFT = range(4)
SIDEWAYS, BACK, VERTICALLY = 1, 2, 3


@struct
class BreakoutState(GameState):
    """State of a Breakout. Columns and rows are int32, from 0 at the left and at the top.

    Attributes:
      paddle: its column.
      ball_x, ball_y: column and row of the ball.
      trail: int32, 10 * row + column of the ball before the last step.
      direction: int32, one of the four above.
      bricks: uint32, one bit for each brick: bit 10 * (row - 1) + column for (row, column).
      strike: bool, the last step ended in a contact with a brick. A contact in the next step breaks no brick.
    """

    paddle: jax.Array
    ball_x: jax.Array
    ball_y: jax.Array
    trail: jax.Array
    direction: jax.Array
    bricks: jax.Array
    strike: jax.Array


@struct
class BreakoutDraws(Draws):
    """Random draws of a step.

    Attributes:
      side: int32, 0 or 1, used by a reset: whether the ball starts on the left or on the right.
    """

    side: jax.Array


@environment
class Breakout(Game[BreakoutState, BreakoutDraws]):
    """Keep a ball in play with a paddle and break bricks with it: nothing (0), left (1), right (3), as in MinAtar.

    Observation: bool (10, 10, 4): paddle, ball, trail, brick. Reward: 1 for each brick. The episode ends when the ball
    gets past the paddle. The game does not grow more difficult.
    """

    channels = ("paddle", "ball", "trail", "brick")
    minimal_action_set = (NONE, LEFT, RIGHT)
    num_words = 1

    def draws(self, words: jax.Array) -> BreakoutDraws:
        return BreakoutDraws(sticky=uniform(words[0]), side=(words[0] & 1).astype(jnp.int32))

    def reset_with(self, key: jax.Array, draws: BreakoutDraws) -> BreakoutState:
        ball_x, ball_y = draws.side * (SIZE - 1), jnp.int32(3)
        return BreakoutState(
            key=key,
            last_action=jnp.int32(NONE),
            terminated=jnp.bool_(False),
            paddle=jnp.int32(4),
            ball_x=ball_x,
            ball_y=ball_y,
            trail=ball_y * SIZE + ball_x,
            direction=jnp.int32(DOWN_RIGHT) + draws.side,
            bricks=jnp.uint32(ALL_BRICKS),
            strike=jnp.bool_(False),
        )

    def play(self, state: BreakoutState, action: jax.Array, draws: BreakoutDraws) -> tuple[BreakoutState, jax.Array]:
        moved = (action == RIGHT).astype(jnp.int32) - (action == LEFT)
        paddle = jnp.clip(state.paddle + moved, 0, SIZE - 1)

        goes_right = (state.direction == UP_RIGHT) | (state.direction == DOWN_RIGHT)
        x = state.ball_x + jnp.where(goes_right, 1, -1)
        y = state.ball_y + jnp.where(state.direction >= DOWN_RIGHT, 1, -1)
        off_side = (x < 0) | (x >= SIZE)
        x = jnp.clip(x, 0, SIZE - 1)

        at_top = y < 0
        brick = _brick(y, x)
        contact = (state.bricks & brick) != 0
        breaks = contact & ~state.strike
        at_bottom = y == SIZE - 1
        on_paddle = at_bottom & (state.ball_x == paddle)
        on_edge = at_bottom & ~on_paddle & (x == paddle)

        turn = jnp.where(off_side, SIDEWAYS, 0)
        turn ^= jnp.where(at_top | breaks | on_paddle, VERTICALLY, 0) ^ jnp.where(on_edge, BACK, 0)
        bricks = jnp.where(at_bottom & (state.bricks == 0), jnp.uint32(ALL_BRICKS), state.bricks)
        return dataclasses.replace(
            state,
            terminated=at_bottom & ~on_paddle & ~on_edge,
            paddle=paddle,
            ball_x=x,
            # Where the ball bounces off something below or above, it keeps its row.
            ball_y=jnp.where(at_top | breaks | on_paddle | on_edge, state.ball_y, y),
            trail=state.ball_y * SIZE + state.ball_x,
            direction=state.direction ^ turn,
            bricks=jnp.where(breaks, bricks & ~brick, bricks),
            strike=contact,
        ), breaks

    def observe(self, state: BreakoutState) -> jax.Array:
        return self.paint(
            self.cells(0, SIZE - 1, state.paddle),
            self.cells(1, state.ball_y, state.ball_x),
            self.cells(2, 0, state.trail),
            onto=(state.bricks & SHOWN_BRICK.ravel()) != 0,
        )


def _brick(row: jax.Array, column: jax.Array) -> jax.Array:
    """Return the bit of a brick, uint32; 0 in rows without bricks."""
    among = (row >= BRICK_ROWS[0]) & (row <= BRICK_ROWS[-1])
    number = jnp.where(among, (row - BRICK_ROWS[0]) * SIZE + column, 0)
    return jnp.where(among, jnp.uint32(1) << number.astype(jnp.uint32), jnp.uint32(0))
