"""rollout: run a policy in a VectorEnv as one `jax.lax.scan`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from jaxenvs.arguments import function, instance, non_negative_int, shown, typed_key
from jaxenvs.environment import struct
from jaxenvs.vector import VectorEnv, VectorState, VectorTimeStep

Policy = Callable[[jax.Array, Any], Any]


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
    policy: Policy,
    key: jax.Array,
    num_steps: int,
    start: tuple[VectorState, VectorTimeStep] | None = None,
) -> tuple[tuple[VectorState, VectorTimeStep], Trajectory]:
    """Run a policy for `num_steps` steps in every environment.

    Args:
      venv: the environments.
      policy: `policy(key, observation) -> action`, on the whole batch: leading axis `num_envs`.
      key: a typed key. It seeds the policy and, without `start`, the environments.
      num_steps: steps of each environment.
      start: the (state, timestep) to begin with: as the previous rollout or `venv.reset(key)` returned it.

    Returns:
      The (state, timestep) at the end, with which the next rollout can start; and the Trajectory.

    Raises:
      TypeError, ValueError: an argument, or an action of the policy, has the wrong type, dtype or shape.
    """
    instance("venv", venv, VectorEnv, "a jaxenvs.VectorEnv")
    function("policy", policy)
    key = typed_key("key", key, ())
    num_steps = non_negative_int("num_steps", num_steps)
    if start is not None and not (isinstance(start, tuple) and len(start) == 2):
        raise TypeError(f"start must be (state, timestep), as reset returns them, got {shown(start)}.")
    if start is not None:
        instance("start[0]", start[0], VectorState, "a VectorState")
        instance("start[1]", start[1], VectorTimeStep, "a VectorTimeStep")
    reset_key, policy_key = jax.random.split(key)
    if start is None:
        start = venv.reset(reset_key)

    def step(carry: tuple[VectorState, VectorTimeStep], key: jax.Array) -> Any:
        state, timestep = carry
        action = policy(key, timestep.observation)
        state, stepped = venv.step(state, action)
        return (state, stepped), Trajectory(timestep.observation, action, stepped)

    return jax.lax.scan(step, start, jax.random.split(policy_key, num_steps))
