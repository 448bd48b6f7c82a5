"""Where a training is, and what on-policy and off-policy trainings have in common."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Self

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from jaxenvs.environment import struct
from jaxenvs.learn import devices
from jaxenvs.learn.devices import psum
from jaxenvs.learn.interfaces import Observation
from jaxenvs.learn.learner_state import LearnerState
from jaxenvs.learn.normalization import Normalizer
from jaxenvs.vector import VectorEnv, VectorTimeStep

if TYPE_CHECKING:
    from jaxenvs.learn.training import Training


@struct
class CollectorState:
    """Where collecting goes on from.

    Attributes:
      env_state: the state of the environments, as the `step` of `collect` takes it.
      observation: what the policy acts on next.
    """

    env_state: Any
    observation: Observation


@struct
class TrainingState:
    """Where a training is: all that its next iteration depends on. Saved by `jaxenvs.arrays.to_arrays`.

    Attributes:
      learner: the parameters, their optimizers' states, and target networks.
      collector: the state of the environments and, in `env_state[1]`, the Normalizer, if any.
      key: of the iterations to come.
      iteration: int32, how many there were.
    """

    learner: LearnerState
    collector: CollectorState
    key: jax.Array
    iteration: jax.Array

    @property
    def normalizer(self) -> Normalizer | None:
        """The normalisation with which the parameters belong, if any."""
        normalizer: Normalizer | None = self.collector.env_state[1]
        return normalizer

    def layout(self, lanes: Any, same: Any) -> Self:
        """See Divisible."""
        normalizer = None if self.normalizer is None else self.normalizer.layout(lanes, same)
        collector = CollectorState((lanes, normalizer), lanes)
        return dataclasses.replace(self, learner=same, collector=collector, key=same, iteration=same)

    def divided(self, num_devices: int) -> Self:
        """What there is one of on each device once for each of them."""
        return self

    def whole(self) -> Self:
        """The other way round, of arrays on the host."""
        return self

    def of_one_device(self, mesh: Mesh | None = None) -> Self:
        """See Divisible."""
        return self

    def of_all_devices(self) -> Self:
        """The other way round."""
        return self


def place(state: Any, mesh: Any) -> Any:
    """A state on the devices of a mesh, for `advance` to go on from. All processes call it, with the same state.

    Args:
      state: one that `gather` gave, or of a training without a mesh; it is not changed, and shares no memory.
      mesh: as for `advance`; None: the state as it is.
    """
    if mesh is None:
        return state
    mesh = devices.require_mesh(mesh)
    state = state.divided(mesh.size)
    return devices.place(state, state.layout(*devices.layouts(mesh)), mesh)


def gather(state: Any) -> Any:
    """A state as a training without a mesh has it, in the memory of each host: for `jaxenvs.arrays.to_arrays`, and to
    go on with elsewhere. All processes call it.

    Args:
      state: of a Training over a mesh, or of one without.
    """
    return devices.gather(state).whole()


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


def normalized_step(venv: VectorEnv, axis_name: str | None = None) -> Any:
    """A step of the environments and of the normalisation around them, if any; besides, what the environments gave."""

    def step(state: tuple[Any, Normalizer | None], action: Any) -> tuple[Any, VectorTimeStep, VectorTimeStep]:
        env_state, normalizer = state
        env_state, raw = venv.step(env_state, action)
        if normalizer is None:
            return (env_state, None), raw, raw
        normalizer, timestep = normalizer.step(raw, axis_name)
        return (env_state, normalizer), timestep, raw

    return step


def episodes(timestep: VectorTimeStep, axis_name: str | None = None) -> dict[str, jax.Array]:
    """How many episodes ended, of all devices, and their means, which are 0 if none did."""
    done = timestep.done
    count = psum(done.sum(), axis_name)
    return {
        "episodes": count,
        "episode_return": psum(jnp.where(done, timestep.episode_return, 0).sum(), axis_name) / jnp.maximum(count, 1),
        "episode_length": psum(jnp.where(done, timestep.episode_length, 0).sum(), axis_name) / jnp.maximum(count, 1),
    }
