"""Collected rollouts: advantages against SB3's RolloutBuffer, and where the values in them come from."""

import jax
import jax.numpy as jnp
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer

import jaxenvs
from jaxenvs.learn import PPO, ActorCritic, advantages, collect, start


def test_advantages_are_those_of_sb3s_buffer():
    steps, envs, gamma, gae_lambda = 13, 5, 0.97, 0.9
    rng = np.random.default_rng(0)
    reward, value = rng.normal(size=(2, steps, envs)).astype(np.float32)
    done, last_value = rng.random((steps, envs)) < 0.3, rng.normal(size=envs).astype(np.float32)
    buffer = RolloutBuffer(
        steps, spaces.Box(-1, 1, (1,)), spaces.Discrete(2), "cpu", gae_lambda=gae_lambda, gamma=gamma, n_envs=envs
    )
    buffer.rewards, buffer.values = reward, value
    buffer.episode_starts[1:] = done[:-1]
    buffer.compute_returns_and_advantage(torch.tensor(last_value), done[-1])
    ours = advantages(reward, value, jnp.asarray(done), last_value, gamma, gae_lambda)
    np.testing.assert_allclose(ours, buffer.advantages, rtol=1e-5, atol=1e-5)


def test_a_truncated_step_is_worth_its_last_observation_and_a_terminated_one_is_not():
    # 12 steps are too few for all poles to fall, and enough for some.
    venv = jaxenvs.make_vec("CartPole-v1", 16, max_episode_steps=12)
    algorithm = PPO(venv, ActorCritic.of(venv.env), n_steps=40, gamma=0.9)
    params = algorithm.network.init(jax.random.key(0))
    position = start(algorithm, jax.random.key(1))
    _, rollout, _, timestep = jax.jit(collect)(algorithm, params, position, jax.random.key(2))
    truncated = timestep.truncated & ~timestep.terminated
    assert truncated.any()
    assert timestep.terminated.any()
    _, value = jax.vmap(algorithm.network.apply, in_axes=(None, 0))(params, timestep.final_observation)
    expected = timestep.reward + 0.9 * jnp.where(truncated, value, 0)
    np.testing.assert_allclose(rollout.reward, expected, rtol=1e-5)


def test_a_rollout_holds_what_the_network_thought_of_what_it_did():
    venv = jaxenvs.make_vec("Pendulum-v1", 3)
    algorithm = PPO(venv, ActorCritic.of(venv.env), n_steps=6)
    params = algorithm.network.init(jax.random.key(0))
    position = start(algorithm, jax.random.key(1))
    after, rollout, _, _ = jax.jit(collect)(algorithm, params, position, jax.random.key(2))
    distribution, value = algorithm.network.apply(params, rollout.observation[4])
    np.testing.assert_allclose(rollout.log_prob[4], distribution.log_prob(rollout.action[4]), rtol=1e-5)
    np.testing.assert_allclose(rollout.value[4], value, rtol=1e-5)
    np.testing.assert_array_equal(rollout.observation[0], position.observation)
    assert not np.array_equal(rollout.observation[0], after.observation)
