"""evaluate: one whole episode of a policy in every environment, as one pure function."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from gymnasium.vector import AutoresetMode

from jaxenvs.arguments import function, instance, positive_int, typed_key
from jaxenvs.environment import Environment, Wrapper, struct
from jaxenvs.rollout import Policy, StatefulPolicy, act
from jaxenvs.transformations import batched_in_any_context, varying
from jaxenvs.vector import VectorEnv
from jaxenvs.wrappers import TimeLimit

NO_LIMIT = 2**31 - 1


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

    returns: Any
    lengths: Any
    terminated: Any
    truncated: Any

    @property
    def mean(self) -> Any:
        """Mean return."""
        return self.returns.mean()

    @property
    def std(self) -> Any:
        """Standard deviation of the returns, with n in the denominator, as in SB3's `evaluate_policy`."""
        return self.returns.std()

    def __str__(self) -> str:
        return f"{self.mean:.1f} ± {self.std:.1f} over {len(self.returns)} episodes"


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
    venv = dataclasses.replace(venv, autoreset=AutoresetMode.DISABLED)

    def is_running(carry: Any) -> Any:
        *_, running, step = carry
        return jnp.any(running) & (step < limit)

    def advance(carry: Any) -> Any:
        state, observation, policy_state, results, running, step = carry
        key = jax.random.fold_in(policy_key, step)
        action, policy_state = act(policy, key, state, observation, policy_state)
        state, timestep = venv.step(state, action)
        stepped = Evaluation(state.episode_return, state.episode_length, timestep.terminated, timestep.truncated)
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
