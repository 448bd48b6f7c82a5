"""What `benchmarks.learning` trains on what: environments, settings and bars."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import torch
from stable_baselines3 import HerReplayBuffer
from stable_baselines3.common.vec_env import VecEnv

import bridge
import jaxenvs
from bridge.app.tuned import TUNED

OURS, STOCK = "bridge", "stock SB3"


@dataclasses.dataclass(frozen=True)
class Task:
    """What is trained, and what it should reach.

    Attributes:
      timesteps: environment steps of a training.
      bar: what the median seed should reach.
      settings: of the constructor, and the Zoo's `n_envs` and `normalize`; None: the Zoo's for the environment's id.
      make: the environment; None: that of the id.
      policy: its name.
      success_above: an episode counts 1 if its return is above, else 0; None: its return.
      cannot: the bar is what it must not reach.
      absolute: the bar is what ours must reach; otherwise that is stock's worst seed.
    """

    timesteps: int
    bar: float
    settings: Mapping[str, Any] | None = None
    make: Callable[[], jaxenvs.Environment[Any]] | None = None
    policy: str = "MlpPolicy"
    success_above: float | None = None
    cannot: bool = False
    absolute: bool = True

    def make_env(self, env_id: str, n_envs: int, seed: int) -> VecEnv:
        """Environments of it."""
        if self.make is None:
            return bridge.make_vec_env(env_id, n_envs, seed=seed, backend="jax")
        return bridge.make_vec_env(self.make(), n_envs, seed=seed)


# --- environments -----------------------------------------------------------------------------------------------


def no_velocities(observation: jax.Array) -> jax.Array:
    """CartPole's, with zeros in the place of both velocities, as the Zoo's MaskVelocityWrapper has it."""
    return observation * jnp.array([1.0, 0.0, 1.0, 0.0])


@functools.cache  # programs are shared by environments with the same game
def cartpole_without_velocities() -> jaxenvs.Environment[Any]:
    return jaxenvs.TransformObservation(jaxenvs.make("CartPole-v1"), no_velocities)


@functools.cache
def fifteen_bits() -> jaxenvs.Environment[Any]:
    return jaxenvs.make("BitFlippingContinuous-v0", n_bits=15)


# --- settings ---------------------------------------------------------------------------------------------------

# The Zoo's of CartPoleNoVel-v1, in ppo_lstm.yml: those of PPO's CartPole, normalised and with a memory.
CARTPOLE_LSTM = TUNED["ppo"]["CartPole-v1"] | {
    "normalize": True,
    "policy_kwargs": TUNED["recurrent_ppo"]["BipedalWalker-v3"]["policy_kwargs"] | {"activation_fn": torch.nn.ReLU},
}
TAXI = {
    "normalize": {"norm_obs": False},
    "n_envs": 32,
    "n_steps": 128,
    "batch_size": 512,
    "n_epochs": 4,
    "learning_rate": "lin_0.01",
    "ent_coef": 0.01,
    "policy_kwargs": {"net_arch": []},
}
# One action is enough, so that what comes later need not count for much.
HINDSIGHT = {"replay_buffer_class": HerReplayBuffer, "learning_starts": 500, "learning_rate": 1e-3, "gamma": 0.8}


# --- tasks ------------------------------------------------------------------------------------------------------

# An environment, after its algorithm if that is not PPO -> the task.
PPO = {
    "CartPole-v1": Task(100_000, 500.0),
    "Acrobot-v1": Task(1_000_000, -80.0),
    "MountainCar-v0": Task(1_000_000, -115.0),
    "Pendulum-v1": Task(100_000, -180.0),
    # The Zoo's budget is a fifth of it.
    "MountainCarContinuous-v0": Task(100_000, 90.0),
    "LunarLander-v3": Task(1_000_000, 230.0),
    "BipedalWalker-v3": Task(5_000_000, 270.0),
}
# The returns are those that the Zoo tells of one training each.
OFF_POLICY = {
    "dqn CartPole-v1": Task(50_000, 500.0, absolute=False),
    "dqn Acrobot-v1": Task(100_000, -76.6, absolute=False),
    "dqn MountainCar-v0": Task(120_000, -100.8, absolute=False),
    "sac Pendulum-v1": Task(20_000, -157.0, absolute=False),
    "sac MountainCarContinuous-v0": Task(50_000, 94.7, absolute=False),
    "td3 Pendulum-v1": Task(20_000, -152.0, absolute=False),
    "td3 MountainCarContinuous-v0": Task(300_000, 93.5, absolute=False),
}
# Here too, where the bar is not absolute. Of those with settings the Zoo tells nothing.
CONTRIB = {
    "ppo CartPole-v1 without velocities": Task(
        100_000, 450.0, TUNED["ppo"]["CartPole-v1"], cartpole_without_velocities, cannot=True
    ),
    "recurrent_ppo CartPole-v1 without velocities": Task(
        100_000, 450.0, CARTPOLE_LSTM, cartpole_without_velocities, "MlpLstmPolicy"
    ),
    "maskable_ppo Taxi-v4": Task(500_000, 7.5, TAXI),
    "qrdqn CartPole-v1": Task(50_000, 500.0, absolute=False),
    "qrdqn Acrobot-v1": Task(100_000, -69.1, absolute=False),
    "tqc Pendulum-v1": Task(20_000, -151.0, absolute=False),
    # The Zoo tells of no training of it: what TQC reaches.
    "crossq Pendulum-v1": Task(20_000, -151.0, absolute=False),
    "sac BitFlipping of 15 bits": Task(20_000, 0.95, HINDSIGHT, fifteen_bits, "MultiInputPolicy", success_above=-15.0),
    "dqn LunarLander-v3": Task(100_000, 154.4, absolute=False),
}


@dataclasses.dataclass(frozen=True)
class Table:
    """What has a file of results of its own.

    Attributes:
      tasks: by their names.
      notes: beside those that all tables have.
      ours: the name of our side.
      quantile: of the returns of stock's seeds, which ours must reach where the bar is not absolute.
    """

    tasks: dict[str, Task]
    notes: list[str]
    ours: str = OURS
    quantile: float = 0.25


ZOO = (
    "Both sides have the same hyperparameters, which are RL Baselines3 Zoo's (bridge/app/tuned.toml), and the same "
    "environments, from bridge.make_vec_env."
)
TABLES = {
    "learning": Table(
        PPO,
        [
            ZOO,
            "MountainCarContinuous-v0: on both sides, a seed either solves it or gets stuck, so ten seeds say little.",
        ],
        "bridge.PPO",
    ),
    "learning_off_policy": Table(
        OFF_POLICY,
        [
            ZOO,
            "target: the return of the Zoo's single training. bridge must reach the first quartile of stock SB3's "
            "seeds. Both medians are next to the target.",
        ],
    ),
    "learning_contrib": Table(
        CONTRIB,
        [
            f"{ZOO} The Zoo has none for MaskablePPO and hindsight: benchmarks/learning_tasks.py has these.",
            "without velocities: both velocities are 0, as in the Zoo's MaskVelocityWrapper. PPO has its settings for "
            "CartPole-v1.",
            "BitFlipping: an action flips one of 15 bits. The return is the share of episodes that succeed within 15 "
            "steps.",
            "target: PPO must not reach it, and RecurrentPPO, MaskablePPO and SAC must. For the others, it is the "
            "return of the Zoo's single training, and bridge must reach the worst of stock SB3's seeds.",
        ],
        quantile=0.0,
    ),
}
