"""FlattenObservation: one vector instead of dicts, tuples, images and numbers."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from jaxenvs import spaces
from jaxenvs.checks import possible_observation_spaces
from jaxenvs.environment import Environment, environment
from jaxenvs.wrappers.bases import ObservationWrapper


class OneHot(NamedTuple):
    """Integers that become one-hot: the least value of each, and how many values it has."""

    starts: tuple[int, ...]
    counts: tuple[int, ...]


class Layout(NamedTuple):
    """Data of a space that flattening needs: for each array, by its path, what is one-hot; and the dtype.

    It contains no bounds, on which compiled functions do not depend, and can be hashed, unlike a space.
    """

    arrays: tuple[tuple[tuple[str | int, ...], OneHot | None], ...]
    dtype: str


@environment
class FlattenObservation(ObservationWrapper):
    """Wrapper that flattens observations to vectors, as `gymnasium.wrappers.FlattenObservation` does.

    Use it for agents that take only vectors. Discrete and MultiDiscrete become one-hot; the parts of Dict and Tuple are
    concatenated, in the order of their space. The state is the state of `env`.

    Attributes:
      layout: looked up in the observation space of `env`. The number of members of a Discrete is part of the compiled
        function, also where it is a parameter of `env`: wrap such an environment outside of traced code.
    """

    env: Environment[Any]
    layout: Layout | None = dataclasses.field(default=None, kw_only=True, repr=False, metadata={"static": True})

    def __check_init__(self) -> None:
        super().__check_init__()
        object.__setattr__(self, "layout", _layout_of(self.env, self.layout))

    @property
    def observation_space(self) -> gymnasium.Space[object]:
        return gymnasium.spaces.flatten_space(self.env.observation_space)

    def observe(self, state: object, observation: Any) -> jax.Array:
        layout = _layout_of(self.env) if self.layout is None else self.layout
        if layout is None:
            self.env.observation_space  # noqa: B018  # raises, and says why there is none
            raise ValueError(f"The spaces of {type(self.env.unwrapped).__name__} must not depend on traced values.")
        dtype = jax.dtypes.canonicalize_dtype(np.dtype(layout.dtype))
        parts = []
        for path, one_hot in layout.arrays:
            value = observation
            for key in path:
                value = value[key]
            value = jnp.ravel(value)
            if one_hot is None:
                parts.append(value.astype(dtype))
            else:
                space = gymnasium.spaces.MultiDiscrete(list(one_hot.counts), start=list(one_hot.starts))
                parts.append(spaces.flatten(space, value, dtype))
        return jnp.concatenate(parts) if parts else jnp.zeros(0, dtype)


def _layout_of(env: Environment[Any], former: Layout | None = None) -> Layout | None:
    """Return the layout of an environment's observations; where it is unknown, `former`'s layout."""
    layouts = {
        Layout(tuple(_arrays(space)), np.dtype(gymnasium.spaces.flatten_space(space).dtype).str)
        for space in possible_observation_spaces(env)
    }
    if len(layouts) > 1:
        raise ValueError(
            f"FlattenObservation must be made outside of traced code, because the size of the observation space of "
            f"{type(env.unwrapped).__name__} depends on its parameters."
        )
    return next(iter(layouts), former)


def _arrays(
    space: gymnasium.Space[object], path: tuple[str | int, ...] = ()
) -> list[tuple[tuple[str | int, ...], OneHot | None]]:
    if isinstance(space, gymnasium.spaces.Dict | gymnasium.spaces.Tuple):
        parts = space.spaces.items() if isinstance(space, gymnasium.spaces.Dict) else enumerate(space.spaces)
        return [array for key, part in parts for array in _arrays(part, (*path, key))]
    one_hot = None
    if isinstance(space, gymnasium.spaces.Discrete | gymnasium.spaces.MultiDiscrete):
        low, high = (np.ravel(bound).tolist() for bound in spaces.leaf_bounds(space))
        one_hot = OneHot(tuple(low), tuple(most - least + 1 for least, most in zip(low, high)))
    return [(path, one_hot)]
