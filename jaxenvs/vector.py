"""VectorEnv: many episodes of one environment side by side, with auto-reset and episode statistics."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.vector import AutoresetMode

from jaxenvs.arguments import batch_of_actions, instance, integer, non_negative_int, positive_int, shown, typed_key
from jaxenvs.checks import action_struct, require_contract
from jaxenvs.environment import Environment, TimeStep, require_environment, static, struct
from jaxenvs.transformations import batched_in_any_context, is_partitioned, varying

TimeStepType = TypeVar("TimeStepType", bound=TimeStep)


@struct
class VectorState:
    """State of a VectorEnv. Every leaf has the leading axis `num_envs`.

    Attributes:
      env_states: the states of the environments.
      env_keys: the typed key of each environment, fixed by `reset`.
      episode: uint32, the number of the running episode; its key is `fold_in(env_keys[i], episode[i])`.
      episode_return, episode_length: float and int32, of the running episode so far.
      done: bool, the last step ended an episode that has not been reset.
    """

    env_states: Any
    env_keys: jax.Array
    episode: jax.Array
    episode_return: jax.Array
    episode_length: jax.Array
    done: jax.Array

    def replace(self, **changes: Any) -> VectorState:
        """Return a copy with some attributes changed."""
        return dataclasses.replace(self, **changes)


@struct
class VectorTimeStep(TimeStep):
    """TimeStep of a batch, leading axis `num_envs`, that also holds what an auto-reset would otherwise hide.

    Attributes:
      observation, info: after the reset, where there was one.
      final_observation, final_info: before any reset: the true last ones of an episode that ended, equal to
        `observation` and `info` where no episode ended.
      episode_return, episode_length: float and int32, of the episode so far; its totals where `done`.
    """

    final_observation: Any
    final_info: dict[str, Any]
    episode_return: jax.Array
    episode_length: jax.Array


@struct
class VectorEnv:
    """Batch of `num_envs` copies of an environment, as two pure functions over a leading batch axis.

    The randomness of environment `i` depends only on its key and the number of its episode: not on `num_envs`, on how
    resets are computed, or on the device.

    Attributes:
      env: the environment; or, with `env_axis=0`, a batch of environments in which every numeric field has the leading
        axis `num_envs` (as `jax.vmap` makes them).
      num_envs: the number of environments.
      autoreset: what follows the end of an episode, with Gymnasium's meaning. SAME_STEP: the step that ends an episode
        also starts the next. NEXT_STEP: the next step starts it and ignores its action. DISABLED: only your calls of
        `restart` start it.
      env_axis: None or 0, as `in_axes` of `jax.vmap`.
    """

    env: Environment[Any]
    num_envs: int = static()
    autoreset: AutoresetMode = static(default=AutoresetMode.SAME_STEP)
    env_axis: int | None = static(default=None)

    def __check_init__(self) -> None:
        object.__setattr__(self, "num_envs", positive_int("num_envs", self.num_envs))
        require_environment("env", self.env)
        if not isinstance(self.autoreset, AutoresetMode):
            raise ValueError(f"autoreset must be one of {list(AutoresetMode)}, got {self.autoreset!r}.")
        if self.env_axis is not None and (isinstance(self.env_axis, bool) or self.env_axis != 0):
            raise ValueError(f"env_axis must be None or 0, got {self.env_axis!r}.")
        if self.env_axis == 0:
            for path, leaf in jax.tree_util.tree_leaves_with_path(self.env):
                if jnp.shape(leaf)[:1] != (self.num_envs,):
                    raise ValueError(
                        f"env{jax.tree_util.keystr(path)} must have the leading axis num_envs = {self.num_envs} with "
                        f"env_axis=0, got shape {jnp.shape(leaf)}."
                    )
        require_contract(self.env, self.env_axis)

    def env_at(self, index: int) -> Environment[Any]:
        """Return the environment at `index`, with its own parameters if `env_axis=0`. Not for use in traced code.

        Raises:
          ValueError: there is no environment with this index.
        """
        index = integer("index", index, 0, self.num_envs - 1)
        if self.env_axis is None:
            return self.env
        env: Environment[Any] = jax.tree.map(
            lambda leaf: leaf[index].item() if leaf.ndim == 1 else leaf[index], self.env
        )
        return env

    @property
    def first_env(self) -> Environment[Any]:
        """Environment number 0, also available in traced code."""
        return self.env if self.env_axis is None else jax.tree.map(lambda leaf: leaf[0], self.env)

    @batched_in_any_context
    def reset(self, key: jax.Array, episode: jax.Array | int = 0) -> tuple[VectorState, VectorTimeStep]:
        """Start an episode in every environment; return the VectorState and the VectorTimeStep.

        Args:
          key: one typed key, into which the number of each environment is folded; or a key for each environment, shape
            (num_envs,).
          episode: its number, the same for all or of shape (num_envs,). `state.env_keys` and `state.episode + 1` start
            the next episodes.

        Raises:
          TypeError, ValueError: the key or the episode has the wrong type, dtype or shape.
        """
        key = typed_key("key", key, (), (self.num_envs,))
        if not isinstance(episode, jax.Array | np.ndarray):
            episode = non_negative_int("episode", episode, 2**32 - 1)
        elif not jnp.issubdtype(episode.dtype, jnp.integer) or episode.shape not in ((), (self.num_envs,)):
            raise ValueError(
                f"episode must be an int, or an array of integers with shape () or ({self.num_envs},), got "
                f"{shown(episode)}."
            )
        if key.shape == ():
            key = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, jnp.arange(self.num_envs))
        state = VectorState(
            env_states=None,
            env_keys=key,
            episode=jnp.broadcast_to(jnp.asarray(episode, jnp.uint32), (self.num_envs,)),
            episode_return=jnp.zeros(self.num_envs, float),
            episode_length=jnp.zeros(self.num_envs, jnp.int32),
            done=jnp.zeros(self.num_envs, bool),
        )
        env_states, timestep = self._start(self.env, key, state.episode)
        return state.replace(env_states=env_states), _with_statistics(timestep, state)

    @batched_in_any_context
    def step(self, state: VectorState, action: object) -> tuple[VectorState, VectorTimeStep]:
        """Take one step in every environment; return the next VectorState and the VectorTimeStep.

        Args:
          state: as `reset`, `step` or `restart` returned it.
          action: a batch of members of the action space, leading axis `num_envs`. It is converted to the dtype of the
            space; whether it lies in the space is not checked.

        Raises:
          TypeError, ValueError: the state is not one of this VectorEnv; or the structure, a shape or the kind of the
            action is wrong.
        """
        self._require_state(state)
        action = batch_of_actions(action_struct(self.env, self.env_axis), action, self.num_envs)
        env_states, timestep = self._step(state.env_states, action)
        ended_before = state.done
        if self.autoreset is AutoresetMode.NEXT_STEP:
            timestep = mute(timestep, ended_before)
        state = state.replace(
            env_states=env_states,
            episode_return=state.episode_return + timestep.reward,
            episode_length=state.episode_length + 1,
            done=timestep.done,
        )
        stepped = _with_statistics(timestep, state)
        if self.autoreset is AutoresetMode.SAME_STEP:
            state, observation, info = self._restart(state, timestep.observation, timestep.info, timestep.done)
            return state, stepped.replace(observation=observation, info=info)
        if self.autoreset is AutoresetMode.NEXT_STEP:
            return self.restart(state, stepped, ended_before)
        return state, stepped

    @batched_in_any_context
    def restart(
        self, state: VectorState, timestep: VectorTimeStep, mask: jax.Array
    ) -> tuple[VectorState, VectorTimeStep]:
        """Start the next episode where `mask`, bool (num_envs,), is True, and leave the other environments unchanged.

        Raises:
          TypeError, ValueError: an argument does not belong to this VectorEnv, or the mask is not such an array.
        """
        self._require_state(state)
        instance("timestep", timestep, VectorTimeStep, "a VectorTimeStep, as step returns it")
        if not isinstance(mask, jax.Array | np.ndarray) or mask.dtype != bool or mask.shape != (self.num_envs,):
            raise ValueError(f"mask must be a bool array with shape ({self.num_envs},), got {shown(mask)}.")
        state, observation, info = self._restart(state, timestep.observation, timestep.info, mask)
        started = _with_statistics(mute(timestep.replace(observation=observation, info=info), mask), state)
        return state, started.replace(
            final_observation=where(mask, observation, timestep.final_observation),
            final_info=where(mask, info, timestep.final_info),
            episode_return=jnp.where(mask, 0, timestep.episode_return),
            episode_length=jnp.where(mask, 0, timestep.episode_length),
        )

    def _require_state(self, state: VectorState) -> None:
        instance("state", state, VectorState, "a VectorState, as reset returns it")
        if jnp.shape(state.done) != (self.num_envs,):
            raise ValueError(f"state must hold num_envs = {self.num_envs} environments, got shape {state.done.shape}.")

    def _start(self, env: Environment[Any], env_keys: jax.Array, episode: jax.Array) -> tuple[Any, TimeStep]:
        """Start the given episodes, one for each key."""
        key = jax.vmap(jax.random.fold_in)(env_keys, episode)
        started: tuple[Any, TimeStep] = jax.vmap(lambda env, key: env.reset(key), in_axes=(self.env_axis, 0))(env, key)
        return started

    def _step(self, env_states: object, action: object) -> tuple[Any, TimeStep]:
        """Take one step in every environment, without what follows the end of an episode."""
        step: Any = jax.vmap(lambda env, state, action: env.step(state, action), in_axes=(self.env_axis, 0, 0))
        stepped: tuple[Any, TimeStep] = step(self.env, env_states, action)
        return stepped

    def _restart(
        self, state: VectorState, observation: object, info: object, mask: jax.Array
    ) -> tuple[VectorState, object, object]:
        episode = state.episode + mask

        def start(shared: Environment[Any], per_env: tuple[Any, ...]) -> tuple[object, ...]:
            env_keys, episode, *own = per_env
            env_states, timestep = self._start(own[0] if own else shared, env_keys, episode)
            return env_states, timestep.observation, timestep.info

        per_env = (state.env_keys, episode) if self.env_axis is None else (state.env_keys, episode, self.env)
        current = (state.env_states, observation, info)
        env_states, observation, info = replace_where(start, mask, current, self.env, per_env)
        state = state.replace(
            env_states=env_states,
            episode=episode,
            episode_return=jnp.where(mask, 0, state.episode_return),
            episode_length=jnp.where(mask, 0, state.episode_length),
            done=state.done & ~mask,
        )
        return state, observation, info


def _with_statistics(timestep: TimeStep, state: VectorState) -> VectorTimeStep:
    """Make the VectorTimeStep of a step after which nothing was reset."""
    return VectorTimeStep(
        observation=timestep.observation,
        reward=timestep.reward,
        terminated=timestep.terminated,
        truncated=timestep.truncated,
        info=timestep.info,
        final_observation=timestep.observation,
        final_info=timestep.info,
        episode_return=state.episode_return,
        episode_length=state.episode_length,
    )


def mute(timestep: TimeStepType, mask: jax.Array) -> TimeStepType:
    """Clear reward and end flags of the environments in `mask`, as in the first TimeStep of an episode."""
    return timestep.replace(
        reward=jnp.where(mask, 0, timestep.reward),
        terminated=timestep.terminated & ~mask,
        truncated=timestep.truncated & ~mask,
    )


# Starts some environments, from data that all environments share and per-environment data (leading axis: those
# started).
Start = Callable[[Any, Any], Any]


def replace_where(start: Start, mask: jax.Array, batch: object, shared: object, per_env: object) -> Any:
    """Replace the environments in `mask` by freshly started ones.

    Starting an episode costs several times a step of a cheap environment, and few episodes end in any one step. On a
    CPU, only the environments that ended are therefore started, in chunks of fixed size: gathered, started and
    scattered back. With few environments the search costs more than it saves: all are started, in the steps in which
    any ended. On other devices, control flow that depends on data costs a round trip to the host, so all are started
    and selected from. All three return the same bits, unless XLA rounds a multiplication and an addition in `start`
    once in one of them and twice in another.

    Args:
      start: a function that starts environments.
      mask: bool (num_envs,).
      batch: a pytree with the leading axis `num_envs`, of which `start` makes some.
      shared, per_env: arguments of `start`; the latter has the leading axis `num_envs`.
    """
    if is_partitioned(mask):
        return _start_all(start, mask, batch, shared, per_env)
    batch = varying(batch, mask, batch, shared, per_env)
    on_cpu = _start_if_any if mask.shape[0] < FEWEST_ENVS_TO_SEARCH else _start_ended
    return jax.lax.platform_dependent(
        mask, batch, shared, per_env, cpu=partial(on_cpu, start), default=partial(_start_all, start)
    )


FEWEST_ENVS_TO_SEARCH = 16


def chunk_size(num_envs: int) -> int:
    """Return how many environments are started at once: 1/16 of all, at least 8 and at most 1024, so that they fit in
    the cache. Measured on two CPU cores.
    """
    return max(8, min(num_envs // 16, 1024))


def _start_all(start: Start, mask: jax.Array, batch: object, shared: object, per_env: object) -> Any:
    return where(mask, start(shared, per_env), batch)


def _start_if_any(start: Start, mask: jax.Array, batch: object, shared: object, per_env: object) -> Any:
    return jax.lax.cond(
        mask.any(), partial(_start_all, start), lambda mask, batch, *_: batch, mask, batch, shared, per_env
    )


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _start_ended(start: Start, mask: jax.Array, batch: object, shared: object, per_env: object) -> Any:
    num_envs = mask.shape[0]
    chunk = jnp.arange(chunk_size(num_envs), dtype=jnp.int32)
    rank = jnp.cumsum(mask, dtype=jnp.int32)  # of each environment in `mask`, counted from 1
    total = rank[-1]

    def start_chunk(carry: tuple[jax.Array, Any]) -> tuple[jax.Array, Any]:
        first, batch = carry
        # Where fewer are left than a chunk holds, the last one is started several times, and written with equal values.
        wanted = jnp.minimum(first + chunk + 1, total)
        indices = jnp.searchsorted(rank, wanted, method="scan_unrolled").astype(jnp.int32)
        started = start(shared, jax.tree.map(lambda leaf: leaf[indices], per_env))
        batch = jax.tree.map(
            lambda old, new: (
                _as_rows(old)
                .at[indices]
                .set(_as_rows(new), mode="promise_in_bounds", indices_are_sorted=True)
                .reshape(old.shape)
            ),
            batch,
            started,
        )
        return first + chunk.shape[0], batch

    _, batch = jax.lax.while_loop(lambda carry: carry[0] < total, start_chunk, (jnp.zeros_like(total), batch))
    return batch


@_start_ended.defjvp
def _(start: Start, primals: tuple[object, ...], tangents: tuple[object, ...]) -> Any:
    # A loop of unknown length has no reverse-mode derivative; the equivalent `_start_all` does.
    return _start_ended(start, *primals), jax.jvp(partial(_start_all, start), primals, tangents)[1]


def _as_rows(leaf: jax.Array) -> jax.Array:
    """Flatten each environment's leaf to a row: on a CPU, XLA scatters rows faster than small pictures."""
    return leaf.reshape(leaf.shape[0], -1) if leaf.ndim > 2 else leaf


def where(mask: jax.Array, new: object, old: object) -> Any:
    """Select `new` for the environments in `mask`, else `old`, for every leaf of two pytrees."""
    return jax.tree.map(lambda n, o: jnp.where(mask.reshape(mask.shape + (1,) * (n.ndim - 1)), n, o), new, old)


def join_axes(tree: Any) -> Any:
    """Return a pytree with the first two axes of each leaf joined into one, also where the leaf is empty."""
    return jax.tree.map(lambda leaf: leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:]), tree)
