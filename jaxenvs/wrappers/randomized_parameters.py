"""RandomizedParameters: other physics in every episode."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from jaxenvs.arguments import instance, is_real, shown
from jaxenvs.environment import (
    Environment,
    TimeStep,
    Wrapper,
    environment,
    require_environment,
    static,
    struct,
)
from jaxenvs.jax_names import is_traced
from jaxenvs.parameters import numeric_parameter


@struct
class Uniform:
    """Uniform distribution from `low` to `high`; for an integer parameter, both are included."""

    low: Any
    high: Any


@struct
class Sampler:
    """Distribution that draws `function(key)`."""

    function: Callable[[jax.Array], jax.typing.ArrayLike] = static()


@struct
class RandomizedParametersState:
    """State of RandomizedParameters.

    Attributes:
      inner: the state of the wrapped environment.
      parameters: the parameters drawn for this episode, by name.
    """

    inner: Any
    parameters: dict[str, jax.Array]


@environment
class RandomizedParameters(Wrapper[RandomizedParametersState]):
    """Wrapper that draws parameters of `env` at each reset: domain randomization.

    `RandomizedParameters(env, {"half_length": (0.25, 1.0), "gravity": lambda key: 9.8 + jax.random.normal(key)})`

    Use it to train policies that work for a range of parameters. Any numeric parameter of `env` and of the wrappers in
    it can be drawn. The drawn values are in the state, and apply to the whole episode and to its pictures. Spaces are
    the spaces of the given `env`: where their bounds depend on a drawn parameter, give `env` the extreme value.

    Source: Tobin et al. (2017), "Domain Randomization for Transferring Deep Neural Networks from Simulation to the Real
    World".

    Attributes:
      distributions: for each name `(low, high)`, drawn uniformly, or a function from a typed key to a value, traced.
        Bounds are data, for `vmap` and `grad`; functions are part of the compiled function.
    """

    env: Environment[Any]
    distributions: Any

    def __check_init__(self) -> None:
        require_environment("env", self.env)
        expected = "a mapping from parameter names to (low, high) or to functions of a key"
        given = instance("distributions", self.distributions, Mapping, expected)
        if not given:
            raise ValueError(f"distributions must be {expected}, got none.")
        for name in given:
            numeric_parameter(self.env, instance("a name in distributions", name, str, "a str"))
            if name in _drawn_inside(self.env):
                raise ValueError(
                    f"{name} must be randomized by one RandomizedParameters only, but env already contains one that "
                    "does."
                )
        distributions = {name: _distribution(name, given[name]) for name in sorted(given)}
        object.__setattr__(self, "distributions", distributions)

    def replace(self, **changes: object) -> Self:
        """Return a copy with some parameters changed. Drawn parameters cannot be replaced: replace `distributions`.

        Raises:
          AttributeError: there is no such parameter.
          ValueError: the parameter is drawn.
        """
        if drawn := changes.keys() & self.distributions.keys():
            names = ", ".join(sorted(drawn))
            raise ValueError(
                f"{names} is randomized at each reset: change distributions or the inner environment instead."
            )
        return super().replace(**changes)

    def reset(self, key: jax.Array) -> tuple[RandomizedParametersState, TimeStep]:
        own_key, env_key = jax.random.split(key)
        keys = jax.random.split(own_key, len(self.distributions))
        parameters = {name: self._draw(name, keys[i]) for i, name in enumerate(self.distributions)}
        inner, timestep = self.env.replace(**parameters).reset(env_key)
        return RandomizedParametersState(inner=inner, parameters=parameters), timestep

    def step(self, state: RandomizedParametersState, action: object) -> tuple[RandomizedParametersState, TimeStep]:
        inner, timestep = self.inner_env(state).step(state.inner, action)
        return RandomizedParametersState(inner=inner, parameters=state.parameters), timestep

    def inner_env(self, state: RandomizedParametersState) -> Environment[Any]:
        return self.env.replace(**state.parameters)

    def _draw(self, name: str, key: jax.Array) -> jax.Array:
        owner, present = numeric_parameter(self.env, name)
        distribution = self.distributions[name]
        shape = np.shape(present)
        if isinstance(distribution, Sampler):
            value = distribution.function(key)
        else:
            of_integers = all(
                jnp.issubdtype(jnp.result_type(part), jnp.integer)
                for part in (distribution.low, distribution.high, present)
                # Unlike gravity=10, a float default shows that it is real.
            ) and not isinstance(getattr(type(owner), name, None), float)
            value = _uniform(key, shape, distribution, of_integers)
        if not is_real(value) or np.shape(value) != shape:
            raise ValueError(f"distributions[{name!r}] must return a number with shape {shape}, got {shown(value)}.")
        return jnp.asarray(value, jnp.result_type(value))


def _distribution(name: str, given: object) -> Uniform | Sampler:
    """Convert a distribution to the form that the wrapper keeps."""
    if isinstance(given, Uniform | Sampler):
        return given
    if callable(given):
        return Sampler(given)
    if not isinstance(given, tuple | list) or len(given) != 2 or not all(map(is_real, given)):
        raise TypeError(
            f"distributions[{name!r}] must be a pair (low, high) of numbers or arrays, or a function of a key, got "
            f"{shown(given)}."
        )
    low, high = given
    is_known = not any(map(is_traced, given))
    if is_known and not (np.isfinite(low).all() and np.isfinite(high).all() and np.all(np.less_equal(low, high))):
        raise ValueError(f"distributions[{name!r}] must be (low, high), finite and with low <= high, got {given}.")
    return Uniform(low, high)


def _uniform(key: jax.Array, shape: tuple[int, ...], distribution: Uniform, of_integers: bool) -> jax.Array:
    if of_integers:
        return jax.random.randint(key, shape, distribution.low, jnp.asarray(distribution.high) + 1)
    low, high = (jnp.asarray(bound, float) for bound in (distribution.low, distribution.high))
    # The minimum keeps XLA from fusing product and sum into one rounding, which would depend on the number of
    # environments.
    return low + jnp.minimum((high - low) * jax.random.uniform(key, shape), high - low)


def _drawn_inside(env: Environment[Any]) -> set[str]:
    names: set[str] = set()
    while isinstance(env, Wrapper):
        if isinstance(env, RandomizedParameters):
            names |= env.distributions.keys()
        env = env.env
    return names
