"""Draws and arithmetic of the compiled rollout, for SB3's loop on JAX environments.

A callback that needs every step therefore changes no bit of a training.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback

from bridge.engine.lstm_state import read_memory
from bridge.engine.plan import Plan
from bridge.engine.rollout_buffer import read_rollout
from bridge.sb3 import Infos, OnPolicy
from jaxenvs.compilation import compiler_options
from jaxenvs.compilation.default_device import bound, cached_by_device, on_device_of
from jaxenvs.learn import Recalled
from jaxenvs.learn.interfaces import Arrays, Observation, OnPolicyNetwork, unmasked
from jaxenvs.learn.on_policy.collecting import (
    rollout_noise,
    values_are_known_early,
    values_of_steps,
    with_advantages,
)


class OnJax:
    """Draws and arithmetic of the compiled rollout for one rollout of SB3's loop.

    Args:
      algorithm: the model, whose key is the one with which a compiled rollout would begin.
      callback: SB3's loop has written its locals there when an episode ends.

    Attributes:
      step: the number of the step that is being taken.
    """

    @on_device_of("plan")
    def __init__(self, algorithm: OnPolicy, plan: Plan, n_steps: int, callback: BaseCallback) -> None:
        self._algorithm, self._n_steps, self._callback = algorithm, n_steps, callback
        assert plan.params is not None
        self._plan, self._params = plan, plan.params
        # What acted in the first step, as a callback may change it during the rollout.
        self._begun_with: tuple[np.ndarray, float] | None = None
        self._functions = _compiled_functions(plan.network)
        self._noise: np.ndarray | None = None
        self._values = np.full((n_steps, algorithm.n_envs), np.nan, np.float32)
        self.step = -1
        # Of each step in which a time limit ended episodes: the rewards, and the last observations by environment.
        self._truncated: dict[int, tuple[np.ndarray, dict[int, Arrays]]] = {}

    def noise(self) -> Any:
        """Return the noise of this step."""
        if self._noise is None:  # only now, as a checkpoint that is saved as the rollout starts has the key from before
            algorithm = self._algorithm
            key, noise = self._functions[0](
                self._params.read(), self._seen(), algorithm.key, self._n_steps, algorithm._steps_of_same_noise()
            )
            algorithm.key, self._noise = np.array(key), np.asarray(noise)
        return self._noise[self.step]

    def acted(self, values: np.ndarray) -> None:
        """Note the values of this step, to see later whether a callback has changed them, or what computed them."""
        if self._begun_with is None:
            self._begun_with = np.array(self._params.read()), self._algorithm.gamma
        self._values[self.step] = values

    def ended(self, infos: Infos, dones: np.ndarray) -> None:
        """Note where a time limit ended episodes, before SB3's loop adds values of PyTorch to their rewards."""
        last = {
            index: infos[index]["terminal_observation"]
            for index in np.asarray(dones).nonzero()[0].tolist()
            if infos[index].get("TimeLimit.truncated", False)
        }
        if last and "rewards" in self._callback.locals:
            self._truncated[self.step] = np.array(self._callback.locals["rewards"]), last

    def finish(self, buffer: RolloutBuffer) -> None:
        """Compute values, advantages and returns as the compiled rollout does.

        Not if a callback has changed values or what computes them: the values of earlier steps then stay as they were.
        """
        algorithm = self._algorithm
        if values_are_known_early(self._seen()) or not self._is_untouched(buffer):
            return
        rollout = read_rollout(buffer)
        truncated, final = np.zeros(buffer.rewards.shape, bool), rollout.observation
        rewards = np.array(buffer.rewards)
        if self._truncated:
            final = jax.tree.map(np.array, self._after(final))
            seen, _ = unmasked(final)
            seen = seen.observation if isinstance(seen, Recalled) else seen
            for step, (given, last) in self._truncated.items():
                for index, observation in last.items():
                    truncated[step, index], rewards[step, index] = True, given[index]
                    _write(seen, (step, index), observation)
        done = np.concatenate([buffer.episode_starts[1:], np.asarray(algorithm._last_episode_starts)[None]]) > 0
        results = self._functions[1](
            self._params.read(),
            (rollout.observation, rewards, done, truncated, final),
            self._seen(),
            (algorithm.gamma, buffer.gamma, buffer.gae_lambda),
        )
        buffer.values, buffer.rewards, buffer.advantages, buffer.returns = map(np.array, results)

    def _is_untouched(self, buffer: RolloutBuffer) -> bool:
        if self._begun_with is None or not self._plan.acts_as_planned(self._algorithm.policy):
            return False
        params, gamma = self._begun_with
        is_same = gamma == self._algorithm.gamma and np.array_equal(params, self._params.read())
        return is_same and np.array_equal(self._values, buffer.values)

    def _seen(self) -> Observation:
        """Return what the policy sees next."""
        algorithm, memory = self._algorithm, read_memory(self._algorithm)
        seen: Arrays = algorithm._last_obs
        return seen if memory is None else Recalled(seen, memory, np.asarray(algorithm._last_episode_starts, bool))

    def _after(self, observation: Observation) -> Observation:
        """Return the observations of all steps with the recurrent state after each, in which no episode begins."""
        if not isinstance(observation, Recalled):
            return observation
        memory = jax.tree.map(
            lambda leaf, last: np.concatenate([leaf[1:], np.asarray(last)[None]]),
            observation.memory,
            read_memory(self._algorithm),
        )
        return Recalled(observation.observation, memory, np.zeros_like(observation.episode_start))


def _write(batch: object, at: tuple[int, int], observation: object) -> None:
    for part, value in zip(jax.tree.leaves(batch), jax.tree.leaves(observation), strict=True):
        part[at] = np.asarray(value).reshape(part[at].shape)


@cached_by_device
def _compiled_functions(network: OnPolicyNetwork) -> tuple[Callable[..., tuple[jax.Array, ...]], ...]:
    """Return the functions that draw the noise of a rollout, and that evaluate one, as `collect` does."""

    def noise(
        params: jax.Array, observation: Observation, key_data: jax.Array, n_steps: int, sde_sample_freq: int
    ) -> tuple[jax.Array, jax.Array]:
        key, draw = jax.random.split(jax.random.wrap_key_data(key_data))
        drawn = rollout_noise(network, params, observation, draw, n_steps, sde_sample_freq)
        is_key = jnp.issubdtype(drawn.dtype, jax.dtypes.prng_key)
        return jax.random.key_data(key), jax.random.key_data(drawn) if is_key else drawn

    def evaluate(
        params: jax.Array, steps: tuple[Any, ...], last: Observation, discounts: tuple[jax.Array, jax.Array, jax.Array]
    ) -> tuple[jax.Array, ...]:
        observation, reward, done, truncated, final_observation = steps
        value, bootstrap = values_of_steps(network, params, observation, truncated, final_observation)
        return value, *with_advantages(network, params, reward, value, bootstrap, done, last, *discounts)

    jit = functools.partial(jax.jit, compiler_options=compiler_options())
    return bound(jit(noise, static_argnums=(3, 4))), bound(jit(evaluate))
