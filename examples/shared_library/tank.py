"""Train on an environment whose shared library can be used only once per process, in four processes.

`Tank` is an ordinary Gymnasium environment. The library refuses a second one in the same process, so neither SB3's
DummyVecEnv nor backend="serial" can have four. With backend="process", this process does not create any.
Run it, with a C compiler in the path: python examples/shared_library/tank.py
"""

import ctypes
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import gymnasium
import numpy as np
from gymnasium import spaces

from jaxenvs.sb3 import PPO, make_vec_env

SOURCE = Path(__file__).with_name("tank.c")


def build(folder):
    """Compile tank.c into a folder, and return the path of the library."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        raise RuntimeError("tank.c needs a C compiler, and there is no cc in the path.")
    library = Path(folder) / "tank.so"
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", SOURCE, "-o", library, "-lm"], check=True)
    return str(library)


class Tank(gymnasium.Env):
    """Keep the water at a target level, which changes every 50 steps, by opening and closing a valve."""

    observation_space = spaces.Box(0.0, 2.0, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, library):
        self.library = ctypes.CDLL(library)
        self.library.tank_fill.argtypes = (ctypes.c_double,)
        self.library.tank_step.restype = ctypes.c_double
        if self.library.tank_open() != 0:
            raise RuntimeError("There is a tank in this process already.")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.level = 0, self.np_random.uniform(0.2, 1.8)
        self.target = self.np_random.uniform(0.2, 1.8)
        self.library.tank_fill(self.level)
        return self._observe(), {}

    def step(self, action):
        self.level = self.library.tank_step(int(action))
        self.steps += 1
        if self.steps % 50 == 0:
            self.target = self.np_random.uniform(0.2, 1.8)
        return self._observe(), -abs(self.level - self.target), False, self.steps >= 200, {}

    def _observe(self):
        return np.array([self.level, self.target], np.float32)

    def close(self):
        self.library.tank_close()


def main():
    with tempfile.TemporaryDirectory() as folder:
        env = make_vec_env(Tank, 4, seed=0, env_kwargs={"library": build(folder)}, backend="process")
        model = PPO("MlpPolicy", env, n_steps=128, batch_size=128, gamma=0.9, learning_rate=1e-3, seed=0)
        model.learn(2_048)
        before = np.mean([episode["r"] for episode in model.ep_info_buffer])
        model.learn(40_000)
        after = np.mean([episode["r"] for episode in model.ep_info_buffer])
        print(f"Return of an episode: {before:.0f}, and after training {after:.0f}.")
        env.close()


if __name__ == "__main__":
    main()
