"""Adapter of gymnax (RobertTLange/gymnax), from 1.0 on; the spaces and parameters of other libraries in its style."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxenvs.arguments import is_real, no_parameter
from jaxenvs.drawing import draw_tiles
from jaxenvs.environment import TimeStep, environment
from jaxenvs.third_party.adapter import ThirdPartyEnvironment, ThirdPartyState, adapt, box, ravelled, unbounded
from jaxenvs.third_party.library import entry_points, refuse_wrappers, require_library, shared

# Environments whose observations leave their declared space.
OUTSIDE = {"Catch-bsuite", "FourRooms-misc", "GaussianBandit-misc", "MemoryChain-bsuite", "MetaMaze-misc"}

# Colors of the channels of a grid; the last channel is on top.
CHANNEL_COLOURS = np.array(
    [
        (86, 180, 233),
        (230, 159, 0),
        (0, 158, 115),
        (240, 228, 66),
        (213, 94, 0),
        (204, 121, 167),
        (0, 114, 178),
        (153, 153, 153),
        (170, 68, 153),
        (255, 255, 255),
    ],
    np.uint8,
)


@environment
class GymnaxEnvironment(ThirdPartyEnvironment):
    """Environment of gymnax. Its own limit of an episode truncates; the numbers of its `EnvParams` are parameters.

    `max_steps_in_episode` is part of the compiled function, because some shapes of observations depend on it: pass it
    to `make`.
    """

    step_wants_key = True
    untraced: ClassVar[tuple[str, ...]] = ("max_steps_in_episode",)

    @property
    def library_params(self) -> Any:
        """The `EnvParams` object of gymnax."""
        return self.source.constants.replace(**self.params)

    @property
    def observation_space(self) -> gymnasium.Space[object]:
        return observation_space(self.source.env, self.library_params)

    @property
    def action_space(self) -> gymnasium.Space[object]:
        return converted(self.source.env.action_space(self.library_params))

    @property
    def can_render(self) -> bool:
        return len(self.source.observation_space.shape or ()) in (2, 3)

    def draw(self, state: ThirdPartyState, height: int, width: int) -> jax.Array:
        if not self.can_render:
            return super().draw(state, height, width)
        # of an action that is not known
        observation = self.source.env.observe(jax.random.key(0), state.inner, None, self.library_params)
        if observation.ndim == 2:
            observation = observation[..., None]
        colours = np.concatenate([[(0, 0, 0)], np.resize(CHANNEL_COLOURS, (observation.shape[-1], 3))])
        numbers = jnp.arange(1, observation.shape[-1] + 1)
        return draw_tiles(jnp.max((observation > 0) * numbers, axis=-1), colours, height, width)

    @property
    def render_size(self) -> tuple[int, int]:
        rows, columns = (self.source.observation_space.shape or ())[:2] if self.can_render else (1, 1)
        return 400, 400 * columns // rows

    def _reset(self, key: jax.Array) -> tuple[Any, object]:
        observation, inner = self.source.env.reset_env(key, self.library_params)
        return inner, observation

    def _step(self, inner: Any, action: object, key: jax.Array | None) -> tuple[Any, TimeStep]:
        observation, inner, reward, done, info = self.source.env.step_env(key, inner, action, self.library_params)
        return inner, TimeStep(observation, reward, *self._ends(inner, done), info)

    def _ends(self, inner: Any, done: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return whether the episode is terminated, and whether it is truncated."""
        return done, self.source.env.is_truncated(inner, self.library_params)


def from_gymnax(env: Any, params: object = None) -> GymnaxEnvironment:
    """Create an adapter of an environment of gymnax.

    Args:
      env: the first object that `gymnax.make` returns.
      params: its `EnvParams`; its `default_params` if not given.

    Raises:
      ValueError: the environment is in a wrapper. The adapter calls `step_env`, which wrappers of gymnax do not change.
    """
    refuse_wrappers(env, "gymnax")
    return adapt_with_params(GymnaxEnvironment, env, env.default_params if params is None else params)


@shared
def _build(name: str, constants: tuple[tuple[str, object], ...] = (), **arguments: object) -> GymnaxEnvironment:
    env, params = require_library("gymnax").make(name, **arguments)
    return from_gymnax(env, params.replace(**dict(constants)))


# --- Parameters -----------------------------------------------------------------------------------------------------

Adapter = TypeVar("Adapter", bound=GymnaxEnvironment)


def adapt_with_params(cls: type[Adapter], env: Any, params: Any) -> Adapter:
    """Create an adapter that traces as many numbers of `params` as the library supports."""
    values = {field.name: getattr(params, field.name) for field in dataclasses.fields(params)}
    numbers = {name: value for name, value in values.items() if name not in cls.untraced and is_real(value)}
    reals = {name: value for name, value in numbers.items() if jnp.issubdtype(jnp.result_type(value), jnp.floating)}
    adapted = functools.partial(
        adapt,
        cls,
        env,
        observation_space=observation_space(env, params),
        action_space=converted(env.action_space(params)),
        constants=params,
    )
    for traced in (numbers, reals):  # an integer may be a shape
        with contextlib.suppress(TypeError):
            return adapted(params=traced)
    return adapted()


def with_parameters(build: Callable[..., Adapter]) -> Callable[..., Adapter]:
    """Return a function that calls `build(name, constants, **arguments)` with what its parameters are.

    They are numbers that the adapter traces, other fields of its `EnvParams`, or arguments of the library's class; for
    any other one, the function raises a TypeError.
    """

    def build_with(name: str, **parameters: object) -> Adapter:
        env = build(name)
        fields = [field.name for field in dataclasses.fields(env.source.constants)]
        arguments = {key: value for key, value in parameters.items() if key not in fields}
        known = [*fields, *inspect.signature(type(env.source.env)).parameters]
        for unknown in arguments.keys() - set(known):
            raise TypeError(no_parameter(type(env.source.env).__name__, unknown, known))
        if arguments:
            env = build(name, **arguments)
        constants = {key: value for key, value in parameters.items() if key in fields and key not in env.params}
        if constants:
            env = build(name, tuple(sorted(constants.items())), **arguments)
        return env.replace(**{key: value for key, value in parameters.items() if key in env.params})

    return build_with


make, ids = entry_points("gymnax", lambda: require_library("gymnax").registered_envs, with_parameters(_build))


# --- Spaces ---------------------------------------------------------------------------------------------------------


def observation_space(env: Any, params: object) -> gymnasium.Space[object]:
    """Return the observation space of a gymnax or craftax environment, without bounds if observations leave it."""
    space = ravelled(converted(env.observation_space(params)))
    if env.name in OUTSIDE and isinstance(space, spaces.Box):
        return unbounded(space.shape, space.dtype)
    return space


def converted(space: Any) -> gymnasium.Space[object]:
    """Convert a space of gymnax, or of a library that copied them, to Gymnasium's."""
    if hasattr(space, "num_categories"):
        return spaces.MultiDiscrete(np.asarray(space.num_categories))
    if hasattr(space, "n"):
        return spaces.Discrete(int(space.n))
    if hasattr(space, "low"):
        return box(space.low, space.high, tuple(space.shape), space.dtype)
    if isinstance(getattr(space, "spaces", None), dict):
        return spaces.Dict({name: converted(part) for name, part in space.spaces.items()})
    if isinstance(getattr(space, "spaces", None), list | tuple):
        return spaces.Tuple([converted(part) for part in space.spaces])
    raise TypeError(f"A space must be a Box, Discrete, MultiDiscrete, Dict or Tuple as gymnax has them, got {space!r}.")
