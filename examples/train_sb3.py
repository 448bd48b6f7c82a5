"""Train with stock Stable-Baselines3 on environments of jaxenvs: only make_vec_env has another import.

It trains PPO on CartPole-v1, evaluates it during and after training, saves it, and loads it again.
Run it: python examples/train_sb3.py
"""

from pathlib import Path
from tempfile import TemporaryDirectory

from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.evaluation import evaluate_policy

from jaxenvs.sb3 import make_vec_env  # was: from stable_baselines3.common.env_util import make_vec_env

if __name__ == "__main__":
    with TemporaryDirectory() as folder:
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
            learning_rate=1e-3,
            seed=0,
        )
        # eval_freq counts calls to env.step: every 8 * 1500 timesteps.
        callback = EvalCallback(eval_env, n_eval_episodes=16, eval_freq=1500, best_model_save_path=folder)
        model.learn(total_timesteps=60_000, callback=callback)
        model.save(Path(folder) / "cartpole")

        for name in ("cartpole", "best_model"):
            loaded = PPO.load(Path(folder) / name)
            mean, std = evaluate_policy(loaded, eval_env, n_eval_episodes=50)
            print(f"{name}: return {mean:.1f} ± {std:.1f}")
        assert mean > 400  # of the best model
