"""A run that was killed continues bit for bit."""

import sys

import gymnasium
import pytest
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

import bridge
from bridge import RolloutCheckpoint, load_checkpoint, make_vec_env, save_checkpoint
from bridge.checkpoint import read_metadata


@pytest.mark.parametrize("train_freq", [None, (2, "step"), (1, "episode")], ids=str)
def test_a_checkpoint_announces_only_the_steps_before_the_rollout_that_it_precedes(train_freq, tmp_path):
    """Compiled functions run the whole rollouts that fit into these steps."""
    if train_freq is None:
        model, length = bridge.PPO("MlpPolicy", make_vec_env("CartPole-v1", 2), n_steps=8), 8
    else:
        model, length = bridge.DQN("MlpPolicy", make_vec_env("CartPole-v1"), train_freq=train_freq, buffer_size=50), 2
    saved = []
    checkpoint = RolloutCheckpoint(tmp_path / "model", every=3)
    checkpoint.init_callback(model)
    model._last_obs = model.env.reset()
    for rollout in range(7):
        checkpoint.on_rollout_start()
        saved += [rollout] * ((tmp_path / "model.zip").exists())
        (tmp_path / "model.zip").unlink(missing_ok=True)
        for step in range(length):
            left = (3 - rollout % 3) * length - step
            expected = sys.maxsize if train_freq == (1, "episode") else left
            assert checkpoint.steps_until_needed(0, 2) == expected
            checkpoint.on_step()
    assert saved == [0, 3, 6]


@pytest.fixture(scope="module")
def model():
    return PPO("MlpPolicy", make_vec_env("CartPole-v1", 2, seed=0), n_steps=8, batch_size=16, n_epochs=1).learn(16)


def test_a_checkpoint_is_a_zip_that_sb3_loads(tmp_path, model):
    save_checkpoint(model, tmp_path / "model.zip")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.zip"]
    loaded = PPO.load(tmp_path / "model.zip")
    assert loaded.num_timesteps == 16
    assert vars(loaded).keys() <= {*vars(model), "policy_class"}


def test_metadata_is_kept_with_a_checkpoint(tmp_path, model):
    save_checkpoint(model, tmp_path / "model", metadata={"experiment": ["a", 1]})
    assert read_metadata(tmp_path / "model") == {"experiment": ["a", 1]}
    save_checkpoint(model, tmp_path / "model")
    assert read_metadata(tmp_path / "model.zip") is None


def test_a_checkpoint_of_other_wrappers_leaves_the_environments_as_they_are(tmp_path, model):
    save_checkpoint(model, tmp_path / "model.zip")
    env = VecNormalize(make_vec_env("CartPole-v1", 2, seed=1))
    env.reset()
    before = env.unwrapped.get_state()
    with pytest.raises(ValueError, match="env must be wrapped in the wrappers of the checkpoint"):
        load_checkpoint(PPO, tmp_path / "model.zip", env)
    assert all((before[name] == array).all() for name, array in env.unwrapped.get_state().items())


def test_what_is_not_a_checkpoint_of_these_environments_is_refused(tmp_path, model):
    model.save(tmp_path / "plain.zip")
    with pytest.raises(ValueError, match=r"plain.zip has no state of the environments"):
        load_checkpoint(PPO, tmp_path / "plain.zip", make_vec_env("CartPole-v1", 2))
    save_checkpoint(model, tmp_path / "model.zip")
    with pytest.raises(ValueError, match=r"the wrappers of the checkpoint, \[\], got \['VecNormalize'\]"):
        load_checkpoint(PPO, tmp_path / "model.zip", VecNormalize(make_vec_env("CartPole-v1", 2)))
    other = PPO("MlpPolicy", DummyVecEnv([lambda: gymnasium.make("CartPole-v1")]), n_steps=8, batch_size=8)
    with pytest.raises(TypeError, match="A checkpoint needs a model that trains on a JaxVecEnv, got DummyVecEnv"):
        save_checkpoint(other, tmp_path / "other.zip")
