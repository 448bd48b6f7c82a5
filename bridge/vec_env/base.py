"""BatchedVecEnv: the base class of VecEnvs that step all environments at once."""

from __future__ import annotations

from collections.abc import Sequence

from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices

from bridge.sb3 import WrapperClass
from bridge.vec_env.argument_checks import env_indices_of
from jaxenvs.arguments import instance
from jaxenvs.arguments import seed as as_seed

# A frame with more pictures would be unreadable, and a video of it gigabytes large.
MAX_IMAGES = 16


class BatchedVecEnv(VecEnv):
    """Base class of VecEnvs that step all environments at once, without Gymnasium wrappers around each of them.

    The infos of ended episodes have `episode`, as if each environment were wrapped in a Monitor.

    Attributes:
      default_callback: the class of a callback that `learn` of compiled algorithms adds if it is given none of it.
    """

    default_callback: type[BaseCallback] | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__}, num_envs={self.num_envs}>"

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        """Seed environment i with `seed + i` at the next reset; if None, NumPy's global generator draws the seed.

        Raises:
          ValueError: `seed` is not an int, or is negative.
        """
        return super().seed(None if seed is None else as_seed("seed", seed))

    def env_is_wrapped(self, wrapper_class: WrapperClass, indices: VecEnvIndices = None) -> list[bool]:
        """Return True for Monitor and False for other classes: the infos of ended episodes have Monitor's `episode`."""
        instance("wrapper_class", wrapper_class, type, "a class")
        return [issubclass(wrapper_class, Monitor) for _ in env_indices_of(indices, self.num_envs)]
