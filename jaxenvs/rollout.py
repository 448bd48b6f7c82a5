"""rollout: run a policy in a VectorEnv as one `jax.lax.scan`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from jaxenvs.arguments import function, instance, non_negative_int, shown, typed_key
from jaxenvs.environment import struct
from jaxenvs.transformations import batched_in_any_context
from jaxenvs.vector import VectorEnv, VectorState, VectorTimeStep

Policy = Callable[[jax.Array, Any], Any]
StatefulPolicy = Callable[[jax.Array, Any, Any, jax.Array], tuple[Any, Any]]


@struct
class Trajectory:
    """Observations, actions and results of a rollout. Every leaf has the leading axes (num_steps, num_envs).

    Attributes:
      observation: the observation on which the policy acted.
      action: the action of the policy.
      timestep: the result of the action. In a jitted function, parts that you do not use are not computed.
    """

    observation: Any
    action: Any
    timestep: VectorTimeStep


def rollout(
    venv: VectorEnv,
    policy: Policy | StatefulPolicy,
    key: jax.Array,
    num_steps: int,
    start: tuple[Any, ...] | None = None,
    policy_state: Any = None,
) -> tuple[tuple[Any, ...], Trajectory]:
    """Run a policy for `num_steps` steps in every environment.

    Args:
      venv: the environments.
      policy: `policy(key, observation) -> action`, on the whole batch: leading axis `num_envs`. With a `policy_state`:
        `policy(key, observation, policy_state, episode_start) -> action, policy_state`. `episode_start`, bool
        (num_envs,), is True where an episode begins, and the policy must forget what it knows of the one before.
      key: a typed key. It seeds the policy and, without `start`, the environments.
      num_steps: steps of each environment.
      start: what to begin with: (state, timestep), as `venv.reset(key)` returns it, or what the previous rollout
        returned.
      policy_state: a pytree of arrays, what a recurrent policy knows before its first step. None if the policy has no
        state, or if it is in `start`.

    Returns:
      The (state, timestep) at the end, or (state, timestep, policy_state), with which the next rollout can start; and
      the Trajectory.

    Raises:
      TypeError, ValueError: an argument, or an action of the policy, has the wrong type, dtype or shape.
    """
    instance("venv", venv, VectorEnv, "a jaxenvs.VectorEnv")
    function("policy", policy)
    key = typed_key("key", key, ())
    num_steps = non_negative_int("num_steps", num_steps)
    if start is not None and not (isinstance(start, tuple) and len(start) in (2, 3)):
        raise TypeError(f"start must be (state, timestep), as reset returns them, got {shown(start)}.")
    if start is not None:
        instance("start[0]", start[0], VectorState, "a VectorState")
        instance("start[1]", start[1], VectorTimeStep, "a VectorTimeStep")
        if len(start) == 3 and policy_state is not None:
            raise ValueError("policy_state must be None if start is (state, timestep, policy_state).")
    reset_key, policy_key = jax.random.split(key)
    state, timestep, *others = start or venv.reset(reset_key)
    policy_state = others[0] if others else _divided_like(policy_state, state)

    def step(carry: tuple[VectorState, VectorTimeStep, Any], key: jax.Array) -> Any:
        state, timestep, policy_state = carry
        action, policy_state = act(policy, key, state, timestep.observation, policy_state)
        state, stepped = venv.step(state, action)
        return (state, stepped, policy_state), Trajectory(timestep.observation, action, stepped)

    keys = jax.random.split(policy_key, num_steps)
    end, trajectory = jax.lax.scan(step, (state, timestep, policy_state), keys)
    return (end[:2] if policy_state is None else end), trajectory


@batched_in_any_context
def _divided_like(policy_state: Any, state: VectorState) -> Any:
    """Return the state of a policy, divided over devices as the environments are."""
    return policy_state


def act(
    policy: Policy | StatefulPolicy, key: jax.Array, state: VectorState, observation: Any, policy_state: Any = None
) -> tuple[Any, Any]:
    """Return the action and the next state of a policy; None if it has no state."""
    if policy_state is None:
        return policy(key, observation), None  # type: ignore[call-arg]
    return policy(key, observation, policy_state, state.episode_length == 0)  # type: ignore[call-arg]
