"""AllLanesVecEnv: what the VecEnvs have in common that step all lanes at once, as one environment of many lanes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices

from bridge.vec_env.argument_checks import lanes_of
from jaxenvs.arguments import instance
from jaxenvs.arguments import seed as as_seed

# More pictures than this would make a frame nobody can see anything in, and a video of gigabytes.
MAX_IMAGES = 16


class AllLanesVecEnv(VecEnv):
    """Lanes without wrappers of their own, whose infos tell of episodes as a Monitor's do."""

    def seed(self, seed: int | None = None) -> Sequence[Any]:
        """Lane i starts from `seed + i` at the next reset; from a seed that NumPy's global generator draws if None.

        Raises:
          ValueError: it is no int, or negative.
        """
        return super().seed(None if seed is None else as_seed("seed", seed))

    def env_is_wrapped(
        self, wrapper_class: type[gymnasium.Wrapper[Any, Any, Any, Any]], indices: VecEnvIndices = None
    ) -> list[bool]:
        """True for Monitor alone, whose `episode` every info of an ended episode has."""
        instance("wrapper_class", wrapper_class, type, "a class")
        return [issubclass(wrapper_class, Monitor) for _ in lanes_of(indices, self.num_envs)]
