"""Base class of environments: two pure functions, `reset` and `step`, on a frozen dataclass that is a pytree."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, ClassVar, Generic, Self, TypeVar, dataclass_transform

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from jaxenvs import arguments
from jaxenvs.arguments import explain_calls, hashable, is_array, is_real, no_parameter, replaceable, shown, type_name
from jaxenvs.picture_size import compiled_draw, picture_size

State = TypeVar("State")
T = TypeVar("T")
EnvironmentType = TypeVar("EnvironmentType", bound="Environment[Any]")


def static(*, default: object = dataclasses.MISSING) -> Any:
    """Declare a field that chooses a code path or a shape: it is part of the compiled function, not of its data.

    Args:
      default: hashable; without a default the field is required.

    Raises:
      TypeError: the default is not hashable.
    """
    hashable("the default of a static field", default)
    return dataclasses.field(default=default, metadata={"static": True})


@dataclass_transform(frozen_default=True, field_specifiers=(static, dataclasses.field))
def struct(cls: type[T]) -> type[T]:
    """Make a class a frozen dataclass with `replace`, and a pytree of its fields. Use it for states and similar data.

    A method `__check_init__(self)` is called by the constructor, and may raise. JAX does not call it when it rebuilds
    an instance from leaves, which may be tracers, axes or anything else.

    Args:
      cls: with annotated fields, each of them a pytree, or `static`.
    """
    if not isinstance(cls, type):
        raise TypeError(f"@struct must decorate a class, got {shown(cls)}.")
    cls = dataclasses.dataclass(frozen=True)(cls)
    replaceable(cls)
    if not hasattr(cls, "__check_init__"):
        return jax.tree_util.register_dataclass(cls)
    _check_after_init(cls)
    _register_unchecked(cls)
    return cls


def _check_after_init(cls: Any) -> None:
    init = cls.__init__

    @functools.wraps(init)
    def init_and_check(self: Any, *args: object, **kwargs: object) -> None:
        init(self, *args, **kwargs)
        self.__check_init__()

    cls.__init__ = init_and_check


def _register_unchecked(cls: Any) -> None:
    """Register a dataclass as a pytree as `register_dataclass` does, but rebuild instances without `__init__`."""
    fields = [field for field in dataclasses.fields(cls) if field.init]  # `__post_init__` sets the other fields
    data = [field.name for field in fields if not field.metadata.get("static")]
    meta = [field.name for field in fields if field.metadata.get("static")]

    def flatten(value: object) -> tuple[list[object], tuple[object, ...]]:
        return [getattr(value, name) for name in data], tuple([getattr(value, name) for name in meta])

    def flatten_with_keys(value: object) -> tuple[list[tuple[Any, object]], tuple[object, ...]]:
        return [(jax.tree_util.GetAttrKey(name), getattr(value, name)) for name in data], flatten(value)[1]

    def unflatten(statics: tuple[object, ...], leaves: Any) -> Any:
        value: Any = object.__new__(cls)
        for name, part in zip((*data, *meta), (*leaves, *statics), strict=True):
            object.__setattr__(value, name, part)
        if hasattr(value, "__post_init__"):
            value.__post_init__()
        return value

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)


@dataclass_transform(frozen_default=True, field_specifiers=(static, dataclasses.field))
def environment(cls: type[EnvironmentType]) -> type[EnvironmentType]:
    """Make a subclass of Environment a `struct`: numeric fields are its leaves, `static` fields part of its structure.

    Args:
      cls: a subclass of Environment, with annotated fields.

    Raises:
      TypeError: the class is not an Environment; or a field that cannot be a leaf (a bool, a string, a function, ...)
        is not marked `static`.
    """
    if not isinstance(cls, type) or not issubclass(cls, Environment):
        got = cls.__name__ if isinstance(cls, type) else shown(cls)
        raise TypeError(
            f"@environment must decorate a subclass of jaxenvs.Environment, got {got}. For states: @struct."
        )
    cls = struct(cls)
    explain_calls(cls)
    for field in dataclasses.fields(cls):
        if field.default is dataclasses.MISSING or field.metadata.get("static"):
            continue
        if isinstance(field.default, bool | str | type(None)) or callable(field.default):
            raise TypeError(
                f"{cls.__name__}.{field.name} = {field.default!r} is not a number, so it cannot be traced. Mark it as "
                f"static: {field.name} = static(default={field.default!r})."
            )
    return cls


@struct
class TimeStep:
    """Result of one step of an environment. `reset` and `step` return the same structure, shapes and dtypes.

    Attributes:
      observation: a pytree of arrays, in the dtypes and shapes of `observation_space`.
      reward: float, shape ().
      terminated: bool, shape (). The episode ended by its own rules, and the value of the next state is zero.
      truncated: bool, shape (). The episode was cut off, as by a time limit; the next state still has a value.
      info: a dict of arrays (a pytree) with anything else; the same keys in every step.
    """

    observation: Any
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    info: dict[str, Any]

    @property
    def done(self) -> jax.Array:
        """True if the episode is over: `terminated | truncated`, bool, shape ()."""
        return self.terminated | self.truncated

    @classmethod
    def create(
        cls,
        observation: Any,
        reward: jax.typing.ArrayLike = 0.0,
        terminated: jax.typing.ArrayLike = False,
        truncated: jax.typing.ArrayLike = False,
        info: dict[str, Any] | None = None,
    ) -> TimeStep:
        """Create a TimeStep with fixed dtypes of reward and flags; with the defaults, the first TimeStep of an episode.

        Leaves lose their weak type, so that `reset` and `step` agree and a scan compiles once.

        Raises:
          TypeError: a leaf of the observation or of `info` is not an array, or a reward or flag is not a number.
        """
        if info is not None and not isinstance(info, dict):
            raise TypeError(f"info must be a dict of arrays, got {type_name(info)}.")
        return cls(
            observation=_strong("observation", observation),
            reward=_array("reward", reward, float),
            terminated=_array("terminated", terminated, bool),
            truncated=_array("truncated", truncated, bool),
            info=_strong("info", info or {}),
        )

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some attributes changed."""
        return dataclasses.replace(self, **changes)


def _strong(name: str, tree: object) -> Any:
    return jax.tree_util.tree_map_with_path(lambda path, leaf: _array(name + jax.tree_util.keystr(path), leaf), tree)


def _array(name: str, leaf: object, dtype: type[float] | type[bool] | None = None) -> jax.Array:
    if not is_array(leaf):
        raise TypeError(f"{name} must be an array, got {shown(leaf)}.")
    return jnp.asarray(leaf, dtype=jnp.result_type(leaf) if dtype is None else dtype)


class Environment(Generic[State]):
    """Base class of environments: frozen dataclasses (see `environment`) with `reset`, `step` and two spaces.

    Numeric fields are physical parameters: set one with `CartPole(gravity=5.0)`, use `jax.vmap` over a batch, or
    `jax.grad` with respect to a mass. Derived quantities are properties, never fields.
    """

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    def __init__(self, *args: object, **kwargs: object) -> None:
        if args or kwargs:  # @environment generates an `__init__` that takes the parameters
            raise TypeError(f"{type(self).__name__} takes no parameters: decorate the class with @environment.")

    def __check_init__(self) -> None:
        """Check the parameters. A subclass may check more, after calling `super().__check_init__()`.

        Only calls of the constructor are checked: in traced code JAX rebuilds environments from leaves of any kind.

        Raises:
          TypeError, ValueError: a numeric field is not a number or an array of numbers, or is NaN; or a static field is
            not hashable, or annotated as bool and none.
        """
        for field in dataclasses.fields(self):
            if field.init:
                _require_parameter(type(self).__name__, field, getattr(self, field.name))

    @property
    def observation_space(self) -> gymnasium.Space[object]:
        """Space of `TimeStep.observation`. Not for use in traced code."""
        raise NotImplementedError(f"{type(self).__name__} does not define observation_space.")

    @property
    def action_space(self) -> gymnasium.Space[object]:
        """Space of the `action` that `step` takes. Not for use in traced code."""
        raise NotImplementedError(f"{type(self).__name__} does not define action_space.")

    def reset(self, key: jax.Array) -> tuple[State, TimeStep]:
        """Start an episode, and return its first state and TimeStep.

        Args:
          key: a typed key, `jax.random.key(...)`, shape ().
        """
        raise NotImplementedError(f"{type(self).__name__} does not define reset(key).")

    def step(self, state: State, action: Any) -> tuple[State, TimeStep]:
        """Return the next state and TimeStep. Never resets; stepping past the end of an episode is harmless.

        Args:
          state: as `reset` or `step` returned it.
          action: a member of `action_space`, as an array.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define step(state, action).")

    @property
    def can_render(self) -> bool:
        """True if the environment can draw a picture."""
        return type(self).draw is not Environment.draw or type(self).render is not Environment.render

    @property
    def render_fps(self) -> int:
        """Pictures per second at which a video of the environment runs in real time."""
        return 30

    @property
    def render_size(self) -> tuple[int, int]:
        """Height and width of the picture that `render` returns [pixels]. Default: the canvas's aspect in 400 x 600."""
        return picture_size(self)

    def draw(self, state: State, height: int, width: int) -> jax.Array:
        """Draw a state: uint8, shape (height, width, 3). Can be traced, batched and compiled.

        `jaxenvs.drawing` provides shapes and tiles to draw with.
        """
        if type(self).render is not Environment.render:
            raise NotImplementedError(f"{type(self).__name__} has no draw, only render(state), which has one size.")
        raise NotImplementedError(
            f"{type(self).__name__} has no picture yet: define draw(state, height, width) -> uint8 (height, width, 3)."
        )

    def render(self, state: State) -> np.ndarray:
        """Return the picture that `draw` draws, as a NumPy array of `render_size`. Not for use in traced code."""
        draw = (
            self.draw if type(self).draw is Environment.draw else functools.partial(compiled_draw, self)
        )  # the first raises
        return np.asarray(draw(state, *self.render_size))

    @property
    def unwrapped(self) -> Environment[Any]:
        """Environment inside all wrappers."""
        return self

    def parameter(self, name: str) -> Any:
        """Return the attribute `name` of this environment or, for a wrapper, of the environments inside it.

        Raises:
          AttributeError: there is no such attribute; the message lists the existing parameters.
        """
        if hasattr(self, name):
            return getattr(self, name)
        raise AttributeError(no_parameter(type(self).__name__, name, self.parameter_names))

    def replace(self, **changes: object) -> Self:
        """Return a copy with some parameters changed: `env.replace(gravity=5.0)`.

        Wrappers forward the parameters of `env`.

        Raises:
          AttributeError: there is no such parameter; the message lists the existing parameters.
        """
        for name in changes:
            if name not in self.parameter_names:
                raise AttributeError(no_parameter(type(self).__name__, name, self.parameter_names))
        return dataclasses.replace(self, **changes)

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """Names of all fields, numeric and static."""
        return tuple(field.name for field in dataclasses.fields(self))


def require_environment(name: str, value: object) -> None:
    """Raise unless `value` is an Environment and a pytree."""
    if isinstance(value, type) and issubclass(value, Environment):
        raise TypeError(f"{name} must be a jaxenvs.Environment, got the class {value.__name__}: make an instance.")
    if not isinstance(value, Environment):
        theirs = " of Gymnasium: use jaxenvs.sb3.make_vec_env, and check_env of stable_baselines3.common.env_checker"
        whose = theirs if isinstance(value, gymnasium.Env) else ""
        raise TypeError(f"{name} must be a jaxenvs.Environment, got {type_name(value)}{whose}.")
    if jax.tree_util.all_leaves([value]):
        raise TypeError(f"{name} must be a pytree: decorate the class {type(value).__name__} with @environment.")


def _require_parameter(owner: str, field: dataclasses.Field[Any], value: object) -> None:
    name = f"{owner}.{field.name}"
    if field.metadata.get("static"):
        hashable(name, value)
        if field.type in ("bool", bool):
            arguments.boolean(name, value)
        return
    if isinstance(value, Environment) or (isinstance(value, tuple) and value == () == field.default):
        return  # () is a wrapper's lookup table that it did not need
    is_number = isinstance(field.default, int | float)
    leaves = [value] if is_number else jax.tree.leaves(value)
    expected = "a real number or an array of real numbers" if is_number else "a number, an array or a pytree of them"
    if not is_number and (isinstance(value, bool | np.bool_ | str) or (callable(value) and not is_array(value))):
        expected += f"; if it chooses a code path or a shape, mark it as static: {field.name} = static()"
        leaves = []
    if not leaves and not dataclasses.is_dataclass(value):
        raise TypeError(f"{name} must be {expected}, got {shown(value)}.")
    for leaf in leaves:
        if not (is_real(leaf) if is_number else is_array(leaf)):
            raise TypeError(f"{name} must be {expected}, got {shown(leaf)}.")
        if isinstance(leaf, float | np.floating) and leaf != leaf:
            raise ValueError(f"{name} must not be NaN.")
        if isinstance(leaf, int) and abs(leaf) > np.iinfo(jnp.result_type(int)).max:
            raise ValueError(f"{name} must fit into {jnp.result_type(int)}, got {shown(leaf)}.")


class Wrapper(Environment[State]):
    """Base class of wrappers: environments that hold another one as `env`, and its state as `inner` in their state.

    Attributes:
      env: the wrapped environment.
    """

    env: Environment[Any]

    def __check_init__(self) -> None:
        require_environment("env", self.env)
        super().__check_init__()

    @property
    def observation_space(self) -> gymnasium.Space[object]:
        return self.env.observation_space

    @property
    def action_space(self) -> gymnasium.Space[object]:
        return self.env.action_space

    @property
    def can_render(self) -> bool:
        return self.env.can_render

    @property
    def render_fps(self) -> int:
        return self.env.render_fps

    @property
    def render_size(self) -> tuple[int, int]:
        return self.env.render_size

    def inner_state(self, state: Any) -> Any:
        """Return the wrapped environment's state. A wrapper that adds no state returns `state` itself."""
        return state.inner

    def inner_env(self, state: Any) -> Environment[Any]:
        """Return the wrapped environment, with the parameters that the state says."""
        return self.env

    def draw(self, state: Any, height: int, width: int) -> jax.Array:
        return self.inner_env(state).draw(self.inner_state(state), height, width)

    def render(self, state: Any) -> np.ndarray:
        return self.inner_env(state).render(self.inner_state(state))

    @property
    def unwrapped(self) -> Environment[Any]:
        return self.env.unwrapped

    def parameter(self, name: str) -> Any:
        return getattr(self, name) if hasattr(self, name) else self.env.parameter(name)

    def replace(self, **changes: Any) -> Self:
        outer = {field.name: changes.pop(field.name) for field in dataclasses.fields(self) if field.name in changes}
        if changes:
            outer["env"] = outer.get("env", self.env).replace(**changes)
        return dataclasses.replace(self, **outer)
