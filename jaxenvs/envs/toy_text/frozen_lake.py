"""FrozenLake: cross the ice without falling into a hole."""

from __future__ import annotations

import functools
from collections.abc import Iterable

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from jaxenvs.arguments import integer, number, one_of, shown
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

MAPS = {
    "4x4": ("SFFF", "FHFH", "FFFH", "HFFG"),
    "8x8": ("SFFFFFFF", "FFFFFFFF", "FFFHFFFF", "FFFFFHFF", "FFFHFFFF", "FHHFFFHF", "FHFFHFHF", "FFFHFFFG"),
}
DIRECTIONS = ((0, -1), (1, 0), (0, 1), (-1, 0))  # of the actions: rows down, columns to the right
GOAL, HOLE, ICE, OVER = range(4)  # the outcome of a step; OVER at a goal or a hole, which a step never leaves


@struct
class FrozenLakeState:
    """State of a FrozenLake: `position` is row * columns + column, int32. `stream` is None if ice is not slippery."""

    position: jax.Array
    stream: UniformStream | None


@environment
class FrozenLake(Environment[FrozenLakeState]):
    """Walk left (0), down (1), right (2) or up (3) to the goal, as Gymnasium's FrozenLake-v1.

    On slippery ice a step goes in the chosen direction with probability `success_rate`, else to either side of it.
    Observation: Discrete(rows * columns), the position. Reward: 1 for the goal, else 0; see `reward_schedule`. The info
    has `prob`, the probability of the step just taken.

    Attributes:
      success_rate: a probability.
      reward_schedule: rewards of reaching a goal, a hole, ice.
      desc: the map, rows of S (start), F (ice), H (hole), G (goal); None for the map of `map_name`.
      map_name: "4x4" or "8x8".
      is_slippery: whether the ice is slippery.
    """

    success_rate: float = 1 / 3
    reward_schedule: tuple[float, float, float] = (1.0, 0.0, 0.0)
    desc: tuple[str, ...] | None = static(default=None)
    map_name: str = static(default="4x4")
    is_slippery: bool = static(default=True)

    render_fps = 4

    def __check_init__(self) -> None:
        if self.desc is not None:
            object.__setattr__(self, "desc", _checked_map(self.desc))
        super().__check_init__()
        if self.desc is None:
            one_of("map_name", self.map_name, MAPS)
        if not isinstance(self.reward_schedule, tuple | list) or len(self.reward_schedule) != 3:
            raise ValueError(
                "reward_schedule must hold three rewards, for reaching the goal, a hole and ice, got "
                f"{shown(self.reward_schedule)}."
            )

    @property
    def rows(self) -> tuple[str, ...]:
        """Map: a string for each row."""
        return MAPS[self.map_name] if self.desc is None else self.desc

    @property
    def observation_space(self) -> gymnasium.spaces.Discrete:
        return gymnasium.spaces.Discrete(len(self.rows) * len(self.rows[0]))

    @property
    def action_space(self) -> gymnasium.spaces.Discrete:
        return gymnasium.spaces.Discrete(4)

    def reset(self, key: jax.Array) -> tuple[FrozenLakeState, TimeStep]:
        stream = UniformStream.create(key)
        starts = np.flatnonzero(_letters(self.rows) == "S").astype(np.int32)
        if len(starts) == 1:
            position = jnp.asarray(starts[0])
        else:
            stream, uniform = stream.next()
            position = jnp.asarray(starts)[(uniform * len(starts)).astype(jnp.int32)]
        state = FrozenLakeState(position=position, stream=stream if self.is_slippery else None)
        return state, TimeStep.create(position.astype(int), info={"prob": jnp.ones((), float)})

    def step(self, state: FrozenLakeState, action: jax.Array) -> tuple[FrozenLakeState, TimeStep]:
        stream, direction, prob = state.stream, action.astype(jnp.int32), jnp.ones((), float)
        if stream is not None:
            stream, uniform = stream.next()
            aside = (1 - self.success_rate) / 2
            slip = (uniform >= aside).astype(jnp.int32) + (uniform >= aside + self.success_rate) - 1
            direction, prob = direction + slip, jnp.where(slip == 0, self.success_rate, aside)
        step = jnp.asarray(_steps(self.rows))[4 * state.position + (direction & 3)]
        position, kind = step >> 2, step & 3
        goal, hole, ice = self.reward_schedule
        reward = jnp.where(kind == GOAL, goal, jnp.where(kind == HOLE, hole, jnp.where(kind == ICE, ice, 0.0)))
        info = {"prob": jnp.where(kind == OVER, 1.0, prob).astype(float)}
        state = FrozenLakeState(position=position, stream=stream)
        return state, TimeStep.create(position.astype(int), reward, kind != ICE, info=info)

    @property
    def render_size(self) -> tuple[int, int]:
        return min(64 * len(self.rows), 512), min(64 * len(self.rows[0]), 512)

    def draw(self, state: FrozenLakeState, height: int, width: int) -> jax.Array:
        grid = len(self.rows), len(self.rows[0])
        return draw_in_cell(*_pictures(self.rows), grid, state.position, height, width)


def generate_random_map(size: int = 8, p: float = 0.8, seed: int | None = None) -> tuple[str, ...]:
    """Return a map in which each field is ice with probability `p`, else a hole, and the goal can be reached.

    With the same seed, Gymnasium's function of this name returns the same map.
    """
    size, p = integer("size", size, 2), number("p", p, above=0, most=1)
    random = np.random.default_rng(seed)
    while True:
        letters = np.where(random.random((size, size)) < p, "F", "H")
        letters[0, 0], letters[-1, -1] = "S", "G"
        rows = tuple(map("".join, letters))
        if _goal_can_be_reached(rows):
            return rows


def _goal_can_be_reached(rows: tuple[str, ...]) -> bool:
    steps, letters = _steps(rows).reshape(-1, 4) >> 2, _letters(rows)
    reached = letters == "S"
    for _ in range(letters.size):
        reached[steps[reached].ravel()] = True
    return bool((reached & (letters == "G")).any())


def _checked_map(desc: Iterable[object]) -> tuple[str, ...]:
    """Return the rows of a map as texts. As in Gymnasium, a row may be a list of letters, too, and letters bytes."""
    try:
        rows = tuple(b"".join(np.asarray(row, dtype="c").ravel()).decode() for row in desc)
    except (TypeError, ValueError):  # no rows, or no letters
        rows = ()
    right = not isinstance(desc, str) and all(len(row) == len(rows[0]) and set(row) <= set("SFHG") for row in rows)
    if not right or "S" not in "".join(rows):
        raise ValueError(
            "desc must be strings of equal length with the letters S, F, H and G, at least one of them S, got "
            f"{shown(desc)}."
        )
    return rows


def _letters(rows: tuple[str, ...]) -> np.ndarray:
    return np.array(list("".join(rows)))


@functools.lru_cache
def _steps(rows: tuple[str, ...]) -> np.ndarray:
    """Return a table of steps: int32 (positions * directions,), 4 * next position + kind, for one gather per step."""
    height, width = len(rows), len(rows[0])
    steps = np.empty((height, width, 4), np.int32)
    for row, column, direction in np.ndindex(steps.shape):
        if rows[row][column] in "GH":
            steps[row, column, direction] = 4 * (row * width + column) + OVER
            continue
        down, right = DIRECTIONS[direction]
        to_row, to_column = np.clip(row + down, 0, height - 1), np.clip(column + right, 0, width - 1)
        kind = {"G": GOAL, "H": HOLE}.get(rows[to_row][to_column], ICE)
        steps[row, column, direction] = 4 * (to_row * width + to_column) + kind
    return steps.ravel()


@functools.lru_cache
def _pictures(rows: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Draw the lake with a walker on every field except the holes, and without a walker."""
    ice = tile(16, (199, 223, 242), (172, 202, 231))
    hole = painted(painted(ice, box(12, 12, (62, 108, 160)), 2, 2), box(11, 12, (91, 138, 190)), 3, 2)
    for top, left in ((7, 4), (10, 8)):
        hole = painted(hole, box(1, 3, (130, 170, 215)), top, left)
    tiles = {
        "F": ice,
        "S": painted(ice, text("S", INK), 1, 1),
        "H": hole,
        "G": painted(painted(ice, text("G", INK), 1, 1), FLAG, 5, 6),
    }
    walked = {letter: tile if letter == "H" else painted(tile, WALKER, 4, 5) for letter, tile in tiles.items()}
    return mosaic(rows, walked), mosaic(rows, tiles)
