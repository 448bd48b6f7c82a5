"""make_atari_env on EnvPool beside SB3's: what is the same to the bit, and how lives and games are told."""

import gymnasium
import numpy as np
import pytest
from stable_baselines3 import PPO
from stable_baselines3.common import atari_wrappers, env_util
from stable_baselines3.common.vec_env import VecFrameStack, VecTransposeImage

from bridge import SerialVecEnv, make_atari_env

envpool = pytest.importorskip("envpool")
ale_py = pytest.importorskip("ale_py")
pytest.importorskip("cv2")
gymnasium.register_envs(ale_py)


def assert_same_frames(game, num_steps):
    """Play a game with one no-op and no fire at its beginning, which no draw then makes another: the same frames."""
    options = {"noop_max": 1, "use_fire_reset": False}
    venv = make_atari_env(f"{game}NoFrameskip-v4", 1, seed=0, env_kwargs=options, backend="native")
    env = atari_wrappers.NoopResetEnv(gymnasium.make(f"{game}NoFrameskip-v4"), 1)
    env = atari_wrappers.EpisodicLifeEnv(atari_wrappers.MaxAndSkipEnv(env, 4))
    env = atari_wrappers.ClipRewardEnv(atari_wrappers.WarpFrame(env))
    np.testing.assert_array_equal(venv.reset()[0, 0], env.reset(seed=0)[0][..., 0])
    random, rewards = np.random.default_rng(0), []
    for _ in range(num_steps):
        action = random.integers(env.action_space.n)
        frame, reward, terminated, truncated, _ = env.step(action)
        (frames, (gained,), (done,), (info,)) = venv.step([action])
        rewards.append(reward)
        assert (gained, done, truncated) == (reward, terminated, False)
        np.testing.assert_array_equal((info["terminal_observation"] if done else frames[0])[0], frame[..., 0])
        if done:
            return rewards, info, env.unwrapped.ale.lives()
    return rewards, None, None


def test_pong_is_the_same_to_the_bit():
    rewards, _, _ = assert_same_frames("Pong", 150)
    assert -1 in rewards


def test_breakout_is_the_same_to_the_bit_up_to_a_lost_life():
    _, info, lives = assert_same_frames("Breakout", 400)
    assert info["lives"] == lives == 4
    assert "episode" not in info  # the game continues
    assert not info["TimeLimit.truncated"]


def test_a_game_goes_on_after_a_lost_life_and_its_episode_is_whole_and_unclipped():
    venv = make_atari_env("BreakoutNoFrameskip-v4", 2, seed=0, backend="native")
    venv.reset()
    random, lost, score, games = np.random.default_rng(0), 0, np.zeros(2), []
    while len(games) < 3:
        _, rewards, dones, infos = venv.step(random.integers(4, size=2))
        assert set(rewards.tolist()) <= {0.0, 1.0}
        score += [info["reward"] for info in infos]
        for index in dones.nonzero()[0]:
            if infos[index]["lives"] > 0:
                lost += 1
                assert "episode" not in infos[index]
                assert venv.reset_infos[index]["lives"] == infos[index]["lives"]
            else:
                games.append(infos[index]["episode"])
                assert games[-1]["r"] == score[index]
                assert games[-1]["l"] == infos[index]["elapsed_step"]
                score[index] = 0
    assert lost >= 4 * 3


def test_behind_a_frame_stack_a_model_is_sb3s(tmp_path):
    ours = VecFrameStack(make_atari_env("PongNoFrameskip-v4", 2, seed=0, backend="native"), 4)
    theirs = VecTransposeImage(VecFrameStack(env_util.make_atari_env("PongNoFrameskip-v4", 2, seed=0), 4))
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    observations = [venv.reset() for venv in (ours, theirs)]
    for observation in observations:
        assert observation.shape == (2, 4, 84, 84)
        assert not observation[:, :3].any()  # at the beginning there is one frame
        assert observation[:, 3].any()
    PPO("CnnPolicy", ours, n_steps=4, batch_size=8, n_epochs=1, seed=0).save(tmp_path / "model")
    PPO.load(tmp_path / "model", env=theirs)


def test_arguments_of_the_wrapper_are_options_of_envpool():
    arguments = {"noop_max": 5, "frame_skip": 2, "screen_size": 42, "terminal_on_life_loss": False}
    arguments |= {"clip_reward": False, "action_repeat_probability": 0.25}
    venv = make_atari_env("Pong-v5", 1, wrapper_kwargs=arguments, env_kwargs={"stack_num": 3}, backend="native")
    config = venv.vector_env.config
    expected = {"noop_max": 5, "frame_skip": 2, "episodic_life": False, "reward_clip": False, "stack_num": 3}
    assert {name: config[name] for name in expected} == expected
    assert config["repeat_action_probability"] == pytest.approx(0.25)
    assert venv.reset().shape == (1, 3, 42, 42)


def test_every_game_of_both_has_one_name():
    known, theirs = set(envpool.list_all_envs()), set(gymnasium.registry)
    games = [name.removesuffix("NoFrameskip-v4") for name in theirs if name.endswith("NoFrameskip-v4")]
    assert len(games) > 50
    assert [game for game in games if f"{game}-v5" not in known] == []


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"env_id": "ALE/Pong-v5"}, ValueError, "must look like 'PongNoFrameskip-v4' or 'Pong-v5'.*got 'ALE/Pong-v5'"),
        (
            {"wrapper_kwargs": {"noop_max": 0}},
            ValueError,
            r"noop_max'\] must be at least 1 with backend='native', got 0",
        ),
        ({"wrapper_kwargs": {"size": 5}}, TypeError, r"arguments of AtariWrapper \(noop_max, .*got 'size'"),
        ({"monitor_dir": "logs"}, ValueError, "does not support monitor_dir.*backend='serial'"),
        ({"vec_env_cls": SerialVecEnv}, ValueError, "cannot be combined"),
    ],
)
def test_what_it_cannot_do_is_named(arguments, error, message):
    with pytest.raises(error, match=message):
        make_atari_env(**{"env_id": "PongNoFrameskip-v4", "backend": "native"} | arguments)


def test_without_native_it_is_sb3s():
    ours = make_atari_env("BreakoutNoFrameskip-v4", 1, seed=0)
    theirs = env_util.make_atari_env("BreakoutNoFrameskip-v4", 1, seed=0)
    assert isinstance(ours, SerialVecEnv)
    np.testing.assert_array_equal(ours.reset(), theirs.reset())
    for action in ([1], [2], [0], [3]):
        for mine, other in zip(ours.step(action)[:3], theirs.step(action)[:3]):
            np.testing.assert_array_equal(mine, other)
