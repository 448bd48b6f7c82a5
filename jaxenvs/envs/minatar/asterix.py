"""Asterix: collect gold and avoid enemies, both of which cross the grid in eight rows."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jaxenvs.environment import environment, struct
from jaxenvs.envs.minatar.game import DOWN, LEFT, NONE, RIGHT, SIZE, UP, Draws, Game, GameState, uniform

NUM_SLOTS = 8  # slot i is row i + 1
NOWHERE = -1  # the column of an empty slot
RAMP_PERIOD = 100


@struct
class AsterixState(GameState):
    """State of an Asterix. Rows and columns are int32, from 0 at the top and at the left.

    Attributes:
      x, y: column and row of the player.
      entity_x: int32 (8,), the column of the entity that crosses each row from the second on; -1 where there is none.
      goes_right, is_gold: bool (8,), of the entities.
      spawn_speed, move_speed: int32, the steps from one arrival to the next, and from one move.
      spawn_timer, move_timer: int32, the steps until the next.
      ramp_timer: int32, the steps until the game gets faster.
      ramp_index: int32, how often it did.
    """

    x: jax.Array
    y: jax.Array
    entity_x: jax.Array
    goes_right: jax.Array
    is_gold: jax.Array
    spawn_speed: jax.Array
    move_speed: jax.Array
    spawn_timer: jax.Array
    move_timer: jax.Array
    ramp_timer: jax.Array
    ramp_index: jax.Array


@struct
class AsterixDraws(Draws):
    """Random draws of a step: the entity that arrives, if one does.

    Attributes:
      right: bool, it goes right; half of them do.
      gold: bool, it is gold; one in three is.
      slot: float32 in [0, 1), selects one of the empty slots.
    """

    right: jax.Array
    gold: jax.Array
    slot: jax.Array


@environment
class Asterix(Game[AsterixState, AsterixDraws]):
    """Collect gold, avoid enemies: nothing (0), left (1), up (2), right (3), down (4), as in MinAtar.

    Observation: bool (10, 10, 4): player, enemy, trail, gold. Reward: 1 for each piece of gold. An enemy ends the
    episode. With `difficulty_ramping`, entities arrive and move faster as time goes by.
    """

    channels = ("player", "enemy", "trail", "gold")
    minimal_action_set = (NONE, LEFT, UP, RIGHT, DOWN)
    num_words = 2
    random_start = False

    def draws(self, words: jax.Array) -> AsterixDraws:
        return AsterixDraws(
            sticky=uniform(words[0]),
            right=words[0] & 1 == 0,
            gold=words[1] & 0xFFFF < 2**16 // 3,
            slot=(words[1] >> 16).astype(jnp.float32) * jnp.float32(2**-16),
        )

    def reset_with(self, key: jax.Array, draws: AsterixDraws) -> AsterixState:
        return AsterixState(
            key=key,
            last_action=jnp.int32(NONE),
            terminated=jnp.bool_(False),
            x=jnp.int32(5),
            y=jnp.int32(5),
            entity_x=jnp.full(NUM_SLOTS, NOWHERE, jnp.int32),
            goes_right=jnp.zeros(NUM_SLOTS, bool),
            is_gold=jnp.zeros(NUM_SLOTS, bool),
            spawn_speed=jnp.int32(10),
            move_speed=jnp.int32(5),
            spawn_timer=jnp.int32(10),
            move_timer=jnp.int32(5),
            ramp_timer=jnp.int32(RAMP_PERIOD),
            ramp_index=jnp.int32(0),
        )

    def play(self, state: AsterixState, action: jax.Array, draws: AsterixDraws) -> tuple[AsterixState, jax.Array]:
        spawns = state.spawn_timer == 0
        arrives = _slot(state.entity_x == NOWHERE, draws.slot) & spawns
        entity_x = jnp.where(arrives, jnp.where(draws.right, 0, SIZE - 1), state.entity_x)
        goes_right = jnp.where(arrives, draws.right, state.goes_right)
        is_gold = jnp.where(arrives, draws.gold, state.is_gold)

        x = jnp.clip(state.x + (action == RIGHT) - (action == LEFT), 0, SIZE - 1)
        y = jnp.clip(state.y + (action == DOWN) - (action == UP), 1, NUM_SLOTS)

        there = entity_x != NOWHERE
        moves = state.move_timer == 0
        moved_x = entity_x + jnp.where(moves & there, jnp.where(goes_right, 1, -1), 0)
        # Before or after the entity's move; not both.
        in_row = np.arange(1, NUM_SLOTS + 1, dtype=np.int32) == y
        met = in_row & there & ((entity_x == x) | (moved_x == x))
        found = (met & is_gold).any()
        gone = (moved_x >= SIZE) | (met & is_gold)

        state = dataclasses.replace(
            state,
            terminated=met.any() & ~found,
            x=x,
            y=y,
            entity_x=jnp.where(gone, NOWHERE, moved_x),
            goes_right=goes_right,
            is_gold=is_gold,
            spawn_timer=jnp.where(spawns, state.spawn_speed, state.spawn_timer) - 1,
            move_timer=jnp.where(moves, state.move_speed, state.move_timer) - 1,
        )
        return self._ramp(state), found

    def _ramp(self, state: AsterixState) -> AsterixState:
        if not self.difficulty_ramping:
            return state
        ramps = (state.spawn_speed > 1) | (state.move_speed > 1)
        due = ramps & (state.ramp_timer < 0)
        return dataclasses.replace(
            state,
            spawn_speed=jnp.where(due, jnp.maximum(state.spawn_speed - 1, 1), state.spawn_speed),
            move_speed=jnp.where(
                due & (state.ramp_index % 2 == 1), jnp.maximum(state.move_speed - 1, 1), state.move_speed
            ),
            ramp_timer=jnp.where(due, RAMP_PERIOD, state.ramp_timer - ramps),
            ramp_index=state.ramp_index + due,
        )

    def observe(self, state: AsterixState) -> jax.Array:
        row = np.arange(1, NUM_SLOTS + 1, dtype=np.int32)
        there = state.entity_x != NOWHERE
        behind = state.entity_x + jnp.where(state.goes_right, -1, 1)
        return self.paint(
            self.cells(0, state.y, state.x),
            self.cells(jnp.where(state.is_gold, 3, 1), row, state.entity_x, there),
            self.cells(2, row, behind, there & (behind >= 0) & (behind < SIZE)),
        )


def _slot(empty: jax.Array, where: jax.Array) -> jax.Array:
    """Select one of the empty slots by a number in [0, 1): a flag for each slot; no flag if none is empty."""
    bit = np.arange(NUM_SLOTS, dtype=np.uint32)
    bits = jnp.where(empty, 1 << bit, 0).sum(dtype=jnp.uint32)
    number = jax.lax.population_count(bits & ((2 << bit) - 1))  # of each empty slot, from 1 on
    total = jax.lax.population_count(bits)
    # The largest floats below 1 may be rounded up to the number of empty slots.
    chosen = jnp.minimum(jnp.floor(where * total).astype(jnp.uint32) + 1, total)
    return empty & (number == chosen)
