"""The former names of ScheduledCallback and of its method still work, with a warning."""

import sys

import pytest

from bridge.engine.callbacks import callback_schedule
from bridge.engine.callbacks.known import steps_until_needed


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
            assert steps_until_needed(cls(), 3, 2) == 5
    with pytest.warns(DeprecationWarning, match="ScheduledCallback.quiet_steps is deprecated"):
        assert base.quiet_steps(Assigned(), 3, 2) == sys.maxsize
