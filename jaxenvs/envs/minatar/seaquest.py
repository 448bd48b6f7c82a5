"""Seaquest: a submarine shoots fish and submarines, picks up divers and must come up for air."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jaxenvs.environment import environment, struct
from jaxenvs.envs.minatar.game import DOWN, FIRE, LEFT, NONE, RIGHT, SIZE, UP, Draws, Game, GameState, below, uniform

SHOT_INTERVAL = 5
ENEMY_SHOT_TIMER = 10  # steps; a submarine shoots every (timer + 1) steps
MOVE_SPEED, LEAST_MOVE_SPEED = 5, 2  # an enemy moves every (speed + 1) steps
SPAWN_SPEED = 20
DIVER_INTERVAL = 30  # steps between the arrivals of divers
DIVER_PERIOD = 6  # steps, in which a diver moves once
MAX_OXYGEN = 200
FULL_HOLD = 6  # divers
SURFACE, SEABED = 0, SIZE - 2  # the rows that the player can be in

NOWHERE = -1  # the column of what is absent; also where things get that leave to the left
# By the rules, at most 30 enemies can be there at once: slots that are filled in turn are empty again when reused.
NUM_SLOTS = 32
SLOT = np.arange(NUM_SLOTS, dtype=np.int32)
TWO = np.arange(2, dtype=np.int32)


@struct
class SeaquestState(GameState):
    """State of a Seaquest. Rows and columns are int32, from 0 at the top and at the left; column -1 means absent.

    Attributes:
      x, y: column and row of the player.
      faces_right: bool.
      oxygen: int32, steps that it lasts below the surface.
      divers: int32, on board. After the delivery of six it is -1.
      at_surface: bool, since the last step, or for longer.
      bullet_x, bullet_y, bullets_go_right: of the player's bullets, shape (2,), the last shot first. No more can be in
        flight: shots come five steps apart and last nine at most.
      enemy_x, enemy_y, enemies_go_right, is_sub: of enemies, fish and submarines, shape (32,). They fill the slots in
        turn.
      enemy_move_timer, enemy_shot_timer: int32 (32,), steps until they move and, submarines, shoot.
      enemy_bullet_x: int32 (32,), columns of their bullets. One from each can be in flight: shots of a submarine come
        eleven steps apart. They keep row and direction, also if the submarine is gone.
      next_slot: int32, of the next enemy.
      diver_x, diver_y, divers_go_right: of divers in the water, shape (2,), the newest first. No more can be there:
        they come every 30 steps and cross the grid in 60.
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
    bullet_x: jax.Array
    bullet_y: jax.Array
    bullets_go_right: jax.Array
    enemy_x: jax.Array
    enemy_y: jax.Array
    enemies_go_right: jax.Array
    is_sub: jax.Array
    enemy_move_timer: jax.Array
    enemy_shot_timer: jax.Array
    enemy_bullet_x: jax.Array
    next_slot: jax.Array
    diver_x: jax.Array
    diver_y: jax.Array
    divers_go_right: jax.Array
    spawn_speed: jax.Array
    move_speed: jax.Array
    spawn_timer: jax.Array
    diver_timer: jax.Array
    shot_timer: jax.Array
    ramp_index: jax.Array


@struct
class SeaquestDraws(Draws):
    """Random draws of a step.

    Attributes:
      enemy_right, enemy_is_sub: bool, direction and kind of an enemy that may arrive; true for half, and for a third.
      enemy_row: int32, 1 to 8.
      diver_right: bool, true for half.
      diver_row: int32, 1 to 8.
    """

    enemy_right: jax.Array
    enemy_is_sub: jax.Array
    enemy_row: jax.Array
    diver_right: jax.Array
    diver_row: jax.Array


@environment
class Seaquest(Game[SeaquestState, SeaquestDraws]):
    """Shoot enemies, bring divers up, breathe: nothing (0), left, up, right, down (4), fire (5), as in MinAtar.

    Observation: bool (10, 10, 10), see `channels`. Reward: 1 for each enemy shot; for six divers brought to the surface
    0 to 9, more for more remaining oxygen. The episode ends when the player meets an enemy or a bullet, has no oxygen
    left or surfaces with no diver on board. With `difficulty_ramping`, more enemies come faster after each surfacing.
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
    random_start = False

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
            bullet_x=jnp.full(2, NOWHERE, jnp.int32),
            bullet_y=jnp.zeros(2, jnp.int32),
            bullets_go_right=jnp.zeros(2, bool),
            enemy_x=jnp.full(NUM_SLOTS, NOWHERE, jnp.int32),
            enemy_y=jnp.zeros(NUM_SLOTS, jnp.int32),
            enemies_go_right=jnp.zeros(NUM_SLOTS, bool),
            is_sub=jnp.zeros(NUM_SLOTS, bool),
            enemy_move_timer=jnp.zeros(NUM_SLOTS, jnp.int32),
            enemy_shot_timer=jnp.zeros(NUM_SLOTS, jnp.int32),
            enemy_bullet_x=jnp.full(NUM_SLOTS, NOWHERE, jnp.int32),
            next_slot=jnp.int32(0),
            diver_x=jnp.full(2, NOWHERE, jnp.int32),
            diver_y=jnp.zeros(2, jnp.int32),
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
        state, shot_down = _move_bullets(state)
        state = _move_divers(state)
        state, rammed, caught = _move_enemies(state)
        state, delivered = self._breathe(state)
        return dataclasses.replace(state, terminated=state.terminated | caught), shot_down + rammed + delivered

    def _breathe(self, state: SeaquestState) -> tuple[SeaquestState, jax.Array]:
        """Update oxygen, divers, difficulty and timers; return the reward for six divers."""
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
            spawn_speed=state.spawn_speed - (harder & (state.spawn_speed > 1)),
            move_speed=state.move_speed - faster,
            spawn_timer=jnp.maximum(state.spawn_timer - 1, 0),
            diver_timer=jnp.maximum(state.diver_timer - 1, 0),
            shot_timer=jnp.maximum(state.shot_timer - 1, 0),
            ramp_index=state.ramp_index + harder,
        ), jnp.where(delivers, _oxygen_shown(state), 0)

    def observe(self, state: SeaquestState) -> jax.Array:
        bottom, column = np.int32(SIZE - 1), np.arange(SIZE, dtype=np.int32)
        enemy_trail, diver_trail = (
            _behind(state.enemy_x, state.enemies_go_right),
            _behind(state.diver_x, state.divers_go_right),
        )
        on_board = (column < SIZE - 1) & (column >= SIZE - 1 - state.divers)
        return self.paint(
            self.cells(0, state.y, state.x),
            self.cells(1, state.y, _behind(state.x, state.faces_right)),
            self.cells(2, state.bullet_y, state.bullet_x, state.bullet_x != NOWHERE),
            self.cells(3, state.enemy_y, enemy_trail, enemy_trail != NOWHERE),
            self.cells(3, state.diver_y, diver_trail, diver_trail != NOWHERE),
            self.cells(4, state.enemy_y, state.enemy_bullet_x, state.enemy_bullet_x != NOWHERE),
            self.cells(jnp.where(state.is_sub, 6, 5), state.enemy_y, state.enemy_x, state.enemy_x != NOWHERE),
            self.cells(7, bottom, column, column < _oxygen_shown(state)),
            self.cells(8, bottom, column, on_board),
            self.cells(9, state.diver_y, state.diver_x, state.diver_x != NOWHERE),
        )


def _oxygen_shown(state: SeaquestState) -> jax.Array:
    return jnp.maximum(state.oxygen, 0) * SIZE // MAX_OXYGEN


def _ahead(x: jax.Array, go_right: jax.Array) -> jax.Array:
    return x + jnp.where(go_right, 1, -1)


def _inside(x: jax.Array) -> jax.Array:
    """Return the column, or NOWHERE if it is outside."""
    return jnp.where((x < 0) | (x >= SIZE), NOWHERE, x)


def _behind(x: jax.Array, go_right: jax.Array) -> jax.Array:
    """Return the column behind, or NOWHERE if it is outside, or behind something absent."""
    return jnp.where(x == NOWHERE, NOWHERE, _inside(_ahead(x, ~go_right)))


def _let_enemy_arrive(state: SeaquestState, draws: SeaquestDraws) -> SeaquestState:
    """Add an enemy at its edge of its row, unless others cross the row the other way."""
    due = state.spawn_timer == 0
    against = state.enemies_go_right != draws.enemy_right
    blocked = ((state.enemy_x != NOWHERE) & (state.enemy_y == draws.enemy_row) & against).any()
    arrives = due & ~blocked
    here = arrives & (state.next_slot == SLOT)
    return dataclasses.replace(
        state,
        enemy_x=jnp.where(here, jnp.where(draws.enemy_right, 0, SIZE - 1), state.enemy_x),
        enemy_y=jnp.where(here, draws.enemy_row, state.enemy_y),
        enemies_go_right=jnp.where(here, draws.enemy_right, state.enemies_go_right),
        is_sub=jnp.where(here, draws.enemy_is_sub, state.is_sub),
        enemy_move_timer=jnp.where(here, state.move_speed, state.enemy_move_timer),
        enemy_shot_timer=jnp.where(here, ENEMY_SHOT_TIMER, state.enemy_shot_timer),
        next_slot=(state.next_slot + arrives) % NUM_SLOTS,
        spawn_timer=jnp.where(due, state.spawn_speed, state.spawn_timer),
    )


def _newest_first(arrives: jax.Array, new: jax.Array, old: jax.Array) -> jax.Array:
    return jnp.where(arrives, jnp.where(TWO == 0, new, old[::-1]), old)


def _let_diver_arrive(state: SeaquestState, draws: SeaquestDraws) -> SeaquestState:
    arrives = state.diver_timer == 0
    return dataclasses.replace(
        state,
        diver_x=_newest_first(arrives, jnp.where(draws.diver_right, 0, SIZE - 1), state.diver_x),
        diver_y=_newest_first(arrives, draws.diver_row, state.diver_y),
        divers_go_right=_newest_first(arrives, draws.diver_right, state.divers_go_right),
        diver_timer=jnp.where(arrives, DIVER_INTERVAL, state.diver_timer),
    )


def _act(state: SeaquestState, action: jax.Array) -> SeaquestState:
    fires = (action == FIRE) & (state.shot_timer == 0)
    left, right = action == LEFT, action == RIGHT
    return dataclasses.replace(
        state,
        x=jnp.clip(state.x + right - left, 0, SIZE - 1),
        y=jnp.clip(state.y + (action == DOWN) - (action == UP), SURFACE, SEABED),
        faces_right=right | (state.faces_right & ~left),
        bullet_x=_newest_first(fires, state.x, state.bullet_x),
        bullet_y=_newest_first(fires, state.y, state.bullet_y),
        bullets_go_right=_newest_first(fires, state.faces_right, state.bullets_go_right),
        shot_timer=jnp.where(fires, SHOT_INTERVAL, state.shot_timer),
    )


def _move_bullets(state: SeaquestState) -> tuple[SeaquestState, jax.Array]:
    """Move the player's bullets, and return how many enemies they hit.

    Each hits one of the enemies in its cell, the fish that came first or else the submarine.
    """
    x = jnp.where(state.bullet_x == NOWHERE, NOWHERE, _inside(_ahead(state.bullet_x, state.bullets_go_right)))
    arrival = (SLOT - state.next_slot) % NUM_SLOTS  # lower is earlier
    rank = jnp.where(state.is_sub, NUM_SLOTS, 0) + arrival
    rank = jnp.where(state.enemy_x == NOWHERE, 2 * NUM_SLOTS, rank)
    taken, hits = jnp.zeros(NUM_SLOTS, bool), []
    for bullet in range(2):
        in_cell = (state.enemy_x == x[bullet]) & (state.enemy_y == state.bullet_y[bullet])
        first = jnp.where(in_cell, rank, 2 * NUM_SLOTS).min()
        hits.append(first < 2 * NUM_SLOTS)
        taken |= in_cell & (rank == first)
    state = dataclasses.replace(
        state,
        bullet_x=jnp.where(jnp.stack(hits), NOWHERE, x),
        enemy_x=jnp.where(taken, NOWHERE, state.enemy_x),
    )
    return state, hits[0].astype(jnp.int32) + hits[1]


def _move_divers(state: SeaquestState) -> SeaquestState:
    """Move divers, and pick up the ones that meet the player before or after the move, the newest first, up to six."""
    # All move at once, because the interval between their arrivals is a multiple of the interval between their moves.
    moves = (state.diver_timer % DIVER_PERIOD == 1) & (state.diver_x != NOWHERE)
    x = jnp.where(moves, _inside(_ahead(state.diver_x, state.divers_go_right)), state.diver_x)
    met = (state.diver_y == state.y) & ((state.diver_x == state.x) | (x == state.x))
    picked_up = met & (state.divers + (met[0] & (TWO == 1)) < FULL_HOLD)
    return dataclasses.replace(
        state,
        divers=state.divers + picked_up.sum(dtype=jnp.int32),
        diver_x=jnp.where(picked_up, NOWHERE, x),
    )


def _move_enemies(state: SeaquestState) -> tuple[SeaquestState, jax.Array, jax.Array]:
    """Move enemies and their bullets; return how many met a bullet of the player, and whether one met the player."""
    there = state.enemy_x != NOWHERE
    moves = there & (state.enemy_move_timer == 0)
    x = jnp.where(moves, _inside(_ahead(state.enemy_x, state.enemies_go_right)), state.enemy_x)
    # A submarine shoots in the cell that it moves to, also if it is shot there itself.
    shoots = there & state.is_sub & (state.enemy_shot_timer == 0)
    shot_x = jnp.where(shoots, x, state.enemy_bullet_x)
    flown_x = jnp.where(shot_x == NOWHERE, NOWHERE, _inside(_ahead(shot_x, state.enemies_go_right)))
    beside = state.enemy_y == state.y
    caught = beside & ((state.enemy_x == state.x) | (x == state.x) | (shot_x == state.x) | (flown_x == state.x))

    # An enemy that moves onto the player and onto a bullet at once does not meet the bullet.
    can_meet = moves & (x != NOWHERE) & ~(beside & (x == state.x))
    meets = [can_meet & (x == state.bullet_x[b]) & (state.enemy_y == state.bullet_y[b]) for b in range(2)]
    met = [meets[0].any(), meets[1].any()]
    state = dataclasses.replace(
        state,
        bullet_x=jnp.where(jnp.stack(met), NOWHERE, state.bullet_x),
        enemy_x=jnp.where(meets[0] | meets[1], NOWHERE, x),
        # Timers of empty slots run too.
        enemy_move_timer=jnp.where(state.enemy_move_timer == 0, state.move_speed, state.enemy_move_timer - 1),
        enemy_shot_timer=jnp.where(state.enemy_shot_timer == 0, ENEMY_SHOT_TIMER, state.enemy_shot_timer - 1),
        enemy_bullet_x=flown_x,
    )
    return state, met[0].astype(jnp.int32) + met[1], caught.any()
