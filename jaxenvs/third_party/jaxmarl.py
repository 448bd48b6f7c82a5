"""Adapter of JaxMARL (FLAIROx/JaxMARL): environments whose agents act at once."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import jax
import jax.numpy as jnp
from gymnasium import spaces

from jaxenvs.arguments import shown
from jaxenvs.environment import TimeStep, environment
from jaxenvs.third_party.adapter import ThirdPartyEnvironment, adapt
from jaxenvs.third_party.gymnax import converted
from jaxenvs.third_party.library import entry_points, refuse_wrappers, require_library, shared
from jaxenvs.wrappers.multi_agent.agents import shared_spaces


@environment
class JaxMarlEnvironment(ThirdPartyEnvironment):
    """Environment of JaxMARL. Every leaf of its TimeSteps and actions has the leading axis `num_agents`.

    `jaxenvs.wrappers.Agents` makes its agents the sub-environments of a VectorEnv. An end in the step that reaches the
    library's `max_steps` is a truncation, and any other a termination: JaxMARL does not distinguish them. Infos are
    dropped, except for legal actions.
    """

    step_wants_key = True

    @property
    def num_agents(self) -> int:
        """The number of agents, in the order of the library's `agents`."""
        return len(self._agents)

    @property
    def _agents(self) -> list[str]:
        return list(self.source.env.agents)

    @property
    def batch_shape(self) -> tuple[int, ...]:
        return (self.num_agents,)

    def _reset(self, key: jax.Array) -> tuple[Any, object]:
        observations, inner = self.source.env.reset(key)
        return inner, self._stacked(observations)

    def _step(self, inner: Any, action: object, key: jax.Array | None) -> tuple[Any, TimeStep]:
        for leaf in jax.tree.leaves(action):
            if jnp.shape(leaf)[:1] != self.batch_shape:
                raise ValueError(
                    f"action must have the leading axis num_agents = {self.num_agents}, got {shown(leaf)}."
                )
        actions = {agent: jax.tree.map(lambda leaf, i=i: leaf[i], action) for i, agent in enumerate(self._agents)}
        observations, inner, rewards, dones, _ = self.source.env.step_env(key, inner, actions)
        observation, reward, done = map(self._stacked, (observations, rewards, dones))
        done, at_limit = done | dones["__all__"], self._is_at_limit(inner)
        return inner, TimeStep(observation, reward, done & ~at_limit, done & at_limit, self._first_info(inner))

    def _first_info(self, inner: Any) -> dict[str, Any]:
        if not self.source.constants:
            return {}
        return {"action_mask": self._stacked(self.source.env.get_avail_actions(inner)).astype(bool)}

    def _is_at_limit(self, inner: Any) -> Any:
        limit = getattr(self.source.env, "max_steps", None)
        count = getattr(inner, "step", getattr(inner, "time", None))
        return jnp.zeros((), bool) if limit is None or count is None else jnp.asarray(count >= limit).reshape(())

    def _stacked(self, by_agent: dict[str, Any]) -> Any:
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *(by_agent[agent] for agent in self._agents))


def _ids() -> list[str]:
    with contextlib.redirect_stdout(io.StringIO()):  # the import prints
        return list(require_library("jaxmarl").registered_envs)


@shared
def _build(name: str, **arguments: object) -> JaxMarlEnvironment:
    return from_jaxmarl(require_library("jaxmarl").make(name, **arguments))


make, ids = entry_points("jaxmarl", _ids, _build)


def from_jaxmarl(env: Any) -> JaxMarlEnvironment:
    """Create an adapter of an environment of JaxMARL.

    Args:
      env: as `jaxmarl.make` returns it.

    Raises:
      ValueError: the agents have different spaces, so that they cannot share one policy; or the environment is in a
        wrapper, or contains an environment of brax, which resets itself.
      TypeError: there is no such space in Gymnasium.
    """
    # A team plays against opponents that the environment moves itself.
    smax = "jaxmarl.environments.smax.heuristic_enemy_smax_env"
    refuse_wrappers(env, "jaxmarl", [f"{smax}.HeuristicEnemySMAX", f"{smax}.LearnedPolicyEnemySMAX"])
    kinds = env.observation_space, env.action_space
    each = [{agent: converted(kind(agent)) for agent in env.agents} for kind in kinds]
    observation_space, action_space = shared_spaces(*each)
    has_masks = isinstance(action_space, spaces.Discrete) and _has_masks(env)
    return adapt(
        JaxMarlEnvironment,
        env,
        observation_space=observation_space,
        action_space=action_space,
        constants=has_masks,
    )


def _has_masks(env: Any) -> bool:
    try:
        jax.eval_shape(lambda: env.get_avail_actions(env.reset(jax.random.key(0))[1]))
    except NotImplementedError:
        return False
    return True
