"""ActionMasker: which actions are legal, as a function of the state, where an environment only tells it."""

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

NAME = "action_mask"  # in an info, or in an observation that is a dict


@struct
class ActionMaskerState:
    """The state of an ActionMasker.

    Attributes:
      inner: that of the environment inside.
      action_mask: what it told last, in whatever shape and dtype.
    """

    inner: Any
    action_mask: jax.Array


@environment
class ActionMasker(Wrapper[ActionMaskerState]):
    """Keeps `info["action_mask"]`, or the `action_mask` of an observation that is a dict, for `action_masks`.

    An environment of your own needs no wrapper if it has a method `action_masks(state)`, as sb3-contrib names it, that
    can be traced: numbers, 0 for what is illegal, one for each action of a Discrete space; for each choice of a
    MultiDiscrete, end to end; of a MultiBinary two for each bit, the first for 0.
    """

    env: Environment[Any]

    def reset(self, key: jax.Array) -> tuple[ActionMaskerState, TimeStep]:
        inner, timestep = self.env.reset(key)
        return ActionMaskerState(inner, told(timestep)), timestep

    def step(self, state: ActionMaskerState, action: Any) -> tuple[ActionMaskerState, TimeStep]:
        inner, timestep = self.env.step(state.inner, action)
        return ActionMaskerState(inner, told(timestep)), timestep

    def action_masks(self, state: ActionMaskerState) -> jax.Array:
        """Which actions are legal, as the environment inside told it."""
        return state.action_mask


def told(timestep: TimeStep) -> Any:
    """The mask that a TimeStep tells; None if it tells none."""
    observation = timestep.observation
    return timestep.info.get(NAME, observation.get(NAME) if isinstance(observation, dict) else None)


def mask_size(space: Any) -> int | None:
    """How many numbers a mask has for the actions of a space; None where there are no masks."""
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    if isinstance(space, spaces.MultiDiscrete):
        return int(np.sum(space.nvec))
    return 2 * math.prod(space.shape) if isinstance(space, spaces.MultiBinary) else None


def has_action_masks(env: Environment[Any]) -> bool:
    """Whether an environment, or one inside of it, has a method `action_masks`."""
    return hasattr(env, "action_masks") or (isinstance(env, Wrapper) and has_action_masks(env.env))


def with_action_masks(venv: VectorEnv, timestep: TimeStep | None = None) -> VectorEnv:
    """Environments with a method `action_masks(state)`: these if they have one; or in an ActionMasker if they tell a
    mask that fits their actions; else as they are.

    Args:
      timestep: what their `reset` gives, as `jax.ShapeDtypeStruct`s, where that is at hand.
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
    """What `with_action_masks` gives.

    Raises:
      ValueError: they tell no masks.
    """
    masked = with_action_masks(venv)
    if not has_action_masks(masked.env):
        raise ValueError(
            f"{type(venv.env.unwrapped).__name__} has no action masks: give it a method action_masks(state) or an "
            f"info[{NAME!r}], with one number for each action."
        )
    return masked


def action_masks(venv: VectorEnv, state: VectorState) -> jax.Array:
    """Which actions are legal in each lane: (num_envs, n), 0 for those that are not.

    Args:
      venv: environments with `action_masks`.
    """

    masks: jax.Array = jax.vmap(action_masks_of, in_axes=(venv.env_axis, 0))(venv.env, state.lanes)
    return masks


def action_masks_of(env: Any, state: Any) -> Any:
    """Which actions of one environment are legal, (n,), by its method `action_masks`, or that of one inside of it."""
    while not hasattr(env, "action_masks"):
        state, env = env.inner_state(state), env.env
    masks = env.action_masks(state)
    return masks.ravel() if isinstance(masks, np.ndarray) else jnp.ravel(masks)
