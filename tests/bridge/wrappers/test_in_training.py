"""Wrappers around the environments of a compiled rollout are where stepping through them would have left them."""

import pytest
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecMonitor, VecNormalize

from bridge import JaxVecEnv
from bridge.errors import NotCompilable
from bridge.wrappers import WrappedEnv
from tests.bridge.small_models import N_ENVS, ROLLOUT, Noop, make, make_env
from tests.bridge.wrappers.rollouts import assert_close, assert_wrappers_close
from tests.environments import Counter


class Still(RunningMeanStd):
    """Learns nothing."""

    def update(self, arr):
        pass


# --- VecNormalize ---------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_compiled_training_leaves_vec_normalize_and_the_buffer_as_sb3s_loop_does():
    """SB3's loop runs where a callback looks. Without learning, so that actions are the same."""
    settings = {"engine": "xla", "learning_rate": 0.0}
    quiet, looked = (make(VecNormalize(make_env(), gamma=0.9, clip_obs=2.0), **settings) for _ in range(2))
    quiet.learn(2 * ROLLOUT)
    looked.learn(2 * ROLLOUT, Noop())
    assert_wrappers_close(quiet.env, looked.env)
    assert_close(quiet._last_obs, looked._last_obs)
    for name in ("observations", "actions", "rewards", "values", "log_probs", "returns", "episode_starts"):
        assert_close(*(getattr(model.rollout_buffer, name) for model in (quiet, looked)))


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
