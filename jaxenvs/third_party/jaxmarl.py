"""Adapter of JaxMARL (FLAIROx/JaxMARL): environments whose agents act at once."""

from __future__ import annotations

import contextlib
import dataclasses
import io
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxenvs.arguments import shown
from jaxenvs.environment import TimeStep, environment
from jaxenvs.spaces import struct_of
from jaxenvs.third_party.adapter import Source, ThirdPartyEnvironment, ThirdPartyState, box, require_arrays
from jaxenvs.third_party.library import entry_points, require_library, shared


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

    def reset(self, key: jax.Array) -> tuple[ThirdPartyState, TimeStep]:
        key, step_key = jax.random.split(key)
        observations, inner = self.source.env.reset(key)
        inner = self._cast_state("reset", inner)
        nothing = jnp.zeros(self.num_agents, bool)
        state = ThirdPartyState(inner, step_key, jnp.zeros((), jnp.int32))
        return state, self._timestep("reset", inner, observations, jnp.zeros(self.num_agents), nothing, nothing)

    def step(self, state: ThirdPartyState, action: Any) -> tuple[ThirdPartyState, TimeStep]:
        assert state.key is not None
        assert state.elapsed_steps is not None
        key = jax.random.fold_in(state.key, state.elapsed_steps)
        for leaf in jax.tree.leaves(action):
            if jnp.shape(leaf)[:1] != (self.num_agents,):
                raise ValueError(
                    f"action must have the leading axis num_agents = {self.num_agents}, got {shown(leaf)}: use "
                    "jaxenvs.wrappers.Agents instead of VectorEnv."
                )
        actions = {agent: jax.tree.map(lambda leaf, i=i: leaf[i], action) for i, agent in enumerate(self._agents)}
        observations, inner, rewards, dones, _ = self.source.env.step_env(key, state.inner, actions)
        inner = self._cast_state("step", inner)
        done = self._stacked(dones) | dones["__all__"]
        at_limit = self._is_at_limit(inner)
        next_state = ThirdPartyState(inner, state.key, jnp.asarray(state.elapsed_steps + 1))
        terminated, truncated = done & ~at_limit, done & at_limit
        reward = self._stacked(rewards)
        return next_state, self._timestep("step", inner, observations, reward, terminated, truncated)

    def _is_at_limit(self, inner: Any) -> Any:
        limit = getattr(self.source.env, "max_steps", None)
        count = getattr(inner, "step", getattr(inner, "time", None))
        return False if limit is None or count is None else jnp.asarray(count >= limit).reshape(())

    def _timestep(
        self, function: str, inner: Any, observations: Any, reward: Any, terminated: Any, truncated: Any
    ) -> TimeStep:
        info = {}
        if self.source.constants:
            info["action_mask"] = self._stacked(self.source.env.get_avail_actions(inner)).astype(bool)
        observation = jax.vmap(lambda one: self._cast_observation(function, one))(self._stacked(observations))
        return TimeStep(observation, jnp.asarray(reward, float), terminated, truncated, info)

    def _stacked(self, by_agent: dict[str, Any]) -> Any:
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *(by_agent[agent] for agent in self._agents))


def _ids() -> list[str]:
    with contextlib.redirect_stdout(io.StringIO()):  # the import prints
        return list(require_library("jaxmarl").registered_envs)


@shared
def _build(name: str, **arguments: Any) -> JaxMarlEnvironment:
    return from_jaxmarl(require_library("jaxmarl").make(name, **arguments))


make, ids = entry_points("jaxmarl", _ids, _build)


def from_jaxmarl(env: Any) -> JaxMarlEnvironment:
    """Create an adapter of an environment of JaxMARL.

    Args:
      env: as `jaxmarl.make` returns it.

    Raises:
      ValueError: the agents have different spaces, so that they cannot share one policy.
      TypeError: there is no such space in Gymnasium.
    """
    found = []
    for kind in ("observation_space", "action_space"):
        each = {agent: _space(getattr(env, kind)(agent)) for agent in env.agents}
        if different := [agent for agent in each if each[agent] != each[env.agents[0]]]:
            raise ValueError(
                f"All agents must have one {kind} to share a policy, but {env.agents[0]} has {each[env.agents[0]]} and "
                f"{different[0]} has {each[different[0]]}."
            )
        found.append(each[env.agents[0]])
    key = jax.eval_shape(lambda: jax.random.key(0))
    has_masks = isinstance(found[1], spaces.Discrete) and _has_masks(env, key)
    draft = JaxMarlEnvironment({}, Source(env, found[0], found[1], has_masks))

    def first_step(key: jax.Array) -> Any:
        _, inner = env.reset(key)
        require_arrays("state of reset", inner)
        action = jnp.zeros(found[1].shape or (), struct_of(found[1]).dtype)
        return env.step_env(key, inner, dict.fromkeys(env.agents, action))[1]

    state = jax.eval_shape(first_step, key)
    strong = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), state)  # type: ignore[no-untyped-call]
    return dataclasses.replace(draft, source=dataclasses.replace(draft.source, state=strong))


def _has_masks(env: Any, key: Any) -> bool:
    try:
        jax.eval_shape(lambda key: env.get_avail_actions(env.reset(key)[1]), key)
    except NotImplementedError:
        return False
    return True


def _space(space: Any) -> gymnasium.Space[Any]:
    """Convert a space of JaxMARL."""
    kind = type(space).__name__
    if kind == "Discrete":
        return spaces.Discrete(int(space.n))
    if kind == "MultiDiscrete":
        return spaces.MultiDiscrete(np.asarray(space.num_categories))
    if kind == "Box":
        dtype = np.dtype(space.dtype)
        return box(space.low, space.high, tuple(space.shape), dtype)
    raise TypeError(f"The spaces must be Discrete, MultiDiscrete or Box, got {kind}.")
