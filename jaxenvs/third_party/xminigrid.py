"""Adapter of xminigrid (dunnolab/xland-minigrid): MiniGrid's tasks, and XLand's, whose rules are data."""

from __future__ import annotations

from typing import Any

import gymnasium
import jax
import numpy as np
from gymnasium import spaces

from jaxenvs.environment import TimeStep, environment
from jaxenvs.third_party.adapter import (
    ThirdPartyEnvironment,
    ThirdPartyState,
    adapt,
    box,
    flat_dict,
    on_host,
    unbounded,
)
from jaxenvs.third_party.library import entry_points, refuse_wrappers, require_library, shared
from jaxenvs.third_party.precision import in_32_bits


@environment
class XMiniGridEnvironment(ThirdPartyEnvironment):
    """Environment of xminigrid, whose whole TimeStep is the state.

    Its parameters are `max_steps`, the limit of an episode, and, for XLand, `ruleset`: goal, rules and objects. Each
    environment of a batch may have another ruleset.
    """

    can_render = True
    render_fps = 10

    def _reset(self, key: jax.Array) -> tuple[Any, object]:
        def reset(params: dict[str, Any], key: jax.Array) -> Any:
            return self.source.env.reset(self.source.constants.replace(**params), key)

        inner = in_32_bits(reset, self.params, key)
        return inner, flat_dict(inner.observation)

    def _step(self, inner: Any, action: object, key: jax.Array | None) -> tuple[Any, TimeStep]:
        def step(params: dict[str, Any], inner: Any, action: object) -> Any:
            return self.source.env.step(self.source.constants.replace(**params), inner, action)

        inner = in_32_bits(step, self.params, inner, action)
        terminated, truncated = inner.last() & (inner.discount == 0), inner.last() & (inner.discount != 0)
        return inner, TimeStep(flat_dict(inner.observation), inner.reward, terminated, truncated, {})

    @property
    def render_size(self) -> tuple[int, int]:
        return self.source.constants.height * TILE_SIZE, self.source.constants.width * TILE_SIZE

    def render(self, state: ThirdPartyState) -> np.ndarray:
        """Draw xminigrid's picture on the host, with what the agent sees lit."""
        params = self.source.constants.replace(render_mode="rgb_array")
        return np.asarray(self.source.env.render(params, on_host(state.inner)))


TILE_SIZE = 32  # of xminigrid's pictures [pixels]

# They change observations alone.
WRAPPERS = [
    "xminigrid.wrappers.DirectionObservationWrapper",
    "xminigrid.wrappers.RulesAndGoalsObservationWrapper",
    "xminigrid.experimental.img_obs.RGBImgObservationWrapper",
]


@shared
def _build(name: str, **arguments: object) -> XMiniGridEnvironment:
    """Create xminigrid's environment of a name.

    Args:
      arguments: of its parameters, as `view_size=5`.
    """
    return from_xminigrid(*require_library("xminigrid").make(name, **arguments))


make, ids = entry_points("xminigrid", lambda: require_library("xminigrid").registered_environments(), _build)


def from_xminigrid(env: Any, params: Any) -> XMiniGridEnvironment:
    """Create an adapter of an environment of xminigrid and its parameters.

    Args:
      env, params: the pair that `xminigrid.make` returns; `env` may be in wrappers of xminigrid that change
        observations alone.

    Raises:
      ValueError: the environment is in another wrapper.
    """
    refuse_wrappers(env, "xminigrid", WRAPPERS)
    observation = jax.eval_shape(lambda: in_32_bits(env.reset, params, jax.random.key(0))).observation
    traced = {"max_steps": params.max_steps}
    if hasattr(params, "ruleset"):
        traced["ruleset"] = params.ruleset
    return adapt(
        XMiniGridEnvironment,
        env,
        observation_space=_observation_space(flat_dict(observation)),
        action_space=spaces.Discrete(env.num_actions(params)),
        params=traced,
        constants=params,
    )


def _observation_space(observation: Any) -> gymnasium.Space[object]:
    """Return the space of observations, of which xminigrid declares only shapes. Tiles are (kind, color), directions
    one-hot.
    """
    if isinstance(observation, dict):
        return spaces.Dict({name: _observation_space(part) for name, part in observation.items()})
    shape, dtype = observation.shape, observation.dtype
    if dtype == np.uint8 and shape[2:] == (2,):
        constants = require_library("xminigrid.core.constants", "xminigrid")
        return box(0, max(constants.NUM_TILES, constants.NUM_COLORS) - 1, shape, dtype)
    return box(0, 1, shape, dtype) if dtype.kind == "f" else unbounded(shape, dtype)
