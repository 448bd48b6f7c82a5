"""DAggerCallback: an expert says what it would have done where the learner went (Ross et al. 2011)."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback

from bridge.imitation.pretraining import pretrain
from bridge.observations import map_parts


class DAggerCallback(BaseCallback):
    """Callback that clones an expert on the states that the learner visits, while the model learns as usual.

    This is DAgger (Ross et al. 2011, https://arxiv.org/abs/1011.0686). After each `every` steps, the expert's actions
    for the observations of the learner's last rollouts join the data, and `pretrain` trains on all of them before the
    next rollout. With a `learning_rate` of 0, the model learns from the expert alone.

    Args:
      expert: a model whose `predict` says what to do.
      data: what to begin with, as for `pretrain`; None for nothing.
      every: steps of all environments together between two times.
      verbose: 1 prints the loss of each time.
      further: arguments of `pretrain`.
    """

    def __init__(
        self,
        expert: BaseAlgorithm,
        data: dict[str, Any] | None = None,
        *,
        every: int = 2048,
        verbose: int = 0,
        **further: Any,
    ) -> None:
        super().__init__(verbose)
        self.expert, self.every, self.further = expert, every, further
        self.parts = [] if data is None else [(data["observations"], data["actions"])]
        self._asked_at = 0
        self._is_due = False

    def _on_training_start(self) -> None:
        self._asked_at = self.num_timesteps

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        steps = (self.num_timesteps - self._asked_at) // self.training_env.num_envs
        if steps * self.training_env.num_envs < self.every:
            return
        self._asked_at, self._is_due = self.num_timesteps, True
        observations = self._visited(steps)
        normalize = self.expert.get_vec_normalize_env()
        seen = observations if normalize is None else normalize.normalize_obs(observations)
        actions, _ = self.expert.predict(seen, deterministic=True)
        self.parts.append((observations, actions))

    def _on_rollout_start(self) -> None:
        if not self._is_due:
            return
        self._is_due = False
        observations, actions = jax.tree.map(lambda *leaves: np.concatenate(leaves), *self.parts)
        model: Any = self.model
        history = pretrain(model, {"observations": observations, "actions": actions}, **self.further)
        self.logger.record("dagger/loss", history["loss"][-1])
        self.logger.record("dagger/rows", len(actions))
        if self.verbose:
            print(f"DAgger: loss {history['loss'][-1]:.3g} on {len(actions)} rows")

    def _visited(self, steps: int) -> Any:
        """Return the observations of the last steps, as many as are in the buffer, before any normalization."""
        model: Any = self.model
        buffer = getattr(model, "replay_buffer", None)
        if buffer is None:
            observations = model.rollout_buffer.observations
            visited = map_parts(lambda part: part.reshape(-1, *part.shape[2:]).copy(), observations)
            normalize = model.get_vec_normalize_env()
            return visited if normalize is None else normalize.unnormalize_obs(visited)
        at = np.arange(buffer.pos - min(steps, buffer.size()), buffer.pos) % buffer.buffer_size
        return map_parts(lambda part: part[at].reshape(-1, *part.shape[2:]), buffer.observations)
