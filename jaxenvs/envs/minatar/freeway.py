"""Freeway: a chicken crosses eight rows of traffic, again and again."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jaxenvs.environment import environment, struct
from jaxenvs.envs.minatar.game import DOWN, NONE, SIZE, UP, Draws, Game, GameState, uniform

NUM_CARS = 8  # car i is in row i + 1
MAX_SPEED = 5
COLUMN = 4  # always the chicken's column
MOVE_PERIOD = 3  # steps from one move of the chicken to the next
NUM_STEPS = 2500  # on the clock at the start; the step after the last of them ends the episode


@struct
class FreewayState(GameState):
    """State of a Freeway. Rows and columns are int32, from 0 at the top and at the left.

    Attributes:
      chicken: its row.
      move_timer: int32, the steps until the chicken can move.
      clock: int32, the steps left.
      car_x: int32 (8,), the columns of the cars.
      speed: int32 (8,), -5 to -1 or 1 to 5: a car moves every |speed| + 1 steps, to the right if it is positive.
      car_timer: int32 (8,), the steps until a car moves.
    """

    chicken: jax.Array
    move_timer: jax.Array
    clock: jax.Array
    car_x: jax.Array
    speed: jax.Array
    car_timer: jax.Array


@struct
class FreewayDraws(Draws):
    """Random draws of a step.

    Attributes:
      speeds: int32 (8,), each -5 to -1 or 1 to 5; used by a reset and where the chicken arrives.
    """

    speeds: jax.Array


@environment
class Freeway(Game[FreewayState, FreewayDraws]):
    """Bring a chicken across a road as often as possible: nothing (0), up (2), down (4), as in MinAtar.

    Observation: bool (10, 10, 7): chicken, car, and behind each car its speed, 1 (fast) to 5. Reward: 1 for each
    arrival. The episode ends with step 2501, not before. The game does not grow more difficult.
    """

    channels = ("chicken", "car", "speed 1", "speed 2", "speed 3", "speed 4", "speed 5")
    minimal_action_set = (NONE, UP, DOWN)
    num_words = 3

    def draws(self, words: jax.Array) -> FreewayDraws:
        digits = _decimal_digits(words[1:]).reshape(NUM_CARS) - MAX_SPEED
        return FreewayDraws(sticky=uniform(words[0]), speeds=jnp.where(digits >= 0, digits + 1, digits))

    def reset_with(self, key: jax.Array, draws: FreewayDraws) -> FreewayState:
        return FreewayState(
            key=key,
            last_action=jnp.int32(NONE),
            terminated=jnp.bool_(False),
            chicken=jnp.int32(SIZE - 1),
            move_timer=jnp.int32(MOVE_PERIOD),
            clock=jnp.int32(NUM_STEPS),
            car_x=jnp.zeros(NUM_CARS, jnp.int32),
            speed=draws.speeds,
            car_timer=jnp.abs(draws.speeds),
        )

    def play(self, state: FreewayState, action: jax.Array, draws: FreewayDraws) -> tuple[FreewayState, jax.Array]:
        moved = jnp.where(state.move_timer == 0, (action == DOWN).astype(jnp.int32) - (action == UP), 0)
        move_timer = jnp.where(moved != 0, MOVE_PERIOD, state.move_timer)
        chicken = jnp.clip(state.chicken + moved, 0, SIZE - 1)

        arrived = chicken == 0
        speed = jnp.where(arrived, draws.speeds, state.speed)
        car_timer = jnp.where(arrived, jnp.abs(speed), state.car_timer)

        drives = car_timer == 0
        car_x = state.car_x + jnp.where(drives, jnp.sign(speed), 0)
        car_x = _wrapped(car_x)
        in_row = np.arange(1, NUM_CARS + 1, dtype=np.int32) == chicken
        hit = (in_row & ((state.car_x == COLUMN) | (car_x == COLUMN))).any()  # before or after the car's move
        return dataclasses.replace(
            state,
            terminated=state.clock == 0,
            chicken=jnp.where(arrived | hit, SIZE - 1, chicken),
            move_timer=jnp.maximum(move_timer - 1, 0),
            clock=state.clock - 1,
            car_x=car_x,
            speed=speed,
            car_timer=jnp.where(drives, jnp.abs(speed), car_timer - 1),
        ), arrived

    def observe(self, state: FreewayState) -> jax.Array:
        row = np.arange(1, NUM_CARS + 1, dtype=np.int32)
        behind = _wrapped(state.car_x - jnp.sign(state.speed))
        return self.paint(
            self.cells(0, state.chicken, COLUMN),
            self.cells(1, row, state.car_x),
            self.cells(1 + jnp.abs(state.speed), row, behind),
        )


def _wrapped(x: jax.Array) -> jax.Array:
    """Wrap a column that is at most one outside of the grid to the other side."""
    return jnp.where(x < 0, SIZE - 1, jnp.where(x >= SIZE, 0, x))


def _decimal_digits(words: jax.Array) -> jax.Array:
    """Return four decimal digits of each random word, int32 (words, 4): of a fraction with 28 binary places."""
    shifted = (words >> 4)[:, None] * np.array([1, 10, 100, 1000], np.uint32)  # the overflow is not needed
    return (((shifted & 0xFFFFFFF) * 10) >> 28).astype(jnp.int32)
