"""SB3 and sb3-contrib on PettingZoo's environments, in the environment of several_agents-requirements.txt.

It answers commands as `worker` does:

    {"do": "begin", "what": "connect_four", "settings": {...}, "num_envs": 64}  ->  {"versions": {...}}
    {"do": "run", "steps": 8192, "threads": 1}  ->  {"cpu_seconds": 12.3}
"""

from __future__ import annotations

import importlib.metadata
import time
from typing import Any

import gymnasium
import numpy as np
import sb3_contrib
import stable_baselines3
import supersuit
import torch
from mpe2 import simple_spread_v3
from pettingzoo.classic import connect_four_v3
from stable_baselines3.common.vec_env import DummyVecEnv

from benchmarks.peers.worker import answer

PACKAGES = ("pettingzoo", "mpe2", "supersuit", "stable-baselines3", "sb3-contrib", "torch")


class ConnectFour(gymnasium.Env[Any, Any]):
    """PettingZoo's connect four for SB3: a Gymnasium wrapper in which another model makes the opponent's moves."""

    observation_space = gymnasium.spaces.Box(0, 1, (6, 7, 2), np.int8)
    action_space = gymnasium.spaces.Discrete(7)

    def __init__(self) -> None:
        self.game = connect_four_v3.env()
        self.opponent: Any = None

    def action_masks(self) -> np.ndarray:
        """Return which columns are not full."""
        return np.asarray(self.game.observe(self.game.agent_selection)["action_mask"], bool)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.game.reset(seed=seed)
        self.seat = self.game.possible_agents[int(self.np_random.integers(2))]
        self._opponent_moves()
        return self._observation(), {}

    def step(self, action: Any) -> Any:
        self.game.step(int(action))
        self._opponent_moves()
        return self._observation(), self.game.rewards[self.seat], any(self.game.terminations.values()), False, {}

    def _opponent_moves(self) -> None:
        if self.game.agent_selection == self.seat or any(self.game.terminations.values()):
            return
        masks = self.action_masks()
        if self.opponent is None:
            self.game.step(int(self.np_random.choice(np.flatnonzero(masks))))
        else:
            self.game.step(int(self.opponent.predict(self._observation(), action_masks=masks)[0]))

    def _observation(self) -> np.ndarray:
        return np.asarray(self.game.observe(self.game.agent_selection)["observation"])


def connect_four(num_envs: int, settings: dict[str, Any]) -> Any:
    """Make sb3-contrib's MaskablePPO, whose opponent is a policy of the same architecture."""
    env = DummyVecEnv([ConnectFour] * num_envs)
    model = sb3_contrib.MaskablePPO("MlpPolicy", env, seed=0, device="cpu", **settings)
    opponent = sb3_contrib.MaskablePPO("MlpPolicy", DummyVecEnv([ConnectFour]), device="cpu")
    env.set_attr("opponent", opponent)
    return model


def simple_spread(num_envs: int, settings: dict[str, Any]) -> Any:
    """Make SB3's PPO whose sub-environments are SuperSuit's: all agents of all environments."""
    env = supersuit.pettingzoo_env_to_vec_env_v1(simple_spread_v3.parallel_env())
    env = supersuit.concat_vec_envs_v1(env, num_envs, num_cpus=1, base_class="stable_baselines3")
    return stable_baselines3.PPO("MlpPolicy", env, device="cpu", **settings)  # SuperSuit's VecEnv takes no seed


def main() -> None:
    models: dict[str, Any] = {}

    def begin(what: str, num_envs: int, settings: dict[str, Any]) -> dict[str, Any]:
        makers = {"connect_four": connect_four, "simple_spread": simple_spread}
        models["now"] = makers[what](num_envs, settings)
        return {"versions": {package: importlib.metadata.version(package) for package in PACKAGES}}

    def run(steps: int, threads: int) -> dict[str, Any]:
        torch.set_num_threads(threads)
        start = time.process_time()
        models["now"].learn(steps, reset_num_timesteps=False)
        return {"cpu_seconds": time.process_time() - start}

    answer({"begin": begin, "run": run})


if __name__ == "__main__":
    main()
