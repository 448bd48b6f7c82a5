"""What is transformed: an episode of each environment, and short trainings; and the settings and transformations."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import checkify
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

import jaxenvs
from jaxenvs import learn
from jaxenvs.envs import SUITES
from tests.masked_environments import Locks

IDS = [spec.id for suite in SUITES for spec in suite.ENVIRONMENTS]
# What is compiled runs a few steps only.
jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
NUM_ENVS, NUM_STEPS, NUM_DEVICES = 16, 3, 2  # from 16 environments on, only those that ended are started
DIVIDED = PartitionSpec("devices")
SMALL = {"train_freq": 3, "batch_size": 8, "learning_starts": 30, "buffer_size": 400, "gradient_steps": 2}
ON_POLICY = {"n_steps": 8, "batch_size": 24, "n_epochs": 2}  # with a smaller last minibatch
SHORT = {"total_timesteps": 128}


@functools.cache
def vector_env(id: str) -> jaxenvs.VectorEnv:
    """Environments whose episodes end within NUM_STEPS."""
    return jaxenvs.VectorEnv(jaxenvs.make(id, max_episode_steps=2), NUM_ENVS)


def actions(id: str) -> jax.Array:
    space: Any = vector_env(id).env.action_space
    return jnp.asarray(np.full((NUM_ENVS, *space.shape), 0.5 if space.dtype.kind == "f" else 1, space.dtype))


@functools.cache
def episode(id: str) -> Any:
    """From a key to the observations and rewards of a rollout."""

    def of_key(key: jax.Array) -> Any:
        action = actions(id)
        _, trajectory = jaxenvs.rollout(vector_env(id), lambda key, observation: action, key, NUM_STEPS)
        return trajectory.timestep.observation, trajectory.timestep.reward

    return of_key


def evaluation(id: str = "CartPole-v1") -> Any:
    """From a key to the Evaluation, and the rollout, of a policy with a state."""

    def policy(key: jax.Array, observation: Any, count: jax.Array, episode_start: jax.Array) -> Any:
        return actions(id), jnp.where(episode_start, 0, count + 1)

    def of_key(key: jax.Array) -> Any:
        venv, start = vector_env(id), jnp.zeros(NUM_ENVS, jnp.int32)
        evaluation = jaxenvs.evaluate(venv, policy, key, policy_state=start)
        (_, count), trajectory = jaxenvs.rollout(venv, policy, key, NUM_STEPS, policy_state=start)
        return evaluation, count, trajectory.timestep.reward

    return of_key


@functools.cache
def trainings() -> dict[str, learn.Training]:
    cartpole, pendulum = jaxenvs.make_vec("CartPole-v1", 8), jaxenvs.make_vec("Pendulum-v1", 8)
    bits, locks = jaxenvs.make_vec("BitFlipping-v0", 8), jaxenvs.VectorEnv(Locks(), 8)
    hidden, q, critics = {"actor": (8,), "critic": (8,)}, learn.DQNPolicy.of, (8,)
    ppo, actor_critic = learn.PPO(**ON_POLICY, target_kl=0.01, clip_range_vf=0.2), learn.ActorCritic.of
    recurrent = functools.partial(learn.RecurrentActorCritic.of, **hidden, lstm_hidden_size=4)
    lambda_returns = learn.PQN(**ON_POLICY, exploration_rate=0.5)
    noisy = learn.TD3(**SMALL, action_noise=learn.OrnsteinUhlenbeckActionNoise(0.0, 0.3))
    quantiles = learn.QRDQNPolicy.of(cartpole.env, critics, n_quantiles=5)
    crossq = learn.CrossQPolicy.of(pendulum.env, critics, warmup_steps=5)
    return {
        "PPO": learn.Training(cartpole, actor_critic(cartpole.env, **hidden), ppo, **SHORT, normalize=True),
        "PPO, Box": learn.Training(
            pendulum, actor_critic(pendulum.env, **hidden), learn.PPO(**ON_POLICY), total_timesteps=64
        ),
        "A2C": learn.Training(cartpole, actor_critic(cartpole.env, **hidden), learn.A2C(), **SHORT),
        "RecurrentPPO": learn.Training(cartpole, recurrent(cartpole.env), learn.RecurrentPPO(**ON_POLICY), **SHORT),
        "PQN": learn.Training(cartpole, learn.PQNNetwork.of(cartpole.env, critics), lambda_returns, **SHORT),
        "MaskablePPO": learn.Training(
            locks, actor_critic(locks.env, **hidden), learn.MaskablePPO(**ON_POLICY), **SHORT
        ),
        "MaskableRecurrentPPO": learn.Training(
            locks, recurrent(locks.env), learn.MaskableRecurrentPPO(**ON_POLICY), **SHORT
        ),
        "DQN": learn.Training(cartpole, q(cartpole.env, critics), learn.DQN(**SMALL), **SHORT),
        "DQN, hindsight": learn.Training(
            bits, q(bits.env, critics), learn.DQN(**SMALL, hindsight=learn.Hindsight()), **SHORT
        ),
        "QRDQN": learn.Training(cartpole, quantiles, learn.QRDQN(**SMALL), **SHORT),
        "SAC": learn.Training(
            pendulum, learn.SACPolicy.of(pendulum.env, critics), learn.SAC(**SMALL), **SHORT, normalize=True
        ),
        "TD3": learn.Training(pendulum, learn.TD3Policy.of(pendulum.env, critics), noisy, **SHORT),
        "DDPG": learn.Training(pendulum, learn.TD3Policy.of(pendulum.env, critics), learn.DDPG(**SMALL), **SHORT),
        "TQC": learn.Training(pendulum, learn.TQCPolicy.of(pendulum.env, critics), learn.TQC(**SMALL), **SHORT),
        "CrossQ": learn.Training(pendulum, crossq, learn.CrossQ(**SMALL), **SHORT),
    }


@functools.cache
def metrics_of(name: str) -> Any:
    """From a key to the metrics of a training."""
    return lambda key: learn.train(key, trainings()[name]).metrics


def key() -> jax.Array:
    return jax.random.key(0)


# --- What JAX checks while it traces, so that no devices are needed ---------------------------------------------------


def divided(tree: Any, kind: AxisType = AxisType.Explicit) -> Any:
    """Shapes of a batch that is divided over devices."""
    sharding = NamedSharding(AbstractMesh((NUM_DEVICES,), ("devices",), axis_types=(kind,)), DIVIDED)
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), tree)


def keys(kind: AxisType = AxisType.Explicit) -> Any:
    return divided(jax.eval_shape(lambda key: jax.random.split(key, NUM_DEVICES), key()), kind)


def trace_vmap(kind: AxisType, function: Any) -> None:
    jax.jit(jax.vmap(function)).trace(keys(kind))


def trace_shard_map(function: Any) -> None:
    def of_device(keys: jax.Array) -> Any:
        return jax.tree.map(lambda leaf: leaf[None], function(keys[0]))

    mesh = AbstractMesh((NUM_DEVICES,), ("devices",), axis_types=(AxisType.Explicit,))
    jax.jit(jax.shard_map(of_device, mesh=mesh, in_specs=DIVIDED, out_specs=DIVIDED)).trace(keys())


def trace_strict(function: Any) -> None:
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        jax.jit(function).trace(key())


def trace_strict_x64(function: Any) -> None:
    with jax.enable_x64(True):
        trace_strict(function)


TRACED = {
    "vmap over an Explicit axis": functools.partial(trace_vmap, AxisType.Explicit),
    "vmap over an Auto axis": functools.partial(trace_vmap, AxisType.Auto),
    "shard_map": trace_shard_map,
    "strict promotion": trace_strict,
    "strict promotion in x64": trace_strict_x64,
}


# --- What only a run shows --------------------------------------------------------------------------------------------


def run_checkify(function: Any) -> Any:
    # Not for NaN: metrics of episodes are NaN until the first episode has ended, and physics would compile for minutes.
    # `debug_nans` looks for it.
    checks = checkify.index_checks | checkify.div_checks
    error, result = jit(checkify.checkify(function, errors=checks))(key())
    error.throw()
    return result


def run_guarded(function: Any) -> Any:
    compiled, given = jit(function), key()
    with jax.transfer_guard("disallow"):
        return jax.block_until_ready(compiled(given))


def run_without_jit(function: Any) -> Any:
    with jax.disable_jit():
        return function(key())


def run_with_debug_nans(function: Any) -> Any:
    with jax.debug_nans(True):  # a training asks for the setting while it is traced, so it must be traced anew
        return jit(lambda key: function(key))(key())


def run_in_x64(function: Any) -> Any:
    with jax.enable_x64(True):
        return jit(function)(key())


def run_remat(function: Any) -> Any:
    return jit(jax.remat(function))(key())


RUN = {
    "checkify": run_checkify,
    "transfer_guard": run_guarded,
    "disable_jit": run_without_jit,
    "debug_nans": run_with_debug_nans,
    "x64": run_in_x64,
    "remat": run_remat,
}


def is_finite(tree: Any) -> bool:
    return all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(tree))
