"""Adapter of navix (epignatelli/navix): MiniGrid's tasks, written for JAX."""

from __future__ import annotations

from typing import Any

import gymnasium
import jax
import numpy as np
from gymnasium import spaces

from jaxenvs.drawing import scaled
from jaxenvs.environment import TimeStep, environment
from jaxenvs.third_party.adapter import ThirdPartyEnvironment, ThirdPartyState, adapt, box
from jaxenvs.third_party.library import entry_points, refuse_wrappers, require_library, shared
from jaxenvs.third_party.precision import in_32_bits


@environment
class NavixEnvironment(ThirdPartyEnvironment):
    """Environment of navix, whose whole Timestep is the state.

    Its parameters are `max_steps`, navix's limit of an episode, and `penalty_coeff`, the cost of a slow success. Before
    navix 4.0, the name of the latter is `penality_coeff`.
    """

    can_render = True
    render_fps = 10

    def _reset(self, key: jax.Array) -> tuple[Any, object]:
        inner = in_32_bits(self.source.env.reset, key)
        return _without_cache(inner), inner.observation

    def _step(self, inner: Any, action: object, key: jax.Array | None) -> tuple[Any, TimeStep]:
        # Call `_step`, because `step` resets, one step late.
        def step(params: dict[str, Any], inner: Any, action: object) -> Any:
            return self.source.env.replace(**params)._step(_with_cache(inner), action)

        inner = in_32_bits(step, self.params, inner, action)
        timestep = TimeStep(
            inner.observation, inner.reward, inner.is_termination(), inner.is_truncation(), dict(inner.info)
        )
        return _without_cache(inner), timestep

    @property
    def render_size(self) -> tuple[int, int]:
        size: tuple[int, int] = self.source.constants
        return size

    def draw(self, state: ThirdPartyState, height: int, width: int) -> jax.Array:
        observe = require_library("navix").observations.rgb
        picture: jax.Array = in_32_bits(observe, _with_cache(state.inner).state)
        return scaled(picture, height, width)


def _without_cache(timestep: Any) -> Any:
    """Remove the large picture of the empty grid from a Timestep. It is read only where observations are pictures."""
    return timestep.replace(state=timestep.state.replace(cache=None))


def _with_cache(timestep: Any) -> Any:
    cache = require_library("navix.rendering.cache", "navix").RenderingCache
    cache = in_32_bits(cache.init, timestep.state.grid)
    return timestep.replace(state=timestep.state.replace(cache=cache))


@shared
def _build(name: str, **arguments: object) -> NavixEnvironment:
    """Create navix's environment of a name.

    Args:
      arguments: of `navix.make`, as `observation_fn=navix.observations.rgb` or `max_steps=200`.
    """
    return from_navix(require_library("navix").make(name, **arguments))


make, ids = entry_points("navix", lambda: require_library("navix").registry(), _build)


def from_navix(env: Any) -> NavixEnvironment:
    """Create an adapter of an environment of navix.

    Args:
      env: as `navix.make` returns it.

    Raises:
      ValueError: the environment is in a wrapper.
    """
    refuse_wrappers(env, "navix")
    penalty = "penalty_coeff" if hasattr(env, "penalty_coeff") else "penality_coeff"
    started = jax.eval_shape(lambda: in_32_bits(env.reset, jax.random.key(0)))
    height, width = started.state.grid.shape
    tile = started.state.cache.patches.shape[1]
    return adapt(
        NavixEnvironment,
        env,
        observation_space=_observation_space(env, started.observation),
        action_space=spaces.Discrete(int(env.action_space.n)),
        params={"max_steps": env.max_steps, penalty: getattr(env, penalty)},
        constants=(height * tile, width * tile),
    )


def _observation_space(env: Any, observation: jax.ShapeDtypeStruct) -> gymnasium.Space[object]:
    navix = require_library("navix")
    bounds: tuple[Any, Any] = np.asarray(env.observation_space.minimum), np.asarray(env.observation_space.maximum)
    observations = navix.observations
    if env.observation_fn in (observations.symbolic, observations.symbolic_first_person):
        # A locked door is -2 in 8 bits, outside of navix's own spaces; with 255, SB3 would treat the grid as a picture.
        bounds = 0, 254
    elif env.observation_fn in (observations.categorical, observations.categorical_first_person):
        bounds = -1, navix.entities.EntityIds.PLAYER  # -1 is a wall
    return box(*bounds, observation.shape, observation.dtype)
