"""Environments that step in two groups: the same learning data in each lane, and the same faults."""

import functools
import logging
import os
import signal

import numpy as np
import pytest
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecNormalize

import bridge
from bridge import ProcessVecEnv, SerialVecEnv, WorkerDied, WorkerError
from bridge.engine.acting import JudgingActor
from tests.bridge.host_env.host_environments import Counting
from tests.bridge.small_models import N_ENVS, N_STEPS, ROLLOUT, Recorder, make, make_env

FIELDS = ("observations", "actions", "rewards", "values", "log_probs", "advantages", "returns", "episode_starts")


def factories(lanes=N_ENVS):
    # Some are terminated, some truncated, and not all at once.
    return [functools.partial(Counting, actions="box", length=4 + lane, limit=5, tells=True) for lane in range(lanes)]


@pytest.fixture(scope="module")
def shared():
    """Four lanes in two processes."""
    venv = ProcessVecEnv(factories(), envs_per_process=2)
    yield venv
    venv.close()


@pytest.fixture
def start():
    """Makes one that may be broken."""
    made = []

    def start(lanes=N_ENVS, **arguments):
        made.append(ProcessVecEnv(factories(lanes), **{"envs_per_process": 2, **arguments}))
        return made[-1]

    yield start
    for venv in made:
        venv.close()


def trained(venv, callback=None, steps=2 * ROLLOUT, **settings):
    """A model after two rollouts, and copies of what each update learnt from."""
    model, rollouts = make(venv, **settings), []
    train = model.train

    def keep_and_train():
        rollouts.append({name: getattr(model.rollout_buffer, name).copy() for name in FIELDS})
        train()

    model.train = keep_and_train
    return model.learn(steps, callback), rollouts


def assert_same_training(ours, reference):
    for mine, other in zip(ours[1], reference[1], strict=True):
        for name in FIELDS:
            np.testing.assert_allclose(mine[name], other[name], rtol=1e-5, atol=1e-5, err_msg=name)
    ours, reference = ours[0], reference[0]
    np.testing.assert_array_equal(ours._last_obs, reference._last_obs)
    np.testing.assert_array_equal(ours._last_episode_starts, reference._last_episode_starts)
    assert ours.num_timesteps == reference.num_timesteps
    episodes = [[(one["r"], one["l"]) for one in model.ep_info_buffer] for model in (ours, reference)]
    np.testing.assert_allclose(*episodes, rtol=1e-5)
    assert episodes[0]


@pytest.mark.parametrize("watched", [False, True])
def test_each_lane_learns_from_the_same_data(shared, watched):
    runs, reset_infos = [], []
    for pipeline in (True, False):
        runs.append(trained(shared, Recorder() if watched else None, pipeline=pipeline))
        reset_infos.append(list(shared.reset_infos))
        assert runs[-1][0].plan.pipelines == pipeline
    assert_same_training(*runs)
    assert reset_infos[0] == reset_infos[1]


def test_groups_of_different_sizes_learn_from_the_same_data_too(start):
    venv = start(3)
    assert_same_training(*(trained(venv, pipeline=pipeline) for pipeline in (True, False)))


@pytest.mark.parametrize("watched", [False, True])
def test_one_group_steps_while_the_other_acts(shared, watched, monkeypatch):
    groups, stepping = shared.split(), []

    def noticing(act):
        def noticed(self, *arguments):
            stepping.append([group.told is not None for group in groups])
            return act(self, *arguments)

        return noticed

    for name in ("act", "act_and_judge"):
        monkeypatch.setattr(JudgingActor, name, noticing(getattr(JudgingActor, name)))
    trained(shared, Recorder() if watched else None, ROLLOUT, pipeline=True)
    neither, first, second = [False, False], [True, False], [False, True]
    assert stepping == ([neither, first] * N_STEPS if watched else [neither, *[first, second] * (N_STEPS - 1), first])


def test_groups_of_one_size_share_their_program(shared):
    model = make(shared, pipeline=True, policy_kwargs={"net_arch": [7]})
    model.train = lambda: None
    model.learn(ROLLOUT)
    assert model.plan.actor.programs.act._cache_size() == 1


# --- Callbacks ------------------------------------------------------------------------------------------------------


def test_callbacks_see_whole_steps_with_the_locals_of_the_ordinary_loop(shared):
    ours, reference = Recorder(), Recorder()
    trained(shared, ours, pipeline=True)
    trained(shared, reference)
    assert ours.events == reference.events
    for mine, other in zip(ours.steps, reference.steps, strict=True):
        assert mine.keys() == other.keys()
        for name in ("obs_tensor", "actions", "clipped_actions", "values", "log_probs", "new_obs", "rewards", "dones"):
            assert type(mine[name]) is type(other[name]), name
            assert mine[name].dtype == other[name].dtype, name
            np.testing.assert_allclose(mine[name], other[name], rtol=1e-5, atol=1e-5, err_msg=name)
        for info, expected in zip(mine["infos"], other["infos"], strict=True):
            assert info.keys() == expected.keys()


def test_no_environment_is_ahead_of_the_step_that_a_callback_sees(shared):
    def callback(local, _):
        assert shared.get_attr("count") == local["new_obs"][:, 1].tolist()
        return True

    trained(shared, callback, ROLLOUT, pipeline=True)


def test_a_callback_ends_the_training_and_leaves_no_step_under_way(shared):
    model, rollouts = trained(shared, lambda local, _: local["n_steps"] < 5, pipeline=True)
    assert (model.num_timesteps, model.rollout_buffer.pos, rollouts) == (6 * N_ENVS, 5, [])
    assert all(group.told is None for group in shared.split())


# --- Faults ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("calls", [1, 8, 9])
def test_after_an_interruption_nothing_hangs_and_a_training_is_what_it_would_have_been(shared, calls, monkeypatch):
    wait, count = ProcessVecEnv.step_lanes_wait, iter(range(calls))

    def interrupted(self, group):
        if next(count, None) is None:
            raise KeyboardInterrupt
        return wait(self, group)

    with monkeypatch.context() as patch:
        patch.setattr(ProcessVecEnv, "step_lanes_wait", interrupted)
        model = make(shared, pipeline=True)
        with pytest.raises(KeyboardInterrupt):
            model.learn(ROLLOUT)
    assert any(group.told is not None for group in shared.split())
    assert shared.get_attr("length") == [4, 5, 6, 7]
    model.learn(ROLLOUT, reset_num_timesteps=False)  # goes on without a reset
    assert_same_training(*(trained(shared, pipeline=pipeline) for pipeline in (True, False)))


def test_an_environment_that_raises_is_named_and_all_are_shut_down(start):
    venv = start()
    model = make(venv, pipeline=True)
    venv.set_attr("kind", "sound", indices=3)
    processes = venv.processes
    with pytest.raises(WorkerError, match=r"(?s)environment of lane 3 raised.*KeyError: 'sound'"):
        model.learn(ROLLOUT)
    assert not venv.processes
    assert all(process.poll() is not None for process in processes)


def test_a_step_that_takes_too_long_is_named(start):
    venv = start(step_timeout=0.3)
    model = make(venv, pipeline=True)
    model.learn(ROLLOUT)
    os.kill(venv.processes[0].pid, signal.SIGSTOP)
    with pytest.raises(WorkerDied, match=r"lanes 0 to 1 did not end its step within step_timeout = 0.3 s"):
        model.learn(ROLLOUT, reset_num_timesteps=False)


@pytest.mark.parametrize("worker", [0, 1])
def test_a_worker_that_died_is_started_again_and_its_lanes_alone_truncated(start, worker):
    class Kill(BaseCallback):
        def _on_step(self):
            if self.n_calls == 2:
                process = self.training_env.processes[worker]
                os.kill(process.pid, signal.SIGKILL)
                process.wait()
            if self.n_calls == 3:
                self.seen = {name: self.locals[name] for name in ("dones", "rewards", "infos")}
            return True

    venv, kill = start(on_worker_death="restart"), Kill()
    model, rollouts = trained(venv, kill, pipeline=True)
    assert (venv.restarts, len(rollouts), model.num_timesteps) == (1, 2, 2 * ROLLOUT)
    assert kill.seen["dones"].tolist() == [lane // 2 == worker for lane in range(N_ENVS)]
    for lane, info in enumerate(kill.seen["infos"]):
        assert info.get("TimeLimit.truncated", False) == (lane // 2 == worker)
        # The last observation that there was: of the second step.
        assert lane // 2 != worker or info["terminal_observation"][1] == 2
        assert (kill.seen["rewards"][lane] == 0) == (lane // 2 == worker)


# --- Where it cannot be ---------------------------------------------------------------------------------------------

FALLBACKS = {
    "a wrapper": (lambda venv: VecNormalize(venv), {}, "VecNormalize steps all lanes together"),
    "another VecEnv": (lambda venv: SerialVecEnv(factories()), {}, "SerialVecEnv steps all lanes together"),
    "torch": (lambda venv: venv, {"engine": "torch"}, "It takes acting by a program a step"),
    "JAX": (lambda venv: make_env(), {}, "It takes acting by a program a step"),
    "gSDE": (lambda venv: venv, {"use_sde": True}, "State-dependent exploration"),
}


@pytest.mark.parametrize("what", FALLBACKS)
def test_it_falls_back_and_says_once_why(what, shared, caplog):
    make_env, settings, why = FALLBACKS[what]
    with caplog.at_level(logging.WARNING, logger="bridge"):
        model = make(make_env(shared), pipeline=True, **settings)
        model.train = lambda: None
        model.learn(2 * ROLLOUT)
    [record] = caplog.records
    assert record.getMessage() == str(model.plan)
    assert f"not pipelined: {why}" in str(model.plan)
    assert "in two groups" not in str(model.plan)


def test_one_process_is_no_two_groups(start):
    venv = start(2)
    assert len(venv.split()) == 1
    assert "not pipelined: All lanes are in one process." in str(make(venv, pipeline=True).plan)


def test_the_plan_tells_of_groups_and_of_nothing_where_none_were_asked_for(shared):
    assert "environments stepped from the host, in two groups\n" in str(make(shared, pipeline=True).plan)
    assert "groups" not in str(make(shared).plan)
    assert "not pipelined" not in str(make(shared).plan)


def test_it_is_saved_and_checked(shared, tmp_path):
    make(shared, pipeline=True).save(tmp_path / "model")
    model = bridge.PPO.load(tmp_path / "model", env=shared)
    assert model.plan.pipelines
    model.pipeline = False
    assert not model.plan.pipelines
    with pytest.raises(ValueError, match="pipeline must be a bool, got 2"):
        make(shared, pipeline=2)
