"""Adapter of jumanji (instadeepai/jumanji): puzzles, packing and routing, with dm_env's specs and timesteps."""

from __future__ import annotations

from typing import Any

import gymnasium
import jax
import numpy as np
from gymnasium import spaces

from jaxenvs.environment import TimeStep, environment
from jaxenvs.third_party.adapter import ThirdPartyEnvironment, ThirdPartyState, adapt, box, flat_dict, unbounded
from jaxenvs.third_party.library import entry_points, refuse_wrappers, require_library, shared

# Parts of observations that may be -1, for none, although their specs begin with 0.
NONE_IS_MINUS_ONE = {"TSP": ("position",)}

DPI = 100  # of jumanji's figures


@environment
class JumanjiEnvironment(ThirdPartyEnvironment):
    """Environment of jumanji. An end with a discount of 0 terminates, any other end truncates.

    Observations of several parts are a dict, which includes `action_mask` where jumanji has it; parts of a part are
    named "part/name".
    """

    @property
    def can_render(self) -> bool:
        return _viewer(self.source.env) is not None

    @property
    def render_size(self) -> tuple[int, int]:
        width, height = getattr(_viewer(self.source.env), "figure_size", (10, 10))
        return round(DPI * height), round(DPI * width)

    def render(self, state: ThirdPartyState) -> np.ndarray:
        env = self.source.env
        viewer = _viewer(env)
        if viewer is None:
            return super().render(state)
        # The viewers show a window unless they were created to return arrays.
        pyplot = require_library("matplotlib.pyplot", "jumanji")
        pyplot.switch_backend("agg")
        viewer._display = viewer._display_rgb_array
        env.render(state.inner)
        figure, _ = viewer._get_fig_ax(show=False)
        figure.set_dpi(DPI)
        figure.canvas.draw()
        return np.asarray(figure.canvas.buffer_rgba())[..., :3].copy()

    def _reset(self, key: jax.Array) -> tuple[Any, object]:
        inner, timestep = self.source.env.reset(key)
        return inner, _observation(timestep.observation)

    def _step(self, inner: Any, action: object, key: jax.Array | None) -> tuple[Any, TimeStep]:
        inner, timestep = self.source.env.step(inner, action)
        last, lost = timestep.last(), timestep.discount == 0
        observation = _observation(timestep.observation)
        return inner, TimeStep(observation, timestep.reward, last & lost, last & ~lost, dict(timestep.extras or {}))


@shared
def _build(name: str, **arguments: object) -> JumanjiEnvironment:
    """Create jumanji's environment of an id.

    Args:
      arguments: of its class, as `time_limit=200` or `generator=...`.

    Raises:
      ValueError: it has several agents, with a reward each.
    """
    return from_jumanji(require_library("jumanji").make(name, **arguments))


make, ids = entry_points("jumanji", lambda: require_library("jumanji").registered_environments(), _build)


def from_jumanji(env: Any) -> JumanjiEnvironment:
    """Create an adapter of an environment of jumanji.

    Args:
      env: as `jumanji.make` returns it, or in jumanji's `MultiToSingleWrapper`.

    Raises:
      ValueError: the environment is in another wrapper.
    """
    refuse_wrappers(env, "jumanji", ["jumanji.wrappers.MultiToSingleWrapper"])
    space: Any = _space(env.observation_spec)
    for name in NONE_IS_MINUS_ONE.get(type(env.unwrapped).__name__, ()):
        space[name] = box(-1, space[name].n - 1, (), np.int32)
    return adapt(JumanjiEnvironment, env, observation_space=space, action_space=_action_space(env.action_spec))


def _action_space(spec: Any) -> gymnasium.Space[object]:
    """Convert a spec as `_space` does, but bounded integers to a MultiDiscrete: algorithms take no Box of integers."""
    space = _space(spec)
    if isinstance(space, spaces.Box) and space.dtype.kind in "iu":
        low, high = space.low.astype(np.int64), space.high.astype(np.int64)
        return spaces.MultiDiscrete(high - low + 1, start=low)
    return space


def _observation(observation: object) -> Any:
    return flat_dict(_as_dicts(observation))


def _as_dicts(observation: object) -> Any:
    """Convert NamedTuples and chex dataclasses to dicts."""
    if hasattr(observation, "_asdict"):
        observation = observation._asdict()
    elif not isinstance(observation, jax.Array | np.ndarray | dict) and hasattr(observation, "__dataclass_fields__"):
        observation = {name: getattr(observation, name) for name in observation.__dataclass_fields__}
    if isinstance(observation, dict):
        return {name: _as_dicts(part) for name, part in observation.items()}
    return observation


def _space(spec: Any) -> gymnasium.Space[object]:
    """Convert a spec of jumanji to Gymnasium's space."""
    nested = _nested(spec)
    return spaces.Dict(flat_dict(nested)) if isinstance(nested, dict) else nested


def _nested(spec: Any, name: str = "") -> Any:
    if spec._specs:
        return {name: _nested(part, name) for name, part in spec._specs.items()}
    dtype = np.dtype(spec.dtype)
    if name == "step_count" and hasattr(spec, "num_values"):
        # A count, not a category; it reaches the limit in the last step.
        return box(0, spec.num_values, spec.shape, dtype)
    if hasattr(spec, "num_values"):
        count = np.asarray(spec.num_values)
        return spaces.MultiDiscrete(count) if count.ndim else spaces.Discrete(int(count))
    if hasattr(spec, "minimum"):
        return box(spec.minimum, spec.maximum, spec.shape, dtype)
    return unbounded(spec.shape, dtype)


def _viewer(env: Any) -> Any:
    return getattr(env, "_viewer", None) or getattr(env, "viewer", None)
