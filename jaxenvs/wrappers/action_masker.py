"""ActionMasker: keeps the legal actions that an environment reports, so that they are a function of the state."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxenvs.checks import spaces_in_traced_code
from jaxenvs.environment import Environment, TimeStep, Wrapper, environment, struct
from jaxenvs.vector import VectorEnv, VectorState

NAME = "action_mask"  # in an info, or in a dict observation


@struct
class ActionMaskerState:
    """State of an ActionMasker.

    Attributes:
      inner: the state of the wrapped environment.
      action_mask: the last reported mask, in any shape and dtype.
    """

    inner: Any
    action_mask: jax.Array


@environment
class ActionMasker(Wrapper[ActionMaskerState]):
    """Wrapper that keeps `info["action_mask"]`, or the `action_mask` of a dict observation, for `action_masks`.

    Use it to train MaskablePPO on environments that only report masks. Your environment needs no wrapper if it has a
    method `action_masks(state)`, as sb3-contrib names it, that can be traced. The mask has numbers, 0 for illegal
    actions: one for each action of a Discrete space; one for each option of each choice of a MultiDiscrete,
    concatenated; two for each bit of a MultiBinary, the first for 0.

    Attributes:
      env: the wrapped environment.
    """

    env: Environment[Any]

    def reset(self, key: jax.Array) -> tuple[ActionMaskerState, TimeStep]:
        inner, timestep = self.env.reset(key)
        return ActionMaskerState(inner, told(timestep)), timestep

    def step(self, state: ActionMaskerState, action: object) -> tuple[ActionMaskerState, TimeStep]:
        inner, timestep = self.env.step(state.inner, action)
        return ActionMaskerState(inner, told(timestep)), timestep

    def action_masks(self, state: ActionMaskerState) -> jax.Array:
        """Return which actions are legal, as the wrapped environment last reported it."""
        return state.action_mask


def told(timestep: TimeStep) -> Any:
    """Return the mask that a TimeStep reports; None if it reports none."""
    observation = timestep.observation
    return timestep.info.get(NAME, observation.get(NAME) if isinstance(observation, dict) else None)


def mask_size(space: object) -> int | None:
    """Return how many numbers a mask has for the actions of a space; None for spaces without masks."""
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    if isinstance(space, spaces.MultiDiscrete):
        return int(np.sum(space.nvec))
    return 2 * math.prod(space.shape) if isinstance(space, spaces.MultiBinary) else None


def has_action_masks(env: Environment[Any]) -> bool:
    """Return whether an environment, or one inside it, has a method `action_masks`."""
    return hasattr(env, "action_masks") or (isinstance(env, Wrapper) and has_action_masks(env.env))


def with_action_masks(venv: VectorEnv, timestep: TimeStep | None = None) -> VectorEnv:
    """Return environments with a method `action_masks(state)`, if possible.

    These are `venv` itself if it has the method; or `venv` in an ActionMasker if it reports a mask that fits its
    actions; else `venv` unchanged, without the method.

    Args:
      timestep: the TimeStep of `reset`, as `jax.ShapeDtypeStruct`s, if it is known.
    """
    if has_action_masks(venv.env):
        return venv
    if timestep is None:
        _, timestep = jax.eval_shape(venv.reset, jax.random.key(0))
    mask, known = told(timestep), None
    if mask is not None:
        known = spaces_in_traced_code(venv.env, venv.env_axis)
    if not hasattr(mask, "shape") or known is None or math.prod(mask.shape[1:]) != mask_size(known[1]):
        return venv
    return dataclasses.replace(venv, env=ActionMasker(venv.env))


def require_action_masks(venv: VectorEnv) -> VectorEnv:
    """Return the result of `with_action_masks`, or raise."""
    masked = with_action_masks(venv)
    if not has_action_masks(masked.env):
        raise ValueError(
            f"{type(venv.env.unwrapped).__name__} has no action masks: give it a method action_masks(state) or an "
            f"info[{NAME!r}], with one number for each action."
        )
    return masked


def action_masks(venv: VectorEnv, state: VectorState) -> jax.Array:
    """Return which actions are legal in each environment: (num_envs, n), 0 for illegal ones.

    Args:
      venv: environments with `action_masks`.
    """

    masks: jax.Array = jax.vmap(action_masks_of, in_axes=(venv.env_axis, 0))(venv.env, state.env_states)
    return masks


def action_masks_of(env: Any, state: object) -> Any:
    """Return which actions of one environment are legal, (n,), from its `action_masks` or an inner environment's."""
    while not hasattr(env, "action_masks"):
        state, env = env.inner_state(state), env.inner_env(state)
    masks = env.action_masks(state)
    return masks.ravel() if isinstance(masks, np.ndarray) else jnp.ravel(masks)
