"""Collected rollouts: advantages against SB3's RolloutBuffer, and where the values in them come from."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer

import jaxenvs
from jaxenvs.learn import ActorCritic, CollectorState, advantages, collect
from jaxenvs.learn.on_policy import collecting
from tests.environments import Counter


def collected(venv, network, n_steps):
    """A rollout in new environments, where it started and ended, and the TimeSteps in it."""
    params = jax.jit(network.init)(jax.random.key(0))
    state, timestep = jax.jit(venv.reset)(jax.random.key(1))
    start = CollectorState(state, timestep.observation)

    def step(state, action):
        state, timestep = venv.step(state, action)
        return state, timestep, timestep

    @jax.jit
    def run(params, start, key):
        return collect(network, params, step, start, key, n_steps, gamma=0.9, gae_lambda=0.95)

    return params, start, *run(params, start, jax.random.key(2))


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


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("large_observation", "most_rows"),
    [(0, 16384), (1024, 16384), (1024, 64)],
    ids=["values in the loop", "values after it", "values in chunks"],
)
def test_a_rollout_holds_what_the_network_thought_of_what_it_did(monkeypatch, large_observation, most_rows):
    # 12 steps are too few for all poles to fall, and enough for some.
    venv = jaxenvs.make_vec("CartPole-v1", 16, max_episode_steps=12)
    monkeypatch.setattr(collecting, "LARGE_OBSERVATION", large_observation)
    monkeypatch.setattr(collecting, "MOST_ROWS", most_rows)
    network = ActorCritic.of(venv.env)
    params, before, after, got, timestep = collected(venv, network, n_steps=40)
    distribution, value = network.apply(params, got.observation[4])
    np.testing.assert_allclose(got.log_prob[4], distribution.log_prob(got.action[4]), rtol=1e-5)
    np.testing.assert_allclose(got.value[4], value, rtol=1e-5)
    np.testing.assert_array_equal(got.observation[0], before.observation)
    assert not np.array_equal(got.observation[0], after.observation)
    # A truncated step is also worth its last observation, and a terminated one is not.
    truncated = timestep.truncated & ~timestep.terminated
    assert truncated.any()
    assert timestep.terminated.any()
    _, value = jax.vmap(network.apply, in_axes=(None, 0))(params, timestep.final_observation)
    expected = timestep.reward + 0.9 * jnp.where(truncated, value, 0)
    np.testing.assert_allclose(got.reward, expected, rtol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize(("kind", "dtype"), [("multi_binary", "int8"), ("box", "float32")])
def test_environments_get_actions_in_the_dtype_of_their_space(kind, dtype):
    venv = jaxenvs.VectorEnv(Counter(action_kind=kind), 2)
    dtypes = []
    step = Counter.step

    def spy(env, state, action):
        dtypes.append(action.dtype)
        return step(env, state, action)

    network = ActorCritic.of(venv.env)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Counter, "step", spy)
        params, _, _, got, _ = collected(venv, network, n_steps=2)
    assert set(dtypes) == {jnp.dtype(dtype)}
    distribution, _ = network.apply(params, got.observation[1])
    np.testing.assert_allclose(got.log_prob[1], distribution.log_prob(got.action[1]), rtol=1e-5)
