"""The reference without its roundings, as a fixture."""

from types import SimpleNamespace

import numpy as np
import pytest
from gymnasium.envs.classic_control import continuous_mountain_car


@pytest.fixture
def no_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the reference's MountainCarContinuous keep its state in float64.

    It rounds its state to float32 at every step, and computes in float32 from then on, so that nothing about its
    formulas can be told beyond 1e-7. Here its `np.array(..., dtype=np.float32)` ignores the dtype; the formulas are
    untouched. `test_step_of_untouched_mountain_car_continuous` compares with the reference as it is.
    """
    keep = SimpleNamespace(array=lambda value, dtype=None: np.array(value), float32=np.float32)
    monkeypatch.setattr(continuous_mountain_car, "np", keep)
