"""load_pretrained: the trained agents of the repository."""

from __future__ import annotations

import json
from pathlib import Path

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

import jaxenvs
from bridge.algorithms.specs import ALGORITHMS
from bridge.environment_ids import with_arrays
from bridge.factory import make_vec_env
from jaxenvs import arguments

# In a checkout. They are not in the wheel. docs/pretrained.py trains them.
FOLDER = Path(__file__).parents[2] / "docs" / "pretrained"


def load_pretrained(algorithm: str, env_id: str, n_envs: int = 1, seed: int | None = None) -> BaseAlgorithm:
    """Load a trained agent of the repository, with the environments that it was trained for: `model.get_env()`.

    For example: `record(load_pretrained("ppo", "LunarLander-v3"), "lander.mp4")`. docs/pretrained.md lists the agents.

    Args:
      algorithm: as in `jaxenvs train`, such as "ppo".
      env_id: the id of the environment.
      n_envs: the number of environments.
      seed: of the environments.

    Returns:
      A model of the algorithm's class. A VecNormalize around its environments has the statistics of the training, which
      it does not update.

    Raises:
      FileNotFoundError: jaxenvs was not installed from a checkout.
      ValueError: there is no such agent; the message lists those that there are.
    """
    arguments.instance("algorithm", algorithm, str, "a str")
    arguments.instance("env_id", env_id, str, "a str")
    names = pretrained_agents()
    if not names:
        raise FileNotFoundError(
            "Pretrained agents are in docs/pretrained of the repository, and not in the wheel: install jaxenvs from a "
            f"checkout (pip install -e .), or train an agent: jaxenvs train {algorithm} {env_id}."
        )
    if (algorithm, env_id) not in names:
        known = ", ".join(" ".join(name) for name in names)
        raise ValueError(f"There is no pretrained agent {algorithm} {env_id}. There are: {known}.")
    folder = names[algorithm, env_id]
    env: VecEnv = make_vec_env(with_arrays(jaxenvs.make(env_id)), n_envs, seed=seed, backend="jax")
    if (statistics := folder / "vec_normalize.pkl").exists():
        env = VecNormalize.load(str(statistics), env)
        env.training = env.norm_reward = False
    return ALGORITHMS[algorithm].cls.load(folder / "model.zip", env=env)


def pretrained_agents() -> dict[tuple[str, str], Path]:
    """Return the folder of each agent, by algorithm and id: empty unless jaxenvs was installed from a checkout."""
    configs = sorted(FOLDER.glob("*/config.json"))
    read = [(json.loads(path.read_text()), path.parent) for path in configs]
    return {(config["algorithm"], config["env_id"]): folder for config, folder in read}
