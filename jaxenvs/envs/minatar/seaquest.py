"""Seaquest: a submarine shoots fish and submarines, picks up divers and must come up for air."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jaxenvs.environment import environment, struct
from jaxenvs.envs.minatar import rows
from jaxenvs.envs.minatar.game import DOWN, FIRE, LEFT, NONE, RIGHT, SIZE, UP, Draws, Game, GameState, below, uniform

SHOT_INTERVAL = 5
ENEMY_SHOT_INTERVAL = 11  # steps, from one shot of a submarine to its next
MOVE_SPEED, LEAST_MOVE_SPEED = 5, 2  # an enemy moves every (speed + 1) steps
SPAWN_SPEED = 20
DIVER_INTERVAL = 30  # steps, from the arrival of one diver to that of the next
DIVER_PERIOD = 6  # steps, in which a diver moves once
MAX_OXYGEN = 200
FULL_HOLD = 6  # divers
SURFACE, SEABED = 0, SIZE - 2  # the rows that the player can be in

BITS = 4  # say what is in a place for an enemy:
FISH = 12  # this, or a submarine, by the number of the shot clock at which it shoots, from 1 to 11
TIMERS = 3  # places of a cell that share a word
TWO = np.arange(2, dtype=np.int32)


@struct
class SeaquestState(GameState):
    """Rows and columns are int32, from 0 at the top and at the left. Grids are words of ten bits, see `rows`.

    Enemies of a row all go the same way, and no two in one cell have the same number of steps left until they move. So
    an enemy is known by its cell and that number, and all of them are a bit each in a few words. What kind each is
    stands in four such bits.

    Attributes:
      x, y: column and row of the player.
      faces_right: bool.
      oxygen: int32, steps that it lasts below the surface.
      divers: int32, on board. After the delivery of six it is -1.
      at_surface: bool, since the last step, or for longer.
      bullets: int32 (2, 10), grids of the player's bullets that go left and that go right.
      enemy_bullets: int32 (2, 10), those of the submarines.
      enemies: int32 (4, 2, 10), bit by bit what is in each place: 0 none, FISH, or a submarine. Bit 10 * t + column of
        a word is that of the enemies in this column that move in t steps; in the second words, in 3 + t.
      goes_right: bool (10,), the enemies of each row.
      shot_clock: int32, 1 to 11, goes round; the submarines of this number shoot.
      diver_rows, diver_columns, divers_go_right: of divers in the water, shape (2,), the newest first; row -1 if there
        is none. No more can be there: they come every 30 steps and cross the grid in 60.
      spawn_speed, move_speed: int32, of enemies; lower is faster.
      spawn_timer, diver_timer, shot_timer: int32, steps.
      ramp_index: int32, how often the game got harder.
    """

    x: jax.Array
    y: jax.Array
    faces_right: jax.Array
    oxygen: jax.Array
    divers: jax.Array
    at_surface: jax.Array
    bullets: jax.Array
    enemy_bullets: jax.Array
    enemies: jax.Array
    goes_right: jax.Array
    shot_clock: jax.Array
    diver_rows: jax.Array
    diver_columns: jax.Array
    divers_go_right: jax.Array
    spawn_speed: jax.Array
    move_speed: jax.Array
    spawn_timer: jax.Array
    diver_timer: jax.Array
    shot_timer: jax.Array
    ramp_index: jax.Array


@struct
class SeaquestDraws(Draws):
    """
    Attributes:
      enemy_right, enemy_is_sub: bool, what arrives if an enemy does; half of them and a third.
      enemy_row: int32, 1 to 8.
      diver_right: bool, half of them.
      diver_row: int32, 1 to 8.
    """

    enemy_right: jax.Array
    enemy_is_sub: jax.Array
    enemy_row: jax.Array
    diver_right: jax.Array
    diver_row: jax.Array


@environment
class Seaquest(Game[SeaquestState, SeaquestDraws]):
    """Shoot enemies, bring divers up, breathe: nothing (0), left, up, right, down (4), fire (5), as MinAtar's.

    Observation: bool (10, 10, 10), see `channels`. Reward: 1 for each enemy shot; for six divers brought to the surface
    0 to 9, the more oxygen is left. The episode ends when the player meets an enemy or a bullet, has no oxygen left or
    surfaces with no diver on board. With `difficulty_ramping` each time at the surface lets more enemies come faster.
    """

    channels = (
        "sub_front",
        "sub_back",
        "friendly_bullet",
        "trail",
        "enemy_bullet",
        "enemy_fish",
        "enemy_sub",
        "oxygen_gauge",
        "diver_gauge",
        "diver",
    )
    minimal_action_set = (NONE, LEFT, UP, RIGHT, DOWN, FIRE)
    num_words = 4

    def draws(self, words: jax.Array) -> SeaquestDraws:
        return SeaquestDraws(
            sticky=uniform(words[0]),
            enemy_right=words[0] & 1 == 0,
            enemy_is_sub=uniform(words[1]) < 1 / 3,
            enemy_row=1 + below(words[2], 8),
            diver_right=words[0] & 2 == 0,
            diver_row=1 + below(words[3], 8),
        )

    def reset_with(self, key: jax.Array, draws: SeaquestDraws) -> SeaquestState:
        return SeaquestState(
            key=key,
            last_action=jnp.int32(NONE),
            terminated=jnp.bool_(False),
            x=jnp.int32(5),
            y=jnp.int32(SURFACE),
            faces_right=jnp.bool_(False),
            oxygen=jnp.int32(MAX_OXYGEN),
            divers=jnp.int32(0),
            at_surface=jnp.bool_(True),
            bullets=jnp.zeros((2, SIZE), jnp.int32),
            enemy_bullets=jnp.zeros((2, SIZE), jnp.int32),
            enemies=jnp.zeros((BITS, 2, SIZE), jnp.int32),
            goes_right=jnp.zeros(SIZE, bool),
            shot_clock=jnp.int32(1),
            diver_rows=jnp.full(2, -1, jnp.int32),
            diver_columns=jnp.zeros(2, jnp.int32),
            divers_go_right=jnp.zeros(2, bool),
            spawn_speed=jnp.int32(SPAWN_SPEED),
            move_speed=jnp.int32(MOVE_SPEED),
            spawn_timer=jnp.int32(SPAWN_SPEED),
            diver_timer=jnp.int32(DIVER_INTERVAL),
            shot_timer=jnp.int32(0),
            ramp_index=jnp.int32(0),
        )

    def play(self, state: SeaquestState, action: jax.Array, draws: SeaquestDraws) -> tuple[SeaquestState, jax.Array]:
        state = _let_enemy_arrive(state, draws)
        state = _let_diver_arrive(state, draws)
        state = _act(state, action)
        state, shot = _move_bullets(state)
        state = _move_divers(state)
        state, danger, shots, rammed = _move_enemies(state)
        state, fire = _move_enemy_bullets(state, shots)
        state, delivered = self._breathe(state)
        killed = ((danger | fire) & rows.cell(state.y, state.x)).any()
        shot_down = jax.lax.population_count(shot | rammed << SIZE).sum(dtype=jnp.int32)
        return dataclasses.replace(state, terminated=state.terminated | killed), shot_down + delivered

    def _breathe(self, state: SeaquestState) -> tuple[SeaquestState, jax.Array]:
        """What time and the surface do, and the reward for six divers."""
        below_surface = state.y > SURFACE
        surfaces = ~below_surface & ~state.at_surface
        breathes = surfaces & (state.divers != 0)
        delivers = breathes & (state.divers == FULL_HOLD)
        harder = breathes & ((state.spawn_speed > 1) | (state.move_speed > LEAST_MOVE_SPEED)) & self.difficulty_ramping
        faster = harder & (state.move_speed > LEAST_MOVE_SPEED) & (state.ramp_index % 2 == 1)
        return dataclasses.replace(
            state,
            terminated=(state.oxygen <= 0) | (surfaces & ~breathes),
            oxygen=jnp.where(breathes, MAX_OXYGEN, state.oxygen - below_surface),
            divers=jnp.where(delivers, 0, state.divers) - breathes,
            at_surface=~below_surface & (state.at_surface | breathes),
            shot_clock=state.shot_clock % ENEMY_SHOT_INTERVAL + 1,
            spawn_speed=state.spawn_speed - (harder & (state.spawn_speed > 1)),
            move_speed=state.move_speed - faster,
            spawn_timer=jnp.maximum(state.spawn_timer - 1, 0),
            diver_timer=jnp.maximum(state.diver_timer - 1, 0),
            shot_timer=jnp.maximum(state.shot_timer - 1, 0),
            ramp_index=state.ramp_index + harder,
        ), jnp.where(delivers, _oxygen_shown(state), 0)

    def observe(self, state: SeaquestState) -> jax.Array:
        behind = jnp.where(state.faces_right, -1, 1)
        fish = _cells_of(state.enemies[3] & state.enemies[2])
        enemy = _cells_of(_either(state.enemies))
        subs = _cells_of(_either(state.enemies) & ~(state.enemies[3] & state.enemies[2]))
        trail = jnp.where(state.goes_right, rows.to_left(enemy), rows.to_right(enemy))
        diver_trail = state.diver_columns + jnp.where(state.divers_go_right, -1, 1)
        for diver in range(2):
            trail |= rows.cell(state.diver_rows[diver], diver_trail[diver])
        on_board = jnp.maximum(state.divers, 0)
        words = [
            rows.cell(state.y, state.x),
            rows.cell(state.y, state.x + behind),
            state.bullets[0] | state.bullets[1],
            trail,
            state.enemy_bullets[0] | state.enemy_bullets[1],
            fish,
            subs,
            jnp.where(rows.ROW == SIZE - 1, (1 << _oxygen_shown(state)) - 1, 0),
            jnp.where(rows.ROW == SIZE - 1, ((1 << on_board) - 1) << SIZE - 1 - on_board, 0),
            rows.cell(state.diver_rows[0], state.diver_columns[0])
            | rows.cell(state.diver_rows[1], state.diver_columns[1]),
        ]
        return rows.cells(jnp.stack(words, axis=-1))


def _oxygen_shown(state: SeaquestState) -> jax.Array:
    return jnp.maximum(state.oxygen, 0) * SIZE // MAX_OXYGEN


def _either(enemies: jax.Array) -> jax.Array:
    """Where anything is, (2, 10), of int32 (4, 2, 10)."""
    return enemies[0] | enemies[1] | enemies[2] | enemies[3]


def _cells_of(places: jax.Array) -> jax.Array:
    """The grid of places (2, 10) for enemies, whenever they move."""
    both = places[0] | places[1]
    return (both | both >> SIZE | both >> 2 * SIZE) & rows.ALL


def _places(cells: jax.Array, timer: jax.Array | int) -> jax.Array:
    """The places (..., 2, 10) in the cells of grids (..., 10) of enemies that move in `timer` steps."""
    return jnp.where(TWO[:, None] == timer // TIMERS, cells[..., None, :] << SIZE * (timer % TIMERS), 0)


def _let_enemy_arrive(state: SeaquestState, draws: SeaquestDraws) -> SeaquestState:
    """At its edge of its row, unless others cross the row the other way."""
    due = state.spawn_timer == 0
    free = (_cells_of(_either(state.enemies)) == 0) | (state.goes_right == draws.enemy_right)
    arrives = due & free & (draws.enemy_row == rows.ROW)
    # A submarine shoots first ten steps after this one: then the clock shows the number before that of now.
    sub = jnp.where(state.shot_clock == 1, ENEMY_SHOT_INTERVAL, state.shot_clock - 1)
    kind = jnp.where(draws.enemy_is_sub, sub, FISH) >> np.arange(BITS, dtype=np.int32)[:, None] & 1
    cells = jnp.where(arrives, kind << jnp.where(draws.enemy_right, 0, SIZE - 1), 0)
    return dataclasses.replace(
        state,
        enemies=state.enemies | _places(cells, state.move_speed),
        goes_right=jnp.where(arrives, draws.enemy_right, state.goes_right),
        spawn_timer=jnp.where(due, state.spawn_speed, state.spawn_timer),
    )


def _let_diver_arrive(state: SeaquestState, draws: SeaquestDraws) -> SeaquestState:
    arrives = state.diver_timer == 0

    def insert(new: jax.Array, old: jax.Array) -> jax.Array:
        return jnp.where(arrives, jnp.where(TWO == 0, new, old[::-1]), old)

    return dataclasses.replace(
        state,
        diver_rows=insert(draws.diver_row, state.diver_rows),
        diver_columns=insert(jnp.where(draws.diver_right, 0, SIZE - 1), state.diver_columns),
        divers_go_right=insert(draws.diver_right, state.divers_go_right),
        diver_timer=jnp.where(arrives, DIVER_INTERVAL, state.diver_timer),
    )


def _act(state: SeaquestState, action: jax.Array) -> SeaquestState:
    fires = (action == FIRE) & (state.shot_timer == 0)
    shot = jnp.where(fires & (TWO[:, None] == state.faces_right), rows.cell(state.y, state.x), 0)
    left, right = action == LEFT, action == RIGHT
    return dataclasses.replace(
        state,
        x=jnp.clip(state.x + right - left, 0, SIZE - 1),
        y=jnp.clip(state.y + (action == DOWN) - (action == UP), SURFACE, SEABED),
        faces_right=right | (state.faces_right & ~left),
        bullets=state.bullets | shot,
        shot_timer=jnp.where(fires, SHOT_INTERVAL, state.shot_timer),
    )


def _fly(bullets: jax.Array) -> jax.Array:
    """Bullets (2, 10) a step later."""
    return jnp.where(TWO[:, None] == 0, rows.to_left(bullets), rows.to_right(bullets))


def _move_bullets(state: SeaquestState) -> tuple[SeaquestState, jax.Array]:
    """Also returns the grid of enemies that the player's bullets hit: of those in a cell, one.

    That is a fish before a submarine, and of those the one that came first, which is the one to move first.
    """
    bullets = _fly(state.bullets)
    left = both = bullets[0] | bullets[1]
    taken = jnp.zeros((2, SIZE), jnp.int32)
    fish = state.enemies[3] & state.enemies[2]
    for kind in (fish, _either(state.enemies) & ~fish):
        for timer in range(2 * TIMERS):
            hit = kind[timer // TIMERS] >> SIZE * (timer % TIMERS) & left
            left ^= hit
            taken |= _places(hit, timer)
    return dataclasses.replace(state, bullets=bullets & left, enemies=state.enemies & ~taken), both ^ left


def _move_divers(state: SeaquestState) -> SeaquestState:
    """Who meets the player, before or after the move, is picked up, the newest first, as long as there is room."""

    def meet(columns: jax.Array) -> jax.Array:
        return (state.diver_rows == state.y) & (columns == state.x)

    # All move at once, as the intervals between their arrivals are multiples of that between their moves.
    moves = state.diver_timer % DIVER_PERIOD == 1
    columns = state.diver_columns + jnp.where(moves, jnp.where(state.divers_go_right, 1, -1), 0)
    met = meet(state.diver_columns) | meet(columns)
    picked_up = met & (state.divers + (met[0] & (TWO == 1)) < FULL_HOLD)
    gone = picked_up | (columns < 0) | (columns >= SIZE)
    return dataclasses.replace(
        state,
        divers=state.divers + picked_up.sum(dtype=jnp.int32),
        diver_rows=jnp.where(gone, -1, state.diver_rows),
        diver_columns=columns,
    )


def _move_enemies(state: SeaquestState) -> tuple[SeaquestState, jax.Array, jax.Array, jax.Array]:
    """Also returns grids: where they were or moved to; their shots; those that moved onto a bullet of the player."""
    anything = _either(state.enemies)
    clock = state.shot_clock >> np.arange(BITS, dtype=np.int32)[:, None, None] & 1
    same = ~(state.enemies ^ -clock)
    shooting = same[0] & same[1] & same[2] & same[3]

    rest, moved = _count_down(state.enemies, state.goes_right)
    arrived = moved[0] | moved[1] | moved[2] | moved[3]
    rammed = arrived & (state.bullets[0] | state.bullets[1]) & ~rows.cell(state.y, state.x)
    # A submarine shoots in the cell that it moves to, also if it is shot there.
    waiting, shooting_there = _count_down(shooting, state.goes_right)
    shots = _cells_of(waiting) | shooting_there
    state = dataclasses.replace(
        state,
        enemies=rest | _places(moved & ~rammed, state.move_speed),
        bullets=state.bullets & ~rammed,
    )
    return state, _cells_of(anything) | arrived, shots, rammed


def _count_down(places: jax.Array, goes_right: jax.Array) -> tuple[jax.Array, jax.Array]:
    """From places (..., 2, 10): those with a step less to wait, and the grids (..., 10) of those that moved."""
    first, second = places[..., :1, :], places[..., 1:, :]
    moving = first[..., 0, :] & rows.ALL
    carried = jnp.where(TWO[:, None] == 0, (second & rows.ALL) << SIZE * (TIMERS - 1), 0)
    return places >> SIZE | carried, jnp.where(goes_right, rows.to_right(moving), rows.to_left(moving))


def _move_enemy_bullets(state: SeaquestState, shots: jax.Array) -> tuple[SeaquestState, jax.Array]:
    """Also returns the grid of where they were and where they moved to."""
    bullets = state.enemy_bullets | jnp.where(TWO[:, None] == state.goes_right, shots, 0)
    moved = _fly(bullets)
    every = bullets | moved
    return dataclasses.replace(state, enemy_bullets=moved), every[0] | every[1]
