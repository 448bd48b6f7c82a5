"""record_episodes: whole episodes of a policy as arrays, to learn from."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from bridge.algorithms.common.compiled_algorithm import CompiledAlgorithm
from bridge.contrib import is_maskable
from jaxenvs import arguments


def record_episodes(
    model: BaseAlgorithm, env: object, n_episodes: int, *, deterministic: bool = True
) -> dict[str, np.ndarray | dict[str, np.ndarray]]:
    """Run whole episodes of a model, and return what it saw and did, for `pretrain`.

    Args:
      model: of jaxenvs.sb3, Stable-Baselines3 or sb3-contrib. If it trains in a VecNormalize, it sees observations that
        are normalized with the statistics of that; what is returned is not normalized.
      env: an id, an Environment, a Gymnasium environment or a VecEnv. All start at once, and each runs its part of the
        episodes, so that long ones are not missing. The statistics of a VecNormalize do not change.
      n_episodes: how many.
      deterministic: whether to take the most likely actions.

    Returns:
      `observations` (a dict of arrays for a Dict space), `actions`, `rewards`, `terminations` and `truncations`, each
        with one row for each step, and `episode`, the number of the step's episode. The steps of an episode follow one
        another.
    """
    n_episodes = arguments.positive_int("n_episodes", n_episodes)
    venv = CompiledAlgorithm._wrap_env(env)
    if not isinstance(venv, VecNormalize):
        return _record(model, venv, n_episodes, deterministic)
    training, venv.training = venv.training, False
    try:
        return _record(model, venv, n_episodes, deterministic)
    finally:
        venv.training = training


def _record(model: BaseAlgorithm, venv: VecEnv, n_episodes: int, deterministic: bool) -> dict[str, Any]:
    normalize = None if isinstance(venv, VecNormalize) else model.get_vec_normalize_env()
    left = [(n_episodes + index) // venv.num_envs for index in range(venv.num_envs)]
    running: list[list[tuple[object, ...]]] = [[] for _ in left]
    episodes: list[list[tuple[object, ...]]] = []
    observation: Any = venv.reset()
    state, starts = None, np.ones(venv.num_envs, bool)
    while any(left):
        original: object = venv.get_original_obs() if isinstance(venv, VecNormalize) else observation
        seen = observation if normalize is None else normalize.normalize_obs(observation)
        action, state = model.predict(
            seen, state=state, episode_start=starts, deterministic=deterministic, **_masks(model, venv)
        )
        observation, reward, starts, infos = venv.step(action)
        reward = venv.get_original_reward() if isinstance(venv, VecNormalize) else reward
        for index in np.flatnonzero(left).tolist():
            truncated = bool(starts[index]) and bool(infos[index].get("TimeLimit.truncated", False))
            row = jax.tree.map(lambda leaf, at=index: np.array(leaf[at]), (original, action, reward))
            running[index].append((*row, bool(starts[index]) and not truncated, truncated))
            if starts[index]:
                episodes.append(running[index])
                running[index], left[index] = [], left[index] - 1
    names = ("observations", "actions", "rewards", "terminations", "truncations")
    columns = zip(*(row for episode in episodes for row in episode))
    recorded = {name: jax.tree.map(lambda *leaves: np.stack(leaves), *each) for name, each in zip(names, columns)}
    return recorded | {"episode": np.repeat(np.arange(n_episodes), [*map(len, episodes)])}


def _masks(model: BaseAlgorithm, venv: VecEnv) -> dict[str, np.ndarray]:
    if not is_maskable(model.policy):
        return {}
    from sb3_contrib.common.maskable.utils import get_action_masks

    return {"action_masks": get_action_masks(venv)}
