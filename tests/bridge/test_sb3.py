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
    VecCheckNan,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
    VecTransposeImage,
    VecVideoRecorder,
)

from bridge import JaxVecEnv, make_vec_env
from bridge.app.hyperparameters import SCHEDULED, to_schedule
from bridge.app.tuned import TUNED
from tests.bridge.small_models import with_picklable_schedules
from tests.environments import Counter

TINY = {"n_steps": 8, "batch_size": 16, "n_epochs": 1, "seed": 0}


@pytest.mark.parametrize(
    ("policy", "observation_kind", "action_kind"),
    [
        ("MlpPolicy", "box", "discrete"),
        pytest.param("MlpPolicy", "discrete", "multi_discrete", marks=pytest.mark.thorough),
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


def test_vec_normalize_tracks_returns_and_normalises_final_observations():
    env = VecNormalize(JaxVecEnv(Counter(length=3), 4, 0))
    env.reset()
    for _ in range(3):
        _, _, done, infos = env.step(np.ones(4, int))
    assert done.all()
    mean, std = env.obs_rms.mean[0], np.sqrt(env.obs_rms.var[0] + env.epsilon)
    np.testing.assert_allclose([info["terminal_observation"][0] for info in infos], (3 - mean) / std, rtol=1e-5)
    np.testing.assert_array_equal(env.get_original_obs()[:, 0], 0)


def test_vec_frame_stack_restarts_where_an_episode_ends():
    env = VecFrameStack(JaxVecEnv(Counter(length=2), 2, 0), 2)
    env.reset()
    seen = [env.step(np.ones(2, int)) for _ in range(3)]
    np.testing.assert_array_equal([step[0][0, [0, 2]] for step in seen], [[0, 1], [0, 0], [0, 1]])
    np.testing.assert_array_equal(seen[1][3][0]["terminal_observation"][[0, 2]], [1, 2])


def test_vec_monitor_agrees_with_the_episodes_of_the_environment():
    with pytest.warns(UserWarning, match="already wrapped with a `Monitor`"):
        env = VecMonitor(make_vec_env("CartPole-v1", 4, seed=0))
    env.reset()
    plain = make_vec_env("CartPole-v1", 4, seed=0)
    plain.reset()
    episodes = 0
    for _ in range(60):
        infos, expected = env.step(np.ones(4, int))[3], plain.step(np.ones(4, int))[3]
        for info, other in zip(infos, expected):
            assert info.get("episode", {}).get("r") == other.get("episode", {}).get("r")
            assert info.get("episode", {}).get("l") == other.get("episode", {}).get("l")
            episodes += "episode" in info
    assert episodes > 10


def test_vec_check_nan_and_vec_transpose_image_wrap_it():
    env = VecCheckNan(JaxVecEnv(Counter(), 2, 0), raise_exception=True)
    env.reset()
    env.step(np.zeros(2, int))
    image = VecTransposeImage(JaxVecEnv(Counter(observation_kind="image", length=1), 2, 0))
    assert image.reset().shape == (2, 1, 36, 36)
    infos = image.step(np.zeros(2, int))[3]
    assert infos[0]["terminal_observation"].shape == (1, 36, 36)
    assert infos[0]["terminal_observation"].max() == 1


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
    assert resident_megabytes(100_000) - before < 5


@pytest.mark.thorough  # ours does: tests/bridge/algorithms/on_policy/test_on_policy.py
@pytest.mark.slow
def test_stock_ppo_with_the_zoo_settings_learns_to_balance():
    tuned = {k: v for k, v in TUNED["ppo"]["CartPole-v1"].items() if k not in ("n_envs", "n_timesteps")}
    settings = {name: to_schedule(value) if name in SCHEDULED else value for name, value in tuned.items()}
    model = PPO("MlpPolicy", make_vec_env("CartPole-v1", 8, seed=0), seed=0, **settings).learn(30_000)
    mean, _ = evaluate_policy(model, make_vec_env("CartPole-v1", 20, seed=1000), n_eval_episodes=100)
    assert mean >= 300
