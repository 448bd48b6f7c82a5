"""Acting in environments on the host: a policy as one small program a step, in the place of PyTorch's many calls."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from gymnasium import spaces

from bridge.dlpack import to_jax
from bridge.translate.policies import ExportedPolicy
from jaxenvs.compilation import compiler_options
from jaxenvs.learn.rollout import advantages, draw_noise, in_chunks


class Actor:
    """A policy that acts with its weights where PyTorch keeps them, so that whoever changes these is followed at once.

    Attributes:
      network: the policy as a program.
    """

    def __init__(self, network: ExportedPolicy, parameters: list[torch.nn.Parameter]) -> None:
        self.network = network
        self._parameters = parameters
        self._programs = _programs(network)
        self._addresses: list[int] = []
        self._is_shared = False
        self.refresh()

    def refresh(self) -> None:
        """Look where the weights are. They have moved if somebody gave a parameter another tensor."""
        addresses = [parameter.data_ptr() for parameter in self._parameters]
        if self._is_shared and addresses == self._addresses:
            return
        names = (name for name, _ in self.network.module.parameters)
        self.params = {name: to_jax(parameter) for name, parameter in zip(names, self._parameters, strict=True)}
        self._addresses = addresses
        # On a GPU PyTorch and JAX know of each other's writes only when an array is handed over.
        self._is_shared = jax.default_backend() == "cpu" and addresses == [
            array.unsafe_buffer_pointer() for array in self.params.values()
        ]

    def draw_noise(self, observation: Any, key: np.ndarray, n_steps: int, sde_sample_freq: int) -> tuple[Any, Any]:
        """The noise of so many steps, and the next key, as data."""
        noise, key = self._programs.draw_noise(self.params, observation, key, n_steps, sde_sample_freq)
        return np.asarray(noise), np.array(key)

    def act(self, observation: Any, noise: Any) -> tuple[np.ndarray, np.ndarray]:
        """Actions as the policy samples them, and as the environments take them. Neither is for writing.

        Raises:
          ValueError: what the policy computes is NaN, at which Stable-Baselines3 fails too.
        """
        action, to_env, was_nan = self._programs.act(self.params, observation, noise)
        if was_nan:
            raise ValueError(_NAN)
        return np.asarray(action), np.asarray(to_env)

    def act_and_judge(self, observation: Any, noise: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """As `act`; and the values and the logarithms of the probabilities, each (num_envs,)."""
        *results, was_nan = self._programs.act_and_judge(self.params, observation, noise)
        if was_nan:
            raise ValueError(_NAN)
        action, to_env, value, log_prob = map(np.asarray, results)
        return action, to_env, value, log_prob

    def judge(self, observation: Any, action: Any) -> tuple[np.ndarray, np.ndarray]:
        """Values and logarithms of probabilities of a whole rollout: leading axes (n_steps, num_envs)."""
        value, log_prob = self._programs.judge(self.params, observation, action)
        return np.asarray(value), np.asarray(log_prob)

    def advantages(
        self, reward: Any, value: Any, done: Any, last_observation: Any, gamma: float, gae_lambda: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """Advantages and returns of a whole rollout: leading axes (n_steps, num_envs)."""
        results = self._programs.advantages(self.params, reward, value, done, last_observation, gamma, gae_lambda)
        advantage, returns = map(np.asarray, results)
        return advantage, returns


def as_sb3_gives(action: Any, space: spaces.Space[Any]) -> np.ndarray:
    """A batch of actions for environments, in memory of their own, because environments may write into them.

    Bounds in float64 are kept as such: rounded to float32, they may be outside.
    """
    if isinstance(space, spaces.Box):
        clipped: np.ndarray = np.clip(np.asarray(action), space.low, space.high)
        return clipped
    return np.array(action, np.float32 if isinstance(space, spaces.MultiBinary) else np.int64)


def is_nan(distribution: Any) -> jax.Array:
    """Whether any number of a distribution is NaN, at which Stable-Baselines3 fails; within a program."""
    return jnp.any(jnp.stack([jnp.isnan(leaf).any() for leaf in jax.tree.leaves(distribution)]))


_NAN = "The policy gave a distribution of NaN: its weights, the observation or what it computes from them is NaN."


@functools.lru_cache(maxsize=64)
def _programs(network: ExportedPolicy) -> SimpleNamespace:
    """Of a network each, because to look for it among static arguments would take as long as a step does."""

    def sample(distribution: Any, noise: Any) -> Any:
        return distribution.sample(noise if network.exploration is None else jax.random.wrap_key_data(noise))

    def act(params: Any, observation: Any, noise: Any) -> Any:
        distribution, _ = network.apply(params, observation)
        action = sample(distribution, noise)
        return action, network.to_env(action), is_nan(distribution)

    def act_and_judge(params: Any, observation: Any, noise: Any) -> Any:
        distribution, value = network.apply(params, observation)
        action = sample(distribution, noise)
        return action, network.to_env(action), value, distribution.log_prob(action), is_nan(distribution)

    def judge(params: Any, observation: Any, action: Any) -> Any:
        def rows(inputs: Any) -> Any:
            distribution, value = network.apply(params, inputs[0])
            return value, distribution.log_prob(inputs[1])

        return in_chunks(rows, (observation, action))

    def noise_of(params: Any, observation: Any, key_data: Any, n_steps: int, sde_sample_freq: int) -> Any:
        key, draw = jax.random.split(jax.random.wrap_key_data(key_data))
        noise = draw_noise(network, params, observation, draw, n_steps, sde_sample_freq)  # type: ignore[arg-type]
        return noise if network.exploration is None else jax.random.key_data(noise), jax.random.key_data(key)

    def advantages_of(params: Any, reward: Any, value: Any, done: Any, last: Any, gamma: Any, gae_lambda: Any) -> Any:
        advantage = advantages(reward, value, done, network.apply(params, last)[1], gamma, gae_lambda)
        return advantage, advantage + value

    def jit(program: Any, **options: Any) -> Any:
        return jax.jit(program, compiler_options=compiler_options(), **options)

    return SimpleNamespace(
        act=jit(act),
        act_and_judge=jit(act_and_judge),
        judge=jit(judge),
        draw_noise=jit(noise_of, static_argnums=(3, 4)),
        advantages=jit(advantages_of),
    )
