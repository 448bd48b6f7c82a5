"""Train Stable-Baselines3's PPO with compiled code: the same script with another import.

It trains PPO on CartPole-v1 with a callback that evaluates during training. Then it saves the agent, and continues to
train it with Stable-Baselines3 itself.
Run it: python examples/train_compiled.py
"""

import time
from pathlib import Path
from tempfile import TemporaryDirectory

import stable_baselines3
from stable_baselines3.common.callbacks import EvalCallback

from jaxenvs.sb3 import PPO, evaluate, make_vec_env  # was: from stable_baselines3 import PPO

if __name__ == "__main__":
    env = make_vec_env("CartPole-v1", n_envs=8, seed=0)
    eval_env = make_vec_env("CartPole-v1", n_envs=8, seed=1000)
    model = PPO(
        "MlpPolicy",
        env,
        n_steps=32,
        batch_size=256,
        n_epochs=20,
        gamma=0.98,
        gae_lambda=0.8,
        learning_rate=lambda remaining: 1e-3 * remaining,
        clip_range=lambda remaining: 0.2 * remaining,
        seed=0,
    )
    start = time.perf_counter()
    model.learn(total_timesteps=100_000, callback=EvalCallback(eval_env, n_eval_episodes=16, eval_freq=5000))
    print(f"trained in {time.perf_counter() - start:.1f} s")
    print(f"return of the agent: {evaluate(model, 'CartPole-v1', n_episodes=1000)}")

    with TemporaryDirectory() as folder:
        model.save(Path(folder) / "cartpole")
        stock = stable_baselines3.PPO.load(Path(folder) / "cartpole", env=env)
    stock.learn(total_timesteps=1024, reset_num_timesteps=False)
    print(
        f"after {stock.num_timesteps - model.num_timesteps} more steps with SB3: {evaluate(stock, 'CartPole-v1', 100)}"
    )
    assert evaluate(model, "CartPole-v1", 100).mean > 475
