"""Train PPO on CartPole-v1 with bridge or stock SB3, until 20 episodes return 475 on average."""

import argparse
import json

from stable_baselines3.common.callbacks import EvalCallback, StopTrainingOnRewardThreshold

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--side", choices=["bridge", "stock SB3"], required=True)
parser.add_argument("--setting", choices=["default", "zoo"], default="default")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--total-timesteps", type=int, default=200_000)
options = parser.parse_args()

if options.side == "bridge":
    from bridge import PPO, configure, make_vec_env

    configure()  # compiled functions are kept on disk: the second run compiles nothing
else:
    from stable_baselines3 import PPO  # type: ignore[assignment]
    from stable_baselines3.common.env_util import make_vec_env  # type: ignore[assignment]

# SB3's defaults except for shorter rollouts, and RL Baselines3 Zoo's settings for the task.
SETTINGS = {
    "default": {"n_steps": 256, "batch_size": 64, "n_epochs": 10},
    "zoo": {
        "n_steps": 32,
        "batch_size": 256,
        "n_epochs": 20,
        "gamma": 0.98,
        "gae_lambda": 0.8,
        "learning_rate": lambda remaining: 0.001 * remaining,
        "clip_range": lambda remaining: 0.2 * remaining,
    },
}

evaluation = EvalCallback(
    make_vec_env("CartPole-v1", n_envs=20, seed=1000 + options.seed),
    callback_on_new_best=StopTrainingOnRewardThreshold(475),
    n_eval_episodes=20,
    eval_freq=512,  # of the 8 environments: every 4096 steps
    verbose=0,
)
model = PPO(
    "MlpPolicy",
    make_vec_env("CartPole-v1", n_envs=8, seed=options.seed),
    seed=options.seed,
    device="cpu",
    **SETTINGS[options.setting],
)
model.learn(options.total_timesteps, callback=evaluation)
print(json.dumps({"timesteps": model.num_timesteps, "mean_return": float(evaluation.best_mean_reward)}))
