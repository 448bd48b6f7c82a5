"""Base class of adapters: the contract of Environment on top of what the functions of a library return.

An adapter is a subclass of `ThirdPartyEnvironment` with `_reset` and `_step`, created by `adapt`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Self, TypeVar

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxenvs.arguments import is_array, is_real, no_parameter, shown, type_name
from jaxenvs.arrays import is_key
from jaxenvs.environment import Environment, TimeStep, environment, static, struct
from jaxenvs.jax_names import shape_struct
from jaxenvs.spaces import struct_of


@dataclasses.dataclass(frozen=True, eq=False)
class Source:
    """Environment of another library, and what was learned about it when it was adapted.

    It is equal only to itself: a library's objects need not be hashable or comparable, but a static field has to be
    both. Environments that share this object share compiled functions.

    Attributes:
      env: the library's object.
      observation_space, action_space: Gymnasium's. The dtypes of observations and actions are theirs.
      constants: further data that an adapter needs and does not trace.
      state, info: `jax.ShapeDtypeStruct` of the results of a step: one strong dtype for each leaf.
    """

    env: Any
    observation_space: gymnasium.Space[object]
    action_space: gymnasium.Space[object]
    constants: Any = None
    state: Any = None
    info: Any = None


@struct
class ThirdPartyState:
    """State of a ThirdPartyEnvironment.

    The key of step number i is `fold_in(key, i)`: a carried key would be split in every step, used or not.

    Attributes:
      inner: the library's state.
      key: of the episode's steps, if the library's step takes one; else None.
      elapsed_steps: the number of steps, int32 (), in the same case; else None.
    """

    inner: Any
    key: jax.Array | None
    elapsed_steps: jax.Array | None


@environment
class ThirdPartyEnvironment(Environment[ThirdPartyState]):
    """Environment of another library that keeps the contract of `Environment`. It never resets itself.

    A subclass defines `_reset` and `_step`, in the library's dtypes; here every leaf is cast to the dtype that a step
    returns. `reset(key)` passes the key to the library unchanged, unless steps take keys: then the key is split, the
    first half is passed on, and the keys of the steps are folded from the second.

    Attributes:
      params: the library's numeric parameters by name. `replace`, `parameter` and `set_attr` treat them as fields.
      source: the library's environment.
    """

    params: dict[str, Any]
    source: Source = static()

    step_wants_key = False  # whether the library's step takes a key; a constant of the class, not a field

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The shape of rewards and flags, and the leading axes of observations and actions: () for one agent."""
        return ()

    def _reset(self, key: jax.Array) -> tuple[Any, object]:
        """Return the library's state and the observation, in the structure of the observation space."""
        raise NotImplementedError

    def _step(self, inner: Any, action: object, key: jax.Array | None) -> tuple[Any, TimeStep]:
        """Return the library's next state, and a TimeStep of any dtypes. Non-array leaves of `info` are dropped."""
        raise NotImplementedError

    def _first_info(self, inner: Any) -> dict[str, Any]:
        """Return the info of the first TimeStep of an episode: zeros, for libraries whose reset returns none."""
        info: dict[str, Any] = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), self.source.info)
        return info

    def __check_init__(self) -> None:
        for name, value in self.params.items():
            for leaf in jax.tree.leaves(value) or [value]:
                if not (is_real(leaf) or (isinstance(leaf, jax.Array | np.ndarray) and leaf.dtype == bool)):
                    raise TypeError(
                        f"{type(self).__name__}.{name} must be a real number or an array of real numbers, got "
                        f"{shown(leaf)}."
                    )
                if isinstance(leaf, float | np.floating) and leaf != leaf:
                    raise ValueError(f"{type(self).__name__}.{name} must not be NaN.")

    @property
    def observation_space(self) -> gymnasium.Space[object]:
        return self.source.observation_space

    @property
    def action_space(self) -> gymnasium.Space[object]:
        return self.source.action_space

    @property
    def parameter_names(self) -> tuple[str, ...]:
        return tuple(self.params)

    def parameter(self, name: str) -> Any:
        return self.params[name] if name in self.params else super().parameter(name)

    def replace(self, **changes: object) -> Self:
        if unknown := [name for name in changes if name not in self.params]:
            raise AttributeError(no_parameter(type(self).__name__, unknown[0], self.params))
        return dataclasses.replace(self, params={**self.params, **changes})

    def reset(self, key: jax.Array) -> tuple[ThirdPartyState, TimeStep]:
        step_key = elapsed_steps = None
        if self.step_wants_key:
            key, step_key = jax.random.split(key)
            elapsed_steps = jnp.zeros((), jnp.int32)
        inner, observation = self._reset(key)
        state = ThirdPartyState(self._cast_state("reset", inner), step_key, elapsed_steps)
        return state, TimeStep.create(
            self._cast_observation("reset", observation),
            np.zeros(self.batch_shape),
            np.zeros(self.batch_shape, bool),
            np.zeros(self.batch_shape, bool),
            _cast("info of reset", self._first_info(inner), self.source.info),
        )

    def step(self, state: ThirdPartyState, action: object) -> tuple[ThirdPartyState, TimeStep]:
        key = elapsed_steps = None
        if state.key is not None and state.elapsed_steps is not None:
            key = jax.random.fold_in(state.key, state.elapsed_steps)
            elapsed_steps = jnp.asarray(state.elapsed_steps + 1)
        inner, timestep = self._step(state.inner, action, key)
        state = ThirdPartyState(self._cast_state("step", inner), state.key, elapsed_steps)
        return state, TimeStep.create(
            self._cast_observation("step", timestep.observation),
            self._numbers("reward", timestep),
            self._numbers("terminated", timestep),
            self._numbers("truncated", timestep),
            _cast("info of step", _arrays_of(timestep.info), self.source.info),
        )

    def _cast_state(self, function: str, inner: Any) -> Any:
        return _cast(f"state of {function}", inner, self.source.state)

    def _cast_observation(self, function: str, observation: object) -> Any:
        like = _batch_of(struct_of(self.source.observation_space), self.batch_shape)
        return _cast(f"observation of {function}", observation, like, ravel_scalars=True)

    def _numbers(self, name: str, timestep: TimeStep) -> Any:
        """Return the reward or a flag of a TimeStep if it has `batch_shape`."""
        value = getattr(timestep, name)
        if not is_array(value) or jnp.shape(value) != self.batch_shape:
            what = f"have shape {self.batch_shape}" if self.batch_shape else "be one number"
            raise ValueError(f"The {name} must {what}, got {shown(value)}.")
        return value


Adapter = TypeVar("Adapter", bound=ThirdPartyEnvironment)


def adapt(
    cls: type[Adapter],
    env: Any,
    *,
    observation_space: gymnasium.Space[Any],
    action_space: gymnasium.Space[object],
    params: dict[str, Any] | None = None,
    constants: object = None,
) -> Adapter:
    """Create an adapter of a library's environment, whose reset and step are traced once to learn what they return.

    Args:
      params: numbers that are traced and can be changed.
      constants: further data that the adapter needs.
    """
    draft = cls(params or {}, Source(env, ravelled(observation_space), action_space, constants))

    def first_step(params: dict[str, Any], key: jax.Array, action: object) -> Any:
        traced = dataclasses.replace(draft, params=params)
        inner, _ = traced._reset(key)
        require_arrays("state of reset", inner)
        inner, timestep = traced._step(inner, action, key if cls.step_wants_key else None)
        require_arrays("state of step", inner)
        for name in ("reward", "terminated", "truncated"):
            draft._numbers(name, timestep)
        return inner, _arrays_of(timestep.info)

    key = jax.eval_shape(lambda: jax.random.key(0))
    action = _batch_of(struct_of(action_space), draft.batch_shape)
    inner, info = jax.eval_shape(first_step, draft.params, key, action)
    state, info = _batch_of((inner, info), ())
    source = dataclasses.replace(draft.source, state=state, info=info)
    return dataclasses.replace(draft, source=source)


# --- Spaces ---------------------------------------------------------------------------------------------------------


def box(low: object, high: object, shape: tuple[int, ...], dtype: np.typing.DTypeLike) -> gymnasium.Space[object]:
    """Return a Box, unbounded where a library writes the largest number for infinity; for bools, a MultiBinary."""
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return spaces.MultiBinary(shape[0] if len(shape) == 1 else shape) if shape else spaces.Discrete(2)
    low, high = (np.array(np.broadcast_to(np.asarray(bound), shape)) for bound in (low, high))
    if dtype.kind == "f":
        low, high = low.astype(np.float64), high.astype(np.float64)
        most = float(np.finfo(np.float32).max)
        low, high = np.where(low <= -most, -np.inf, low), np.where(high >= most, np.inf, high)
    return spaces.Box(low.astype(dtype), high.astype(dtype), shape, dtype.type)


def unbounded(shape: tuple[int, ...], dtype: np.typing.DTypeLike) -> gymnasium.Space[object]:
    """Return the space of all arrays of a shape and dtype, for a library that declares no bounds."""
    dtype = np.dtype(dtype)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return box(info.min, info.max, shape, dtype)
    return box(-np.inf, np.inf, shape, dtype)


def unbounded_of(structs: Any) -> gymnasium.Space[object]:
    """Return `unbounded` for each leaf of an array or of dicts of arrays, as `jax.eval_shape` describes them."""
    if isinstance(structs, Mapping):
        return spaces.Dict({name: unbounded_of(part) for name, part in structs.items()})
    return unbounded(structs.shape, structs.dtype)


def _batch_of(structs: object, shape: tuple[int, ...]) -> Any:
    """Return structs of some of what is described, in batches of a shape, without weak types."""
    return jax.tree.map(lambda leaf: shape_struct(shape + leaf.shape, leaf.dtype), structs)


def ravelled(space: gymnasium.Space[object]) -> gymnasium.Space[object]:
    """Replace Boxes of shape () in a space by shape (1,): SB3's extractors flatten from the second axis on."""
    if isinstance(space, spaces.Dict):
        return spaces.Dict({name: ravelled(part) for name, part in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([ravelled(part) for part in space.spaces])
    if isinstance(space, spaces.Box) and space.shape == ():
        return spaces.Box(space.low.reshape(1), space.high.reshape(1), dtype=space.dtype.type)
    return space


def flat_dict(tree: object, prefix: str = "") -> Any:
    """Flatten nested dicts to one dict, with names joined by "/": SB3 does not support nested Dict spaces."""
    if not isinstance(tree, dict):
        return tree
    flat: dict[str, Any] = {}
    for name, part in tree.items():
        part = flat_dict(part)
        flat.update(
            {f"{name}/{inner}": leaf for inner, leaf in part.items()} if isinstance(part, dict) else {name: part}
        )
    return flat


# --- Leaves ---------------------------------------------------------------------------------------------------------


def on_host(tree: object) -> Any:
    """Convert the arrays of a pytree to NumPy, for a library that draws on the host; keys stay unchanged."""
    return jax.tree.map(lambda leaf: leaf if is_key(leaf) else np.asarray(leaf), tree)


def require_arrays(what: str, tree: object) -> None:
    """Raise unless all leaves of a pytree are arrays."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if not is_array(leaf):
            raise TypeError(f"The {what} must hold arrays, got {jax.tree_util.keystr(path)} = {shown(leaf)}.")


def _cast(what: str, tree: object, like: object, ravel_scalars: bool = False) -> Any:
    """Cast a tree to the dtypes of another; weak types are lost. Numbers get the shape (1,) if `ravel_scalars`."""
    expected, structure = jax.tree_util.tree_flatten_with_path(like)
    leaves = dict(jax.tree_util.tree_leaves_with_path(tree))
    if leaves.keys() != {path for path, _ in expected}:
        names = {jax.tree_util.keystr(path) for path, _ in expected} ^ set(map(jax.tree_util.keystr, leaves))
        raise TypeError(f"The {what} has missing or unexpected leaves: {', '.join(sorted(names))}.")
    found = []
    for path, leaf in expected:
        value = leaves[path]
        if ravel_scalars and leaf.shape == (1,) and is_array(value) and jnp.shape(value) == ():
            value = jnp.reshape(value, 1)
        name = f"{what}{jax.tree_util.keystr(path)}"
        if not is_array(value):
            raise TypeError(f"The {name} must be an array, got {shown(value)}.")
        if jnp.shape(value) != leaf.shape:
            raise ValueError(f"The {name} must have shape {leaf.shape}, got {jnp.shape(value)}.")
        found.append(value if is_key(leaf) else jnp.asarray(value, leaf.dtype))
    return jax.tree.unflatten(structure, found)


def _arrays_of(info: object) -> dict[str, Any]:
    """Keep the entries of an info that are arrays or pytrees of arrays, without keys."""
    if not isinstance(info, dict):
        raise TypeError(f"The info must be a dict, got {type_name(info)}.")
    kept = {}
    for name, part in info.items():
        if isinstance(part, dict):
            kept[str(name)] = _arrays_of(part)
            continue
        leaves = jax.tree.leaves(part)
        if leaves and all(is_array(leaf) and not is_key(leaf) for leaf in leaves):
            kept[str(name)] = part
    return {name: part for name, part in kept.items() if jax.tree.leaves(part)}
