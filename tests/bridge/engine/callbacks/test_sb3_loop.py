"""Callbacks and logs of a compiled training are those of Stable-Baselines3's."""

import jax
import numpy as np
import pytest
import torch
from stable_baselines3.common.callbacks import (
    BaseCallback,
    CheckpointCallback,
    EvalCallback,
    EveryNTimesteps,
    ProgressBarCallback,
)
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import VecNormalize

import bridge
from bridge import JaxVecEnv, make_vec_env
from jaxenvs import environment
from tests.bridge.small_models import (
    N_ENVS,
    N_STEPS,
    ROLLOUT,
    SB3,
    OnRolloutEnd,
    Recorder,
    make,
    make_env,
    replayed,
)
from tests.environments import Counter


@environment
class Success(Counter):
    """Every second episode, by its start, is a success."""

    def _info(self, state):
        return {"is_success": state.start > 0.5}


def kinds(tree):
    return jax.tree.map(lambda leaf: (type(leaf), tuple(leaf.shape), leaf.dtype), tree)


def test_callbacks_see_the_steps_that_were_taken():
    recorder = Recorder()
    make().learn(2 * ROLLOUT, callback=recorder)
    for step, expected in zip(recorder.steps, replayed(make_env(), recorder.steps), strict=True):
        observation, rewards, dones, infos = expected
        np.testing.assert_allclose(step["new_obs"], observation, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(step["rewards"], rewards)
        np.testing.assert_array_equal(step["dones"], dones)
        for ours, theirs in zip(step["infos"], infos, strict=True):
            assert ours.keys() == theirs.keys()
            assert ours["TimeLimit.truncated"] == theirs["TimeLimit.truncated"]
            if "episode" in theirs:
                assert ours["episode"]["l"] == theirs["episode"]["l"]
                assert ours["episode"]["r"] == theirs["episode"]["r"]
                np.testing.assert_allclose(ours["terminal_observation"], theirs["terminal_observation"], rtol=1e-5)
    assert any(step["dones"].any() for step in recorder.steps)


def test_callbacks_see_what_the_policy_thought():
    recorder = Recorder()

    def check(model):
        for before, step in zip(recorder.steps, recorder.steps[1:]):
            np.testing.assert_array_equal(step["obs_tensor"], before["new_obs"])
            with torch.no_grad():
                seen = model.policy.evaluate_actions(step["obs_tensor"], torch.as_tensor(step["actions"]))
            torch.testing.assert_close((step["values"], step["log_probs"]), seen[:2], rtol=1e-4, atol=1e-5)

    make().learn(ROLLOUT, callback=[recorder, OnRolloutEnd(check)])
    assert len(recorder.steps) == N_STEPS


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("observation_kind", "action_kind"),
    [("box", "discrete"), ("discrete", "box"), ("dict", "multi_discrete")],
)
def test_locals_have_sb3s_names_shapes_and_dtypes(observation_kind, action_kind):
    """After four steps of five, so that the next step ends the episodes."""
    arrays = ["obs_tensor", "actions", "clipped_actions", "values", "log_probs", "new_obs", "rewards", "dones"]
    seen = []
    for algorithm in (SB3, bridge.PPO):
        recorder = Recorder()
        policy = "MultiInputPolicy" if observation_kind == "dict" else "MlpPolicy"
        env = JaxVecEnv(Counter(observation_kind=observation_kind, action_kind=action_kind), 2)
        model = make(env, algorithm, policy, policy_kwargs={}, n_steps=8, batch_size=16, n_epochs=1)
        model.learn(16, callback=recorder)
        last = recorder.steps[-1]
        ended = recorder.steps[4]["infos"][1]
        seen.append(
            {
                **{name: [kinds(step[name]) for step in (recorder.steps[3], last)] for name in arrays},
                **{name: last[name] for name in ("n_steps", "n_rollout_steps")},
                "end": kinds(ended["terminal_observation"]),
                "info": {name: type(value) for name, value in ended.items() if name != "terminal_observation"},
                "last": kinds(model._last_obs),
            }
        )
    assert seen[0] == seen[1]


@pytest.mark.thorough
def test_clipped_actions_are_what_the_environments_got():
    recorder = Recorder()
    env = JaxVecEnv(Counter(action_kind="box"), 2)
    settings = {"log_std_init": 1.0, "net_arch": [8]}
    make(env, policy_kwargs=settings, n_steps=8, batch_size=16).learn(16, callback=recorder)
    assert any((step["actions"] != step["clipped_actions"]).any() for step in recorder.steps)
    for step in recorder.steps:
        np.testing.assert_allclose(step["clipped_actions"].sum(axis=1), step["rewards"], rtol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("env", [lambda: JaxVecEnv(Success(), N_ENVS), make_env], ids=["own info", "no info"])
def test_episodes_are_counted_alike_whether_a_callback_looks_or_not(env):
    looked, not_looked = (make(env(), stats_window_size=5).learn(3 * ROLLOUT, callback=c) for c in (Recorder(), None))
    records = [[(e["r"], e["l"]) for e in model.ep_info_buffer] for model in (looked, not_looked)]
    assert records[0] == records[1]
    assert len(records[0]) == 5
    assert list(looked.ep_success_buffer) == list(not_looked.ep_success_buffer)
    assert not_looked.num_timesteps == 3 * ROLLOUT
    first, second = (jax.tree.map(np.asarray, model.env.reset_infos) for model in (looked, not_looked))
    assert first == second


@pytest.mark.thorough
def test_successes_are_those_of_the_episodes_that_ended():
    recorder = Recorder()
    model = make(JaxVecEnv(Success(), N_ENVS)).learn(ROLLOUT, callback=recorder)
    ends = [info["is_success"] for step in recorder.steps for info in step["infos"] if "episode" in info]
    assert list(model.ep_success_buffer) == ends
    assert {True, False} == set(ends)


def test_sb3s_callbacks_work(tmp_path):
    env = VecNormalize(make_env())
    eval_env = VecNormalize(make_env(seed=9), training=False, norm_reward=False)
    evaluation = EvalCallback(eval_env, n_eval_episodes=4, eval_freq=20, log_path=str(tmp_path / "evaluations"))
    checkpoint = CheckpointCallback(save_freq=20, save_path=tmp_path, save_vecnormalize=True)
    counter = Recorder()
    callbacks = [evaluation, checkpoint, EveryNTimesteps(40, callback=counter), ProgressBarCallback()]
    make(env).learn(3 * ROLLOUT, callback=callbacks)
    assert evaluation.evaluations_timesteps == [80, 160]
    assert evaluation.last_mean_reward > 0
    # As of the step at which it was evaluated, which is in the middle of a rollout.
    assert eval_env.obs_rms.count == pytest.approx(160 + N_ENVS, abs=0.1)
    assert env.obs_rms.count == pytest.approx(3 * ROLLOUT + N_ENVS, abs=0.1)
    saved = sorted(path.name for path in tmp_path.glob("rl_model_*steps.*"))
    assert saved == [f"rl_model_{kind}.{end}" for kind, end in (("160_steps", "zip"), ("80_steps", "zip"))] + [
        f"rl_model_vecnormalize_{steps}_steps.pkl" for steps in (160, 80)
    ]
    assert [event for event in counter.events if isinstance(event, int)] == [40, 80, 120, 160]


def test_a_callback_that_changes_weights_or_returns_has_effect():
    def meddle(model):
        with torch.no_grad():
            model.policy.value_net.bias.fill_(7.0)
        model.rollout_buffer.returns[:] = 7.0
        model.rollout_buffer.advantages[:] = 0.0

    model = make()
    model.learn(ROLLOUT, callback=OnRolloutEnd(meddle))
    assert model.policy.value_net.bias.item() == pytest.approx(7, abs=0.01)
    assert model.logger.name_to_value["train/value_loss"] < 3


def test_without_a_log_interval_nothing_is_dumped(monkeypatch):
    dumped = []
    monkeypatch.setattr(Logger, "dump", lambda *_: dumped.append(1))
    make().learn(2 * ROLLOUT, log_interval=None)
    assert dumped == []


class AheadOfRollouts(BaseCallback):
    """One parameter takes a step more than the others, which has no translation, and the model is trained."""

    def _on_rollout_start(self):
        optimizer = self.model.critic.optimizer
        next(iter(optimizer.state.values()))["step"] += 1
        self.model.train(1, 4)
        self.trained = self.model.plan.learner is not None

    def _on_step(self):
        return True


@pytest.mark.thorough
def test_a_callback_may_make_an_update_impossible_to_compile_as_a_rollout_starts():
    callback = AheadOfRollouts()
    model = bridge.SAC("MlpPolicy", make_vec_env("Pendulum-v1", 2), learning_starts=0, seed=0, device="cpu")
    model.learn(8)
    model.learn(8, callback)
    assert not callback.trained
    assert model.num_timesteps == 8
