"""DAggerCallback: an expert says what it would have done where the learner went (Ross et al. 2011)."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, cast

import jax
import numpy as np
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback

from bridge.contrib import is_maskable, is_recurrent
from bridge.imitation.pretraining import pretrain, recorded, rows_of
from bridge.observations import map_parts
from jaxenvs import arguments


class DAggerCallback(BaseCallback):
    """Callback that clones an expert on the states that the learner visits, while the model learns as usual.

    This is DAgger (Ross et al. 2011, https://arxiv.org/abs/1011.0686). After each `every` steps, the expert's actions
    for the observations of the learner's last rollouts join the data, and `pretrain` trains on all of them before the
    next rollout. With a `learning_rate` of 0, the model learns from the expert alone.

    Args:
      expert: a model whose `predict` says what to do. It is not recurrent. If it takes masks of legal actions, the
        learner has to take them too.
      data: what to begin with, as for `pretrain`; None for nothing.
      every: steps of all environments together between two times.
      verbose: 1 prints the loss of each time.
      further: arguments of `pretrain`.
    """

    def __init__(
        self,
        expert: BaseAlgorithm,
        data: ReplayBuffer | Mapping[str, Any] | None = None,
        *,
        every: int = 2048,
        verbose: int = 0,
        **further: Any,
    ) -> None:
        super().__init__(verbose)
        arguments.function("expert.predict", getattr(expert, "predict", None))
        if is_recurrent(policy := getattr(expert, "policy", None)):
            raise ValueError("expert must not be recurrent, as it is asked about steps one by one.")
        inspect.signature(pretrain).bind_partial(None, None, **further)  # raises a TypeError for an unknown name
        self.expert, self.every, self.further = expert, arguments.positive_int("every", every), further
        self.data, self.parts = data, list[tuple[Any, np.ndarray]]()
        self._takes_masks, self._is_due, self._asked_at = is_maskable(policy), False, 0
        self._seen: list[Any] = []

    def _on_training_start(self) -> None:
        self._asked_at = self.num_timesteps
        model: Any = self.model
        if self._takes_masks and not is_maskable(model.policy):
            raise ValueError("expert takes masks of legal actions, so the learner must take them too, as MaskablePPO.")
        if self.data is not None:
            self.parts, self.data = [recorded(model, self.data), *self.parts], None

    def _on_step(self) -> bool:
        self._see()
        return True

    def _see(self) -> None:
        """Keep the next observations, if the rollout buffer will have them only as VecNormalize has changed them."""
        normalize = self.model.get_vec_normalize_env()
        if normalize is not None and not hasattr(self.model, "replay_buffer"):
            self._seen.append(normalize.get_original_obs())

    def _on_rollout_end(self) -> None:
        steps = (self.num_timesteps - self._asked_at) // self.training_env.num_envs
        if steps * self.training_env.num_envs < self.every:
            return
        self._asked_at, self._is_due = self.num_timesteps, True
        observations = self._visited(steps)
        normalize = self.expert.get_vec_normalize_env()
        seen = observations if normalize is None else normalize.normalize_obs(observations)
        model, further = cast(Any, self.model), dict[str, Any]()
        if self._takes_masks:
            masks = model.rollout_buffer.action_masks
            further["action_masks"] = masks.reshape(-1, masks.shape[-1])
        actions, _ = self.expert.predict(seen, deterministic=True, **further)
        self.parts.append((observations, actions))

    def _on_rollout_start(self) -> None:
        self._seen.clear()
        self._see()
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
        if self._seen:
            return map_parts(lambda *steps: np.concatenate(steps), *self._seen[:-1])
        if (buffer := getattr(model, "replay_buffer", None)) is None:
            buffer, at = model.rollout_buffer, np.arange(model.rollout_buffer.buffer_size)
        else:
            at = np.arange(buffer.pos - min(steps, buffer.size()), buffer.pos) % buffer.buffer_size
        return rows_of(buffer, at)
