"""sb3-contrib's MaskablePPO, compiled."""

from __future__ import annotations

from typing import Any, ClassVar, Unpack

import sb3_contrib
from sb3_contrib.common.maskable.buffers import MaskableDictRolloutBuffer, MaskableRolloutBuffer
from sb3_contrib.common.maskable.utils import is_masking_supported
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv

from bridge.algorithms.common.compiled_algorithm import compiled
from bridge.algorithms.common.constructor_arguments import Env, MaskablePPOArguments, Policy
from bridge.algorithms.ppo import CompiledPPO
from jaxenvs import learn


class CompiledMaskablePPO(CompiledPPO):
    """Base class of the compiled MaskablePPO and MaskableRecurrentPPO."""

    MASKS: ClassVar[bool] = True

    def _setup_learn(self, *args: object, use_masking: bool = True, **kwargs: object) -> tuple[int, BaseCallback]:
        self._masks = use_masking
        return super()._setup_learn(*args, **kwargs)

    def _train_until(self, total_timesteps: int, callback: BaseCallback, log_interval: int | None) -> None:
        self._require_masks(self.env)
        super()._train_until(total_timesteps, callback, log_interval)

    def collect_rollouts(
        self, env: VecEnv, callback: BaseCallback, rollout_buffer: Any, n_rollout_steps: int, use_masking: bool = True
    ) -> bool:
        """Collect a rollout as sb3-contrib does, in one compiled function if policy and environments allow it."""
        self._masks = use_masking
        self._require_masks(env)
        return super().collect_rollouts(env, callback, rollout_buffer, n_rollout_steps)

    def _require_masks(self, env: Any) -> None:
        if self._masks and not is_masking_supported(env):
            raise ValueError("Environment does not support action masking. Consider using ActionMasker wrapper")

    def predict(
        self,
        observation: object,
        state: object = None,
        episode_start: object = None,
        deterministic: bool = False,
        action_masks: object = None,
    ) -> tuple[Any, Any]:
        """Return the policy's legal actions for an observation, and the next state, as sb3-contrib's `predict`, but
        compiled.

        For tensors and JAX arrays, the actions have the same type and device.

        Args:
          observation: one observation or a batch, as SB3 takes it; or a tensor or a JAX array, or a dict of these.
          state, episode_start: sb3-contrib's, which only recurrent policies use.
          deterministic: return the most likely legal actions instead of drawing them from PyTorch's generator.
          action_masks: one row for each observation, with 0 for illegal actions. None: all actions are legal.

        Returns:
          The actions, and the next state of a recurrent policy; for other policies, `state` unchanged.

        Raises:
          ValueError: a tensor or a JAX array does not have the shape of the observations.
        """
        return self._predict(observation, state, episode_start, deterministic, action_masks=action_masks)


@compiled
class MaskablePPO(CompiledMaskablePPO, sb3_contrib.MaskablePPO):
    """PPO that never takes illegal actions: `sb3_contrib.MaskablePPO`, compiled, with the same arguments and `engine`.

    Use it for Discrete, MultiDiscrete and MultiBinary actions when the environment reports which actions are legal in a
    state, as board games do.
    """

    ROLLOUT_BUFFERS: ClassVar[tuple[type, ...]] = (MaskableRolloutBuffer, MaskableDictRolloutBuffer)
    _algorithm: ClassVar[type[learn.PPO]] = learn.MaskablePPO

    def __init__(
        self, policy: Policy, env: Env, *args: object, engine: str = "auto", **kwargs: Unpack[MaskablePPOArguments]
    ) -> None:
        super().__init__(policy, env, *args, engine=engine, **kwargs)
