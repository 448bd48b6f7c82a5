"""SBX's PPO (SB3's loop, JAX's networks) on Gymnasium's environments, in the environment of sbx-requirements.txt."""

from __future__ import annotations

from collections.abc import Mapping

from sbx import PPO
from stable_baselines3.common.env_util import make_vec_env

from benchmarks.peers.worker import Setting, Training, sb3_training, serve


def prepare(setting: Setting, iterations: int, compiler_options: Mapping[str, str]) -> Training:
    """Train with `learn` on a DummyVecEnv, as SB3's `make_vec_env` returns it. SBX compiles its own functions."""
    # Its networks are two towers of 64-64 tanh and its Adam has SB3's epsilon without being told.
    model = PPO("MlpPolicy", make_vec_env("CartPole-v1", setting.n_envs, seed=0), seed=0, **setting.hyperparameters)
    return sb3_training(model, setting, iterations, compiles=True)


if __name__ == "__main__":
    serve(prepare, ["sbx-rl", "gymnasium", "stable-baselines3", "flax", "optax", "jax"])
