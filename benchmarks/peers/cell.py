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
import tempfile
import time
from pathlib import Path
from typing import Any, cast

from benchmarks.peers import callbacks
from benchmarks.peers.worker import answer, megabytes

STOCK, OURS, SBX = "stock SB3", "bridge", "SBX"
PACKAGES = {STOCK: "stable_baselines3", OURS: "bridge", SBX: "sbx"}
OFF_POLICY = ("DQN", "SAC", "TD3", "DDPG", "QRDQN", "TQC", "CrossQ")
GYMNASIUM, JAX, HOST = "Gymnasium", "JAX", "Gymnasium by each side's make_vec_env"
MEMORY_ITERATIONS = 3
TRIAL_SECONDS = 0.2

# Name -> policy, layers, and the environment: an id, or a kind of `images`. No layers: SB3's for this policy.
NETWORKS: dict[str, tuple[str, list[int] | dict[str, list[int]] | None, str]] = {
    "MlpPolicy 64-64": ("MlpPolicy", [64, 64], "CartPole-v1"),
    "MlpPolicy 256-256": ("MlpPolicy", [256, 256], "CartPole-v1"),
    "MlpPolicy 1200-1200": ("MlpPolicy", [1200, 1200], "CartPole-v1"),  # more than 2**20 weights
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
    "MlpLstmPolicy 64-64, legal actions": ("MlpLstmPolicy", [64, 64], "four_numbers"),
    "SimbaPolicy 128, 512-512, Pendulum-v1": ("SimbaPolicy", {"pi": [128], "qf": [512, 512]}, "Pendulum-v1"),
    "MlpPolicy of 128 numbers": ("MlpPolicy", [64, 64], "wide"),
    "MultiInputPolicy of vectors": ("MultiInputPolicy", [64, 64], "vectors"),
    "MultiInputPolicy 256-256, BitFlipping(15)": ("MultiInputPolicy", [256, 256], "bits"),
    "MlpPolicy 64-64, 100,000 dicts": ("MlpPolicy", [64, 64], "Market"),
}
# A name among settings, which are sent as JSON.
HINDSIGHT = {"replay_buffer_class": "HerReplayBuffer"}
# So small a buffer that it is full before anything is timed.
FULL_BUFFER = {"buffer_size": 256}
CALLS = 50  # of learn(1) in a run
# Of an evaluation's episode, so that evaluations do not take most of the time.
EVALUATION_STEPS = 5


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
      callback: a kind of `callbacks`; "" for none.
      one_by_one: whether each call of `learn` is `learn(1)`: one rollout, which off-policy must be one step.
    """

    algorithm: str
    network: str
    environments: str
    n_envs: int
    n_steps: int
    normalize: bool = False
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    callback: str = ""
    one_by_one: bool = False

    @property
    def rollout(self) -> int:
        """Environment steps in one iteration."""
        return self.n_envs * self.n_steps

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the constructor. Off-policy, `n_steps` has another meaning there."""
        return self.settings if self.algorithm in OFF_POLICY else {"n_steps": self.n_steps, **self.settings}

    @property
    def eval_freq(self) -> int:
        """Calls of on_step from one evaluation to the next."""
        if self.callback != callbacks.BELOW_ROLLOUT:
            return callbacks.CALLS_BETWEEN
        return (self.settings["train_freq"] if self.algorithm in OFF_POLICY else self.n_steps) // 2

    @property
    def fewest_iterations(self) -> int:
        """Iterations that a run must have, for every callback to do something in it, or for CALLS of `learn`."""
        if self.one_by_one:
            return math.ceil(CALLS / self.learn_calls)
        between = {"": 1, callbacks.NO_OP: 1}.get(self.callback, callbacks.CALLS_BETWEEN)
        return math.ceil(between / self.n_steps)

    @property
    def learn_calls(self) -> int:
        """Calls of `learn` in an iteration, if it is called for each rollout."""
        return self.n_steps if self.algorithm in OFF_POLICY else 1

    @property
    def has_images(self) -> bool:
        return NETWORKS[self.network][1] is None

    def __str__(self) -> str:
        parts = [f"{self.algorithm} {self.network}", f"{self.n_envs} {self.environments}"]
        parts += ["VecNormalize"] if self.normalize else []
        parts += [f"{name} {value}" for name, value in self.settings.items()]
        parts += ["learn(1)"] if self.one_by_one else []
        return "; ".join(parts + ([f"callback {self.callback}"] if self.callback else []))


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
        self.imports_megabytes = megabytes("VmRSS")
        return {"threads": torch.get_num_threads()}

    def begin(self, cell: dict[str, Any]) -> dict[str, Any]:
        """Create the model, train it for MEMORY_ITERATIONS, and time the next iterations.

        Returns:
          The seconds to create the model and run its first iteration, and the seconds of a later iteration. The memory
          of the imports and, beyond it, the peak and current memory, in MB. The plan of a model of bridge.
        """
        start = time.perf_counter()
        self.cell = Cell(**cell)
        policy, layers, _ = NETWORKS[self.cell.network]
        if not hasattr(self.algorithms, self.cell.algorithm):  # of stock SB3
            self.algorithms = importlib.import_module("sb3_contrib")
        network: dict[str, Any] | None = None if layers is None else {"net_arch": layers}
        if network and policy == "SimbaPolicy" and self.side == OURS:  # as SBX's has it
            network["optimizer_class"] = importlib.import_module("torch").optim.AdamW
        arguments = {"device": "cpu", **self.cell.arguments}
        if HINDSIGHT.items() <= arguments.items():
            arguments["replay_buffer_class"] = importlib.import_module("stable_baselines3").HerReplayBuffer
        venv = self._make(self._environment, self.cell.n_envs)
        if self.cell.normalize:
            venv = importlib.import_module("stable_baselines3.common.vec_env").VecNormalize(venv)
        algorithm = getattr(self.algorithms, self.cell.algorithm)
        self.model = algorithm(policy, venv, policy_kwargs=network, seed=0, **arguments)
        self._learn(1)
        first_seconds = time.perf_counter() - start
        for _ in range(MEMORY_ITERATIONS - 1):
            start = time.perf_counter()
            self._learn(1)
            iteration_seconds = time.perf_counter() - start
        beyond_imports, kept = (megabytes(field) - self.imports_megabytes for field in ("VmHWM", "VmRSS"))
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
            "plan": str(getattr(self.model, "plan", "")),
        }

    def run(self, iterations: int, threads: int) -> dict[str, Any]:
        """Continue training with this number of PyTorch threads."""
        import torch

        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        counts = self._learn(iterations)
        if not all(counts.values()):
            raise RuntimeError(f"{self.cell}: each callback must do something, got {counts}.")
        if FULL_BUFFER.items() <= self.cell.settings.items() and not self.model.replay_buffer.full:
            raise RuntimeError(f"{self.cell}: the replay buffer is not full.")
        return {}

    def _learn(self, iterations: int) -> dict[str, int]:
        """Train, and return by name how often each callback did something."""
        if self.cell.one_by_one:
            for _ in range(iterations * self.cell.learn_calls):
                self.model.learn(1, reset_num_timesteps=False)
            return {}
        attached: Any = None
        counts: callbacks.Counts = dict
        with tempfile.TemporaryDirectory() as folder:
            if self.cell.callback:
                attached, counts = callbacks.make(
                    self.cell, self.side == OURS, lambda: self._evaluation_env, Path(folder)
                )
            self.model.learn(iterations * self.cell.rollout, callback=attached, reset_num_timesteps=False)
            return counts()

    @functools.cached_property
    def _evaluation_env(self) -> Any:
        """One environment with short episodes."""
        one = self._environment
        if self.cell.environments == JAX:
            jaxenvs = importlib.import_module("jaxenvs")
            env = jaxenvs.make(one) if isinstance(one, str) else one()
            return self._make(jaxenvs.TimeLimit(env, max_steps=EVALUATION_STEPS), 1)
        gymnasium = importlib.import_module("gymnasium")
        make = functools.partial(gymnasium.make, one) if isinstance(one, str) else one
        return self._make(lambda: gymnasium.wrappers.TimeLimit(make(), EVALUATION_STEPS), 1)

    @property
    def _environment(self) -> Any:
        """An id that both kinds of environments have, or a class or function of the same name in both modules."""
        _, _, env = NETWORKS[self.cell.network]
        module = importlib.import_module(f"benchmarks.peers.{'jax_' if self.cell.environments == JAX else ''}images")
        return env if "-v" in env else getattr(module, env, functools.partial(module.Images, env))

    def _make(self, one: Any, n_envs: int) -> Any:
        from stable_baselines3.common.env_util import make_vec_env

        make = importlib.import_module("bridge").make_vec_env if self.cell.environments == JAX else make_vec_env
        if self.cell.environments == HOST and self.side == OURS:
            make = functools.partial(importlib.import_module("bridge").make_vec_env, backend="serial")
        return make(one, n_envs, seed=0)


if __name__ == "__main__":
    side = Side()
    answer({"load": side.load, "begin": side.begin, "run": side.run})
