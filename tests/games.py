"""Games of several players for tests: tic-tac-toe, and a race of three players with passes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxenvs import Environment, TimeStep, environment, static, struct

LINES = np.array([[0, 1, 2], [3, 4, 5], [6, 7, 8], [0, 3, 6], [1, 4, 7], [2, 5, 8], [0, 4, 8], [2, 4, 6]])


@struct
class Board:
    """Cells hold -1 where they are empty, else the number of a player."""

    cells: jax.Array
    player: jax.Array
    is_over: jax.Array


@environment
class TicTacToe(Environment[Board]):
    """Tic-tac-toe. Player 0 begins. An illegal move loses."""

    num_players = 2
    observation_space = spaces.Box(0, 1, (18,), np.float32)
    action_space = spaces.Discrete(9)

    def reset(self, key: jax.Array) -> tuple[Board, TimeStep]:
        board = Board(jnp.full(9, -1, jnp.int32), jnp.zeros((), jnp.int32), jnp.zeros((), bool))
        return board, self._show(board, jnp.zeros(2))

    def step(self, state: Board, action: Any) -> tuple[Board, TimeStep]:
        is_illegal = state.cells[action] >= 0
        cells = jnp.where(is_illegal | state.is_over, state.cells, state.cells.at[action].set(state.player))
        has_won = (cells[LINES] == state.player).all(axis=1).any() & ~is_illegal
        sign = jnp.where(has_won, 1.0, jnp.where(is_illegal, -1.0, 0.0)) * ~state.is_over
        rewards = jnp.where(jnp.arange(2) == state.player, sign, -sign)
        is_over = state.is_over | has_won | is_illegal | (cells >= 0).all()
        board = Board(cells, jnp.asarray(1 - state.player, jnp.int32), is_over)
        return board, self._show(board, rewards)

    def _show(self, board: Board, rewards: jax.Array) -> TimeStep:
        mine, theirs = board.cells == board.player, board.cells == 1 - board.player
        info = {"action_mask": (board.cells < 0) | board.is_over, "current_player": board.player, "rewards": rewards}
        observation = jnp.concatenate([mine, theirs]).astype(jnp.float32)
        return TimeStep.create(observation, rewards[1 - board.player], board.is_over, info=info)


@struct
class RaceState:
    distances: jax.Array
    player: jax.Array


@environment
class Race(Environment[RaceState]):
    """Race of three players to `goal`: each moves 1 or 2, or after a 2 moves again. Who arrives gets 2, others -1."""

    goal: int = 6
    num_players: int = static(default=3)
    observation_space = spaces.Box(0, 99, (3,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, key: jax.Array) -> tuple[RaceState, TimeStep]:
        state = RaceState(jnp.zeros(3, jnp.int32), jnp.asarray(jax.random.randint(key, (), 0, 3), jnp.int32))
        return state, self._show(state, jnp.zeros(3), False)

    def step(self, state: RaceState, action: Any) -> tuple[RaceState, TimeStep]:
        was_over = (state.distances >= self.goal).any()
        distances = state.distances.at[state.player].add(action + 1)
        is_over = distances[state.player] >= self.goal
        rewards = jnp.where(jnp.arange(3) == state.player, 2.0, -1.0) * (is_over & ~was_over)
        player = jnp.where(action == 1, state.player, (state.player + 1) % 3)
        state = RaceState(distances, jnp.asarray(player, jnp.int32))
        return state, self._show(state, rewards, is_over | was_over)

    def _show(self, state: RaceState, rewards: jax.Array, is_over: Any) -> TimeStep:
        info = {"action_mask": jnp.ones(2, bool), "current_player": state.player, "rewards": rewards}
        own = jnp.roll(state.distances, -state.player).astype(jnp.float32)
        return TimeStep.create(own, jnp.max(rewards), is_over, info=info)


def lowest(parameters: Any, observation: Any) -> jax.Array:
    """Logits of a player who takes the legal action with the lowest number, or with the highest if `parameters` < 0."""
    return -1e6 * parameters * jnp.arange(9)
