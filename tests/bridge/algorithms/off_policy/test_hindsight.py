"""Hindsight in trainings: what is compiled, that SB3's models continue from it, and what is refused."""

import numpy as np
import pytest
from stable_baselines3 import HerReplayBuffer
from stable_baselines3.common.envs import BitFlippingEnv

import bridge
import jaxenvs
from bridge import JaxVecEnv, load_checkpoint, save_checkpoint
from bridge.algorithms.specs import SPECS
from tests.bridge.algorithms.cases import assert_equal, state_of
from tests.bridge.small_models import Noop
from tests.stock import STOCK

SETTINGS = {
    "replay_buffer_class": HerReplayBuffer,
    "buffer_size": 60,
    "batch_size": 8,
    "learning_starts": 12,
    "train_freq": 1,
    "seed": 0,
    "device": "cpu",
}
# CrossQ has no MultiInputPolicy, which goals need.
OFF_POLICY = [name for name, spec in SPECS.items() if spec.is_off_policy and name != "CrossQ"]


def is_continuous(name):
    return SPECS[name].actions == "Box"


def jax_env(continuous=False, n_envs=2, n_bits=4):
    env_id = "BitFlippingContinuous-v0" if continuous else "BitFlipping-v0"
    return JaxVecEnv(jaxenvs.make(env_id, n_bits=n_bits), n_envs, 0)


def make(name="DQN", env=None, library=bridge, **settings):
    env = jax_env(is_continuous(name)) if env is None else env
    # SB3 writes into policy_kwargs.
    return getattr(library, name)("MultiInputPolicy", env, policy_kwargs={"net_arch": [8]}, **{**SETTINGS, **settings})


@pytest.mark.thorough
@pytest.mark.parametrize("name", OFF_POLICY)
def test_on_jax_environments_all_of_a_training_is_one_program(name):
    model = make(name).learn(120)
    assert str(model.plan) == "collecting: compiled\nupdating: compiled"
    assert isinstance(model.replay_buffer, HerReplayBuffer)
    assert model._n_updates > 40
    # What the program noted of episodes is what was stored.
    buffer = model.replay_buffer
    ended, start = buffer.dones, buffer.ep_start
    for index in range(2):
        for row in range(30):
            length, begin = buffer.ep_length[row, index], start[row, index]
            if length:
                rows = (begin + np.arange(length)) % 30
                assert ended[rows[-1], index]
                assert not ended[rows[:-1], index].any()
                assert row in rows
    assert (buffer.ep_length > 0).sum() >= 2 * (30 - 2 * 4)


@pytest.mark.thorough
@pytest.mark.parametrize("name", OFF_POLICY)
def test_on_gymnasiums_environments_updates_are_compiled(name):
    model = make(name, BitFlippingEnv(n_bits=4, continuous=is_continuous(name))).learn(40)
    assert str(model.plan) == "collecting: acting compiled, environments stepped on the host\nupdating: compiled"
    assert type(model.replay_buffer) is bridge.HerReplayBuffer
    assert model._n_updates > 10


@pytest.mark.thorough
def test_a_ratio_of_other_goals_that_is_changed_is_the_one_that_counts():
    """SB3 reads `n_sampled_goal` once."""
    model = make().learn(16)
    model.replay_buffer.n_sampled_goal, model.replay_buffer.her_ratio = 7, 0.0
    model.learn(4, reset_num_timesteps=False)
    assert model.plan.collects
    assert model._settings_now().hindsight.n_sampled_goal == 0
    model.replay_buffer.her_ratio = 0.3
    model.learn(4, reset_num_timesteps=False)
    assert "stays on the host: her_ratio is 0.3" in str(model.plan)


@pytest.mark.thorough
def test_learning_before_an_episode_has_ended_is_refused_as_by_sb3():
    # Compiled for other tests too; with this seed no environment gets there by chance in 7 steps.
    endless = JaxVecEnv(jaxenvs.make("BitFlipping-v0", n_bits=4, max_episode_steps=100), 2, 0)
    for env, starts in ((endless, 12), (BitFlippingEnv(n_bits=4), 0)):
        with pytest.raises(RuntimeError, match="Unable to sample before the end of the first episode"):
            make(env=env, learning_starts=starts, seed=1).learn(14)


@pytest.mark.thorough
def test_a_watched_training_is_the_quiet_one():
    """However it is cut into programs."""
    quiet, watched = make().learn(80), make().learn(80, Noop())
    ours, theirs = (state_of(model, with_store=False) for model in (quiet, watched))
    for name, expected in theirs.items():
        np.testing.assert_array_equal(ours[name], expected, err_msg=name)
    for name in ("actions", "rewards", "dones", "ep_length"):
        np.testing.assert_array_equal(*(getattr(model.replay_buffer, name) for model in (quiet, watched)), err_msg=name)


@pytest.mark.thorough
@pytest.mark.parametrize("truncate", [True, False])
def test_zips_and_buffers_go_on_in_either_library(tmp_path, truncate):
    for first, second in ((bridge, STOCK), (STOCK, bridge)):
        model = make(library=first, env=BitFlippingEnv(n_bits=4)).learn(41)
        model.save(tmp_path / "model")
        model.save_replay_buffer(tmp_path / "buffer")
        stored, lengths = model.replay_buffer.size(), model.replay_buffer.ep_length.copy()
        other = second.DQN.load(tmp_path / "model", env=BitFlippingEnv(n_bits=4))
        assert other.replay_buffer_class is HerReplayBuffer
        other.load_replay_buffer(tmp_path / "buffer", truncate_last_traj=truncate)
        assert other.replay_buffer.size() == stored
        if not truncate:
            np.testing.assert_array_equal(other.replay_buffer.ep_length, lengths)
        other.learn(30, reset_num_timesteps=False)
        assert other._n_updates > model._n_updates
        if second is bridge:
            assert type(other.replay_buffer) is bridge.HerReplayBuffer
            assert other.plan.updates


def test_a_buffer_of_a_program_goes_on_in_a_program(tmp_path):
    model = make().learn(60)
    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / "buffer")
    other = bridge.DQN.load(tmp_path / "model", env=jax_env())
    with pytest.warns(UserWarning, match="truncated"):
        other.load_replay_buffer(tmp_path / "buffer")
    other.learn(40, reset_num_timesteps=False)
    assert other.plan.collects
    assert other._n_updates > model._n_updates


@pytest.mark.thorough
def test_a_checkpoint_goes_on_as_if_nothing_had_come_between(tmp_path):
    whole = make().learn(60)
    save_checkpoint(whole, tmp_path / "model")
    other = load_checkpoint(bridge.DQN, tmp_path / "model", jax_env())
    for each in (whole, other):
        each.learn(60, reset_num_timesteps=False)
    assert other.plan.collects
    assert_equal(*(state_of(each, with_store=False) for each in (other, whole)))
    for name in ("actions", "rewards", "dones", "ep_length", "ep_start"):
        np.testing.assert_array_equal(*(getattr(each.replay_buffer, name) for each in (other, whole)), err_msg=name)


@pytest.mark.thorough
@pytest.mark.parametrize("name", OFF_POLICY)  # of a model without goals: test_train_seeds.py
def test_many_seeds_are_one_program(name):
    one, two = bridge.train_seeds(make(name), 120, [0, 1])
    assert one._n_updates == two._n_updates > 40
    weights = [next(iter(each.policy.parameters())).detach() for each in (one, two)]
    assert not np.array_equal(*weights)
    assert one.learn(60).plan.collects
    assert one._n_updates > two._n_updates


def test_hindsight_that_is_no_part_of_one_program_is_refused_with_the_reason():
    with pytest.raises(bridge.NotCompilable, match="The replay buffer stays on the host: copy_info_dict is True"):
        bridge.train_seeds(make(replay_buffer_kwargs={"copy_info_dict": True}), 120, [0])
