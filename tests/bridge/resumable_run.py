"""Train PPO with a checkpoint before every rollout; `test_checkpoint.py` kills this and runs it again.

python resumable_run.py CHECKPOINT WEIGHTS [KILL_AT_STEP]
"""

import os
import signal
import sys
from pathlib import Path

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback, CallbackList
from stable_baselines3.common.vec_env import VecNormalize

from bridge import RolloutCheckpoint, load_checkpoint, make_vec_env

TOTAL, NUM_ENVS, NUM_STEPS = 8 * 4 * 32, 4, 32


class KillAt(BaseCallback):
    """Die as by `kill -9`, in the middle of a rollout."""

    def __init__(self, step):
        super().__init__()
        self.step = step

    def _on_step(self):
        if self.num_timesteps >= self.step:
            os.kill(os.getpid(), signal.SIGKILL)
        return True


if __name__ == "__main__":
    checkpoint, weights = Path(sys.argv[1]), Path(sys.argv[2])
    torch.set_num_threads(1)
    env = VecNormalize(make_vec_env("CartPole-v1", NUM_ENVS, seed=0))
    if checkpoint.exists():
        model = load_checkpoint(PPO, checkpoint, env)
        print(f"resumed at {model.num_timesteps}")
    else:
        settings = {"n_steps": NUM_STEPS, "batch_size": 64, "n_epochs": 2, "learning_rate": lambda left: 1e-3 * left}
        model = PPO("MlpPolicy", env, seed=0, **settings)
    callbacks = [RolloutCheckpoint(checkpoint)] + [KillAt(int(step)) for step in sys.argv[3:]]
    model.learn(TOTAL - model.num_timesteps, reset_num_timesteps=False, callback=CallbackList(callbacks))
    torch.save({"policy": model.policy.state_dict(), "mean": env.obs_rms.mean, "steps": model.num_timesteps}, weights)
