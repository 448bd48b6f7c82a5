"""ParallelVectorEnv: PettingZoo's parallel environments as a gymnasium.vector.VectorEnv of all their agents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from jaxenvs.arguments import shown
from jaxenvs.wrappers.multi_agent.agents import shared_spaces


def is_parallel(env: object) -> bool:
    """Return whether an object is a parallel environment of PettingZoo, which need not be installed."""
    names = ("possible_agents", "observation_space", "action_space", "reset", "step")
    return all(hasattr(env, name) for name in names) and not hasattr(env, "agent_iter")


class ParallelVectorEnv(gymnasium.vector.VectorEnv[Any, Any, np.ndarray]):
    """Vector environment whose sub-environments are the agents of PettingZoo's parallel environments.

    One policy controls all agents. Sub-environment `n * i + j` is agent j of environment i, where n is the number of
    agents. An agent whose episode ends before the others' waits: it observes zeros, and its rewards are 0. When the
    episodes of all agents have ended, the environment is reset in the same step.

    Args:
      make_envs: functions that make one environment each.

    Raises:
      TypeError: one of them makes something else.
      ValueError: agents have different spaces, so that they cannot share one policy.
    """

    def __init__(self, make_envs: list[Callable[[], Any]]) -> None:
        self.games = [make() for make in make_envs]  # not `envs`, which would be one for each sub-environment
        for env in self.games:
            if not is_parallel(env):
                raise TypeError(f"env_id must make a parallel environment of PettingZoo, got {shown(env)}.")
        first = self.games[0]
        self.agents = list(first.possible_agents)
        kinds = first.observation_space, first.action_space
        each = [{agent: kind(agent) for agent in self.agents} for kind in kinds]
        self.single_observation_space, self.single_action_space = shared_spaces(*each)
        self.num_envs = len(self.games) * len(self.agents)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.render_mode = getattr(first, "render_mode", None)
        self.metadata = {**getattr(first, "metadata", {}), "autoreset_mode": AutoresetMode.SAME_STEP}
        zeros = create_empty_array(self.single_observation_space, n=1, fn=np.zeros)
        (self._nothing,) = iterate(batch_space(self.single_observation_space), zeros)
        self._is_out = np.zeros((len(self.games), len(self.agents)), bool)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start all environments: environment i, with the first of its agents' seeds."""
        self._is_out[:] = False
        rows: list[object] = []
        for number, env in enumerate(self.games):
            own_seed = None if seed is None else seed + number * len(self.agents)
            rows.extend(self._first(env, seed=own_seed, options=options))
        return self._batch(rows), {}

    def step(self, actions: object) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Take one step in every environment, with the actions of all agents."""
        each_action = list(iterate(self.action_space, actions))
        rewards = np.zeros(self.num_envs)
        terminated, truncated = np.zeros(self.num_envs, bool), np.zeros(self.num_envs, bool)
        rows: list[object] = []
        finals: list[object] = [None] * self.num_envs
        for number, env in enumerate(self.games):
            first, is_out = number * len(self.agents), self._is_out[number]
            acting = [at for at, agent in enumerate(self.agents) if agent in env.agents and not is_out[at]]
            given = env.step({self.agents[at]: each_action[first + at] for at in acting})
            seen = [self._nothing] * len(self.agents)
            for at in acting:
                agent, index = self.agents[at], first + at
                observation, rewards[index], terminated[index], truncated[index] = (part[agent] for part in given[:4])
                is_out[at] = terminated[index] or truncated[index]
                if is_out[at]:
                    finals[index] = observation
                else:
                    seen[at] = observation
            if is_out.all() or not env.agents:
                is_out[:] = False
                seen = self._first(env)
            rows.extend(seen)
        has_ended = np.array([final is not None for final in finals])
        if not has_ended.any():
            return self._batch(rows), rewards, terminated, truncated, {}
        final_rows = np.empty(self.num_envs, object)
        final_rows[:] = finals
        info = {"final_obs": final_rows, "_final_obs": has_ended}
        return self._batch(rows), rewards, terminated, truncated, info

    def render(self) -> tuple[Any, ...]:
        """Return the picture of each agent's environment."""
        return tuple(picture for env in self.games for picture in [env.render()] * len(self.agents))

    def close_extras(self, **kwargs: object) -> None:
        """Close all environments."""
        for env in self.games:
            env.close()

    def _first(self, env: Any, **arguments: object) -> list[object]:
        observations, _ = env.reset(**arguments)
        return [observations.get(agent, self._nothing) for agent in self.agents]

    def _batch(self, rows: Sequence[object]) -> object:
        out: Any = create_empty_array(self.single_observation_space, n=self.num_envs)
        return concatenate(self.single_observation_space, rows, out)
