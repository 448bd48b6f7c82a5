"""PyTorch and Stable-Baselines3 on top of jaxenvs."""

import contextlib
import gc
import importlib
import importlib.util
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any


@contextlib.contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Pause Python's garbage collector while modules are imported.

    It walks through all objects again and again, and finds next to none to free: that took 0.35 of 2.2 s.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


with _without_garbage_collection():
    try:
        import stable_baselines3  # noqa: F401
        import torch
    except ImportError as error:
        raise ImportError(
            f"jaxenvs.sb3 needs PyTorch and Stable-Baselines3, but {error.name} is not installed: pip install "
            '"jaxenvs[sb3]".'
        ) from error
    from bridge.configuration import set_up_process
    from bridge.originals import remember, remember_packages

if TYPE_CHECKING:
    from bridge.algorithms.a2c import A2C
    from bridge.algorithms.crossq import CrossQ as CrossQ
    from bridge.algorithms.dqn import DQN
    from bridge.algorithms.maskable_ppo import MaskablePPO as MaskablePPO
    from bridge.algorithms.ppo import PPO
    from bridge.algorithms.qrdqn import QRDQN as QRDQN
    from bridge.algorithms.recurrent_ppo import RecurrentPPO as RecurrentPPO
    from bridge.algorithms.sac import SAC
    from bridge.algorithms.td3 import DDPG, TD3
    from bridge.algorithms.tqc import TQC as TQC
    from bridge.atari import make_atari_env
    from bridge.checkpoint import RolloutCheckpoint, load_checkpoint, save_checkpoint
    from bridge.dlpack import to_jax, to_torch
    from bridge.engine.callbacks.callback_schedule import ScheduledCallback
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
    from bridge.replay import HerReplayBuffer, PrioritizedReplayBuffer, ReplayBuffer
    from bridge.results import plot_results
    from bridge.results.pretrained import load_pretrained
    from bridge.results.video import record
    from bridge.seeds import train_seeds
    from bridge.self_play.self_play_callback import SelfPlayCallback
    from bridge.self_play.tournament import Tournament, plot_tournament, tournament
    from bridge.vec_env.jax_vec_env import JaxVecEnv
    from bridge.wrappers import CompiledWrapper, register_wrapper
    from jaxenvs.compilation.cache import configure

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
    "ScheduledCallback",
    "SelfPlayCallback",
    "SerialVecEnv",
    "Tournament",
    "WorkerDied",
    "WorkerError",
    "configure",
    "evaluate",
    "load_checkpoint",
    "load_pretrained",
    "make_atari_env",
    "make_vec_env",
    "plot_results",
    "plot_tournament",
    "record",
    "register_wrapper",
    "save_checkpoint",
    "to_jax",
    "to_torch",
    "tournament",
    "train_seeds",
]

# The names of each module, which is imported when one of them is asked for: all of them take half a second.
_NAMES = {
    "bridge.algorithms.a2c": ("A2C",),
    "bridge.algorithms.dqn": ("DQN",),
    "bridge.algorithms.ppo": ("PPO",),
    "bridge.algorithms.sac": ("SAC",),
    "bridge.algorithms.td3": ("DDPG", "TD3"),
    "bridge.atari": ("make_atari_env",),
    "bridge.checkpoint": ("RolloutCheckpoint", "load_checkpoint", "save_checkpoint"),
    "bridge.dlpack": ("to_jax", "to_torch"),
    "bridge.engine.callbacks.callback_schedule": ("ScheduledCallback",),
    "bridge.errors": ("NotCompilable",),
    "bridge.evaluation": ("Evaluation", "evaluate"),
    "bridge.factory": ("make_vec_env",),
    "bridge.host_env.cluster.ray_vec_env": ("RayVecEnv",),
    "bridge.host_env.gym_vec_env": ("GymVecEnv",),
    "bridge.host_env.native": ("Buffers", "NativeVectorEnv"),
    "bridge.host_env.native_vec_env": ("NativeVecEnv",),
    "bridge.host_env.processes.process_vec_env": ("ProcessVecEnv",),
    "bridge.host_env.processes.worker_handle": ("WorkerDied", "WorkerError"),
    "bridge.host_env.serial_vec_env": ("SerialVecEnv",),
    "bridge.replay": ("HerReplayBuffer", "PrioritizedReplayBuffer", "ReplayBuffer"),
    "bridge.results": ("plot_results",),
    "bridge.results.pretrained": ("load_pretrained",),
    "bridge.results.video": ("record",),
    "bridge.seeds": ("train_seeds",),
    "bridge.self_play.self_play_callback": ("SelfPlayCallback",),
    "bridge.self_play.tournament": ("Tournament", "plot_tournament", "tournament"),
    "bridge.vec_env.jax_vec_env": ("JaxVecEnv",),
    "bridge.wrappers": ("CompiledWrapper", "register_wrapper"),
    "jaxenvs.compilation.cache": ("configure",),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import what a name needs, now that it is asked for."""
    if name in _MODULES:
        with _without_garbage_collection():
            value = getattr(importlib.import_module(_MODULES[name]), name)
    elif name == "__version__":
        value = importlib.import_module("jaxenvs").__version__
    elif name.startswith("__"):  # Python and tools ask for these
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    elif name == "CONTRIB":
        value = _contrib()
    elif name in (contrib := _contrib()):
        value = contrib[name].cls
    elif importlib.util.find_spec(f"{__name__}.{name}") is not None:
        value = importlib.import_module(f"{__name__}.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    remember_packages("stable_baselines3", "bridge")  # before user code can replace their methods
    globals()[name] = value
    return value


def _contrib() -> dict[str, Any]:
    """Return the rows of sb3-contrib's algorithms, whose classes are imported at their first use."""
    specs = importlib.import_module("bridge.algorithms.specs")
    return {name: spec for name, spec in specs.SPECS.items() if spec.library == specs.CONTRIB}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_contrib(), "CONTRIB"})


set_up_process()
# The methods that classes have now are those in whose place compiled functions run.
remember_packages("stable_baselines3")
remember(*(each for each in vars(torch.nn).values() if isinstance(each, type)))
