"""The running normalisation against SB3's VecNormalize."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from stable_baselines3.common.vec_env import VecNormalize

import bridge
import jaxenvs
from jaxenvs import VectorEnv, VectorTimeStep, learn
from jaxenvs.learn import Normalizer
from tests.environments import Counter

STEPS, ENVS = 30, 4
OBSERVATIONS = np.random.default_rng(0).normal(3, 2, (STEPS + 1, ENVS, 2)).astype(np.float32)
REWARDS = np.random.default_rng(1).normal(1, 5, (STEPS, ENVS)).astype(np.float32)
DONES = np.random.default_rng(2).random((STEPS, ENVS)) < 0.2


def timestep(step):
    return VectorTimeStep(
        observation=jnp.asarray(OBSERVATIONS[step + 1]),
        reward=jnp.asarray(REWARDS[step]),
        terminated=jnp.asarray(DONES[step]),
        truncated=jnp.zeros(ENVS, bool),
        info={},
        final_observation=jnp.asarray(OBSERVATIONS[step + 1] + 1),
        final_info={},
        episode_return=jnp.zeros(ENVS),
        episode_length=jnp.zeros(ENVS, jnp.int32),
    )


@pytest.mark.parametrize("settings", [{}, {"norm_reward": False}, {"gamma": 0.5, "clip_obs": 0.7, "clip_reward": 0.3}])
def test_it_gives_what_vec_normalize_gives(settings):
    reference = VecNormalize(bridge.JaxVecEnv(Counter(), ENVS), **settings)
    reference.venv.reset = lambda: OBSERVATIONS[0]
    ours = {name.replace("clip_obs", "clip_observation"): value for name, value in settings.items()}
    normalizer = Normalizer.create(OBSERVATIONS[0], ENVS, **ours).update(OBSERVATIONS[0]).merge()
    np.testing.assert_allclose(normalizer.normalize_observation(OBSERVATIONS[0]), reference.reset(), rtol=1e-5)
    step_once = jax.jit(lambda normalizer, timestep: normalizer.step(timestep))
    for step in range(STEPS):
        normalizer, seen = step_once(normalizer, timestep(step))
        infos = [{"terminal_observation": last + 1} for last in OBSERVATIONS[step + 1]]
        reference.venv.step_wait = lambda stepped=(OBSERVATIONS[step + 1], REWARDS[step], DONES[step], infos): stepped
        observation, reward, done, infos = reference.step_wait()
        np.testing.assert_allclose(seen.observation, observation, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(seen.reward, reward, rtol=1e-4)
        for index in np.flatnonzero(done):
            expected = infos[index]["terminal_observation"]
            np.testing.assert_allclose(seen.final_observation[index], expected, rtol=1e-4, atol=1e-5)
        if step == STEPS // 2:
            normalizer = normalizer.merge()
    settled = normalizer.merge()
    np.testing.assert_allclose(settled.observation.mean, reference.obs_rms.mean, rtol=1e-5)
    np.testing.assert_allclose(settled.observation.variance, reference.obs_rms.var, rtol=1e-5)
    np.testing.assert_allclose(settled.reward.variance, reference.ret_rms.var, rtol=1e-5)
    np.testing.assert_allclose(settled.discounted_return, reference.returns, rtol=1e-5, atol=1e-6)


def test_statistics_stand_still_outside_training():
    normalizer = Normalizer.create(OBSERVATIONS[0], ENVS, training=False)
    after, seen = normalizer.step(timestep(0))
    np.testing.assert_array_equal(after.observation_seen.count, 0)
    np.testing.assert_allclose(seen.observation, np.clip(OBSERVATIONS[1], -10, 10), rtol=1e-6)


def test_arrays_without_statistics_pass_as_they_are():
    normalizer = Normalizer.create({"a": OBSERVATIONS[0], "b": OBSERVATIONS[0]}, ENVS)
    normalizer = normalizer.replace(
        observation=normalizer.observation | {"b": None}, observation_seen=normalizer.observation_seen | {"b": None}
    )
    seen = normalizer.update({"a": OBSERVATIONS[0], "b": OBSERVATIONS[0]})
    normalized = seen.normalize_observation({"a": OBSERVATIONS[0], "b": OBSERVATIONS[0]})
    np.testing.assert_array_equal(normalized["b"], OBSERVATIONS[0])
    assert abs(normalized["a"].mean()) < 1e-3


def test_observations_that_are_no_floats_are_normalised():
    env = jaxenvs.make("MinAtar/Breakout-v1")  # bools
    network = learn.ActorCritic.of(env, actor=(4,), critic=(4,))
    training = learn.Training(VectorEnv(env, 2), network, learn.A2C(n_steps=4), 8, normalize=True)
    params = jax.jit(learn.train)(jax.random.key(0), training).params
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(params))
