"""Stock Stable-Baselines3 on JaxVecEnv: algorithms, wrappers, callbacks, pickles, and that it learns."""

import gc
import pickle

import cloudpickle
import numpy as np
import psutil
import pytest
from stable_baselines3 import A2C, DQN, PPO, SAC
from stable_baselines3.common.callbacks import CheckpointCallback, EvalCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import (
    VecVideoRecorder,
)

from bridge import JaxVecEnv, make_vec_env
from tests.bridge.small_models import with_picklable_schedules
from tests.environments import Counter

TINY = {"n_steps": 8, "batch_size": 16, "n_epochs": 1, "seed": 0}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("policy", "observation_kind", "action_kind"),
    [
        ("MlpPolicy", "box", "discrete"),
        ("MlpPolicy", "multi_discrete", "multi_binary"),
        ("MlpPolicy", "multi_binary", "box"),
        ("CnnPolicy", "image", "discrete"),
        ("MultiInputPolicy", "dict", "box"),
    ],
)
def test_ppo_trains_on_every_kind_of_observation_and_action(policy, observation_kind, action_kind):
    env = JaxVecEnv(Counter(length=3, observation_kind=observation_kind, action_kind=action_kind), 2)
    model = PPO(policy, env, **TINY).learn(32)
    assert model.num_timesteps == 32
    assert model.ep_info_buffer[0]["l"] == 3


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("algorithm", "id", "arguments"),
    [
        (A2C, "CartPole-v1", {}),
        (DQN, "CartPole-v1", {"learning_starts": 20}),
        (SAC, "Pendulum-v1", {"learning_starts": 20}),
    ],
)
def test_other_algorithms_train_too(algorithm, id, arguments):
    model = algorithm("MlpPolicy", make_vec_env(id, 2), seed=0, **arguments).learn(60)
    assert model.num_timesteps >= 60


def test_the_replay_buffer_gets_the_final_observation_of_an_episode():
    model = DQN("MlpPolicy", JaxVecEnv(Counter(length=3), 2, 0), learning_starts=100, buffer_size=100).learn(20)
    buffer = model.replay_buffer
    ends = buffer.dones[: buffer.pos].astype(bool)
    np.testing.assert_array_equal(buffer.next_observations[: buffer.pos][ends][:, 0], 3)
    assert ends.sum() >= 4


@pytest.mark.slow
def test_vec_video_recorder_writes_a_video(tmp_path):
    env = VecVideoRecorder(make_vec_env("CartPole-v1", 2, seed=0), str(tmp_path), lambda step: step == 0, 5)
    env.reset()
    for _ in range(7):
        env.step(np.zeros(2, int))
    env.close()
    (video,) = tmp_path.glob("*.mp4")
    assert video.stat().st_size > 1000


def test_evaluate_policy_counts_whole_episodes():
    env = JaxVecEnv(Counter(length=4), 3, 0)
    model = PPO("MlpPolicy", env, **TINY)
    returns, lengths = evaluate_policy(model, env, n_eval_episodes=7, return_episode_rewards=True)
    assert lengths == [4] * 7
    assert len(returns) == 7


def test_callbacks_evaluate_and_save(tmp_path):
    env = make_vec_env("CartPole-v1", 2, seed=0)
    evaluation = EvalCallback(
        make_vec_env("CartPole-v1", 2, seed=1), n_eval_episodes=2, eval_freq=8, log_path=str(tmp_path), verbose=0
    )
    checkpoints = CheckpointCallback(8, str(tmp_path / "checkpoints"))
    PPO("MlpPolicy", env, **TINY).learn(32, callback=[evaluation, checkpoints])
    assert np.load(tmp_path / "evaluations.npz")["timesteps"].tolist() == [16, 32]
    assert len(list((tmp_path / "checkpoints").glob("*.zip"))) == 2


@pytest.mark.parametrize("pickler", [pytest.param(pickle, marks=with_picklable_schedules), cloudpickle])
def test_a_model_that_holds_an_env_can_be_pickled(pickler):
    model = PPO("MlpPolicy", make_vec_env("CartPole-v1", 2, seed=0), **TINY).learn(16)
    copy = pickler.loads(pickler.dumps(model))
    np.testing.assert_array_equal(copy.env.reset(), model.env.reset())
    copy.learn(16, reset_num_timesteps=False)
    assert copy.num_timesteps == 32


def test_the_same_seed_trains_to_the_same_weights():
    def weights():
        model = PPO("MlpPolicy", make_vec_env("CartPole-v1", 2), **TINY).learn(48)
        return [parameter.detach().numpy() for parameter in model.policy.parameters()]

    for a, b in zip(weights(), weights()):
        np.testing.assert_array_equal(a, b)


@pytest.mark.thorough
@pytest.mark.slow
def test_many_steps_do_not_grow_the_memory():
    env = make_vec_env("CartPole-v1", 8, seed=0)
    env.reset()
    actions = np.random.default_rng(0).integers(0, 2, (64, 8))

    def resident_megabytes(steps):
        for step in range(steps):
            env.step(actions[step % 64])
        gc.collect()
        return psutil.Process().memory_info().rss / 2**20

    before = resident_megabytes(10_000)
    assert resident_megabytes(40_000) - before < 2
