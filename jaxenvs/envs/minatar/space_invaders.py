"""SpaceInvaders: a cannon shoots at a block of aliens that march sideways and down and shoot back."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jaxenvs.environment import environment, struct
from jaxenvs.envs.minatar.game import FIRE, LEFT, NONE, RIGHT, SIZE, Draws, Game, GameState, uniform

SHOT_INTERVAL = 5
ENEMY_SHOT_INTERVAL = 10
ENEMY_MOVE_INTERVAL = 12  # steps between moves of a full block; each block shot down reduces it, down to:
LEAST_MOVE_INTERVAL = 6

BLOCK_ROWS, BLOCK_COLUMNS = 4, 6
BLOCK = 2 ** (BLOCK_ROWS * BLOCK_COLUMNS) - 1
FIRST_COLUMN = 2

INDEX = np.arange(SIZE, dtype=np.int32)


@struct
class SpaceInvadersState(GameState):
    """State of a SpaceInvaders. Rows and columns are int32, from 0 at the top and at the left.

    Attributes:
      cannon: its column.
      bullet_rows, bullet_columns: of the player's bullets, shape (2,), the last shot first; row -1 if there is none. No
        more can be in flight: shots come five steps apart and last nine.
      enemy_bullet_row, enemy_bullet_column: of the aliens' bullet; row 10 if there is none. No second can be in flight:
        shots come ten steps apart.
      aliens: int32, one bit for each alien that is left of the block: bit 6 * r + c for its row r and column c.
      top, left: position of the block's row 0 and column 0. What is below row 9 is shown in row 0.
      direction: int32, -1 or 1, of the aliens.
      move_interval: steps between moves of the aliens, or the number of aliens if that is smaller.
      move_timer, enemy_shot_timer, shot_timer: steps.
    """

    cannon: jax.Array
    bullet_rows: jax.Array
    bullet_columns: jax.Array
    enemy_bullet_row: jax.Array
    enemy_bullet_column: jax.Array
    aliens: jax.Array
    top: jax.Array
    left: jax.Array
    direction: jax.Array
    move_interval: jax.Array
    move_timer: jax.Array
    enemy_shot_timer: jax.Array
    shot_timer: jax.Array


@environment
class SpaceInvaders(Game[SpaceInvadersState, Draws]):
    """Shoot the aliens before one lands or hits: nothing (0), left (1), right (3), fire (5), as in MinAtar.

    Observation: bool (10, 10, 6): cannon, alien, alien left, alien right, friendly bullet, enemy bullet; an alien is in
    the channel of its direction too. Reward: 1 for each alien. The episode ends when an alien or an alien's bullet gets
    to the cannon, or when aliens in the lowest row would go down. With `difficulty_ramping`, each block moves faster
    than the previous one.
    """

    channels = ("cannon", "alien", "alien_left", "alien_right", "friendly_bullet", "enemy_bullet")
    minimal_action_set = (NONE, LEFT, RIGHT, FIRE)
    num_words = 1
    random_start = False

    def draws(self, words: jax.Array) -> Draws:
        return Draws(sticky=uniform(words[0]))

    def reset_with(self, key: jax.Array, draws: Draws) -> SpaceInvadersState:
        return SpaceInvadersState(
            key=key,
            last_action=jnp.int32(NONE),
            terminated=jnp.bool_(False),
            cannon=jnp.int32(5),
            bullet_rows=jnp.full(2, -1, jnp.int32),
            bullet_columns=jnp.zeros(2, jnp.int32),
            enemy_bullet_row=jnp.int32(SIZE),
            enemy_bullet_column=jnp.int32(0),
            aliens=jnp.int32(BLOCK),
            top=jnp.int32(0),
            left=jnp.int32(FIRST_COLUMN),
            direction=jnp.int32(-1),
            move_interval=jnp.int32(ENEMY_MOVE_INTERVAL),
            move_timer=jnp.int32(ENEMY_MOVE_INTERVAL),
            enemy_shot_timer=jnp.int32(ENEMY_SHOT_INTERVAL),
            shot_timer=jnp.int32(0),
        )

    def play(self, state: SpaceInvadersState, action: jax.Array, draws: Draws) -> tuple[SpaceInvadersState, jax.Array]:
        state = _fire_and_move(state, action)
        state = _move_aliens(state)
        state = _shoot_back(state)
        state, reward = _hit(state)
        return self._next_block(state), reward

    def _next_block(self, state: SpaceInvadersState) -> SpaceInvadersState:
        cleared = state.aliens == 0
        faster = cleared & (state.move_interval > LEAST_MOVE_INTERVAL) & self.difficulty_ramping
        return dataclasses.replace(
            state,
            aliens=jnp.where(cleared, BLOCK, state.aliens),
            top=jnp.where(cleared, 0, state.top),
            left=jnp.where(cleared, FIRST_COLUMN, state.left),
            move_interval=state.move_interval - faster,
            move_timer=state.move_timer - 1,
            enemy_shot_timer=state.enemy_shot_timer - 1,
            shot_timer=jnp.maximum(state.shot_timer - 1, 0),
        )

    def observe(self, state: SpaceInvadersState) -> jax.Array:
        number = np.arange(BLOCK_ROWS * BLOCK_COLUMNS, dtype=np.int32)
        row, column = (state.top + number // BLOCK_COLUMNS) % SIZE, state.left + number % BLOCK_COLUMNS
        alien = state.aliens >> number & 1 != 0
        return self.paint(
            self.cells(0, np.int32(SIZE - 1), state.cannon),
            self.cells(1, row, column, alien),
            self.cells(jnp.where(state.direction < 0, 2, 3), row, column, alien),
            self.cells(4, state.bullet_rows, state.bullet_columns, state.bullet_rows >= 0),
            self.cells(5, state.enemy_bullet_row, state.enemy_bullet_column, state.enemy_bullet_row < SIZE),
        )


def _aliens_in_row(state: SpaceInvadersState, row: jax.Array | np.ndarray | int) -> jax.Array:
    """Return the columns of the aliens in a row: one bit for each column."""
    row = (row - state.top) % SIZE  # in the block
    aliens = state.aliens >> BLOCK_COLUMNS * jnp.minimum(row, BLOCK_ROWS - 1) & (1 << BLOCK_COLUMNS) - 1
    # Columns of the block without aliens may lie outside on the left.
    return jnp.where(row < BLOCK_ROWS, aliens << state.left + BLOCK_COLUMNS >> BLOCK_COLUMNS, 0)


def _alien_on_cannon(state: SpaceInvadersState) -> jax.Array:
    return _aliens_in_row(state, SIZE - 1) >> state.cannon & 1 != 0


def _fire_and_move(state: SpaceInvadersState, action: jax.Array) -> SpaceInvadersState:
    """Apply the player's action, and move all bullets."""
    fires = (action == FIRE) & (state.shot_timer == 0)
    cannon = jnp.clip(state.cannon + (action == RIGHT) - (action == LEFT), 0, SIZE - 1)
    newest = fires & (np.arange(2) == 0)
    bullet_rows = jnp.where(newest, SIZE - 1, jnp.where(fires, state.bullet_rows[::-1], state.bullet_rows))
    bullet_columns = jnp.where(newest, cannon, jnp.where(fires, state.bullet_columns[::-1], state.bullet_columns))
    enemy_bullet_row = jnp.minimum(state.enemy_bullet_row + 1, SIZE)
    return dataclasses.replace(
        state,
        cannon=cannon,
        bullet_rows=jnp.maximum(bullet_rows - 1, -1),
        bullet_columns=bullet_columns,
        enemy_bullet_row=enemy_bullet_row,
        shot_timer=jnp.where(fires, SHOT_INTERVAL, state.shot_timer),
        terminated=(enemy_bullet_row == SIZE - 1) & (state.enemy_bullet_column == cannon),
    )


def _columns_with_aliens(state: SpaceInvadersState) -> jax.Array:
    """Return the columns with aliens: one bit for each column."""
    aliens = state.aliens | state.aliens >> 2 * BLOCK_COLUMNS
    aliens = (aliens | aliens >> BLOCK_COLUMNS) & (1 << BLOCK_COLUMNS) - 1
    return aliens << state.left + BLOCK_COLUMNS >> BLOCK_COLUMNS


def _move_aliens(state: SpaceInvadersState) -> SpaceInvadersState:
    moves = state.move_timer == 0
    terminated = state.terminated | _alien_on_cannon(state)
    columns = _columns_with_aliens(state)
    turns = moves & jnp.where(state.direction < 0, columns & 1, columns >> SIZE - 1).astype(bool)
    terminated |= turns & (_aliens_in_row(state, SIZE - 1) != 0)
    left = state.left + jnp.where(moves & ~turns, state.direction, 0)
    interval = jnp.minimum(jax.lax.population_count(state.aliens), state.move_interval)
    state = dataclasses.replace(
        state,
        top=state.top + turns,
        left=left,
        direction=jnp.where(turns, -state.direction, state.direction),
        move_timer=jnp.where(moves, interval, state.move_timer),
    )
    return dataclasses.replace(state, terminated=terminated | _alien_on_cannon(state))


def _shoot_back(state: SpaceInvadersState) -> SpaceInvadersState:
    """Let the lowest alien of the column nearest to the cannon shoot; of two such columns, the left one."""
    shoots = state.enemy_shot_timer == 0
    distance = jnp.where(_columns_with_aliens(state) >> INDEX & 1, jnp.abs(INDEX - state.cannon), SIZE)
    column = jnp.argmin(distance).astype(jnp.int32)
    row = jnp.where(_aliens_in_row(state, INDEX) >> column & 1, INDEX, 0).max()
    return dataclasses.replace(
        state,
        enemy_bullet_row=jnp.where(shoots, row, state.enemy_bullet_row),
        enemy_bullet_column=jnp.where(shoots, column, state.enemy_bullet_column),
        enemy_shot_timer=jnp.where(shoots, ENEMY_SHOT_INTERVAL, state.enemy_shot_timer),
    )


def _hit(state: SpaceInvadersState) -> tuple[SpaceInvadersState, jax.Array]:
    """Remove bullets and aliens that share a cell. The two bullets are never in the same row."""
    hit = (state.bullet_rows >= 0) & (_aliens_in_row(state, state.bullet_rows) >> state.bullet_columns & 1 != 0)
    number = BLOCK_COLUMNS * ((state.bullet_rows - state.top) % SIZE) + state.bullet_columns - state.left
    state = dataclasses.replace(
        state,
        aliens=state.aliens & ~jnp.where(hit, 1 << jnp.where(hit, number, 0), 0).sum(dtype=jnp.int32),
        bullet_rows=jnp.where(hit, -1, state.bullet_rows),
    )
    return state, hit.sum()
