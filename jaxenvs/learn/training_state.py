"""Where a training is, and what on-policy and off-policy trainings have in common."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Self

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from jaxenvs.environment import struct
from jaxenvs.jax_names import setting
from jaxenvs.learn import devices
from jaxenvs.learn.devices import all_gather
from jaxenvs.learn.interfaces import Observation
from jaxenvs.learn.learner_state import LearnerState
from jaxenvs.learn.normalization import Normalizer
from jaxenvs.vector import VectorEnv, VectorTimeStep

if TYPE_CHECKING:
    from jaxenvs.learn.training import Training

# Over how many episodes `episode_return` is a mean: the default of SB3's `stats_window_size`.
WINDOW = 100


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
class RecentEpisodes:
    """The last 100 episodes that ended, as SB3's `ep_info_buffer` holds them: by step, then by environment.

    The environments of all devices count, and every device holds the same episodes.

    Attributes:
      returns, lengths: float and int32 (100,), a ring; 0 where no episode is yet.
      position: int32, where the next episode is written.
      size: int32, how many episodes the ring holds.
    """

    returns: jax.Array
    lengths: jax.Array
    position: jax.Array
    size: jax.Array

    @classmethod
    def none(cls) -> RecentEpisodes:
        """Return the ring before the first episode has ended."""
        # Every leaf is an array of its own, as a state is given away (`donate_argnums`).
        position, size = jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32)
        return cls(jnp.zeros(WINDOW, float), jnp.zeros(WINDOW, jnp.int32), position, size)

    def add(
        self, timestep: VectorTimeStep, axis_name: str | None = None
    ) -> tuple[RecentEpisodes, dict[str, jax.Array]]:
        """Add the episodes that ended in an iteration.

        Args:
          timestep: the steps of the iteration, (num_steps, num_envs).
          axis_name: the devices that train together.

        Returns:
          The next ring, and the metrics of episodes that `jaxenvs.learn.training.advance` describes.
        """
        steps = (timestep.done, timestep.episode_return, timestep.episode_length)
        done, returns, lengths = (leaf.reshape(-1) for leaf in all_gather(steps, 1, axis_name))
        number = jnp.cumsum(done, dtype=jnp.int32)  # of the episodes that have ended up to each step
        count = number[-1]
        # Of more than 100 episodes only the last ones are written, so that no two go to the same place.
        is_kept = done & (number > count - WINDOW)
        place = jnp.where(is_kept, (self.position + number - 1) % WINDOW, WINDOW)
        recent = RecentEpisodes(
            returns=self.returns.at[place].set(returns.astype(self.returns.dtype), mode="drop"),
            lengths=self.lengths.at[place].set(lengths.astype(self.lengths.dtype), mode="drop"),
            position=(self.position + count) % WINDOW,
            size=jnp.minimum(self.size + count, WINDOW),
        )
        return recent, {
            "episodes": count,
            "episode_return": mean_of(recent.returns.sum(), recent.size),
            "episode_length": mean_of(recent.lengths.sum(), recent.size),
            "iteration_episode_return": mean_of(jnp.where(done, returns, 0).sum(), count),
            "iteration_episode_length": mean_of(jnp.where(done, lengths, 0).sum(), count),
        }


def mean_of(total: jax.Array, count: jax.Array) -> jax.Array:
    """Return the mean of so many values from their sum; NaN if there are none, or 0 where JAX refuses NaN."""
    none = 0.0 if setting("jax_debug_nans") else jnp.nan
    return jnp.where(count > 0, total / jnp.maximum(count, 1), none)


@struct
class TrainingState:
    """Where a training is: all that its next iteration depends on. Saved by `jaxenvs.arrays.to_arrays`.

    Attributes:
      learner: the parameters, their optimizers' states, and target networks.
      collector: the state of the environments and, in `env_state[1]`, the Normalizer, if any.
      key: of the iterations to come.
      iteration: int32, how many there were.
      recent: the episodes of which `episode_return` is the mean.
    """

    learner: LearnerState
    collector: CollectorState
    key: jax.Array
    iteration: jax.Array
    recent: RecentEpisodes

    @property
    def normalizer(self) -> Normalizer | None:
        """The normalisation with which the parameters belong, if any."""
        normalizer: Normalizer | None = self.collector.env_state[1]
        return normalizer

    def layout(self, lanes: Any, same: Any) -> Self:
        """See Divisible."""
        normalizer = None if self.normalizer is None else self.normalizer.layout(lanes, same)
        collector = CollectorState((lanes, normalizer), lanes)
        return dataclasses.replace(self, learner=same, collector=collector, key=same, iteration=same, recent=same)

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
