"""Taxi: fetch a passenger and bring him where he wants to go."""

from __future__ import annotations

import functools

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from jaxenvs.drawing import draw_tiles
from jaxenvs.environment import Environment, TimeStep, environment, static, struct
from jaxenvs.envs.toy_text.draws import UniformStream
from jaxenvs.envs.toy_text.pixel_art import (
    INK,
    RED,
    WHITE,
    box,
    painted,
    plain,
    sprite,
    text,
)

SIZE = 5  # rows and columns of the grid
WALLS = ((0, 1), (1, 1), (3, 0), (4, 0), (3, 2), (4, 2))  # (row, column) of the squares with a wall to their right
PLACES = ((0, 0), (0, 4), (4, 0), (4, 3))  # (row, column) of red, green, yellow and blue
IN_TAXI = len(PLACES)  # the place of a passenger in the taxi
SOUTH, NORTH, EAST, WEST, PICK_UP, DROP_OFF = range(6)
DIRECTIONS = ((1, 0), (-1, 0), (0, 1), (0, -1))  # of the first four: rows down, columns to the right
LEFT_OF = (EAST, WEST, NORTH, SOUTH)
RIGHT_OF = (WEST, EAST, SOUTH, NORTH)
DELIVERED, FORBIDDEN, USUAL = range(3)  # the outcome of an action
NUM_STATES = SIZE * SIZE * (IN_TAXI + 1) * len(PLACES)

# In the picture, a square is 14 by 22 pixels, which are four tiles.
TILE_HEIGHT, TILE_WIDTH = 7, 11
TILE_ROWS, TILE_COLUMNS = 16, 12
TOP, LEFT = 4, 1  # tiles above and left of the grid
NOBODY, PASSENGER, TAXI, TAXI_AND_PASSENGER, FULL = range(5)  # what is on a square


@struct
class TaxiState:
    """State of a Taxi: positions of taxi, passenger and destination.

    Attributes:
      situation: int32, ((row * 5 + column) * 5 + passenger) * 4 + destination.
      change_of_mind: int32, by how many places (modulo 4) the passenger's destination changes once he has been driven
        to another square; 0 if it does not change. None unless passengers are fickle.
      stream: None unless it rains.
    """

    situation: jax.Array
    change_of_mind: jax.Array | None
    stream: UniformStream | None


@environment
class Taxi(Environment[TaxiState]):
    """Drive south (0), north (1), east (2) or west (3), pick up (4) and drop off (5), as Gymnasium's Taxi-v4.

    In rain a drive goes in the chosen direction with `rainy_probability`, else to either side of it. A fickle passenger
    changes his destination, with `fickle_probability`, as soon as he is driven to another square. Observation:
    Discrete(500), ((row * 5 + column) * 5 + passenger) * 4 + destination; 4 is a passenger in the taxi. Reward: -1 per
    step, 20 for the passenger delivered, -10 for one picked up or dropped off where that is not possible. The info has
    `prob`, the probability of the step just taken, considering rain; and `action_mask`, int8 (6,), which actions would
    change anything.
    Source: Dietterich (2000), "Hierarchical reinforcement learning with the MAXQ value function decomposition".

    Attributes:
      rainy_probability: that a drive goes in the chosen direction, in rain.
      fickle_probability: that a fickle passenger changes his destination.
      is_rainy: whether it rains.
      fickle_passenger: whether the passenger is fickle.
    """

    rainy_probability: float = 0.8
    fickle_probability: float = 0.3
    is_rainy: bool = static(default=False)
    fickle_passenger: bool = static(default=False)

    render_fps = 4
    render_size = 4 * TILE_ROWS * TILE_HEIGHT, 4 * TILE_COLUMNS * TILE_WIDTH

    @property
    def observation_space(self) -> gymnasium.spaces.Discrete:
        return gymnasium.spaces.Discrete(NUM_STATES)

    @property
    def action_space(self) -> gymnasium.spaces.Discrete:
        return gymnasium.spaces.Discrete(6)

    def reset(self, key: jax.Array) -> tuple[TaxiState, TimeStep]:
        start_key, stream_key = jax.random.split(key)
        which, fickle, further = jax.random.uniform(start_key, (3,))
        starts, change = _starts(), None
        if self.fickle_passenger:
            others = len(PLACES) - 1
            change = jnp.where(fickle < self.fickle_probability, 1 + (further * others).astype(jnp.int32), 0)
        state = TaxiState(
            situation=jnp.asarray(starts)[(which * len(starts)).astype(jnp.int32)],
            change_of_mind=change,
            stream=UniformStream.create(stream_key) if self.is_rainy else None,
        )
        return state, TimeStep.create(state.situation.astype(int), info=self._info(state, jnp.ones((), float)))

    def step(self, state: TaxiState, action: jax.Array) -> tuple[TaxiState, TimeStep]:
        stream, prob = state.stream, jnp.ones((), float)
        drives, drift = action < PICK_UP, jnp.zeros((), jnp.int32)
        if stream is not None:
            stream, uniform = stream.next()
            aside = (1 - self.rainy_probability) / 2
            drift = (uniform >= self.rainy_probability).astype(jnp.int32) + (uniform >= self.rainy_probability + aside)
            prob = jnp.where(drives, jnp.where(drift == 0, self.rainy_probability, aside), 1.0)
        table, outcomes = _steps(self.is_rainy)
        step = jnp.asarray(table)[(6 * state.situation + action.astype(jnp.int32)) * outcomes + drift]
        situation, kind = step >> 2, step & 3
        change = state.change_of_mind
        if change is not None:
            rides = (state.situation >> 2) % (IN_TAXI + 1) == IN_TAXI
            changes = rides & drives & (situation != state.situation)
            situation = jnp.where(changes, (situation & ~3) | ((situation + change) & 3), situation)
            change = jnp.where(changes, 0, change)
        reward = jnp.where(kind == DELIVERED, 20.0, jnp.where(kind == FORBIDDEN, -10.0, -1.0))
        state = TaxiState(situation=situation, change_of_mind=change, stream=stream)
        return state, TimeStep.create(situation.astype(int), reward, kind == DELIVERED, info=self._info(state, prob))

    def action_masks(self, state: TaxiState) -> jax.Array:
        """Return which actions would change anything: int8 (6,), as `info["action_mask"]`."""
        mask = jnp.asarray(_masks())[state.situation] >> jnp.arange(6, dtype=jnp.uint8)
        return (mask & 1).astype(jnp.int8)

    def draw(self, state: TaxiState, height: int, width: int) -> jax.Array:
        square, passenger, destination = state.situation // 20, state.situation // 4 % 5, state.situation % 4
        squares = jnp.arange(SIZE * SIZE)
        places = jnp.asarray([SIZE * row + column for row, column in PLACES])
        waits = (passenger != IN_TAXI) & (squares == places[passenger])  # an index past the end is cut to the last
        taxi = jnp.where(passenger == IN_TAXI, FULL, jnp.where(waits, TAXI_AND_PASSENGER, TAXI))
        content = jnp.where(squares == square, taxi, jnp.where(waits, PASSENGER, NOBODY))
        scene = 2 * content + (squares == places[destination])
        # Each square is four tiles; the picture around them is always the same.
        which = scene.reshape(SIZE, SIZE).repeat(2, axis=0).repeat(2, axis=1)
        below, beside = TILE_ROWS - TOP - 2 * SIZE, TILE_COLUMNS - LEFT - 2 * SIZE
        which = jnp.pad(which, ((TOP, below), (LEFT, beside)))
        tiles, numbers = _scenes()
        grid = jnp.asarray(numbers)[which, np.arange(TILE_ROWS)[:, None], np.arange(TILE_COLUMNS)]
        return draw_tiles(grid, tiles, height, width)

    def _info(self, state: TaxiState, prob: jax.Array) -> dict[str, jax.Array]:
        return {"prob": prob.astype(float), "action_mask": self.action_masks(state)}


def _encode(row: int, column: int, passenger: int, destination: int) -> int:
    """Return the number of a situation, as it is observed."""
    return ((row * SIZE + column) * (IN_TAXI + 1) + passenger) * len(PLACES) + destination


def _decode(situation: int) -> tuple[int, int, int, int]:
    row, column, passenger, destination = np.unravel_index(situation, (SIZE, SIZE, IN_TAXI + 1, len(PLACES)))
    return int(row), int(column), int(passenger), int(destination)


def _leads_to(row: int, column: int, direction: int) -> tuple[int, int]:
    """Return the next square in a direction, or the same square if a wall or the edge is in the way."""
    down, right = DIRECTIONS[direction]
    wall = (row, column + min(right, 0)) in WALLS and right != 0
    inside = 0 <= row + down < SIZE and 0 <= column + right < SIZE
    return (row + down, column + right) if inside and not wall else (row, column)


@functools.cache
def _starts() -> np.ndarray:
    """Return the situations in which the passenger waits away from his destination: int32 (300,)."""
    waiting = [s for s in range(NUM_STATES) if _decode(s)[2] not in (IN_TAXI, _decode(s)[3])]
    return np.array(waiting, np.int32)


@functools.cache
def _steps(is_rainy: bool) -> tuple[np.ndarray, int]:
    """Return a table of the outcomes of actions, and the number of outcomes: 1, or in rain 3 (ahead, left, right).

    The table is int32 (situations * actions * outcomes,), 4 * next situation + kind, for one gather per step.
    """
    outcomes = 3 if is_rainy else 1
    steps = np.empty((NUM_STATES, 6, outcomes), np.int32)
    for situation, action, outcome in np.ndindex(steps.shape):
        to, kind = _outcome(situation, action, outcome)
        steps[situation, action, outcome] = 4 * to + kind
    return steps.ravel(), outcomes


def _outcome(situation: int, action: int, drift: int) -> tuple[int, int]:
    """Return the next situation and the kind of outcome. Rain diverts a drive only if it could have gone ahead."""
    row, column, passenger, destination = _decode(situation)
    if action < PICK_UP:
        square = _leads_to(row, column, action)
        if square != (row, column):
            square = _leads_to(row, column, (action, LEFT_OF[action], RIGHT_OF[action])[drift])
        return _encode(*square, passenger, destination), USUAL
    here = PLACES.index((row, column)) if (row, column) in PLACES else None
    if action == PICK_UP:
        return (_encode(row, column, IN_TAXI, destination), USUAL) if here == passenger else (situation, FORBIDDEN)
    if passenger != IN_TAXI or here is None:
        return situation, FORBIDDEN
    return _encode(row, column, here, destination), DELIVERED if here == destination else USUAL


@functools.cache
def _masks() -> np.ndarray:
    """Return, for each situation, a bit for each action that would change anything: uint8 (situations,)."""
    changes = [[_outcome(s, action, 0)[0] != s for action in range(6)] for s in range(NUM_STATES)]
    return np.packbits(np.array(changes), axis=1, bitorder="little").ravel()


@functools.cache
def _scenes() -> tuple[np.ndarray, np.ndarray]:
    """Return tiles of scenes: 2 k and 2 k + 1 show thing k on every square, without and with marked places.

    The scenes are cut into tiles, (n, 7, 11, 3), each kept once, and numbers of tiles, (scenes, rows, columns).
    """
    things = {
        NOBODY: [],
        PASSENGER: [(_PASSENGER, 4, 14)],
        TAXI: [(_TAXI, 3, 4)],
        TAXI_AND_PASSENGER: [(_TAXI, 3, 2), (_PASSENGER, 4, 16)],
        FULL: [(_FULL_TAXI, 3, 4)],
    }
    pictures = []
    for content in things.values():
        for is_destination in (False, True):
            picture = _town(is_destination)
            for row, column in np.ndindex(SIZE, SIZE):
                for thing, down, right in content:
                    picture = painted(picture, thing, _top(row) + down, _left(column) + right)
            pictures.append(picture)
    cut = np.stack(pictures).reshape(-1, TILE_ROWS, TILE_HEIGHT, TILE_COLUMNS, TILE_WIDTH, 3).swapaxes(2, 3)
    tiles, numbers = np.unique(cut.reshape(-1, TILE_HEIGHT * TILE_WIDTH * 3), axis=0, return_inverse=True)
    return tiles.reshape(-1, TILE_HEIGHT, TILE_WIDTH, 3), numbers.reshape(cut.shape[:3]).astype(np.int32)


def _top(row: int) -> int:
    return (TOP + 2 * row) * TILE_HEIGHT


def _left(column: int) -> int:
    return (LEFT + 2 * column) * TILE_WIDTH


def _town(marked: bool) -> np.ndarray:
    """Draw the empty town; `marked`: with a frame around each place, as around the destination."""
    picture = plain(TILE_ROWS * TILE_HEIGHT, TILE_COLUMNS * TILE_WIDTH, (250, 250, 246))
    height, width = 2 * TILE_HEIGHT, 2 * TILE_WIDTH
    picture = painted(picture, box(SIZE * height + 6, SIZE * width + 6, INK), _top(0) - 3, _left(0) - 3)
    picture = painted(picture, box(SIZE * height + 2, SIZE * width + 2, WHITE), _top(0) - 1, _left(0) - 1)
    picture = painted(picture, _HOUSE, _top(0) - 21, _left(SIZE - 1) + 1)
    colours = ((RED, "R"), ((152, 184, 112), "G"), ((232, 194, 90), "Y"), ((116, 150, 200), "B"))
    for row, column in np.ndindex(SIZE, SIZE):
        top, left = _top(row), _left(column)
        picture = painted(picture, box(height, width, (212, 210, 205)), top, left)
        picture = painted(picture, box(height - 2, width - 2, (232, 230, 225)), top + 1, left + 1)
        if (row, column) in PLACES:
            colour, letter = colours[PLACES.index((row, column))]
            if marked:
                picture = painted(picture, box(height - 2, width - 2, INK), top + 1, left + 1)
            rim = 3 if marked else 1
            picture = painted(picture, box(height - 2 * rim, width - 2 * rim, colour), top + rim, left + rim)
            picture = painted(picture, text(letter, WHITE), top + 5, left + 9)
    for row, column in WALLS:
        picture = painted(picture, box(height, 2, INK), _top(row), _left(column + 1) - 1)
    return picture


_PASSENGER = sprite([".##.", ".##.", "####", "####", ".##.", ".##.", "#..#"])
_TAXI_ROWS = [
    "...######.....",
    "..#bb#bbb#....",
    ".#bbb#bbbb##..",
    "#yyyyyyyyyyy#.",
    "#yy#w#w#w#yyy#",
    "#yyyyyyyyyyyy#",
    "###ww####ww###",
    "..####..####..",
    "...##....##...",
]
_TAXI = sprite(_TAXI_ROWS)
_FULL_TAXI = sprite([_TAXI_ROWS[0], "..#bb###b#....", ".#bbb###bb##..", *_TAXI_ROWS[3:]])  # a head behind the window
_HOUSE = sprite(
    [
        "....############....",
        "...#rrrrrrrrrrrr#...",
        "..#rrrrrrrrrrrrrr#..",
        ".#rrrrrrrrrrrrrrrr#.",
        "#rrrrrrrrrrrrrrrrrr#",
        "####################",
        "#oooooooooooooooooo#",
        "#ooo####oooo####ooo#",
        "#ooo#bw#oooo#bw#ooo#",
        "#ooo#bb#oooo#bb#ooo#",
        "#ooo####oooo####ooo#",
        "#oooooooooooooooooo#",
        "#ooo####oooo####ooo#",
        "#ooo#bw#oooo#bw#ooo#",
        "#ooo#bb#####bb##ooo#",
        "#ooo####nnn#####ooo#",
        "#ooooooo#nn#ooooooo#",
        "#ooooooo#nn#ooooooo#",
        "####################",
    ]
)
