"""Wrappers around the environments of a compiled rollout are where stepping through them would have left them."""

import numpy as np
import pytest
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecMonitor, VecNormalize

from bridge import JaxVecEnv
from bridge.errors import NotCompilable
from bridge.wrappers import WrappedEnv
from tests.bridge.small_models import N_ENVS, ROLLOUT, OnRolloutEnd, Recorder, make, make_env, replayed
from tests.bridge.wrappers.rollouts import assert_close
from tests.environments import Counter


class Still(RunningMeanStd):
    """Learns nothing."""

    def update(self, arr):
        pass


def close_rms(ours, theirs):
    np.testing.assert_allclose(ours.mean, theirs.mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(ours.var, theirs.var, rtol=1e-5, atol=1e-6)
    assert ours.count == pytest.approx(theirs.count, rel=1e-12)


def close_steps(recorder, stepped):
    for step, (observation, rewards, dones, infos) in zip(recorder.steps, stepped, strict=True):
        assert_close(step["new_obs"], observation)
        assert_close(step["rewards"], rewards)
        np.testing.assert_array_equal(step["dones"], dones)
        for index in np.flatnonzero(dones):
            assert_close(step["infos"][index]["terminal_observation"], infos[index]["terminal_observation"])


# --- VecNormalize ---------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_vec_normalize_is_where_stepping_through_it_would_be():
    env, theirs = (VecNormalize(make_env(), gamma=0.9, clip_obs=2.0) for _ in range(2))
    recorder = Recorder()
    model = make(env, engine="xla").learn(2 * ROLLOUT, callback=recorder)
    stepped = replayed(theirs, recorder.steps)
    close_steps(recorder, stepped)
    close_rms(env.ret_rms, theirs.ret_rms)
    assert_close(env.returns, theirs.returns)
    assert_close(env.old_obs, theirs.old_obs)
    assert_close(env.old_reward, theirs.old_reward)
    assert_close(model._last_obs, stepped[-1][0])
    close_rms(env.obs_rms, theirs.obs_rms)


@pytest.mark.thorough
def test_the_buffer_has_the_observations_that_the_policy_saw():
    def check(model):
        observations = model.rollout_buffer.observations
        np.testing.assert_array_equal(observations[1:], [step["new_obs"] for step in recorder.steps[:-1]])

    recorder = Recorder()
    make(VecNormalize(make_env()), engine="xla").learn(ROLLOUT, callback=[recorder, OnRolloutEnd(check)])


@pytest.mark.thorough
def test_training_can_be_turned_off_between_rollouts():
    env = VecNormalize(make_env())
    model = make(env, engine="xla").learn(ROLLOUT)
    env.training = False
    count = env.obs_rms.count
    model.learn(ROLLOUT, reset_num_timesteps=False)
    assert env.obs_rms.count == count


@pytest.mark.thorough
def test_statistics_go_on_from_a_file(tmp_path):
    env = VecNormalize(make_env())
    model = make(env, engine="xla").learn(ROLLOUT)
    env.save(str(tmp_path / "statistics.pkl"))
    loaded = VecNormalize.load(str(tmp_path / "statistics.pkl"), make_env())
    model.set_env(loaded)
    model.learn(ROLLOUT, reset_num_timesteps=False)
    assert loaded.obs_rms.count == pytest.approx(env.obs_rms.count + N_ENVS + ROLLOUT)  # the reset counts, too


# --- VecMonitor -----------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:.*already wrapped with a `Monitor`")
def test_without_a_callback_the_monitor_counts_and_the_model_keeps_its_episodes(tmp_path):
    env = VecMonitor(make_env(), str(tmp_path / "log"))
    model = make(env, engine="xla").learn(3 * ROLLOUT)
    lines = (tmp_path / "log.monitor.csv").read_text().splitlines()[2:]
    assert len(lines) == len(model.ep_info_buffer) == env.episode_count > 0
    assert [float(line.split(",")[0]) for line in lines] == [episode["r"] for episode in model.ep_info_buffer]


# --- What is not compiled -------------------------------------------------------------------------------------------


def test_statistics_whose_class_has_a_replaced_method_count_by_it(monkeypatch):
    env = VecNormalize(make_env())
    model = make(env).learn(ROLLOUT)
    assert model.plan.collects
    monkeypatch.setattr(RunningMeanStd, "update", Still.update)
    count = env.obs_rms.count
    model.learn(ROLLOUT)
    assert "has a replaced method" in str(model.plan)
    assert env.obs_rms.count == count


def test_statistics_of_parts_of_ones_own_are_refused():
    env = VecNormalize(JaxVecEnv(Counter(observation_kind="boxes"), 2), norm_obs_keys=["vector"])
    WrappedEnv.of(env)
    name = next(iter(env.obs_rms))
    env.obs_rms[name] = Still(shape=env.obs_rms[name].mean.shape)
    with pytest.raises(NotCompilable, match="is a Still"):
        WrappedEnv.of(env)
