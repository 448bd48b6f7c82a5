"""bridge.DQN, SAC and TD3 in files and copies: zips, replay buffers, checkpoints, pickles."""

import base64
import json
import zipfile

import numpy as np
import pytest
import stable_baselines3
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecNormalize

import bridge
from bridge import RolloutCheckpoint, load_checkpoint
from tests.bridge.algorithms.cases import assert_equal, make, make_env, state_of


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["PPO", "DQN", "SAC"])
def test_a_zip_can_be_loaded_where_there_is_no_bridge(name, tmp_path):
    make(name).learn(24).save(tmp_path / "model.zip")
    with zipfile.ZipFile(tmp_path / "model.zip") as archive:
        data = json.loads(archive.read("data"))
    pickled = {
        key: each[":serialized:"] for key, each in data.items() if isinstance(each, dict) and ":serialized:" in each
    }
    assert {"policy_class", "action_space"} <= pickled.keys()
    for key, text in pickled.items():
        content = base64.b64decode(text)
        assert b"bridge" not in content.replace(b"tests.bridge", b""), key
        assert b"jaxenvs" not in content, key


def test_a_zip_saved_before_an_update_learns_nothing_from_an_empty_buffer(tmp_path):
    class Saving(BaseCallback):
        def _on_step(self):
            if self.num_timesteps == 24:  # the last step before an update
                self.model.save(tmp_path / "model")
            return True

    make().learn(48, Saving())
    model = bridge.DQN.load(tmp_path / "model", make_env())
    before = state_of(bridge.DQN.load(tmp_path / "model", make_env()).learn(0), with_store=False)
    model.learn(2, reset_num_timesteps=False)
    assert model._n_updates == before["_n_updates"] + 2  # of after its own four steps
    assert model.replay_buffer.size() == 4


# --- Replay buffers -------------------------------------------------------------------------------------------------


def contents(buffer):
    names = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")
    rows = (np.arange(buffer.size()) + (buffer.pos if buffer.full else 0)) % buffer.buffer_size
    following = (
        {} if hasattr(buffer, "next_observations") else {"next_observations": np.roll(buffer.observations, -1, 0)}
    )
    return {name: np.array(following.get(name, getattr(buffer, name, None)))[rows] for name in names}


def test_a_replay_buffer_of_ours_is_one_for_sb3(tmp_path):
    ours = make().learn(48)
    ours.save_replay_buffer(tmp_path / "buffer")
    stock = make(package=stable_baselines3)
    stock.load_replay_buffer(tmp_path / "buffer")
    assert_equal(contents(stock.replay_buffer), contents(ours.replay_buffer))
    stock.learn(24)
    assert stock._n_updates > 0
    assert stock.replay_buffer.size() == 24 + 12


def test_a_replay_buffer_of_other_environments_is_refused(tmp_path):
    make(env=make_env(n_envs=4)).save_replay_buffer(tmp_path / "buffer")
    model = make()
    model.load_replay_buffer(tmp_path / "buffer")
    with pytest.raises(ValueError, match=r"must have the model's number of environments, .* \(2, .* got \(4, "):
        model.learn(48)
    box = model.observation_space
    model.replay_buffer = bridge.ReplayBuffer(200, box, spaces.Box(-1, 1, (3,)), device="cpu", n_envs=2)
    with pytest.raises(ValueError, match="size of actions"):
        model.learn(48)


@pytest.mark.parametrize(
    ("name", "settings", "total"),
    [
        ("DQN", {}, 60),
        ("DQN", {"buffer_size": 40}, 98),
        ("SAC", {}, 48),
        ("DQN", {"optimize_memory_usage": True, "replay_buffer_kwargs": {"handle_timeout_termination": False}}, 60),
    ],
    ids=str,
)
def test_a_replay_buffer_of_sb3s_becomes_one_of_ours_and_programs_take_it(name, settings, total, tmp_path):
    stock = make(name, package=stable_baselines3, **settings).learn(total)
    stock.env.reset()
    stock._last_obs = stock.env.reset()  # so that an episode is left
    stock.learn(24, reset_num_timesteps=False)
    stock.save_replay_buffer(tmp_path / "buffer")
    ours = make(name, **settings)
    ours.load_replay_buffer(tmp_path / "buffer")
    buffer, given = ours.replay_buffer, stock.replay_buffer
    assert isinstance(buffer, bridge.ReplayBuffer)
    assert (buffer.size(), buffer.buffer_size, buffer.n_steps) == (
        given.size(),
        given.buffer_size,
        getattr(given, "n_steps", 1),
    )
    mine, theirs = contents(buffer), contents(given)
    left = mine["dones"] != theirs["dones"]
    assert left.sum() <= 2 * 2
    theirs["dones"], theirs["timeouts"] = mine["dones"], np.where(left, 1, theirs["timeouts"])
    assert_equal(mine, theirs)
    assert (ours.plan.wrapped_env is None) == (not given.handle_timeout_termination)
    if "buffer_size" not in settings:  # another size would compile again
        ours.learn(24)
        assert ours._n_updates > 0


# --- Going on -------------------------------------------------------------------------------------------------------


def wrapped(name):
    return VecNormalize(make_env("SAC"), gamma=0.9) if name == "on the host" else make_env(name)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["DQN", "TD3", "on the host"])
def test_a_training_that_goes_on_from_a_checkpoint_is_one_that_was_not_interrupted(name, tmp_path):
    algorithm = "SAC" if name == "on the host" else name
    settings = {"use_sde": True, "learning_starts": 12} if name == "on the host" else {}
    settings["learning_rate"] = 1e-2
    if name == "DQN":
        settings["exploration_fraction"] = 1.0

    def callback():
        # Before the sixth rollout of those that it sees.
        return Once(tmp_path / "model", 6)

    whole = make(algorithm, wrapped(name), **settings)
    whole.learn(96, callback())
    model = load_checkpoint(getattr(bridge, algorithm), tmp_path / "model", wrapped(name))
    assert 0 < model.num_timesteps < 96
    assert model.replay_buffer.size() == model.num_timesteps // 2
    np.random.seed()  # noqa: NPY002 - the checkpoint is what counts
    model = load_checkpoint(getattr(bridge, algorithm), tmp_path / "model", wrapped(name))
    model.learn(96 - model.num_timesteps, reset_num_timesteps=False)
    assert_equal(state_of(model), state_of(whole))


class Once(RolloutCheckpoint):
    """A checkpoint before one rollout alone."""

    def __init__(self, path, which):
        super().__init__(path)
        self.which = which

    def _on_rollout_start(self):
        if self.rollouts == self.which:
            super()._on_rollout_start()
        else:
            self.rollouts += 1
