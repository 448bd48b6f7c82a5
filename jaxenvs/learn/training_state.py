"""State of a training, and code that on-policy and off-policy trainings share."""

from __future__ import annotations

import dataclasses
from typing import Any, Self, TypeVar

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from jaxenvs.environment import static, struct
from jaxenvs.jax_names import setting
from jaxenvs.learn import devices
from jaxenvs.learn.devices import all_gather
from jaxenvs.learn.interfaces import CollectorState, Step
from jaxenvs.learn.learner_state import LearnerState
from jaxenvs.learn.normalization import Normalizer
from jaxenvs.learn.settings import Settings
from jaxenvs.vector import VectorEnv, VectorTimeStep

# Over how many episodes `episode_return` is a mean: the default of SB3's `stats_window_size`.
WINDOW = 100
S = TypeVar("S", bound="TrainingState")


@struct
class TrainingSetup:
    """The attributes of a `jaxenvs.learn.Training`, which says what they are."""

    venv: VectorEnv
    network: Any = static()
    algorithm: Settings
    total_timesteps: int = static(default=100_000)
    optimizer: optax.GradientTransformation | None = static(default=None)
    normalize: bool = static(default=False)

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some attributes changed; other names are settings of the algorithm."""
        own = {field.name for field in dataclasses.fields(self)}
        settings = {name: value for name, value in changes.items() if name not in own}
        changes = {name: value for name, value in changes.items() if name in own}
        if settings:
            changes["algorithm"] = changes.get("algorithm", self.algorithm).replace(**settings)
        return dataclasses.replace(self, **changes)


@struct
class RecentEpisodes:
    """The last 100 episodes that ended, as SB3's `ep_info_buffer` holds them: by step, then by environment.

    The environments of all devices count, and every device holds the same episodes.

    Attributes:
      returns, lengths: float and int32 (100,), a ring; 0 where there is no episode yet.
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
        # Every leaf is a separate array, because `donate_argnums` may donate the state.
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

        def put(ring: jax.Array, values: jax.Array) -> jax.Array:
            with_spare = jnp.append(ring, jnp.zeros_like(ring[:1]))  # which takes what is not kept
            return with_spare.at[place].set(values.astype(ring.dtype))[:WINDOW]

        recent = RecentEpisodes(
            returns=put(self.returns, returns),
            lengths=put(self.lengths, lengths),
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
    """Return the mean of `count` values from their sum; NaN if there are none, or 0 where JAX refuses NaN."""
    none = 0.0 if setting("jax_debug_nans") else jnp.nan
    return jnp.where(count > 0, total / jnp.maximum(count, 1), none)


@struct
class TrainingState:
    """State of a training: all that its next iteration depends on. Save it with `jaxenvs.arrays.to_arrays`.

    Attributes:
      learner: the parameters, their optimizers' states, and target networks.
      collector: the state of the environments and, in `env_state[1]`, the Normalizer, if any.
      key: a typed key, from which the coming iterations draw.
      iteration: int32, the number of iterations so far.
      recent: the episodes whose mean return is `episode_return`.
    """

    learner: LearnerState
    collector: CollectorState
    key: jax.Array
    iteration: jax.Array
    recent: RecentEpisodes

    @property
    def normalizer(self) -> Normalizer | None:
        """Normalizer that the parameters were trained with, or None."""
        normalizer: Normalizer | None = self.collector.env_state[1]
        return normalizer

    def layout(self, sharded: Any, same: Any) -> Self:
        """Return a prefix of this pytree: environments are divided over devices, all else is the same on each."""
        normalizer = None if self.normalizer is None else self.normalizer.layout(sharded, same)
        collector = CollectorState((sharded, normalizer), sharded)
        return dataclasses.replace(self, learner=same, collector=collector, key=same, iteration=same, recent=same)


def place(state: S, mesh: Mesh | None) -> S:
    """Copy a state to the devices of a mesh, for `advance` to continue. All processes call it, with the same state.

    Args:
      state: as `gather` returned it, or of a training without a mesh; it is not changed, and shares no memory.
      mesh: as for `advance`; None: the state as it is.
    """
    if mesh is None:
        return state
    mesh = devices.require_mesh(mesh)
    return devices.place(state, state.layout(*devices.layouts(mesh)), mesh)


def start(training: TrainingSetup, key: jax.Array, params: Any = None) -> tuple[Any, CollectorState, jax.Array]:
    """Return parameters, the environments after a reset with their unnormalized observation, and the next key."""
    init_key, reset_key, key = jax.random.split(key, 3)
    params = training.network.init(init_key) if params is None else params
    env_state, timestep = training.venv.reset(reset_key)
    observation, normalizer = timestep.observation, None
    if training.normalize:
        gamma = training.algorithm.gamma
        normalizer = Normalizer.create(observation, training.venv.num_envs, gamma=gamma)
        # Arrays, so that the state can be gathered, and restored into a new one.
        normalizer = jax.tree.map(jnp.array, normalizer.update(observation).merge())
    return params, CollectorState((env_state, normalizer), observation), key


def normalized_step(venv: VectorEnv, axis_name: str | None = None) -> Step:
    """Return a step of the environments with their normalizer, if any, whose further output is the raw TimeStep."""

    def step(state: tuple[Any, Normalizer | None], action: jax.Array) -> tuple[Any, VectorTimeStep, VectorTimeStep]:
        env_state, normalizer = state
        env_state, raw = venv.step(env_state, action)
        if normalizer is None:
            return (env_state, None), raw, raw
        normalizer, timestep = normalizer.step(raw, axis_name)
        return (env_state, normalizer), timestep, raw

    return step
