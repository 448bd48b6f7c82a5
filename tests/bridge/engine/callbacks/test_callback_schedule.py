"""When SB3's callbacks act: held against the installed SB3's own code, which a release may change."""

import sys
from types import SimpleNamespace

import pytest
from stable_baselines3.common import callbacks
from stable_baselines3.common.callbacks import (
    CheckpointCallback,
    EvalCallback,
    EveryNTimesteps,
    LogEveryNTimesteps,
)

from bridge.engine.callbacks import callback_schedule
from bridge.engine.callbacks.callback_schedule import ACT_AT_STEPS, steps_until_needed
from tests.bridge.small_models import make_env

NUM_ENVS = 4


class ActedError(Exception):
    pass


def act(*_, **__):
    raise ActedError


def evaluation():
    return EvalCallback(make_env(), eval_freq=6, warn=False)


@pytest.fixture
def make_callback(monkeypatch, tmp_path):
    monkeypatch.setattr(callbacks, "evaluate_policy", act)
    monkeypatch.setattr(callbacks, "sync_envs_normalization", act)
    return {
        "EvalCallback": evaluation,
        "CheckpointCallback": lambda: CheckpointCallback(5, str(tmp_path)),
        "EveryNTimesteps": lambda: EveryNTimesteps(22, lambda *_: True),
        "LogEveryNTimesteps": lambda: LogEveryNTimesteps(22),
    }


def test_all_callbacks_that_are_known_to_act_at_steps_are_tried(make_callback):
    assert {cls.__name__ for cls in ACT_AT_STEPS} == set(make_callback)


@pytest.mark.parametrize("name", [cls.__name__ for cls in ACT_AT_STEPS])
def test_a_callback_acts_exactly_where_steps_until_needed_says(name, make_callback):
    callback = make_callback[name]()
    model = SimpleNamespace(num_timesteps=0, save=act, dump_logs=act, get_env=make_env, get_vec_normalize_env=act)
    callback.model = model
    if getattr(callback, "callback", None) is not None:
        callback.callback.on_step = act
    acted, told = [], []
    for step in range(1, 40):
        told.append(steps_until_needed(callback, model.num_timesteps, NUM_ENVS))
        model.num_timesteps += NUM_ENVS
        try:
            callback.on_step()
        except ActedError:
            acted.append(step)
            if hasattr(callback, "last_time_trigger"):  # which it sets before it acts
                assert callback.last_time_trigger == model.num_timesteps
    assert len(acted) >= 6
    # Before each step: how many steps are left before the one in which it acts.
    expected = [next(at for at in acted if at > step) - step - 1 for step in range(acted[-1])]
    assert told[: acted[-1]] == expected


def test_quiet_steps_is_the_deprecated_name_of_steps_until_needed():
    with pytest.warns(DeprecationWarning, match="QuietCallback is deprecated .*: use ScheduledCallback"):
        base = callback_schedule.QuietCallback
    assert base is callback_schedule.ScheduledCallback

    class Old(base):
        def quiet_steps(self, num_timesteps, num_envs):
            return min(num_timesteps + num_envs, super().quiet_steps(num_timesteps, num_envs))

        def _on_step(self):
            return True

    class Mixin:
        def quiet_steps(self, num_timesteps, num_envs):
            return num_timesteps + num_envs

    class Mixed(Mixin, base):
        _on_step = Old._on_step

    class Assigned(base):
        _on_step = Old._on_step

    Assigned.quiet_steps = Mixin.quiet_steps
    for cls in (Old, Mixed, Assigned):
        with pytest.warns(DeprecationWarning, match=f"{cls.__name__}.quiet_steps is deprecated .*: use steps_until"):
            assert steps_until_needed(cls(), 3, 2, shows_ends=True) == 5
    with pytest.warns(DeprecationWarning, match="ScheduledCallback.quiet_steps is deprecated"):
        assert base.quiet_steps(Assigned(), 3, 2) == sys.maxsize
