"""A whole training as one program: rollouts and updates in turns. It begins, stops, is saved, and goes on."""

from __future__ import annotations

import dataclasses
from typing import Any, Self

import jax
import jax.numpy as jnp
import optax
from gymnasium.vector import AutoresetMode

from jaxenvs import arguments
from jaxenvs.environment import static, struct
from jaxenvs.learn.networks import Network
from jaxenvs.learn.normalization import Normalizer
from jaxenvs.learn.rollout import CollectorState, collect
from jaxenvs.learn.settings import LearnerState, OnPolicySettings
from jaxenvs.vector import VectorEnv, VectorTimeStep


@struct
class Training:
    """An algorithm, the environments it trains on, and for how long.

    Numbers are traced, those of the algorithm and of the environments too, so that `vmap` sweeps them.

    Attributes:
      venv: the environments, with auto-reset SAME_STEP.
      network: parameters and observations to a distribution over actions and values.
      algorithm: the settings, as PPO() or A2C(); the arrays among its schedules have one value for each iteration.
      total_timesteps: of all environments together.
      optimizer: without a learning rate, on vectors. If not given, that of the algorithm.
      normalize: whether observations and rewards are normalised as by SB3's VecNormalize.
    """

    venv: VectorEnv
    network: Network = static()
    algorithm: OnPolicySettings
    total_timesteps: int = static(default=100_000)
    optimizer: optax.GradientTransformation | None = static(default=None)
    normalize: bool = static(default=False)

    @property
    def num_iterations(self) -> int:
        """Rollouts until `total_timesteps` are reached."""
        return -(-self.total_timesteps // (self.algorithm.n_steps * self.venv.num_envs))

    def replace(self, **changes: Any) -> Self:
        """A copy with some attributes changed; those that are none of its own are settings of the algorithm."""
        own = {field.name for field in dataclasses.fields(self)}
        settings = {name: value for name, value in changes.items() if name not in own}
        changes = {name: value for name, value in changes.items() if name in own}
        if settings:
            changes["algorithm"] = changes.get("algorithm", self.algorithm).replace(**settings)
        return dataclasses.replace(self, **changes)

    def check(self) -> None:
        """
        Raises:
          ValueError, TypeError: it cannot be trained like this; the message names the attribute.
        """
        for name, kind in (("venv", VectorEnv), ("algorithm", OnPolicySettings)):
            if not isinstance(getattr(self, name), kind):
                raise TypeError(f"{name} must be a {kind.__name__}, got a {type(getattr(self, name)).__name__}.")
        if not callable(getattr(self.network, "apply", None)):
            got = type(self.network).__name__
            raise TypeError(f"network must be a Network, as learn.ActorCritic, got a {got}.")
        if self.venv.autoreset is not AutoresetMode.SAME_STEP:
            raise ValueError(f"venv must have auto-reset SAME_STEP to be trained on, got {self.venv.autoreset}.")
        arguments.positive_int("total_timesteps", self.total_timesteps)
        self.algorithm.check()
        self.algorithm.check_schedules(self.num_iterations)

    def init(self, key: jax.Array, params: Any = None) -> TrainingState:
        """The state before the first iteration.

        Args:
          key: a typed key. Everything depends on it.
          params: of the network, to start from. If not given, new ones.
        """
        self.check()
        arguments.typed_key("key", key, ())
        init_key, reset_key, key = jax.random.split(key, 3)
        params = self.network.init(init_key) if params is None else params
        env_state, timestep = self.venv.reset(reset_key)
        observation, normalizer = timestep.observation, None
        if self.normalize:
            normalizer = Normalizer.create(observation, self.venv.num_envs, gamma=self.algorithm.gamma)
            normalizer = normalizer.update(observation).merge()
            observation = normalizer.normalize_observation(observation)
        return TrainingState(
            learner=LearnerState.create(params, self.optimizer or self.algorithm.OPTIMIZER),
            collector=CollectorState((env_state, normalizer), observation),
            key=key,
            iteration=jnp.zeros((), jnp.int32),
        )


@struct
class TrainingState:
    """Where a training is: all that its next iteration depends on. Saved by `jaxenvs.arrays.to_arrays`.

    Attributes:
      learner: the parameters, and their optimiser's state.
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


@struct
class Result:
    """What a training gave.

    Attributes:
      state: where it ended: `state.learner.params` are the trained parameters, `state.normalizer` what belongs to them.
      metrics: as `advance` gives them.
    """

    state: TrainingState
    metrics: dict[str, jax.Array]

    @property
    def params(self) -> Any:
        """The trained parameters."""
        return self.state.learner.params


def train(key: jax.Array, training: Training, params: Any = None) -> Result:
    """A whole training as one pure function: jit it, or `vmap` it over keys, settings and parameters of environments.

    Args:
      key: a typed key. Everything depends on it.
      training: what to train, and for how long.
      params: of the network, to start from. If not given, new ones.
    """
    arguments.instance("training", training, Training, "a learn.Training")
    return Result(*advance(training, training.init(key, params), training.num_iterations))


def advance(
    training: Training, state: TrainingState, num_iterations: int
) -> tuple[TrainingState, dict[str, jax.Array]]:
    """Go on for some iterations. Two calls one after the other do what one of their sum does, bit for bit.

    Args:
      state: as `training.init` or the call before gave it.
      num_iterations: how many; static.

    Returns:
      The state, and metrics, each with the leading axis `num_iterations`: those of the algorithm's update, and of the
      rollouts `timesteps` so far, `episodes` that ended, and their mean `episode_return` and `episode_length`, which
      are 0 where `episodes` is.
    """
    arguments.instance("training", training, Training, "a learn.Training")
    arguments.instance("state", state, TrainingState, "a learn.TrainingState, as training.init gives it")
    training.check()
    arguments.non_negative_int("num_iterations", num_iterations)
    optimizer = training.optimizer or training.algorithm.OPTIMIZER
    num_timesteps = training.algorithm.n_steps * training.venv.num_envs

    def iterate(state: TrainingState, _: None) -> tuple[TrainingState, dict[str, Any]]:
        key, collect_key, update_key = jax.random.split(state.key, 3)
        settings = _at(training.algorithm, state.iteration)
        collector, rollout, timestep = collect(
            training.network,
            state.learner.params,
            _step(training.venv),
            state.collector,
            collect_key,
            settings.n_steps,
            gamma=settings.gamma,
            gae_lambda=settings.gae_lambda,
            sde_sample_freq=settings.sde_sample_freq,
        )
        env_state, normalizer = collector.env_state
        if normalizer is not None:
            collector = CollectorState((env_state, normalizer.merge()), collector.observation)
        learner, metrics = settings.update(training.network, optimizer, state.learner, rollout, update_key)
        iteration = state.iteration + 1
        metrics |= _episodes(timestep) | {"timesteps": iteration * num_timesteps}
        return TrainingState(learner, collector, key, iteration), metrics

    return jax.lax.scan(iterate, state, None, num_iterations)


def _step(venv: VectorEnv) -> Any:
    """A step of the environments and of the normalisation around them, if any; besides, what the environments gave."""

    def step(state: tuple[Any, Normalizer | None], action: Any) -> tuple[Any, VectorTimeStep, VectorTimeStep]:
        env_state, normalizer = state
        env_state, raw = venv.step(env_state, action)
        if normalizer is None:
            return (env_state, None), raw, raw
        normalizer, timestep = normalizer.step(raw)
        return (env_state, normalizer), timestep, raw

    return step


def _at(settings: OnPolicySettings, iteration: jax.Array) -> OnPolicySettings:
    """The settings of one iteration."""
    values = {name: getattr(settings, name) for name in settings.SCHEDULED}
    schedules = {name: value for name, value in values.items() if value is not None and jnp.ndim(value) == 1}
    return settings.replace(**{name: jnp.asarray(schedule)[iteration] for name, schedule in schedules.items()})


def _episodes(timestep: VectorTimeStep) -> dict[str, jax.Array]:
    done = timestep.done
    episodes = done.sum()
    count = jnp.maximum(episodes, 1)
    return {
        "episodes": episodes,
        "episode_return": jnp.where(done, timestep.episode_return, 0).sum() / count,
        "episode_length": jnp.where(done, timestep.episode_length, 0).sum() / count,
    }
