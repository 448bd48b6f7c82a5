"""Agents: environments whose agents act at once, with each agent as one sub-environment of a VectorEnv."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
from gymnasium.vector import AutoresetMode

from jaxenvs.arguments import positive_int, shown
from jaxenvs.checks import num_agents_of
from jaxenvs.environment import Environment, TimeStep, Wrapper, environment, require_environment, struct
from jaxenvs.vector import VectorEnv, VectorState, VectorTimeStep, join_axes, mute, replace_where, where


@struct
class AgentState:
    """State of one agent.

    Attributes:
      inner: the state of the environment, the same for all of its agents.
      is_out: bool (), the agent's episode has ended, and the others' have not.
      action_mask: bool (n,), the agent's legal actions; None if the environment reports none.
    """

    inner: Any
    is_out: jax.Array
    action_mask: jax.Array | None


@environment
class AgentView(Wrapper[AgentState]):
    """Environment of several agents as each of them shows it: its spaces and its picture."""

    env: Environment[Any]


@environment
class MaskedAgentView(AgentView):
    """AgentView of an environment that reports legal actions."""

    def action_masks(self, state: AgentState) -> jax.Array:
        """Return which actions are legal for one agent: bool (n,)."""
        assert state.action_mask is not None
        return state.action_mask


@struct
class Agents(VectorEnv):
    """VectorEnv whose sub-environments are the agents of environments in which all agents act at once.

    One policy controls all agents: parameter sharing. With `num_envs = 12` and three agents there are four
    environments; sub-environment 3 * i + j is agent j of environment i. Each agent has its own rewards and ends. An
    agent whose episode ends before the others' waits for them: it observes zeros, its rewards are 0, and its waiting
    steps count in no episode. When the episodes of all agents have ended, the environment starts again.

    An environment of several agents has an attribute `num_agents`, and spaces of one agent. Every leaf of its TimeSteps
    has the leading axis `num_agents`, and so has the action that its `step` takes. If `info` has `action_mask`, it
    marks the legal actions. `jaxenvs.make("jaxmarl/MPE_simple_spread_v3")` is one.

    Attributes:
      env: the environment.
      num_envs: the number of agents of all environments together, a multiple of `num_agents`.
    """

    def __check_init__(self) -> None:
        object.__setattr__(self, "num_envs", positive_int("num_envs", self.num_envs))
        require_environment("env", self.env)
        num_agents = num_agents_of(self.env)
        if num_agents is None:
            raise ValueError(f"env must have several agents, got {type(self.env).__name__}, without num_agents.")
        if self.num_envs % num_agents:
            raise ValueError(f"num_envs must be a multiple of num_agents = {num_agents}, got {self.num_envs}.")
        if self.autoreset is not AutoresetMode.SAME_STEP or self.env_axis is not None:
            raise ValueError(
                f"Agents must have auto-reset SAME_STEP and one environment's parameters, got {self.autoreset} and "
                f"env_axis={self.env_axis}."
            )
        if not isinstance(self.env, AgentView):
            timestep = _require_agents(self.env, num_agents)
            view = MaskedAgentView if "action_mask" in timestep.info else AgentView
            object.__setattr__(self, "env", view(self.env))

    @property
    def num_agents(self) -> int:
        """The number of agents of one environment."""
        return num_agents_of(self.env) or 1

    def step(self, state: VectorState, action: object) -> tuple[VectorState, VectorTimeStep]:
        """Take one step in every environment with the actions of all agents, as VectorEnv does."""
        self._require_state(state)
        waits = state.env_states.is_out
        # The step counts one more for every agent, but a step of waiting counts in no episode.
        return super().step(state.replace(episode_length=state.episode_length - waits), action)

    def restart(
        self, state: VectorState, timestep: VectorTimeStep, mask: jax.Array
    ) -> tuple[VectorState, VectorTimeStep]:
        """Raise NotImplementedError: agents of one environment start together, when all of them have ended."""
        raise NotImplementedError("Agents start their next episodes by themselves: restart is for other VectorEnvs.")

    @property
    def _inner(self) -> Environment[Any]:
        inner: Environment[Any] = self.env.env  # type: ignore[attr-defined]
        return inner

    def _start(self, env: Environment[Any], env_keys: jax.Array, episode: jax.Array) -> tuple[Any, TimeStep]:
        """Start the given episodes, with the keys of the first agents."""
        key = jax.vmap(jax.random.fold_in)(env_keys[:: self.num_agents], episode[:: self.num_agents])
        inner, timestep = self._by_agent(*jax.vmap(self._inner.reset)(key))
        none_is_out = jnp.zeros(timestep.reward.shape, bool)
        return AgentState(inner, none_is_out, timestep.info.get("action_mask")), timestep

    def _step(self, env_states: Any, action: object) -> tuple[Any, TimeStep]:
        inner = jax.tree.map(lambda leaf: leaf[:: self.num_agents], env_states.inner)
        inner, timestep = self._by_agent(*jax.vmap(self._inner.step)(inner, self._apart(action)))
        timestep = mute(timestep, env_states.is_out)
        is_out = env_states.is_out | timestep.done
        action_mask = timestep.info.get("action_mask")
        if action_mask is not None:
            action_mask = action_mask | is_out[:, None]  # of an agent that waits, so that a distribution exists
        return AgentState(inner, is_out, action_mask), timestep

    def _restart(
        self, state: VectorState, observation: object, info: object, mask: jax.Array
    ) -> tuple[VectorState, object, object]:
        """Restart the environments all of whose agents are out, and let the other agents that are out wait."""
        is_out = state.env_states.is_out
        is_over = jnp.all(self._apart(is_out), axis=1)
        episode = state.episode + jnp.repeat(is_over, self.num_agents)

        def start(_: object, per_env: Any) -> Any:
            keys, episodes = (leaf.reshape(-1) for leaf in per_env)
            env_states, timestep = self._start(self.env, keys, episodes)
            return self._apart((env_states, timestep.observation, timestep.info))

        waiting = where(is_out, jax.tree.map(jnp.zeros_like, observation), observation)
        current = self._apart((state.env_states, waiting, info))
        replaced = replace_where(start, is_over, current, self.env, self._apart((state.env_keys, episode)))
        env_states, observation, info = join_axes(replaced)
        state = state.replace(
            env_states=env_states,
            episode=episode,
            episode_return=jnp.where(mask, 0, state.episode_return),
            episode_length=jnp.where(mask, 0, state.episode_length),
            done=jnp.zeros_like(mask),
        )
        return state, observation, info

    def _apart(self, tree: object) -> Any:
        """Split the axis of agents: (num_envs, ...) to (environments, num_agents, ...)."""
        num = self.num_agents
        return jax.tree.map(lambda leaf: leaf.reshape(len(leaf) // num, num, *leaf.shape[1:]), tree)

    def _by_agent(self, inner: Any, timestep: TimeStep) -> tuple[Any, TimeStep]:
        """Give every agent its environment's state, and its own part of the TimeStep."""
        inner = jax.tree.map(lambda leaf: jnp.repeat(leaf, self.num_agents, axis=0), inner)
        return inner, join_axes(timestep)


def vectorize(env: Environment[Any], num_envs: int) -> VectorEnv:
    """Return a VectorEnv of `num_envs` copies of an environment, with every agent as a sub-environment."""
    num_agents = num_agents_of(env)
    return VectorEnv(env, num_envs) if num_agents is None else Agents(env, num_envs * num_agents)


def shared_spaces(
    observation_spaces: Mapping[str, gymnasium.Space[object]], action_spaces: Mapping[str, gymnasium.Space[object]]
) -> tuple[gymnasium.Space[object], gymnasium.Space[object]]:
    """Return the observation and the action space that all agents have, from the spaces of each.

    Raises:
      ValueError: agents have different spaces, so that they cannot share one policy.
    """
    for kind, spaces in (("observation_space", observation_spaces), ("action_space", action_spaces)):
        (first, expected), *others = spaces.items()
        if different := [agent for agent, space in others if space != expected]:
            raise ValueError(
                f"All agents must have one {kind} to share a policy, but {first} has {expected} and {different[0]} has "
                f"{spaces[different[0]]}."
            )
    return next(iter(observation_spaces.values())), next(iter(action_spaces.values()))


def _require_agents(env: Environment[Any], num_agents: int) -> TimeStep:
    """Return `jax.ShapeDtypeStruct`s of the TimeSteps of an environment of several agents, or raise.

    Raises:
      ValueError: a leaf lacks the axis of the agents.
    """
    timestep: TimeStep = jax.eval_shape(env.reset, jax.eval_shape(lambda: jax.random.key(0)))[1]
    for path, leaf in jax.tree_util.tree_leaves_with_path(timestep):
        if leaf.shape[:1] != (num_agents,):
            raise ValueError(
                f"The timestep{jax.tree_util.keystr(path)} of {type(env).__name__} must have the leading axis "
                f"num_agents = {num_agents}, got {shown(leaf)}."
            )
    return timestep
