"""WrappedEnv: a JaxVecEnv and the wrappers around it, compiled together as one step function."""

from __future__ import annotations

import functools
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from stable_baselines3.common.vec_env import (
    VecCheckNan,
    VecEnv,
    VecEnvWrapper,
    VecExtractDictObs,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
    VecTransposeImage,
)

from bridge.errors import NotCompilable
from bridge.sb3 import Infos
from bridge.vec_env.jax_vec_env import JaxVecEnv
from bridge.wrappers.compiled_wrapper import CompiledWrapper
from bridge.wrappers.vec_check_nan import CompiledCheckNan
from bridge.wrappers.vec_extract_dict_obs import CompiledExtractDictObs
from bridge.wrappers.vec_frame_stack import CompiledFrameStack
from bridge.wrappers.vec_monitor import CompiledMonitor
from bridge.wrappers.vec_normalize import CompiledNormalize
from bridge.wrappers.vec_transpose_image import CompiledTransposeImage
from jaxenvs import VectorTimeStep
from jaxenvs.learn.interfaces import Arrays

W = TypeVar("W", bound=VecEnvWrapper)

_COMPILED: dict[type, type[CompiledWrapper[Any]]] = {
    VecCheckNan: CompiledCheckNan,
    VecExtractDictObs: CompiledExtractDictObs,
    VecFrameStack: CompiledFrameStack,
    VecMonitor: CompiledMonitor,
    VecNormalize: CompiledNormalize,
    VecTransposeImage: CompiledTransposeImage,
}


def register_wrapper(sb3_class: type[W], compiled_class: type[CompiledWrapper[W]]) -> None:
    """Register the compiled version of a custom VecEnvWrapper, so that rollouts through it are compiled.

    See docs/wrappers.md for an example.

    Args:
      sb3_class: the VecEnvWrapper. Its subclasses are not included, because they may override anything.
      compiled_class: the class that does the same in compiled rollouts. It replaces one that was registered before.

    Raises:
      TypeError: the arguments are not such classes.
    """
    for name, given, expected in (
        ("sb3_class", sb3_class, VecEnvWrapper),
        ("compiled_class", compiled_class, CompiledWrapper),
    ):
        if not (isinstance(given, type) and issubclass(given, expected)):
            raise TypeError(f"{name} must be a subclass of {expected.__name__}, got {given!r}.")
    _COMPILED[sb3_class] = compiled_class


def step_wrappers(
    types: tuple[type[CompiledWrapper[Any]], ...], states: tuple[Any, ...], timestep: VectorTimeStep, action: jax.Array
) -> tuple[tuple[object, ...], VectorTimeStep, tuple[object, ...]]:
    """Step through all wrappers of a WrappedEnv, in traced code.

    Args:
      types: the types of the WrappedEnv, static; states: a state for each of them.
      timestep, action: the result of the VectorEnv, and the action that it took.

    Returns:
      The states, the TimeStep that the outermost wrapper returns, and the outputs of each wrapper.
    """
    timestep = timestep.replace(reward=timestep.reward.astype(jnp.float32))  # as a JaxVecEnv returns it
    after, outputs = [], []
    for compiled, state in zip(types, states, strict=True):
        new_state, timestep, output = compiled.step(state, timestep, action)
        _require_same(compiled, state, new_state)
        after.append(new_state)
        outputs.append(output)
    return tuple(after), timestep, tuple(outputs)


def _require_same(compiled: type, before: object, after: object) -> None:
    kinds = [(jax.tree.structure(tree), [_kind(leaf) for leaf in jax.tree.leaves(tree)]) for tree in (before, after)]
    if kinds[0] != kinds[1]:
        raise TypeError(
            f"{compiled.__name__}.step must return a state with the structure, shapes and dtypes of the state that it "
            f"got, {jax.tree.map(_kind, before)}, got {jax.tree.map(_kind, after)}."
        )


def _kind(leaf: jax.typing.ArrayLike) -> str:
    return f"{jnp.result_type(leaf)}{list(jnp.shape(leaf))}"


def is_compiled(sb3_class: type) -> bool:
    """Return whether a wrapper class has a compiled version: SB3's own wrappers, and registered wrappers."""
    return sb3_class in _COMPILED


class WrappedEnv:
    """A JaxVecEnv and the wrappers around it, which one compiled function steps together.

    Attributes:
      base: the JaxVecEnv.
      wrappers: the compiled versions of the wrappers around it, the innermost first.
      types: their classes, the static part of a compiled function.
      normalize: the outermost VecNormalize, as SB3's `get_vec_normalize_env` finds it; None if there is none.
    """

    @classmethod
    def of(cls, env: VecEnv | None) -> WrappedEnv:
        """Return the WrappedEnv of a model's environments, or raise NotCompilable."""
        wrappers: list[CompiledWrapper[Any]] = []
        base = env
        while isinstance(base, VecEnvWrapper):
            base = base.venv
        if base is not None and not isinstance(base, JaxVecEnv):
            raise NotCompilable(f"A {type(base).__name__} steps its environments on the host.")
        while type(env) is not JaxVecEnv:
            # Exact types, because a subclass may override anything.
            compiled = _COMPILED.get(type(env))
            if compiled is None or not isinstance(env, VecEnvWrapper):
                names = ", ".join(sorted(wrapper.__name__ for wrapper in _COMPILED))
                raise NotCompilable(
                    f"{type(env).__name__} is not compiled; only a JaxVecEnv and these wrappers around it are: {names}."
                )
            wrappers.insert(0, compiled(env))
            env = env.venv
        return cls(env, tuple(wrappers))

    def __init__(self, base: JaxVecEnv, wrappers: tuple[CompiledWrapper[Any], ...]) -> None:
        self.base, self.wrappers = base, wrappers
        self.types = tuple(type(wrapper) for wrapper in wrappers)
        self.normalize: VecNormalize | None = next(
            (each.wrapper for each in reversed(wrappers) if isinstance(each, CompiledNormalize)), None
        )
        self._observations: dict[object, object] = {}

    @property
    def changes_infos(self) -> bool:
        """True if a wrapper reads or changes the infos of ended episodes."""
        return any(wrapper.infos is not CompiledWrapper.infos for wrapper in self.types)

    @property
    def can_continue(self) -> bool:
        """True if several rollouts may run in one compiled function."""
        return all(wrapper.can_continue for wrapper in self.wrappers)

    @property
    def any_num_envs(self) -> bool:
        """True if `around` accepts any number of environments."""
        return all(wrapper.any_num_envs for wrapper in self.types)

    def around(self, base: JaxVecEnv) -> VecEnv:
        """Return copies of the wrappers around other environments, for an evaluation that leaves these unchanged.

        `base` was not reset. It has as many environments as this WrappedEnv, or any number with `any_num_envs`.
        """
        env: VecEnv = base
        for wrapper in self.wrappers:
            try:
                env = wrapper.around(env)
            except Exception as error:
                kind = type(wrapper.wrapper).__name__
                raise NotCompilable(f"The {kind} cannot be copied for an evaluation: {error}.") from error
        return env

    def state(self) -> tuple[object, ...]:
        """Return the states of the wrappers with which a rollout starts."""
        return tuple(wrapper.state() for wrapper in self.wrappers)

    def observation(self, last_obs: Arrays) -> Any:
        """Return the outermost wrapper's last observation in the dtypes of the compiled function's observations.

        `in_dtypes_of` converts in the other direction.
        """
        expected = self.observation_structure()
        return jax.tree.map(lambda leaf, like: np.asarray(leaf, like.dtype), last_obs, expected)

    def observation_structure(self) -> Any:
        """Return the outermost wrapper's observations in a compiled function, as `jax.ShapeDtypeStruct`s."""
        base, states = self.base, self.state()
        if not states:
            return base.compiled.timestep.observation
        key = (base.compiled, jax.tree.structure(states))  # a setting may have changed
        if key not in self._observations:
            shape = (base.num_envs, *(base.action_space.shape or ()))
            action = jax.ShapeDtypeStruct(shape, base.action_dtype)  # type: ignore[no-untyped-call]
            given = states, base.compiled.timestep, action
            through_all = functools.partial(step_wrappers, self.types)
            if base.mesh is not None:  # steps may refer to its axis
                axis = base.mesh.axis_names[0]
                through_all = jax.vmap(through_all, None, None, axis_name=axis, axis_size=1)
            through = jax.eval_shape(through_all, *given)
            self._observations[key] = through[1].observation
        return self._observations[key]

    def check(self, outputs: tuple[object, ...]) -> None:
        """Raise or warn because of what happened in a rollout, before anything is written back."""
        for wrapper, output in zip(self.wrappers, outputs, strict=True):
            wrapper.check(output)

    def write_back(self, states: tuple[object, ...]) -> None:
        """Write the state at the end of a rollout back to the wrappers."""
        for wrapper, state in zip(self.wrappers, states, strict=True):
            wrapper.write_back(state)

    def infos(self, infos: Infos, step: np.ndarray, env_indices: np.ndarray, outputs: tuple[object, ...]) -> None:
        """Change the JaxVecEnv's infos of ended episodes into the outermost wrapper's, as CompiledWrapper's `infos`."""
        for wrapper, output in zip(self.wrappers, outputs, strict=True):
            wrapper.infos(infos, step, env_indices, output)


def in_dtypes_of(given: Arrays, observation: Arrays) -> Any:
    """Return a compiled function's observations in the dtypes of SB3's wrappers, such as `model._last_obs` has."""
    return jax.tree.map(lambda like, leaf: leaf.astype(like.dtype, copy=False), given, observation)
