"""One side of a cell of `benchmarks.never_slower`: a process that trains its model with stock SB3, bridge or SBX.

It answers commands as `worker` does:

    {"do": "load", "side": "bridge", "environments": "JAX"}  ->  {"threads": 2}
    {"do": "begin", "cell": {...}}                           ->  {"first_seconds": 4.2, "peak_megabytes": 93.0, ...}
    {"do": "run", "iterations": 3, "threads": 2}             ->  {}
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import math
import time
from typing import Any, cast

from benchmarks.memory import peak_megabytes, resident_megabytes
from benchmarks.peers.worker import answer

STOCK, OURS, SBX, INDUCTOR = "stock SB3", "bridge", "SBX", "SB3 with th.compile"
PACKAGES = {STOCK: "stable_baselines3", OURS: "bridge", SBX: "sbx", INDUCTOR: "stable_baselines3"}
OFF_POLICY = ("DQN", "SAC", "TD3", "DDPG", "QRDQN", "TQC", "CrossQ")
GYMNASIUM, JAX, HOST = "Gymnasium", "JAX", "Gymnasium by each side's make_vec_env"
MEMORY_ITERATIONS = 3
TRIAL_SECONDS = 0.2

# Name -> policy, layers, and the environment: an id, or a kind of `images`. No layers: SB3's for this policy.
NETWORKS: dict[str, tuple[str, list[int] | dict[str, list[int]] | None, str]] = {
    "MlpPolicy 64-64": ("MlpPolicy", [64, 64], "CartPole-v1"),
    "MlpPolicy 256-256": ("MlpPolicy", [256, 256], "CartPole-v1"),
    "CnnPolicy 4x84x84": ("CnnPolicy", None, "channels_first"),
    "CnnPolicy 84x84x3": ("CnnPolicy", None, "channels_last"),
    "MultiInputPolicy": ("MultiInputPolicy", None, "image_and_vector"),
    "MlpPolicy Pendulum-v1": ("MlpPolicy", [64, 64], "Pendulum-v1"),
    "MlpPolicy 256-256, Pendulum-v1": ("MlpPolicy", [256, 256], "Pendulum-v1"),
    "MlpPolicy 400-300, Pendulum-v1": ("MlpPolicy", [400, 300], "Pendulum-v1"),
    "MlpPolicy 256-256, 1024-1024, Pendulum-v1": ("MlpPolicy", {"pi": [256, 256], "qf": [1024, 1024]}, "Pendulum-v1"),
    "CnnPolicy 4x84x84, Box actions": ("CnnPolicy", None, "channels_first, Box"),
    "MultiInputPolicy, Box actions": ("MultiInputPolicy", None, "image_and_vector, Box"),
    "MlpPolicy 64-64, legal actions": ("MlpPolicy", [64, 64], "four_numbers"),
    "MlpLstmPolicy 64-64": ("MlpLstmPolicy", [64, 64], "CartPole-v1"),
    "MlpPolicy of 128 numbers": ("MlpPolicy", [64, 64], "wide"),
    "MultiInputPolicy of vectors": ("MultiInputPolicy", [64, 64], "vectors"),
    "MultiInputPolicy 256-256, BitFlipping(15)": ("MultiInputPolicy", [256, 256], "bits"),
}
# A name among settings, which are sent as JSON.
HINDSIGHT = {"replay_buffer_class": "HerReplayBuffer"}


@dataclasses.dataclass(frozen=True)
class Cell:
    """A model to train.

    Attributes:
      algorithm: "PPO", "A2C", or one of OFF_POLICY.
      network: a name in NETWORKS.
      environments: GYMNASIUM, monitored in a DummyVecEnv; JAX, a JaxVecEnv; HOST, Gymnasium's as the make_vec_env of
        the side's package makes them, which is another import that a user changes.
      n_steps: steps of a rollout; off-policy, the steps of each environment that count as an iteration.
      normalize: whether the environments are in a VecNormalize.
      settings: those that differ from SB3's defaults.
    """

    algorithm: str
    network: str
    environments: str
    n_envs: int
    n_steps: int
    normalize: bool = False
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def rollout(self) -> int:
        """Environment steps in one iteration."""
        return self.n_envs * self.n_steps

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the constructor. Off-policy, `n_steps` has another meaning there."""
        return self.settings if self.algorithm in OFF_POLICY else {"n_steps": self.n_steps, **self.settings}

    @property
    def has_images(self) -> bool:
        return NETWORKS[self.network][1] is None

    def __str__(self) -> str:
        parts = [f"{self.algorithm} {self.network}", f"{self.n_envs} {self.environments}"]
        parts += ["VecNormalize"] if self.normalize else []
        return "; ".join([*parts, *(f"{name} {value}" for name, value in self.settings.items())])


class Side:
    """The state of the process between commands."""

    def load(self, side: str, environments: str) -> dict[str, Any]:
        """Import what a script of this side imports, for environments of this kind."""
        import torch
        from stable_baselines3.common import env_util, vec_env  # noqa: F401

        self.side, self.algorithms = side, cast(Any, importlib.import_module(PACKAGES[side]))
        if environments == JAX:
            importlib.import_module("benchmarks.peers.jax_images")
            importlib.import_module("bridge")
        self.imports_megabytes = resident_megabytes()
        return {"threads": torch.get_num_threads()}

    def begin(self, cell: dict[str, Any]) -> dict[str, Any]:
        """Create the model, train it for MEMORY_ITERATIONS, and time the next iterations.

        Returns:
          The seconds to create the model and run its first iteration, and the seconds of a later iteration. The memory
          of the imports and, beyond it, the peak and current memory, in MB.
        """
        start = time.perf_counter()
        self.cell = Cell(**cell)
        policy, layers, _ = NETWORKS[self.cell.network]
        if not hasattr(self.algorithms, self.cell.algorithm):  # of stock SB3
            self.algorithms = importlib.import_module("sb3_contrib")
        self.model = getattr(self.algorithms, self.cell.algorithm)(
            policy,
            self._environments(),
            policy_kwargs=None if layers is None else {"net_arch": layers},
            seed=0,
            device="cpu",
            **self._arguments(),
        )
        if self.side == INDUCTOR:
            torch = importlib.import_module("torch")
            self.model.policy = torch.compile(self.model.policy, backend="inductor")
        self._learn(1)
        first_seconds = time.perf_counter() - start
        for _ in range(MEMORY_ITERATIONS - 1):
            start = time.perf_counter()
            self._learn(1)
            iteration_seconds = time.perf_counter() - start
        beyond_imports, kept = (size() - self.imports_megabytes for size in (peak_megabytes, resident_megabytes))
        # Where an iteration is short, most of that was what `learn` does once.
        count = math.ceil(TRIAL_SECONDS / iteration_seconds)
        if count > 1:
            start = time.perf_counter()
            self._learn(count)
            iteration_seconds = (time.perf_counter() - start) / count
        return {
            "first_seconds": first_seconds,
            "iteration_seconds": iteration_seconds,
            "imports_megabytes": self.imports_megabytes,
            "peak_megabytes": beyond_imports,
            "kept_megabytes": kept,
        }

    def run(self, iterations: int, threads: int) -> dict[str, Any]:
        """Continue training with this number of PyTorch threads."""
        import torch

        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        self._learn(iterations)
        return {}

    def _learn(self, iterations: int) -> None:
        self.model.learn(iterations * self.cell.rollout, reset_num_timesteps=False)

    def _arguments(self) -> dict[str, Any]:
        if self.cell.settings.get("replay_buffer_class") != HINDSIGHT["replay_buffer_class"]:
            return self.cell.arguments
        from stable_baselines3 import HerReplayBuffer

        return {**self.cell.arguments, "replay_buffer_class": HerReplayBuffer}

    def _environments(self) -> Any:
        from stable_baselines3.common.env_util import make_vec_env
        from stable_baselines3.common.vec_env import VecNormalize

        _, _, env = NETWORKS[self.cell.network]
        module = importlib.import_module(f"benchmarks.peers.{'jax_' if self.cell.environments == JAX else ''}images")
        make = importlib.import_module("bridge").make_vec_env if self.cell.environments == JAX else make_vec_env
        # An id in both worlds, or a class of the same name in both modules.
        if self.cell.environments == HOST and self.side == OURS:
            make = functools.partial(importlib.import_module("bridge").make_vec_env, backend="serial")
        one: Any = env if "-v" in env else module.bits if env == "bits" else functools.partial(module.Images, env)
        venv = make(one, self.cell.n_envs, seed=0)
        return VecNormalize(venv) if self.cell.normalize else venv


if __name__ == "__main__":
    side = Side()
    answer({"load": side.load, "begin": side.begin, "run": side.run})
