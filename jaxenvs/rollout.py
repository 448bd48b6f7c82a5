"""rollout and evaluate: a policy in a VectorEnv for some steps, or for one whole episode of each environment."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.vector import AutoresetMode

from jaxenvs.arguments import function, instance, non_negative_int, positive_int, shown, typed_key
from jaxenvs.environment import Environment, Wrapper, struct
from jaxenvs.transformations import batched_in_any_context, varying
from jaxenvs.vector import VectorEnv, VectorState, VectorTimeStep
from jaxenvs.wrappers import TimeLimit

NO_LIMIT = 2**31 - 1

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
    start: tuple[VectorState, VectorTimeStep] | None = None,
    policy_state: Any = None,
) -> tuple[Any, Trajectory]:
    """Run a policy for `num_steps` steps in every environment.

    Args:
      venv: the environments.
      policy: `policy(key, observation) -> action`, on the whole batch: leading axis `num_envs`. With a `policy_state`:
        `policy(key, observation, policy_state, episode_start) -> action, policy_state`. `episode_start`, bool
        (num_envs,), is True where an episode begins, and the policy must forget what it knows of the one before.
      key: a typed key. It seeds the policy and, without `start`, the environments.
      num_steps: steps of each environment.
      start: the (state, timestep) to begin with: as the previous rollout or `venv.reset(key)` returned it.
      policy_state: a pytree of arrays, what a recurrent policy knows before its first step; None if it has no state.

    Returns:
      The (state, timestep) at the end, with which the next rollout can start; and the Trajectory. With a
      `policy_state`: ((state, timestep), policy_state) and the Trajectory.

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
    start = start or venv.reset(reset_key)

    def step(carry: tuple[Any, Any], key: jax.Array) -> tuple[tuple[Any, Any], Trajectory]:
        (state, timestep), policy_state = carry
        action, policy_state = act(policy, key, state, timestep.observation, policy_state)
        state, stepped = venv.step(state, action)
        return ((state, stepped), policy_state), Trajectory(timestep.observation, action, stepped)

    begin = start, _divided_like(policy_state, start[0])
    (end, policy_state), trajectory = jax.lax.scan(step, begin, jax.random.split(policy_key, num_steps))
    return (end if policy_state is None else (end, policy_state)), trajectory


@batched_in_any_context
def _divided_like(policy_state: Any, state: VectorState) -> Any:
    """Return the state of a policy, divided over devices as the environments are."""
    return policy_state


def act(
    policy: Callable[..., Any], key: jax.Array, state: VectorState, observation: Any, policy_state: Any = None
) -> Any:
    """Return the action and the next state of a policy; None if it has no state."""
    if policy_state is None:
        return policy(key, observation), None
    result = policy(key, observation, policy_state, state.episode_length == 0)
    if not isinstance(result, tuple) or len(result) != 2:
        raise TypeError(
            f"policy must return the action and its next state, as policy_state is given, got {shown(result)}."
        )
    return result


@struct
class Evaluation:
    """The results of `n_episodes` episodes. `str` shows the mean and the standard deviation of their returns.

    Attributes:
      returns: float (n_episodes,), the undiscounted sums of the environment's rewards. With `jaxenvs.sb3.evaluate`,
        before normalization; or as a VecMonitor around the environments counts them.
      lengths: int (n_episodes,), in steps.
      terminated: bool (n_episodes,), True if the environment ended the episode.
      truncated: bool (n_episodes,), True if a TimeLimit or `max_steps` ended it. Both may be True.
    """

    returns: jax.Array | np.ndarray
    lengths: jax.Array | np.ndarray
    terminated: jax.Array | np.ndarray
    truncated: jax.Array | np.ndarray

    @property
    def mean(self) -> jax.Array | np.floating:
        """Mean return."""
        return self.returns.mean()

    @property
    def std(self) -> jax.Array | np.floating:
        """Standard deviation of the returns, with n in the denominator, as in SB3's `evaluate_policy`."""
        return self.returns.std()

    def __str__(self) -> str:
        return f"{self.mean:.2f} ± {self.std:.2f} over {len(self.returns)} episodes"


@batched_in_any_context
def evaluate(
    venv: VectorEnv,
    policy: Policy | StatefulPolicy,
    key: jax.Array,
    max_steps: int | None = None,
    policy_state: Any = None,
) -> Evaluation:
    """Run one whole episode of a policy in every environment. Long episodes count no less than short ones.

    Environments whose episode has ended step on until the last one has ended, and their results are ignored.

    Args:
      venv: the environments, each with its own parameters if `env_axis=0`. `autoreset` does not matter.
      policy: as for `rollout`.
      key: a typed key. It seeds the policy and the environments.
      max_steps: longer episodes are truncated after this number of steps. Required without a TimeLimit.
      policy_state: as for `rollout`.

    Returns:
      The Evaluation, with an episode for each environment.

    Raises:
      TypeError, ValueError: an argument, or an action of the policy, has the wrong type, dtype or shape; or nothing
        limits the episodes.
    """
    instance("venv", venv, VectorEnv, "a jaxenvs.VectorEnv")
    function("policy", policy)
    reset_key, policy_key = jax.random.split(typed_key("key", key, ()))
    require_ends(venv.env, max_steps)
    limit = NO_LIMIT if max_steps is None else positive_int("max_steps", max_steps, NO_LIMIT)
    if type(venv) is VectorEnv:  # Agents always start again, and what follows an episode is ignored
        venv = dataclasses.replace(venv, autoreset=AutoresetMode.DISABLED)

    def is_running(carry: tuple[Any, ...]) -> Any:
        *_, running, step = carry
        return jnp.any(running) & (step < limit)

    def advance(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        state, observation, policy_state, results, running, step = carry
        key = jax.random.fold_in(policy_key, step)
        action, policy_state = act(policy, key, state, observation, policy_state)
        state, timestep = venv.step(state, action)
        stepped = Evaluation(timestep.episode_return, timestep.episode_length, timestep.terminated, timestep.truncated)
        results = jax.tree.map(lambda new, old: jnp.where(running, new, old), stepped, results)
        return state, timestep.observation, policy_state, results, running & ~timestep.done, step + 1

    state, timestep = venv.reset(reset_key)
    nothing = Evaluation(state.episode_return, state.episode_length, timestep.terminated, timestep.truncated)
    policy_state = varying(policy_state, key)
    start = (state, timestep.observation, policy_state, nothing, ~timestep.done, jnp.int32(0))
    *_, results, running, _ = jax.lax.while_loop(is_running, advance, start)
    return dataclasses.replace(results, truncated=results.truncated | running)


def require_ends(env: Environment[Any], max_steps: int | None) -> None:
    """Refuse an environment in which nothing limits the episodes.

    Raises:
      ValueError: it has no TimeLimit, and there is no `max_steps`.
    """
    inner = env
    while isinstance(inner, Wrapper) and not isinstance(inner, TimeLimit):
        inner = inner.env
    if max_steps is None and not isinstance(inner, TimeLimit):
        raise ValueError(
            f"{type(env.unwrapped).__name__} has no TimeLimit, so an episode may never end: pass max_steps=1000."
        )
