"""Adapter of pgx (sotetsuk/pgx): board games, card games and MinAtar, if they have one player."""

from __future__ import annotations

import copy
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxenvs.drawing import draw_tiles
from jaxenvs.environment import TimeStep, environment
from jaxenvs.foreign.adapter import ForeignEnvironment, ForeignState, adapt
from jaxenvs.foreign.library import entry_points, require_library, shared
from jaxenvs.foreign.precision import in_32_bits


@environment
class PgxEnvironment(ForeignEnvironment):
    """Game of pgx for one player. `info["action_mask"]` marks the legal actions; any other action loses the game.

    MinAtar games have the parameter `sticky_action_prob`, the probability that the last action is repeated.
    """

    step_wants_key = True

    def _reset(self, key: jax.Array) -> tuple[Any, Any]:
        inner = in_32_bits(self.foreign.env.init, key)
        return inner, inner.observation

    def _step(self, inner: Any, action: Any, key: jax.Array | None) -> tuple[Any, TimeStep]:
        def step(params: dict[str, Any], inner: Any, action: Any, key: Any) -> Any:
            env = copy.copy(self.foreign.env)  # the parameters are attributes; pgx has no functions of them
            vars(env).update(params)
            return env.step(inner, action, key)

        inner = in_32_bits(step, self.params, inner, action, key)
        info = {"action_mask": inner.legal_action_mask}
        return inner, TimeStep(inner.observation, inner.rewards[0], inner.terminated, inner.truncated, info)

    def reset(self, key: jax.Array) -> tuple[ForeignState, TimeStep]:
        state, timestep = super().reset(key)
        return state, timestep.replace(info={"action_mask": state.inner.legal_action_mask})

    def action_masks(self, state: ForeignState) -> jax.Array:
        """Return which actions are legal: bool (n,), as `info["action_mask"]`."""
        mask: jax.Array = state.inner.legal_action_mask
        return mask

    @property
    def can_render(self) -> bool:
        return self._is_minatar

    @property
    def render_fps(self) -> int:
        return 30 if self._is_minatar else 5

    @property
    def render_size(self) -> tuple[int, int]:
        return 400, 400

    def draw(self, state: ForeignState, height: int, width: int) -> jax.Array:
        """Draw a game of MinAtar; other games have only vector graphics in pgx."""
        if not self._is_minatar:
            return super().draw(state, height, width)
        channels = state.inner.observation
        palette = require_library("pgx.minatar.utils", "pgx").get_cmap(channels.shape[-1])
        colours = np.array([(0, 0, 0), *palette])
        grid = jnp.max(channels * jnp.arange(1, len(colours)), axis=-1)
        return draw_tiles(grid, np.asarray(np.round(colours * 255), np.uint8), height, width)

    @property
    def _is_minatar(self) -> bool:
        return str(self.foreign.env.id).startswith("minatar-")


@shared
def _build(name: str) -> PgxEnvironment:
    return from_pgx(require_library("pgx").make(name))


def _build_with(name: str, **parameters: Any) -> PgxEnvironment:
    """Create pgx's game of a name.

    Args:
      parameters: for MinAtar, as `sticky_action_prob=0.0`.

    Raises:
      ValueError: the game has several players.
    """
    return _build(name).replace(**parameters)


# The number of players is known once pgx has created a game.
make, ids = entry_points("pgx", lambda: require_library("pgx").available_envs(), _build_with)


def from_pgx(env: Any) -> PgxEnvironment:
    """Create an adapter of a game of pgx.

    Args:
      env: as `pgx.make` returns it.

    Raises:
      ValueError: the game has several players.
    """
    if env.num_players != 1:
        raise ValueError(f"env must be a game for one player, got {env.id}, which has {env.num_players}.")
    started = jax.eval_shape(lambda: in_32_bits(env.init, jax.random.key(0)))
    dtype: Any = started.observation.dtype  # bool
    return adapt(
        PgxEnvironment,
        env,
        observation_space=spaces.Box(0, 1, started.observation.shape, dtype),
        action_space=spaces.Discrete(started.legal_action_mask.shape[0]),
        params={name: vars(env)[name] for name in ("sticky_action_prob",) if name in vars(env)},
    )
