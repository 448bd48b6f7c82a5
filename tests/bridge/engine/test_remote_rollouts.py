"""Whole rollouts in the actors of a RayVecEnv: the same learning data as step by step, and the same faults."""

import functools
import logging

import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecNormalize

import bridge
from bridge import WorkerError
from tests.bridge.engine.test_pipelining import assert_same_training, factories, trained
from tests.bridge.host_env import ray_stand_in
from tests.bridge.host_env.host_environments import RAISE, Counting
from tests.bridge.small_models import N_STEPS, ROLLOUT, Recorder, make, make_env


@pytest.fixture
def ray():
    ray = ray_stand_in.Ray()
    yield ray
    for actor in ray.actors:
        ray.kill(actor)


@pytest.fixture
def start(ray):
    """Makes a RayVecEnv of four lanes in two actors."""

    def start(env_fns=None, **arguments):
        return ray_stand_in.make(env_fns or factories(), ray=ray, **{"whole_rollouts": True, **arguments})

    return start


def names(ray):
    """What the actors were asked to do."""
    return [name for actor in ray.actors for name, *_ in actor.calls]


def test_each_lane_learns_from_the_same_data_for_which_an_actor_is_called_once_a_rollout(ray, start):
    venv, runs, reset_infos = start(), [], []
    for whole_rollouts in (True, False):
        venv.whole_rollouts = whole_rollouts
        runs.append(trained(venv))
        reset_infos.append(list(venv.reset_infos))
        if whole_rollouts:
            for actor in ray.actors:
                assert [name for name, *_ in actor.calls][-3:] == ["do", "roll_out", "roll_out"]
    assert_same_training(*runs)
    assert reset_infos[0] == reset_infos[1]


class TwoNumbers(Counting):
    """Whose observations are a dict."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        parts = spaces.Dict(vector=self.observation_space, count=spaces.Discrete(100))
        self.observation_space = parts

    def _observe(self):
        return {"vector": super()._observe(), "count": self.count}


@pytest.mark.parametrize(
    ("cls", "actions"), [(TwoNumbers, "discrete"), pytest.param(Counting, "multi_binary", marks=pytest.mark.thorough)]
)
def test_so_it_does_with_other_spaces_and_lanes_that_actors_cannot_share_equally(start, cls, actions):
    env_fns = [functools.partial(cls, actions=actions, length=3 + lane, limit=4) for lane in range(3)]
    venv, buffers = start(env_fns), []
    policy = "MultiInputPolicy" if cls is TwoNumbers else "MlpPolicy"
    for whole_rollouts in (True, False):
        venv.whole_rollouts = whole_rollouts
        model = bridge.A2C(policy, venv, n_steps=8, seed=0, policy_kwargs={"net_arch": [8]})
        assert model.plan.rolls_out == whole_rollouts
        model.policy.action_net.bias.data[4:] = -100  # the other actions are faults
        model.learn(2 * 3 * 8)
        buffer = model.rollout_buffer
        observations = buffer.observations.values() if cls is TwoNumbers else [buffer.observations]
        buffers.append([*observations, buffer.actions, buffer.rewards, buffer.episode_starts, buffer.log_probs])
    for mine, other in zip(*buffers, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-5)


def test_a_callback_that_may_look_at_steps_sees_them_as_they_are_taken(ray, start):
    trained(start(), Recorder(), ROLLOUT)
    assert "roll_out" not in names(ray)


# --- Faults ---------------------------------------------------------------------------------------------------------


class DiesOnce(Counting):
    """Ends its process in a step, unless there is a file; and leaves it there."""

    def __init__(self, file, at, **arguments):
        super().__init__(**arguments)
        self.file, self.at = file, at

    def step(self, action):
        if self.count == self.at:
            self.die_once(self.file)
        return super().step(action)


@pytest.mark.parametrize("n_steps", [N_STEPS, pytest.param(1, marks=pytest.mark.thorough)])
def test_an_actor_that_dies_in_a_rollout_truncates_its_lanes_before_it(start, tmp_path, caplog, n_steps):
    at = 0 if n_steps == 1 else 5
    dying = functools.partial(DiesOnce, tmp_path / "died", at, actions="box", length=50)
    venv = start([functools.partial(Counting, actions="box", length=50)] * 2 + [dying] * 2, on_worker_death="restart")
    model = bridge.A2C("MlpPolicy", venv, n_steps=n_steps, gamma=0.0, seed=0, policy_kwargs={"net_arch": [8]})
    model.train = lambda: None
    with caplog.at_level(logging.WARNING, "bridge"):
        model.learn(4 * n_steps)
    buffer = model.rollout_buffer
    assert venv.restarts == 1
    assert "started again, with new episodes (restart 1)" in caplog.text
    counts = np.append(buffer.observations[:, :, 1], model._last_obs[None, :, 1], 0)
    np.testing.assert_array_equal(counts[:, :2], np.arange(n_steps + 1)[:, None] * [1, 1])
    np.testing.assert_array_equal(counts[:, 2:], np.append(0, np.arange(n_steps))[:, None] * [1, 1])
    starts = np.append(buffer.episode_starts, model._last_episode_starts[None], 0)
    assert starts[1].tolist() == [0, 0, 1, 1]
    assert not starts[2:].any()
    assert buffer.rewards[0, 2:].tolist() == [0, 0]  # gamma is 0, and so is the value behind
    assert buffer.rewards[0, :2].all()
    assert np.isfinite(buffer.actions).all()
    assert [(one["r"], one["l"]) for one in model.ep_info_buffer] == [(0, 1), (0, 1)]


def test_an_actor_that_died_between_rollouts_truncates_its_lanes_in_the_next(ray, start):
    venv = start(on_worker_death="restart")
    model = make(venv)
    model.train = lambda: None
    model.learn(ROLLOUT)
    ray.kill(ray.actors[1])
    venv.get_attr("count")  # it is started again here
    model.learn(ROLLOUT, reset_num_timesteps=False)
    assert model.rollout_buffer.episode_starts[1, 2:].tolist() == [1, 1]
    assert venv.restarts == 1


def test_so_they_are_after_a_rollout_that_was_interrupted(ray, start, monkeypatch):
    venv = start(on_worker_death="restart")
    model = make(venv)
    model.train = lambda: None
    model.learn(ROLLOUT)
    ray.kill(ray.actors[0])
    venv.get_attr("count")
    with monkeypatch.context() as patch:
        patch.setattr(venv._workers[1], "receive", lambda deadline: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            model.learn(ROLLOUT, reset_num_timesteps=False)
    model.learn(ROLLOUT, reset_num_timesteps=False)
    assert model.rollout_buffer.episode_starts[1, :2].tolist() == [1, 1]


def test_an_environment_that_raises_is_named(start):
    venv = start([functools.partial(Counting, length=50)] * 4)
    model = make(venv)
    model.policy.action_net.bias.data[RAISE] = 100
    with pytest.raises(WorkerError, match=r"(?s)lane 0 raised.*ArithmeticError: the pole broke"):
        model.learn(ROLLOUT)
    assert not venv.num_workers


def test_a_policy_that_gives_nan_is_an_error_as_ever(start):
    model = make(start())
    with torch.no_grad():
        model.policy.action_net.bias[:] = torch.nan
    with pytest.raises(ValueError, match="The policy gave a distribution of NaN"):
        model.learn(ROLLOUT)


def test_rollouts_that_take_too_long_are_named(start, monkeypatch):
    monkeypatch.setattr("bridge.host_env.cluster.ray_vec_env.SECONDS_TO_BEGIN", 0.1)
    model = make(start(step_timeout=0.001))
    with pytest.raises(WorkerError, match=rf"lanes 0 to 1 did not end {N_STEPS} steps within 0.1 s"):
        model.learn(ROLLOUT)


# --- The plan -------------------------------------------------------------------------------------------------------

CANNOT = {
    "a wrapper": (VecNormalize, {}, "A VecNormalize around the environments has a part in each step."),
    "exploration": (lambda venv: venv, {"use_sde": True}, "State-dependent exploration draws the noise of all lanes"),
    "engine": (lambda venv: venv, {"engine": "torch"}, "It takes acting by a program a step"),
}


@pytest.mark.parametrize(("wrap", "settings", "reason"), CANNOT.values(), ids=CANNOT)
def test_the_plan_says_why_it_cannot_be(start, wrap, settings, reason):
    venv = start([functools.partial(Counting, actions="box")] * 2)
    plan = bridge.PPO("MlpPolicy", wrap(venv), **settings).plan
    assert not plan.rolls_out
    assert f"no whole rollouts in the actors: {reason}" in str(plan)


def test_the_plan_says_that_it_is_so(start):
    plan = bridge.PPO("MlpPolicy", start([Counting] * 2)).plan
    assert "or where nobody looks at steps, whole rollouts in the actors" in str(plan)
    assert "rollouts" not in str(make(make_env()).plan)
