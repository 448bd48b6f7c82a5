"""Adapter of pgx (sotetsuk/pgx): board games, card games and MinAtar."""

from __future__ import annotations

import copy
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxenvs.drawing import draw_tiles
from jaxenvs.environment import TimeStep, environment
from jaxenvs.third_party.adapter import ThirdPartyEnvironment, ThirdPartyState, adapt, unbounded
from jaxenvs.third_party.library import entry_points, refuse_wrappers, require_library, shared
from jaxenvs.third_party.precision import in_32_bits

# Games whose first two planes of an observation are the stones of the player to move and of the other one.
BOARDS = ("connect_four", "go_9x9", "go_19x19", "othello", "tic_tac_toe")
# Tiles of an empty cell, and of the first and the second player's stones.
IS_STONE = np.hypot(*np.mgrid[-28:29, -28:29])[None, ..., None] < 25
COLOURS = np.array([(236, 233, 224), (40, 90, 170), (210, 60, 50)])[:, None, None]
CELLS = np.where(IS_STONE, COLOURS, (190, 182, 160)).astype(np.uint8)


@environment
class PgxEnvironment(ThirdPartyEnvironment):
    """Game of pgx. `info["action_mask"]` marks the legal actions; any other action loses the game.

    A game of several players is stepped by all of them in turn: `info["current_player"]` moves next, and sees the
    observation; `info["rewards"]`, (num_players,), are of the last move, and the reward is the reward of the player who
    made it. `jaxenvs.wrappers.SelfPlay` makes it an environment of one player.

    MinAtar games have the parameter `sticky_action_prob`, the probability that the last action is repeated.
    """

    step_wants_key = True

    def _reset(self, key: jax.Array) -> tuple[Any, object]:
        inner = in_32_bits(self.source.env.init, key)
        return inner, inner.observation

    def _step(self, inner: Any, action: object, key: jax.Array | None) -> tuple[Any, TimeStep]:
        def step(params: dict[str, Any], inner: Any, action: object, key: object) -> Any:
            env = copy.copy(self.source.env)  # the parameters are attributes; pgx has no functions of them
            vars(env).update(params)
            return env.step(inner, action, key)

        mover = inner.current_player
        inner = in_32_bits(step, self.params, inner, action, key)
        reward = inner.rewards[0 if self.num_players == 1 else mover]
        return inner, TimeStep(inner.observation, reward, inner.terminated, inner.truncated, self._first_info(inner))

    def _first_info(self, inner: Any) -> dict[str, jax.Array]:
        info = {"action_mask": inner.legal_action_mask}
        if self.num_players > 1:
            info |= {"current_player": inner.current_player, "rewards": inner.rewards}
        return info

    @property
    def num_players(self) -> int:
        """The number of players."""
        return int(self.source.env.num_players)

    def action_masks(self, state: ThirdPartyState) -> jax.Array:
        """Return which actions are legal: bool (n,), as `info["action_mask"]`."""
        mask: jax.Array = state.inner.legal_action_mask
        return mask

    @property
    def can_render(self) -> bool:
        return self._is_minatar or self._is_board

    @property
    def render_fps(self) -> int:
        return 30 if self._is_minatar else 2

    @property
    def render_size(self) -> tuple[int, int]:
        rows, columns = (self.observation_space.shape or (1, 1))[:2] if self._is_board else (1, 1)
        return 400 * rows // columns, 400

    def draw(self, state: ThirdPartyState, height: int, width: int) -> jax.Array:
        """Draw a game of MinAtar, or stones on a board; other games have only vector graphics in pgx."""
        if self._is_board:
            own, other = state.inner.observation[..., 0], state.inner.observation[..., 1]
            player = state.inner.current_player
            cells = jnp.where(own, 1 + player, jnp.where(other, 2 - player, 0))
            return draw_tiles(cells, CELLS, height, width)
        if not self._is_minatar:
            return super().draw(state, height, width)
        channels = state.inner.observation
        palette = require_library("pgx.minatar.utils", "pgx").get_cmap(channels.shape[-1])
        colours = np.array([(0, 0, 0), *palette])
        grid = jnp.max(channels * jnp.arange(1, len(colours)), axis=-1)
        return draw_tiles(grid, np.asarray(np.round(colours * 255), np.uint8), height, width)

    @property
    def _is_board(self) -> bool:
        return str(self.source.env.id) in BOARDS

    @property
    def _is_minatar(self) -> bool:
        return str(self.source.env.id).startswith("minatar-")


@shared
def _build(name: str) -> PgxEnvironment:
    return from_pgx(require_library("pgx").make(name))


def _build_with(name: str, **parameters: object) -> PgxEnvironment:
    """Create pgx's game of a name.

    Args:
      parameters: for MinAtar, as `sticky_action_prob=0.0`.
    """
    return _build(name).replace(**parameters)


make, ids = entry_points("pgx", lambda: require_library("pgx").available_envs(), _build_with)


def from_pgx(env: Any) -> PgxEnvironment:
    """Create an adapter of a game of pgx.

    Args:
      env: as `pgx.make` returns it.

    Raises:
      ValueError: the game is in a wrapper.
    """
    refuse_wrappers(env, "pgx", mark="num_players")  # games contain objects that have `init` and `step`, too
    started = jax.eval_shape(lambda: in_32_bits(env.init, jax.random.key(0)))
    observation = started.observation
    is_binary = observation.dtype == bool
    return adapt(
        PgxEnvironment,
        env,
        observation_space=(
            spaces.Box(0, 1, observation.shape, np.bool_)
            if is_binary
            else unbounded(observation.shape, observation.dtype)
        ),
        action_space=spaces.Discrete(started.legal_action_mask.shape[0]),
        params={name: vars(env)[name] for name in ("sticky_action_prob",) if name in vars(env)},
    )
