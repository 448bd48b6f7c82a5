"""TensorRolloutBuffer: SB3's rollout buffers, with tensors that stay on the device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self

import jax
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.type_aliases import DictRolloutBufferSamples, RolloutBufferSamples
from stable_baselines3.common.vec_env.vec_normalize import VecNormalize


class TensorRolloutBuffer(RolloutBuffer):
    """SB3's RolloutBuffer and DictRolloutBuffer, with tensors on the device where these have NumPy arrays.

    Shapes and dtypes are SB3's, with the leading axes (buffer_size, n_envs); `observations` is a dict of tensors if
    the space is a Dict. From the first `get` on, `values` and `returns` are NumPy arrays on the host, for which SB3's
    algorithms take them after an update. The memory is allocated once: a rollout overwrites the one before.
    """

    observations: Any
    actions: Any
    rewards: Any
    episode_starts: Any
    values: Any
    log_probs: Any
    advantages: Any
    returns: Any

    @classmethod
    def like(cls, buffer: RolloutBuffer) -> Self:
        """An empty one with the settings of another rollout buffer."""
        return cls(
            buffer.buffer_size,
            buffer.observation_space,
            buffer.action_space,
            device=buffer.device,
            gae_lambda=buffer.gae_lambda,
            gamma=buffer.gamma,
            n_envs=buffer.n_envs,
        )

    def reset(self) -> None:
        """Start over with the first step."""
        if not hasattr(self, "_values"):
            self._allocate()
        self.values, self.returns = self._values, self._returns
        self.pos, self.full, self.generator_ready = 0, False, False

    def add(self, obs: Any, action: Any, reward: Any, episode_start: Any, value: Any, log_prob: Any) -> None:
        """Copy one step into the buffer: tensors of any device, or NumPy arrays, with the leading axis `n_envs`."""
        step = (obs, action, reward, episode_start, value, log_prob)
        self.add_steps([jax.tree.map(torch.as_tensor, part)] for part in step)

    def add_steps(self, columns: Iterable[Sequence[Any]]) -> None:
        """Copy some steps into the buffer at once.

        Args:
          columns: the observations of these steps, their actions, and so on in the order of `add`: tensors.
        """
        observations, *columns = columns
        steps = slice(self.pos, self.pos + len(observations))
        if isinstance(self.observations, dict):
            for name, kept in self.observations.items():
                _write(kept[steps], [observation[name] for observation in observations])
        else:
            _write(self.observations[steps], observations)
        kept_columns = (self.actions, self.rewards, self.episode_starts, self.values, self.log_probs)
        for kept, column in zip(kept_columns, columns, strict=True):
            _write(kept[steps], column)
        self.pos = steps.stop
        self.full = self.pos == self.buffer_size

    def compute_returns_and_advantage(self, last_values: Any, dones: Any) -> None:
        """Generalized advantage estimation (Schulman et al. 2016, https://arxiv.org/abs/1506.02438) and its returns.

        Args:
          last_values: (n_envs,) or (n_envs, 1), of the observations after the last step.
          dones: (n_envs,), whether that step ended an episode.
        """
        ended_last = torch.as_tensor(dones).to(self.episode_starts)
        going_on = 1 - torch.cat([self.episode_starts[1:], ended_last.reshape(1, -1)])
        next_values = torch.cat([self.values[1:], last_values.to(self.values).reshape(1, -1)])
        delta = self.rewards + self.gamma * next_values * going_on - self.values
        decay = self.gamma * self.gae_lambda * going_on
        following = torch.zeros_like(delta[0])
        for step in reversed(range(self.buffer_size)):
            following = torch.addcmul(delta[step], decay[step], following, out=self.advantages[step])
        torch.add(self.advantages, self.values, out=self.returns)

    def get(self, batch_size: int | None = None) -> Iterator[Any]:  # type: ignore[override]
        """All samples once, in random order, in batches of `batch_size`; without it, in one.

        NumPy's global generator chooses the order, and it is the order of SB3's buffers.

        Raises:
          RuntimeError: the buffer is not full.
        """
        if not self.full:
            raise RuntimeError(f"get needs a full buffer, got {self.pos} steps of {self.buffer_size}.")
        if not self.generator_ready:
            self._flat = jax.tree.map(
                lambda tensor: tensor.flatten(0, 1),
                (self.observations, self.actions, self.values, self.log_probs, self.advantages, self.returns),
            )
            self.values, self.returns = to_host(self.values), to_host(self.returns)
            self.generator_ready = True
        size = self.buffer_size * self.n_envs
        order = np.random.permutation(size)  # noqa: NPY002
        # SB3 numbers the samples lane by lane; here they lie step by step.
        rows = torch.as_tensor(order % self.buffer_size * self.n_envs + order // self.buffer_size, device=self.device)
        for batch in torch.split(rows, batch_size or size):
            yield self._get_samples(batch)

    def _get_samples(self, batch_inds: Any, env: VecNormalize | None = None) -> Any:
        observations, actions, *rest = jax.tree.map(lambda tensor: tensor.index_select(0, batch_inds), self._flat)
        samples = DictRolloutBufferSamples if isinstance(observations, dict) else RolloutBufferSamples
        return samples(observations, actions.to(torch.float32), *rest)

    def _allocate(self) -> None:
        def zeros(shape: tuple[int, ...] = (), dtype: Any = np.float32) -> torch.Tensor:
            torch_dtype = torch.as_tensor(np.zeros((), dtype)).dtype
            return torch.zeros((self.buffer_size, self.n_envs, *shape), dtype=torch_dtype, device=self.device)

        space = self.observation_space
        if isinstance(space, spaces.Dict):
            self.observations = {name: zeros(self.obs_shape[name], part.dtype) for name, part in space.items()}  # type: ignore[call-overload]
        else:
            self.observations = zeros(self.obs_shape, space.dtype)
        self.actions = zeros((self.action_dim,), self.action_space.dtype)
        self.rewards, self.episode_starts, self.log_probs, self.advantages = (zeros() for _ in range(4))
        self._values, self._returns = zeros(), zeros()


def _write(kept: torch.Tensor, steps: Sequence[torch.Tensor]) -> None:
    kept.copy_(torch.stack(tuple(steps)).reshape(kept.shape))


def to_host(tree: Any) -> Any:
    """Tensors as NumPy arrays of their own."""
    return jax.tree.map(lambda tensor: tensor.cpu().numpy().copy(), tree)
