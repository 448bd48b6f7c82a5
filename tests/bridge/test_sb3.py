"""Stock Stable-Baselines3 on JaxVecEnv: videos, pickles, memory. For trainings see tests/bridge/algorithms."""

import gc
import pickle

import cloudpickle
import numpy as np
import psutil
import pytest
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import VecVideoRecorder

from bridge import make_vec_env
from tests.bridge.small_models import with_picklable_schedules

TINY = {"n_steps": 8, "batch_size": 16, "n_epochs": 1, "seed": 0}


@pytest.mark.slow
def test_vec_video_recorder_writes_a_video(tmp_path):
    env = VecVideoRecorder(make_vec_env("CartPole-v1", 2, seed=0), str(tmp_path), lambda step: step == 0, 5)
    env.reset()
    for _ in range(7):
        env.step(np.zeros(2, int))
    env.close()
    (video,) = tmp_path.glob("*.mp4")
    assert video.stat().st_size > 1000


@pytest.mark.parametrize("pickler", [pytest.param(pickle, marks=with_picklable_schedules), cloudpickle])
def test_a_model_that_holds_an_env_can_be_pickled(pickler):
    model = PPO("MlpPolicy", make_vec_env("CartPole-v1", 2, seed=0), **TINY).learn(16)
    copy = pickler.loads(pickler.dumps(model))
    np.testing.assert_array_equal(copy.env.reset(), model.env.reset())
    copy.learn(16, reset_num_timesteps=False)
    assert copy.num_timesteps == 32


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
