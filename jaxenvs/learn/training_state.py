"""Where a training is, and what on-policy and off-policy trainings have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from jaxenvs.environment import struct
from jaxenvs.learn.normalization import Normalizer
from jaxenvs.learn.rollout import CollectorState
from jaxenvs.vector import VectorEnv, VectorTimeStep

if TYPE_CHECKING:
    from jaxenvs.learn.training import Training


@struct
class TrainingState:
    """Where a training is: all that its next iteration depends on. Saved by `jaxenvs.arrays.to_arrays`.

    Attributes:
      learner: the parameters, and their optimiser's state.
      collector: the state of the environments and, in `env_state[1]`, the Normalizer, if any.
      key: of the iterations to come.
      iteration: int32, how many there were.
    """

    learner: Any
    collector: CollectorState
    key: jax.Array
    iteration: jax.Array

    @property
    def normalizer(self) -> Normalizer | None:
        """The normalisation with which the parameters belong, if any."""
        normalizer: Normalizer | None = self.collector.env_state[1]
        return normalizer


def start(training: Training, key: jax.Array, params: Any = None) -> tuple[Any, CollectorState, jax.Array]:
    """Parameters, environments after a reset with what they show, as it is, and the key of what follows."""
    init_key, reset_key, key = jax.random.split(key, 3)
    params = training.network.init(init_key) if params is None else params
    env_state, timestep = training.venv.reset(reset_key)
    observation, normalizer = timestep.observation, None
    if training.normalize:
        gamma = training.algorithm.gamma
        normalizer = Normalizer.create(observation, training.venv.num_envs, gamma=gamma)
        normalizer = normalizer.update(observation).merge()
    return params, CollectorState((env_state, normalizer), observation), key


def normalized_step(venv: VectorEnv) -> Any:
    """A step of the environments and of the normalisation around them, if any; besides, what the environments gave."""

    def step(state: tuple[Any, Normalizer | None], action: Any) -> tuple[Any, VectorTimeStep, VectorTimeStep]:
        env_state, normalizer = state
        env_state, raw = venv.step(env_state, action)
        if normalizer is None:
            return (env_state, None), raw, raw
        normalizer, timestep = normalizer.step(raw)
        return (env_state, normalizer), timestep, raw

    return step


def episodes(timestep: VectorTimeStep) -> dict[str, jax.Array]:
    """How many episodes ended, and their means, which are 0 if none did."""
    done = timestep.done
    count = done.sum()
    return {
        "episodes": count,
        "episode_return": jnp.where(done, timestep.episode_return, 0).sum() / jnp.maximum(count, 1),
        "episode_length": jnp.where(done, timestep.episode_length, 0).sum() / jnp.maximum(count, 1),
    }
