"""What on-policy algorithms share: collecting rollouts, advantages, and the training loop as one program."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import optax

from jaxenvs.environment import static, struct
from jaxenvs.learn.networks import Network
from jaxenvs.learn.normalization import Normalizer
from jaxenvs.learn.optimization import ADAM, ravel
from jaxenvs.vector import VectorEnv, VectorState, VectorTimeStep, replace_lanes


@struct
class Position:
    """Where collecting goes on from.

    Attributes:
      env_state: the state of the VectorEnv.
      observation: what the policy acts on next, normalised if there is a normalizer.
      normalizer: None, or the running normalisation.
    """

    env_state: VectorState
    observation: Any
    normalizer: Normalizer | None = None


@struct
class Rollout:
    """What an update learns from. Every leaf has the leading axes (n_steps, num_envs).

    Attributes:
      observation, action: what the policy saw and did.
      log_prob, value: what it thought of that.
      reward: normalised if there is a normalizer; where an episode was truncated, with the discounted value of its
        last observation added.
      advantage, returns: as `advantages` gives them.
    """

    observation: Any
    action: jax.Array
    log_prob: jax.Array
    value: jax.Array
    reward: jax.Array
    advantage: jax.Array
    returns: jax.Array


@struct
class LearnerState:
    """Parameters of a network and the state of their optimiser, whose arrays are vectors, as `ravel` orders them."""

    params: Any
    optimizer_state: Any


@struct
class OnPolicy:
    """The settings of an on-policy algorithm: numbers are traced, so that `vmap` sweeps them; the rest is the program.

    Attributes:
      venv: the environments, with auto-reset SAME_STEP; their parameters are traced too.
      network: parameters and observations to a distribution over actions and values.
      optimizer: without a learning rate, on vectors.
      total_timesteps, n_steps: of all environments together; of each in one rollout.
      learning_rate: a float; or, for `train`, an array with one for each iteration.
      gamma, gae_lambda: discount and the lambda of generalized advantage estimation.
      ent_coef, vf_coef: weights of entropy and value loss.
      max_grad_norm: longer gradients are scaled down to it.
      normalize_advantage: to mean 0 and deviation 1, in each batch.
      noise_steps: so many steps use the same noise: 1, but for state-dependent exploration.
      normalize: whether observations and rewards are normalised as by VecNormalize.
    """

    SCHEDULED: ClassVar[tuple[str, ...]] = ("learning_rate",)

    venv: VectorEnv
    network: Network = static()
    optimizer: optax.GradientTransformation = static(default=ADAM)
    total_timesteps: int = static(default=100_000)
    n_steps: int = static(default=2048)
    learning_rate: Any = 3e-4
    gamma: Any = 0.99
    gae_lambda: Any = 0.95
    ent_coef: Any = 0.0
    vf_coef: Any = 0.5
    max_grad_norm: Any = 0.5
    normalize_advantage: bool = static(default=True)
    noise_steps: int = static(default=1)
    normalize: bool = static(default=False)

    @property
    def num_iterations(self) -> int:
        """Rollouts until `total_timesteps` are reached."""
        return -(-self.total_timesteps // (self.n_steps * self.venv.num_envs))

    def replace(self, **changes: Any) -> Self:
        """A copy with some settings changed."""
        return dataclasses.replace(self, **changes)

    def init(self, key: jax.Array, params: Any = None) -> LearnerState:
        """The state before the first update: of new parameters, or of the given ones."""
        params = self.network.init(key) if params is None else params
        return LearnerState(params, self.optimizer.init(ravel(params)[0]))

    def update(self, state: LearnerState, rollout: Rollout, key: jax.Array) -> tuple[LearnerState, dict[str, Any]]:
        """Learn from one rollout. The metrics have SB3's names and meanings."""
        raise NotImplementedError(f"{type(self).__name__} does not define update.")


def start(algorithm: OnPolicy, key: jax.Array) -> Position:
    """The first observations of new environments."""
    env_state, timestep = algorithm.venv.reset(key)
    if not algorithm.normalize:
        return Position(env_state, timestep.observation)
    normalizer = Normalizer.create(timestep.observation, algorithm.venv.num_envs, gamma=algorithm.gamma)
    normalizer = normalizer.see_observation(timestep.observation).settle()
    return Position(env_state, normalizer.normalize_observation(timestep.observation), normalizer)


def collect(
    algorithm: OnPolicy, params: Any, position: Position, key: jax.Array
) -> tuple[Position, Rollout, VectorTimeStep, VectorTimeStep]:
    """Act for `n_steps` steps in every environment.

    Returns:
      Where to go on; the rollout; and the TimeSteps, stacked: as the policy sees them, and as the environments gave
      them. These differ if there is a normalizer. In a jitted function, what you do not use is not computed.
    """
    network, num_envs = algorithm.network, algorithm.venv.num_envs
    noise = _noise(algorithm, params, position.observation, key)

    # The loop only acts, as its kernels are small and their number is what it costs. The rest is computed after it, for
    # all steps at once.
    def act(position: Position, noise: jax.Array) -> tuple[Position, Any]:
        distribution = network.apply(params, position.observation)[0]
        action = distribution.sample(noise)
        env_state, raw = algorithm.venv.step(position.env_state, network.to_env(action))
        normalizer, seen = position.normalizer, raw
        if normalizer is not None:
            normalizer, seen = normalizer.step(raw)
        step = (position.observation, distribution, action, seen, raw)
        return Position(env_state, seen.observation, normalizer), step

    position, (observation, distribution, action, seen, raw) = jax.lax.scan(act, position, noise)
    log_prob = jax.vmap(lambda distribution, action: distribution.log_prob(action))(distribution, action)
    value = network.apply(params, _flatten(observation))[1]
    last_value = network.apply(params, position.observation)[1]
    truncated = raw.truncated & ~raw.terminated
    # Only where an episode was truncated does the value of its last observation matter: as rare as a restart.
    bootstrap = replace_lanes(
        lambda params, final_observation: network.apply(params, final_observation)[1],
        truncated.reshape(-1),
        jnp.zeros_like(value),
        params,
        _flatten(seen.final_observation),
    )
    shape = (algorithm.n_steps, num_envs)
    value, bootstrap = value.reshape(shape), bootstrap.reshape(shape)
    reward = seen.reward.astype(value.dtype) + algorithm.gamma * bootstrap
    advantage = advantages(reward, value, raw.done, last_value, algorithm.gamma, algorithm.gae_lambda)
    rollout = Rollout(observation, action, log_prob, value, reward, advantage, advantage + value)
    return position, rollout, seen, raw


def advantages(
    reward: jax.Array, value: jax.Array, done: jax.Array, last_value: jax.Array, gamma: Any, gae_lambda: Any
) -> jax.Array:
    """Generalized advantage estimation (Schulman et al. 2016, https://arxiv.org/abs/1506.02438).

    Args:
      reward, value, done: (n_steps, num_envs). The reward of a truncated step must hold the value of what would have
        followed; beyond an end nothing is looked at.
      last_value: (num_envs,), of the observation after the last step.
    """
    going_on = 1 - done.astype(value.dtype)
    next_value = jnp.concatenate([value[1:], last_value[None]])
    delta = reward + gamma * next_value * going_on - value

    def accumulate(following: jax.Array, step: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        delta, decay = step
        advantage = delta + decay * following
        return advantage, advantage

    decay = gamma * gae_lambda * going_on
    return jax.lax.scan(accumulate, jnp.zeros_like(last_value), (delta, decay), reverse=True, unroll=8)[1]


def explained_variance(rollout: Rollout) -> jax.Array:
    """The share of the returns' variance that the values foretold; NaN if the returns do not vary."""
    variance = jnp.var(rollout.returns)
    return jnp.where(variance == 0, jnp.nan, 1 - jnp.var(rollout.returns - rollout.value) / variance)


@struct
class Result:
    """What a training gave.

    Attributes:
      state: the trained parameters, `state.params`, and their optimiser's state.
      normalizer: None, or the normalisation with which the parameters belong.
      metrics: each with the leading axis `num_iterations`: those of the algorithm's update, and of the rollouts
        `timesteps` so far, `episodes` that ended, their mean `episode_return` and `episode_length` (NaN if none did).
    """

    state: LearnerState
    normalizer: Normalizer | None
    metrics: dict[str, jax.Array]


def train(key: jax.Array, algorithm: OnPolicy, params: Any = None) -> Result:
    """A whole training as one pure function: jit it, or `vmap` it over keys, settings and parameters of environments.

    Args:
      key: a typed key. Everything depends on it.
      algorithm: what to train; the arrays among its schedules have one value for each iteration.
      params: of the network, to start from. If not given, new ones.
    """
    init_key, reset_key, key = jax.random.split(key, 3)
    state, position = algorithm.init(init_key, params), start(algorithm, reset_key)

    def iterate(carry: Any, iteration: jax.Array) -> tuple[Any, dict[str, Any]]:
        state, position, key = carry
        key, collect_key, update_key = jax.random.split(key, 3)
        now = _at(algorithm, iteration)
        position, rollout, _, timestep = collect(now, state.params, position, collect_key)
        if position.normalizer is not None:
            position = dataclasses.replace(position, normalizer=position.normalizer.settle())
        state, metrics = now.update(state, rollout, update_key)
        return (state, position, key), metrics | _episodes(timestep)

    iterations = jnp.arange(algorithm.num_iterations)
    (state, position, _), metrics = jax.lax.scan(iterate, (state, position, key), iterations)
    metrics["timesteps"] = (iterations + 1) * (algorithm.n_steps * algorithm.venv.num_envs)
    return Result(state, position.normalizer, metrics)


def _at(algorithm: OnPolicy, iteration: jax.Array) -> OnPolicy:
    """The settings of one iteration."""
    values = {name: getattr(algorithm, name) for name in algorithm.SCHEDULED}
    return algorithm.replace(**{name: v[iteration] for name, v in values.items() if v is not None and jnp.ndim(v) == 1})


def _episodes(timestep: VectorTimeStep) -> dict[str, jax.Array]:
    done = timestep.done
    episodes = done.sum()
    # 0 / 0 is the NaN that is promised where none ended.
    return {
        "episodes": episodes,
        "episode_return": jnp.where(done, timestep.episode_return, 0).sum() / episodes,
        "episode_length": jnp.where(done, timestep.episode_length, 0).sum() / episodes,
    }


def _noise(algorithm: OnPolicy, params: Any, observation: Any, key: jax.Array) -> jax.Array:
    """The noise of every step of a rollout, in one draw."""
    distribution, _ = jax.eval_shape(algorithm.network.apply, params, observation)
    noise: jax.Array = distribution.noise(key, -(-algorithm.n_steps // algorithm.noise_steps))
    return noise if algorithm.noise_steps == 1 else noise[jnp.arange(algorithm.n_steps) // algorithm.noise_steps]


def _flatten(tree: Any) -> Any:
    """(n_steps, num_envs, ...) as (n_steps * num_envs, ...)."""
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), tree)
