"""evaluate through wrappers: copies of those of the environments, and the statistics of a training."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest
import stable_baselines3
import torch
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.vec_env import (
    VecCheckNan,
    VecEnvWrapper,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
    VecTransposeImage,
)

from bridge import JaxVecEnv, make_vec_env
from bridge.errors import NotCompilable
from bridge.evaluation import evaluate
from bridge.wrappers import CompiledWrapper, register_wrapper, wrapped_env
from tests.bridge.episodes import Picture, assert_equal, of_sb3, policy_for
from tests.environments import Counter

N = 6

pytestmark = pytest.mark.filterwarnings("ignore:.*already wrapped with a `Monitor`")


class Doubled(VecEnvWrapper):
    """Wrapper that doubles rewards, and writes the number of the step into the first element of observations."""

    def __init__(self, venv):
        super().__init__(venv)
        self.steps, self.resets = np.zeros(venv.num_envs, np.float32), 0

    def reset(self):
        self.steps[:] = 0  # not made anew, and so of as many as there were
        self.resets += 1
        return self._see(self.venv.reset())

    def step_wait(self):
        observation, reward, done, infos = self.venv.step_wait()
        self.steps = np.where(done, 0, self.steps + 1).astype(np.float32)
        return self._see(observation), 2 * reward, done, infos

    def _see(self, observation):
        return np.concatenate([self.steps[:, None], observation[:, 1:]], axis=1)


class CompiledDoubled(CompiledWrapper):
    def state(self):
        return self.wrapper.steps

    @staticmethod
    def step(state, timestep, action):
        state = jnp.where(timestep.done, 0.0, state + 1)
        see = functools.partial(jnp.concatenate, axis=1)
        observation, last = (
            see([state[:, None], each[:, 1:]]) for each in (timestep.observation, timestep.final_observation)
        )
        return state, timestep.replace(observation=observation, final_observation=last, reward=2 * timestep.reward), ()

    def write_back(self, state):
        self.wrapper.steps = np.array(state)


@pytest.fixture
def doubled(monkeypatch):
    monkeypatch.setattr(wrapped_env, "_COMPILED", dict(wrapped_env._COMPILED))
    register_wrapper(Doubled, CompiledDoubled)


def seeing(env):
    """A policy for what an environment shows."""
    torch.manual_seed(2)
    policy = ActorCriticPolicy(env.observation_space, env.action_space, lambda _: 1e-3, net_arch=[8])
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape))
    return policy


WRAPPERS = {
    "stack": lambda env: VecFrameStack(env, 3),
    "stack of normalised": lambda env: VecFrameStack(VecNormalize(env, training=False, clip_obs=0.7), 2),
    "own": Doubled,
    "own in others": lambda env: VecMonitor(VecFrameStack(Doubled(VecCheckNan(env)), 2)),
}


@pytest.mark.thorough(but=["own in others"])
@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_episodes_through_wrappers_are_those_of_evaluate_policy(wrap, doubled):
    env = wrap(make_vec_env("Pendulum-v1", 4, seed=3))
    policy = seeing(env)
    result = evaluate(policy, env, 4, seed=3)
    returns, lengths = of_sb3(policy, env, seed=3)
    np.testing.assert_allclose(result.returns, returns, rtol=1e-3)
    np.testing.assert_array_equal(result.lengths, lengths)


@pytest.mark.thorough
def test_a_vec_monitor_outside_counts_what_wrappers_make_of_rewards(doubled):
    env = Doubled(make_vec_env("Pendulum-v1", 2, seed=3))
    policy = seeing(env)
    plain, monitored = (evaluate(policy, each, 2).returns for each in (env, VecMonitor(env)))
    np.testing.assert_allclose(monitored, 2 * plain, rtol=1e-5)


def test_a_wrapper_of_ones_own_runs_in_copies_of_as_many_environments_and_stays_as_it_is(doubled):
    env = Doubled(make_vec_env("Pendulum-v1", 2, seed=3))
    policy = seeing(env)
    env.reset()
    env.steps[:] = 7.0
    result = evaluate(policy, env, 3, seed=3)
    assert (env.steps.tolist(), env.resets) == ([7.0, 7.0], 1)
    np.testing.assert_allclose(result.returns[2:], evaluate(policy, env, 1, seed=5).returns, rtol=1e-5)


@pytest.mark.thorough
def test_more_episodes_than_environments_run_at_once_in_wrappers_of_sb3():
    env = VecFrameStack(make_vec_env("Pendulum-v1", 1, seed=3), 2)
    policy = seeing(env)
    assert_equal(evaluate(policy, env, 5), evaluate(policy, env, 5, max_envs=2))


@pytest.mark.thorough
@pytest.mark.parametrize("is_transposed_first", [True, False])
def test_the_statistics_of_a_training_go_where_they_were_in_it(is_transposed_first):
    if is_transposed_first:
        env, policy = Picture(), "MlpPolicy"
        trained_in = VecNormalize(VecTransposeImage(JaxVecEnv(env, 2, seed=0)), clip_obs=0.9)
        trained_in.obs_rms.mean[:], trained_in.obs_rms.var[:] = np.arange(2).reshape(2, 1, 1) * 200, 80.0**2
    else:
        env, policy = Counter(observation_kind="boxes", action_kind="box"), "MultiInputPolicy"
        trained_in = VecTransposeImage(VecNormalize(JaxVecEnv(env, 2, seed=0), norm_obs_keys=["vector"]))
        trained_in.venv.obs_rms["vector"].mean[:] = [2.0, 0.5]
    model = stable_baselines3.A2C(policy, trained_in, policy_kwargs={"net_arch": [8]}, seed=0)
    expected = evaluate(model.policy, model.get_env(), N, max_steps=2)
    for other in (env, JaxVecEnv(env, 2), VecTransposeImage(JaxVecEnv(env, 2))):
        assert_equal(evaluate(model, other, N, max_steps=2), expected)


def test_other_wrappers_are_referred_to_evaluate_policy():
    class Unknown(Doubled):
        pass

    with pytest.raises(NotCompilable, match=r"Unknown.*evaluation.evaluate_policy"):
        evaluate(policy_for(Counter()), Unknown(JaxVecEnv(Counter(), 2)), N, max_steps=5)


def test_methods_put_into_an_environment_are_referred_to_evaluate_policy():
    env = VecFrameStack(JaxVecEnv(Counter(), 2), 2)
    env.venv.step_wait = lambda: None
    with pytest.raises(
        NotCompilable, match=r"A method of the JaxVecEnv object was replaced.*evaluation.evaluate_policy"
    ):
        evaluate(seeing(env), env, N, max_steps=5)


# --- Statistics -----------------------------------------------------------------------------------------------------


def normalized_pendulum():
    env = VecNormalize(make_vec_env("Pendulum-v1", N, seed=3), clip_obs=1.5)
    env.reset()
    env.obs_rms.mean[:], env.obs_rms.var[:] = [0.3, -0.2, 1.0], [0.2, 0.1, 9.0]
    return env


def test_the_statistics_of_vec_normalize_are_used_and_stay_as_they_are():
    policy, env = policy_for("Pendulum-v1"), normalized_pendulum()
    before = (env.obs_rms.mean.copy(), env.obs_rms.count, env.ret_rms.count, env.returns.copy())
    result = evaluate(policy, env, N, seed=3)
    after = (env.obs_rms.mean, env.obs_rms.count, env.ret_rms.count, env.returns)
    assert all(np.array_equal(a, b) for a, b in zip(before, after))
    env.training = False
    returns, _ = of_sb3(policy, env, seed=3)  # of the infos, which have them before normalisation
    np.testing.assert_allclose(result.returns, returns, rtol=1e-4)
    assert not np.allclose(result.returns, evaluate(policy, "Pendulum-v1", N, seed=3).returns, rtol=1e-2)


def test_a_model_brings_the_statistics_of_its_own_vec_normalize():
    env = normalized_pendulum()
    model = stable_baselines3.A2C("MlpPolicy", env, policy_kwargs={"net_arch": [8]}, seed=0)
    expected = evaluate(model.policy, env, N)
    assert_equal(evaluate(model, "Pendulum-v1", N), expected)
    assert_equal(evaluate(model, make_vec_env("Pendulum-v1", 2), N), expected)


@pytest.mark.thorough
def test_images_are_transposed_as_sb3_does():
    model = stable_baselines3.A2C("MlpPolicy", JaxVecEnv(Picture(), N, seed=0), policy_kwargs={"net_arch": [8]}, seed=0)
    returns, _ = of_sb3(model, model.get_env(), seed=0)
    for env in (Picture(), model.get_env()):
        np.testing.assert_allclose(evaluate(model, env, N, max_steps=2).returns, returns, rtol=1e-4)
