"""PyTorch and Stable-Baselines3 on top of jaxenvs."""

import os

try:
    import stable_baselines3  # noqa: F401
    import torch  # noqa: F401
except ImportError as error:
    raise ImportError(
        f'bridge needs PyTorch and Stable-Baselines3, and {error.name} is not installed: pip install "jaxenvs[sb3]".'
    ) from error

import jax

# On a CPU, JAX hands every program to another thread, which costs more than a step of a small VecEnv takes. The VecEnv
# waits for each of its steps anyway, so run them in the calling thread. This takes effect if JAX has not run anything
# yet; JAX_CPU_ENABLE_ASYNC_DISPATCH, if set, is left as it is.
if "JAX_CPU_ENABLE_ASYNC_DISPATCH" not in os.environ:
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # type: ignore[no-untyped-call]

# The two share a GPU: JAX takes memory as it needs it, not three quarters of it at the start.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

from bridge.algorithms.a2c import A2C
from bridge.algorithms.ppo import PPO
from bridge.checkpoint import RolloutCheckpoint, load_checkpoint, save_checkpoint
from bridge.dlpack import to_jax, to_torch
from bridge.evaluation import Evaluation, evaluate
from bridge.vec_env.factory import make_vec_env
from bridge.vec_env.jax_vec_env import JaxVecEnv

__all__ = [
    "A2C",
    "PPO",
    "Evaluation",
    "JaxVecEnv",
    "RolloutCheckpoint",
    "evaluate",
    "load_checkpoint",
    "make_vec_env",
    "save_checkpoint",
    "to_jax",
    "to_torch",
]
