"""PyTorch and Stable-Baselines3 on top of jaxenvs."""

import importlib
from typing import Any

try:
    import stable_baselines3  # noqa: F401
    import torch  # noqa: F401
except ImportError as error:
    raise ImportError(
        f'bridge needs PyTorch and Stable-Baselines3, but {error.name} is not installed: pip install "jaxenvs[sb3]".'
    ) from error

from bridge.algorithms.a2c import A2C
from bridge.algorithms.dqn import DQN
from bridge.algorithms.ppo import PPO
from bridge.algorithms.sac import SAC
from bridge.algorithms.specs import SPECS
from bridge.algorithms.td3 import DDPG, TD3
from bridge.atari import make_atari_env
from bridge.checkpoint import RolloutCheckpoint, load_checkpoint, save_checkpoint
from bridge.configuration import configure, set_up_process
from bridge.dlpack import to_jax, to_torch
from bridge.errors import NotCompilable
from bridge.evaluation import Evaluation, evaluate
from bridge.factory import make_vec_env
from bridge.host_env.cluster.ray_vec_env import RayVecEnv
from bridge.host_env.gym_vec_env import GymVecEnv
from bridge.host_env.native import Buffers, NativeVectorEnv
from bridge.host_env.native_vec_env import NativeVecEnv
from bridge.host_env.processes.process_vec_env import ProcessVecEnv
from bridge.host_env.processes.worker_handle import WorkerDied, WorkerError
from bridge.host_env.serial_vec_env import SerialVecEnv
from bridge.originals import remember, remember_packages
from bridge.replay import HerReplayBuffer, PrioritizedReplayBuffer, ReplayBuffer
from bridge.results import plot_results
from bridge.seeds import train_seeds
from bridge.translate.pytorch.operations import MODULES
from bridge.vec_env.jax_vec_env import JaxVecEnv
from bridge.wrappers import CompiledWrapper, register_wrapper
from jaxenvs import __version__ as __version__

__all__ = [
    "A2C",
    "DDPG",
    "DQN",
    "PPO",
    "SAC",
    "TD3",
    "Buffers",
    "CompiledWrapper",
    "Evaluation",
    "GymVecEnv",
    "HerReplayBuffer",
    "JaxVecEnv",
    "NativeVecEnv",
    "NativeVectorEnv",
    "NotCompilable",
    "PrioritizedReplayBuffer",
    "ProcessVecEnv",
    "RayVecEnv",
    "ReplayBuffer",
    "RolloutCheckpoint",
    "SerialVecEnv",
    "WorkerDied",
    "WorkerError",
    "configure",
    "evaluate",
    "load_checkpoint",
    "make_atari_env",
    "make_vec_env",
    "plot_results",
    "register_wrapper",
    "save_checkpoint",
    "to_jax",
    "to_torch",
    "train_seeds",
]

# Subclasses of sb3-contrib's algorithms, which are imported at their first use.
CONTRIB = {name: spec for name, spec in SPECS.items() if spec.library == "sb3_contrib"}
# What stands above this room, and needs Optuna.
TUNE = "bridge.app.tuning.study"


def __getattr__(name: str) -> Any:
    if name == "tune":
        try:
            importlib.import_module("optuna")
        except ImportError as error:
            raise ImportError(
                f'bridge.tune needs Optuna, but {error.name} is not installed: pip install "jaxenvs[tune]".'
            ) from error
        return importlib.import_module(TUNE).tune
    if name not in CONTRIB:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return CONTRIB[name].cls


def __dir__() -> list[str]:
    return sorted([*globals(), *CONTRIB, "tune"])


set_up_process()
# The methods that classes have now are those in whose place compiled functions run.
remember_packages("stable_baselines3", "bridge")
remember(*MODULES)
