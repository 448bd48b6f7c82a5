"""Adapter of craftax (MichaelTMatthews/Craftax): an open world in the style of gymnax 0.0, in two sizes, as symbols or
pixels.
"""

from __future__ import annotations

import functools
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from jaxenvs.drawing import scaled
from jaxenvs.environment import environment
from jaxenvs.third_party.adapter import ThirdPartyState
from jaxenvs.third_party.gymnax import GymnaxEnvironment, adapt_with_params, with_parameters
from jaxenvs.third_party.library import entry_points, refuse_wrappers, require_library, shared

IDS = ["Craftax-Classic-Pixels-v1", "Craftax-Classic-Symbolic-v1", "Craftax-Pixels-v1", "Craftax-Symbolic-v1"]


@environment
class CraftaxEnvironment(GymnaxEnvironment):
    """Environment of craftax. Its own limit of an episode truncates; the numbers of its `EnvParams` are parameters.

    Pixels are floats from 0 to 1, as in craftax.
    """

    untraced: ClassVar[tuple[str, ...]] = ()

    can_render = True

    @property
    def render_size(self) -> tuple[int, int]:
        rows, columns = _picture(self.source.env)[1]
        return 48 * rows, 48 * columns

    def draw(self, state: ThirdPartyState, height: int, width: int) -> jax.Array:
        renderer, _ = _picture(self.source.env)
        picture = jnp.clip(renderer(state.inner), 0, 255).astype(jnp.uint8)
        return scaled(picture, height, width)

    def _ends(self, inner: Any, done: jax.Array) -> tuple[jax.Array, jax.Array]:
        params = self.library_params
        unlimited = params.replace(max_timesteps=2**31 - 1)
        terminated = jnp.asarray(self.source.env.is_terminal(inner, unlimited))
        return terminated, jnp.asarray(inner.timestep >= params.max_timesteps)


@functools.cache
def _picture(env: Any) -> tuple[Any, tuple[int, int]]:
    """Return craftax's function from a state to pixels, and the number of blocks that it draws, down and across."""
    package = "craftax_classic" if "Classic" in env.name else "craftax"
    constants = require_library(f"craftax.{package}.constants", "craftax")
    renderer = require_library(f"craftax.{package}.renderer", "craftax")
    rows, columns = constants.OBS_DIM
    return (
        renderer.make_craftax_pixel_renderer(constants.BLOCK_PIXEL_SIZE_IMG),
        (rows + constants.INVENTORY_OBS_HEIGHT, columns),
    )


def from_craftax(env: Any, params: object = None) -> CraftaxEnvironment:
    """Create an adapter of an environment of craftax, with or without auto-reset.

    Args:
      env: as `craftax.craftax_env.make_craftax_env_from_name` returns it.
      params: its `EnvParams`; its `default_params` if not given.

    Raises:
      ValueError: the environment is in a wrapper. The adapter calls `step_env`, which wrappers do not change.
    """
    refuse_wrappers(env, "craftax")
    return adapt_with_params(CraftaxEnvironment, env, env.default_params if params is None else params)


@shared
def _build(name: str, constants: tuple[tuple[str, object], ...] = (), **arguments: object) -> CraftaxEnvironment:
    env = require_library("craftax.craftax_env", "craftax").make_craftax_env_from_name(name, auto_reset=False)
    if arguments:
        env = type(env)(**arguments)
    return from_craftax(env, env.default_params.replace(**dict(constants)))


def _names() -> list[str]:
    require_library("craftax")
    return IDS


make, ids = entry_points("craftax", _names, with_parameters(_build))
