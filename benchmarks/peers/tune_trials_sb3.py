"""Trials as RL Baselines3 Zoo runs them: stock SB3's PPO, one seed, evaluated now and then. JSON in, JSON out."""

import json
import sys
import time

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.env_util import make_vec_env

asked = json.load(sys.stdin)
torch.set_num_threads(1)  # as many processes run side by side as there are cores
for number, arguments in enumerate(asked["trials"]):
    start = time.perf_counter()
    policy_kwargs = arguments["policy_kwargs"]
    policy_kwargs["activation_fn"] = getattr(torch.nn, policy_kwargs["activation_fn"])
    env = make_vec_env(asked["env_id"], n_envs=asked["num_envs"], seed=number)
    evaluation = EvalCallback(
        make_vec_env(asked["env_id"], seed=1000 + number),
        n_eval_episodes=asked["n_eval_episodes"],
        eval_freq=asked["total_timesteps"] // asked["n_evaluations"] // asked["num_envs"],
        verbose=0,
    )
    model = PPO("MlpPolicy", env, device="cpu", seed=number, **arguments)
    model.learn(asked["total_timesteps"], callback=evaluation)
    seconds = time.perf_counter() - start
    print(json.dumps({"seconds": seconds, "value": float(evaluation.last_mean_reward)}), flush=True)
