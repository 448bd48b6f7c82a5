"""The contract of an environment: two pure functions on a frozen dataclass that is a pytree."""

from __future__ import annotations

import dataclasses
import difflib
from typing import Any, Generic, Self, TypeVar, dataclass_transform

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

State = TypeVar("State")
T = TypeVar("T")


def static(*, default: Any = dataclasses.MISSING) -> Any:
    """A field that chooses a code path or a shape. It is part of the compiled program, not of its data."""
    return dataclasses.field(default=default, metadata={"static": True})


@dataclass_transform(frozen_default=True, field_specifiers=(static, dataclasses.field))
def struct(cls: type[T]) -> type[T]:
    """Make a class a frozen dataclass and a pytree whose leaves are its fields. For states and the like."""
    return jax.tree_util.register_dataclass(dataclasses.dataclass(frozen=True)(cls))


@dataclass_transform(frozen_default=True, field_specifiers=(static, dataclasses.field))
def environment(cls: type[T]) -> type[T]:
    """A `struct` that is an Environment: numeric fields are its leaves, `static` fields its structure.

    Raises:
      TypeError: a field that cannot be a leaf (a bool, a string, a function, ...) is not marked `static`.
    """
    cls = struct(cls)
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        if field.default is dataclasses.MISSING or field.metadata.get("static"):
            continue
        if isinstance(field.default, bool | str | type(None)) or callable(field.default):
            raise TypeError(
                f"{cls.__name__}.{field.name} = {field.default!r} is not a number, so it cannot be traced. "
                f"Mark it as part of the program: {field.name} = static(default={field.default!r})."
            )
    return cls


@struct
class TimeStep:
    """What an environment shows of one step. `reset` and `step` return the same structure, shapes and dtypes.

    Attributes:
      observation: a pytree of arrays, in the dtypes and shapes of `observation_space`.
      reward: float, shape ().
      terminated: bool, shape (). The value of the next state is zero.
      truncated: bool, shape (). Somebody stopped the clock; the next state has a value.
      info: a dict of arrays (a pytree) with anything else; the same keys in every step.
    """

    observation: Any
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    info: dict[str, Any]

    @property
    def done(self) -> jax.Array:
        """The episode is over: `terminated | truncated`."""
        return self.terminated | self.truncated

    @classmethod
    def create(
        cls,
        observation: Any,
        reward: Any = 0.0,
        terminated: Any = False,
        truncated: Any = False,
        info: dict[str, Any] | None = None,
    ) -> TimeStep:
        """A TimeStep whose dtypes do not depend on who made it; with the defaults, the first of an episode.

        Leaves lose their weak type, so that `reset` and `step` agree and a scan compiles once.
        """
        return cls(
            observation=jax.tree.map(_strong, observation),
            reward=jnp.asarray(reward, dtype=float),
            terminated=jnp.asarray(terminated, dtype=bool),
            truncated=jnp.asarray(truncated, dtype=bool),
            info=jax.tree.map(_strong, info or {}),
        )

    def replace(self, **changes: Any) -> Self:
        """A copy with some attributes changed."""
        return dataclasses.replace(self, **changes)


def _strong(leaf: Any) -> jax.Array:
    return jnp.asarray(leaf, dtype=jnp.result_type(leaf))


class Environment(Generic[State]):
    """An environment is a frozen dataclass (see `environment`) with `reset`, `step` and two spaces.

    Numeric fields are physical parameters: `CartPole(gravity=5.0)`; `jax.vmap` over a batch of environments;
    `jax.grad` with respect to a mass. Derived quantities are properties, never fields.
    """

    @property
    def observation_space(self) -> gymnasium.Space[Any]:
        """The space of `TimeStep.observation`. Not for use in traced code."""
        raise NotImplementedError(f"{type(self).__name__} does not define observation_space.")

    @property
    def action_space(self) -> gymnasium.Space[Any]:
        """The space of the `action` that `step` takes. Not for use in traced code."""
        raise NotImplementedError(f"{type(self).__name__} does not define action_space.")

    def reset(self, key: jax.Array) -> tuple[State, TimeStep]:
        """Start an episode.

        Args:
          key: a typed key, `jax.random.key(...)`, shape ().
        """
        raise NotImplementedError(f"{type(self).__name__} does not define reset(key).")

    def step(self, state: State, action: Any) -> tuple[State, TimeStep]:
        """One step. Never resets; stepping past the end of an episode is allowed and harmless.

        Args:
          state: as `reset` or `step` returned it.
          action: a member of `action_space`, as an array.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define step(state, action).")

    @property
    def can_render(self) -> bool:
        """Whether `render` draws a picture."""
        return type(self).render is not Environment.render

    @property
    def render_fps(self) -> int:
        """Pictures a second at which a video of the environment runs in real time."""
        return 30

    def render(self, state: State) -> np.ndarray:
        """A picture of a state: uint8, shape (height, width, 3). Runs on the host, outside of traced code."""
        raise NotImplementedError(
            f"{type(self).__name__} has no picture yet: define render(state) -> uint8 array (height, width, 3)."
        )

    @property
    def unwrapped(self) -> Environment[Any]:
        """The environment inside all wrappers."""
        return self

    def parameter(self, name: str) -> Any:
        """The attribute `name` of this environment or, for a wrapper, of the ones inside it.

        Raises:
          AttributeError: no such attribute; the message lists the parameters there are.
        """
        if hasattr(self, name):
            return getattr(self, name)
        raise AttributeError(no_parameter(type(self), name))

    def replace(self, **changes: Any) -> Self:
        """A copy with some parameters changed: `env.replace(gravity=5.0)`. Wrappers pass on what is not theirs.

        Raises:
          AttributeError: no such parameter; the message lists the parameters there are.
        """
        for name in changes:
            if name not in self.parameter_names:
                raise AttributeError(no_parameter(type(self), name))
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """The names of all fields, numeric and static."""
        return tuple(field.name for field in dataclasses.fields(self))  # type: ignore[arg-type]


def no_parameter(env_class: type[Any], name: str) -> str:
    """What to say of a parameter that a class of environments does not have."""
    names = [field.name for field in dataclasses.fields(env_class)]
    near = difflib.get_close_matches(name, names, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"{env_class.__name__} has no parameter {name!r}.{hint} It has: {', '.join(names)}."


class Wrapper(Environment[State]):
    """An environment that holds another, in a field named `env`, whose state it holds in its own."""

    env: Environment[Any]

    @property
    def observation_space(self) -> gymnasium.Space[Any]:
        return self.env.observation_space

    @property
    def action_space(self) -> gymnasium.Space[Any]:
        return self.env.action_space

    @property
    def can_render(self) -> bool:
        return self.env.can_render

    @property
    def render_fps(self) -> int:
        return self.env.render_fps

    def render(self, state: Any) -> np.ndarray:
        return self.env.render(state.inner)

    @property
    def unwrapped(self) -> Environment[Any]:
        return self.env.unwrapped

    def parameter(self, name: str) -> Any:
        return getattr(self, name) if hasattr(self, name) else self.env.parameter(name)

    def replace(self, **changes: Any) -> Self:
        own = {field.name for field in dataclasses.fields(self)}  # type: ignore[arg-type]
        inner = {name: value for name, value in changes.items() if name not in own}
        outer = {name: value for name, value in changes.items() if name in own}
        if inner:
            outer["env"] = outer.get("env", self.env).replace(**inner)
        return dataclasses.replace(self, **outer)  # type: ignore[type-var]
