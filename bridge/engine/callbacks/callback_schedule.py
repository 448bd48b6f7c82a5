"""ScheduledCallback, which says when it needs a step, and how long compiled functions may run at once."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from stable_baselines3.common.callbacks import BaseCallback


class ScheduledCallback(BaseCallback):
    """Callback that announces when it next needs to see a step, so that compiled functions can run until then.

    Use it as a base class for callbacks that need few steps. Write `_on_step` as for any callback of SB3; it is called
    at every step. Override `steps_until_needed` to announce the steps that it needs. An announced step runs in SB3's
    own loop, with all of SB3's locals. Other steps run compiled, and `_on_step` is called for them afterwards, when
    the compiled call has returned. `self.locals` then holds only `dones`, and `infos` of the episodes that have ended
    in the step. If `_on_step` writes something or returns False there, this takes effect after the compiled call.

    With off-policy algorithms, a compiled call may run several rollouts. `on_rollout_start` is called when it starts.

    Args:
      verbose: as in SB3's callbacks: 0 for no output, 1 for info messages, 2 for debug messages.
    """

    def steps_until_needed(self, num_timesteps: int, num_envs: int) -> int:
        """Return for how many of the next steps this callback needs no locals, except at the ends of episodes.

        0 announces the next step. The default announces none: the callback needs only the ends of episodes.

        Args:
          num_timesteps: how many steps all environments together have taken.
          num_envs: how many environments there are.

        Returns:
          A number of steps, each of which all environments take together. `self.n_calls` counts such steps, too.
        """
        return sys.maxsize


# The longest time that a Ctrl-C or a progress bar should wait. Returning to the host takes some milliseconds
# off-policy.
SECONDS = 0.2


class Pace:
    """Number of iterations per call that takes about SECONDS. It starts at 1, because the duration is not known yet.

    However training is split into calls, its results are the same.
    """

    def __init__(self) -> None:
        self._count = 1

    def next(self, most: int) -> int:
        """Return how many iterations to run next, at most `most`."""
        return min(self._count, most)

    @contextmanager
    def running(self, count: int) -> Iterator[None]:
        """Measure how long a compiled function takes for a number of iterations."""
        start = time.perf_counter()
        yield
        seconds = time.perf_counter() - start
        if seconds > SECONDS:
            self._count = max(1, count // 2)
        elif seconds < SECONDS / 2:
            self._count = max(self._count, 2 * count)
