"""Train on your own Gymnasium environment, with one line of the Stable-Baselines3 script changed.

The environment stays as it is, in Python. `jaxenvs.sb3.PPO` learns in a compiled function, and a faster VecEnv steps
the environments. With backend="process" in `make_vec_env`, each environment would be in a separate process.
Run it: python examples/own_gymnasium_env.py
"""

import gymnasium
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.evaluation import evaluate_policy

from jaxenvs.sb3 import PPO, make_vec_env  # was: from stable_baselines3 import PPO, and make_vec_env from its env_util


class Thermostat(gymnasium.Env):
    """Keep a room at 20 degrees by turning the heating on or off. The outside temperature is unknown.

    The observation is the distance from 20 degrees, and its change. The reward is minus the distance in degrees.
    """

    observation_space = spaces.Box(-30.0, 30.0, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        self.outside = self.np_random.uniform(-5.0, 15.0)
        self.inside = self.before = self.np_random.uniform(10.0, 25.0)
        return self._observe(), {}

    def step(self, action):
        self.steps += 1
        self.before = self.inside
        self.inside += 0.05 * (self.outside - self.inside) + 1.5 * int(action)
        return self._observe(), -abs(self.inside - 20.0), False, self.steps == 100, {}

    def _observe(self):
        return np.array([self.inside - 20.0, self.inside - self.before], np.float32)


if __name__ == "__main__":
    env = make_vec_env(Thermostat, n_envs=8, seed=0)
    model = PPO("MlpPolicy", env, n_steps=64, batch_size=128, gamma=0.97, learning_rate=1e-3, seed=1)
    before, _ = evaluate_policy(model, env, n_eval_episodes=16)
    model.learn(100_000)
    after, _ = evaluate_policy(model, env, n_eval_episodes=16)
    print(f"Return of an episode of 100 steps: {before:.0f}, and after training {after:.0f}.")
    assert after > -60
