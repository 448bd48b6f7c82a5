"""FlattenObservation: one vector in the place of dicts, tuples, images and numbers."""

from __future__ import annotations

from typing import Any

import gymnasium
import jax

from jaxenvs import spaces
from jaxenvs.checks import spaces_in_traced_code
from jaxenvs.environment import Environment, TimeStep, Wrapper, environment


@environment
class FlattenObservation(Wrapper[Any]):
    """Observes what `gymnasium.spaces.flatten` makes of observations, as `gymnasium.wrappers.FlattenObservation` does.

    Discrete and MultiDiscrete become one-hot, Dict and Tuple one after another, in the order of their space. The state
    is that of `env`.
    """

    env: Environment[Any]

    @property
    def observation_space(self) -> gymnasium.Space[Any]:
        return gymnasium.spaces.flatten_space(self.env.observation_space)

    def inner_state(self, state: Any) -> Any:
        return state

    def reset(self, key: jax.Array) -> tuple[Any, TimeStep]:
        state, timestep = self.env.reset(key)
        return state, self._flatten(timestep)

    def step(self, state: Any, action: Any) -> tuple[Any, TimeStep]:
        state, timestep = self.env.step(state, action)
        return state, self._flatten(timestep)

    def _flatten(self, timestep: TimeStep) -> TimeStep:
        found = spaces_in_traced_code(self.env)
        if found is None:
            self.env.observation_space  # noqa: B018  # raises, and says why there is none
            raise ValueError(f"The spaces of {type(self.env.unwrapped).__name__} must not depend on what is traced.")
        dtype = jax.dtypes.canonicalize_dtype(gymnasium.spaces.flatten_space(found[0]).dtype)
        return timestep.replace(observation=spaces.flatten(found[0], timestep.observation, dtype))
