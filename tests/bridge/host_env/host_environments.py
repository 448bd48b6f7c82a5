"""Gymnasium environments whose every number a test can foretell, and whose process an action can end.

Workers import this module, so it imports nothing that takes long.
"""

import copy
import ctypes
import os
import signal
import subprocess
import sys
import time

import gymnasium
import numpy as np
from gymnasium import spaces

BOX = spaces.Box(-np.inf, np.inf, (2,), np.float32)
IMAGE = spaces.Box(0, 255, (4, 4, 1), np.uint8)
OBSERVATION_SPACES = {
    "box": BOX,
    "image": IMAGE,
    "discrete": spaces.Discrete(1000),
    "dict": spaces.Dict({"vector": BOX, "image": IMAGE, "number": spaces.Discrete(1000)}),
    "tuple": spaces.Tuple((BOX, spaces.Discrete(1000))),
}
ACTION_SPACES = {
    "discrete": spaces.Discrete(9),
    "multi_binary": spaces.MultiBinary(3),
    "box": spaces.Box(np.float32([-1, -2]), np.float32([1, 2])),
}
RAISE, SIGKILL, SEGMENTATION_FAULT, EXIT, HANG = range(4, 9)
HANG_IN_C = -1  # in a call that does not release the GIL
TIMEOUT = 2.0  # seconds, which steps of workers that do not hang need not even on a busy machine


class Counting(gymnasium.Env):
    """Counts the steps of an episode, which ends after `length` of them, or is cut off after `limit`.

    The observation is made of a random number of the episode and the count; the reward is the sum of the action. The
    actions above do what they are called.

    Args:
      reuses: observations and infos are always in the same memory.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 7}  # noqa: RUF012

    def __init__(self, kind="box", actions="discrete", length=5, limit=99, reuses=False, tells=False, render_mode=None):
        self.observation_space, self.action_space = OBSERVATION_SPACES[kind], copy.deepcopy(ACTION_SPACES[actions])
        self.kind, self.length, self.limit, self.reuses, self.tells = kind, length, limit, reuses, tells
        self.render_mode = render_mode
        self.vector, self.info = np.zeros(2, np.float32), {}
        self.closed_file = None

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count, self.episode = 0, int(self.np_random.integers(1, 1000))
        return self._observe(), {"began": self.episode, "options": options} if self.tells else {}

    def step(self, action):
        fault = int(action) if np.ndim(action) == 0 else 0
        if fault == RAISE:
            raise ArithmeticError("the pole broke")
        if fault in (SIGKILL, SEGMENTATION_FAULT):
            os.kill(os.getpid(), signal.SIGKILL if fault == SIGKILL else signal.SIGSEGV)
        if fault == EXIT:
            os._exit(3)
        while fault == HANG:
            time.sleep(1)
        if fault == HANG_IN_C:
            ctypes.PyDLL(None).sleep(600)
        self.count += 1
        info = {"count": self.count, "vector": self.vector} if self.tells else {}
        if self.reuses:
            self.info.update(info)
            info = self.info
        return (
            self._observe(),
            round(float(np.sum(action)) / 10, 3),
            self.count >= self.length,
            self.count >= self.limit,
            info,
        )

    def _observe(self):
        if not self.reuses:
            self.vector = self.vector.copy()
        self.vector[:] = self.episode, self.count
        image = np.full((4, 4, 1), self.count, np.uint8)
        return {
            "box": self.vector,
            "image": image,
            "discrete": self.count,
            "dict": {"vector": self.vector, "image": image, "number": self.count},
            "tuple": (self.vector, self.count),
        }[self.kind]

    def render(self):
        return np.full((6, 8, 3), self.count, np.uint8)

    def close(self):
        if self.closed_file is not None:
            with open(self.closed_file, "a") as file:
                file.write("closed\n")

    # --- For env_method ---

    def die(self):
        os.kill(os.getpid(), signal.SIGKILL)

    def die_once(self, file):
        """End the process, unless there is such a file; and leave it there."""
        if not os.path.exists(file):
            with open(file, "w"):
                self.die()

    def add(self, number, *, times=1):
        return self.count + number * times

    def modules(self):
        """Return the large packages that the process has imported."""
        return sorted({"jax", "torch", "stable_baselines3", "bridge", "jaxenvs"} & set(sys.modules))

    def drawn_action(self):
        return int(self.action_space.sample())

    def leave_a_process(self):
        """Fork a process that keeps all files open, as simulators may; and start another."""
        if (pid := os.fork()) == 0:
            time.sleep(60)
            os._exit(0)
        return [pid, subprocess.Popen(["sleep", "60"]).pid]


class Talkative(Counting):
    """Whose infos are larger than what a socket takes at once."""

    def step(self, action):
        return *super().step(action)[:4], {"frame": np.zeros(2**20, np.uint8)}
