"""The tasks of `benchmarks.learning`: environments, settings, numbers of seeds and ranges of returns."""

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

OURS, GYMNASIUM, STOCK = "bridge", "bridge on Gymnasium", "stock SB3"


@dataclasses.dataclass(frozen=True)
class Task:
    """A training that all sides do, and the range in which its returns lie.

    Attributes:
      timesteps: environment steps of a training.
      random: the return of random actions.
      best: the return of the best agents that are known.
      seeds: trainings of each side.
      settings: arguments of the constructor, and the Zoo's `n_envs` and `normalize`; None: the Zoo's for the id.
      make: creates the environment; None: by the id.
      backends: of `make_vec_env`, by the side that trains there. Sides that are not in it do not train.
      policy: its name.
      success_above: an episode counts 1 if its return is above this, else 0; None: its return counts.
    """

    timesteps: int
    random: float
    best: float
    seeds: int = 10
    settings: Mapping[str, Any] | None = None
    make: Callable[[], jaxenvs.Environment[Any]] | None = None
    policy: str = "MlpPolicy"
    success_above: float | None = None
    backends: Mapping[str, str] = dataclasses.field(
        default_factory=lambda: {OURS: "jax", GYMNASIUM: "serial", STOCK: "jax"}
    )

    @property
    def margin(self) -> float:
        """Returns that differ by less than this count as equal: 5 % of the range."""
        return 0.05 * (self.best - self.random)

    def make_env(self, env_id: str, n_envs: int, seed: int, side: str = STOCK) -> VecEnv:
        """Create the environments of the task, as a side trains there."""
        env = env_id if self.make is None else self.make()
        return bridge.make_vec_env(env, n_envs, seed=seed, backend=self.backends[side])


# --- environments -----------------------------------------------------------------------------------------------


def no_velocities(observation: jax.Array) -> jax.Array:
    """CartPole's observation with both velocities set to 0, as in the Zoo's MaskVelocityWrapper."""
    return observation * jnp.array([1.0, 0.0, 1.0, 0.0])


@functools.cache  # environments with the same game share compiled functions
def cartpole_without_velocities() -> jaxenvs.Environment[Any]:
    return jaxenvs.TransformObservation(jaxenvs.make("CartPole-v1"), no_velocities)


@functools.cache
def fifteen_bits() -> jaxenvs.Environment[Any]:
    return jaxenvs.make("BitFlippingContinuous-v0", n_bits=15)


# --- settings ---------------------------------------------------------------------------------------------------

# The Zoo's settings for CartPoleNoVel-v1, in ppo_lstm.yml: PPO's settings for CartPole, normalized, and with an LSTM.
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
# Without Gymnasium's, which has no such environment, or none with masks.
IN_JAX = {OURS: "jax", STOCK: "jax"}
# MuJoCo has no environment in JAX here: EnvPool's beside Gymnasium's.
MUJOCO = {OURS: "native", STOCK: "serial"}
# What stock SB3 does not have, on environments in JAX.
ALONE = {OURS: "jax"}
# PQN's rollout and passes, for PPO beside it; and what DQN needs to take ten million steps in a quarter of an hour.
MINATAR_PPO = {"n_envs": 128, "n_steps": 32, "batch_size": 128, "n_epochs": 2, "policy_kwargs": {"net_arch": [128]}}
MINATAR_DQN = {"buffer_size": 100_000, "train_freq": 4, "target_update_interval": 1000, "exploration_fraction": 0.1}
MINATAR_DQN |= {"policy_kwargs": {"net_arch": [128]}, "learning_rate": 2.5e-4}
# SimBa with blocks that two cores can train: the paper's are 512 wide, which takes 16 times as long.
SIMBA = {"policy_kwargs": {"net_arch": {"pi": [128], "qf": [128, 128]}, "optimizer_class": torch.optim.AdamW}}
WALKER = {name: value for name, value in TUNED["sac"]["BipedalWalker-v3"].items() if name != "use_sde"}
WALKER |= {"policy_kwargs": {"net_arch": [256, 256]}}
# One action is enough, so that what comes later need not count for much.
HINDSIGHT = {"replay_buffer_class": HerReplayBuffer, "learning_starts": 500, "learning_rate": 1e-3, "gamma": 0.8}


# --- tasks ------------------------------------------------------------------------------------------------------

# Returns of random actions and of the best agents that are known, which give each task's margin. CartPole-v1's and
# Taxi's best are exact; the others are the best of RL Baselines3 Zoo's benchmark, rounded.
CARTPOLE = (22.0, 500.0)
ACROBOT = (-499.0, -70.0)
MOUNTAIN_CAR = (-200.0, -100.0)
MOUNTAIN_CAR_CONTINUOUS = (-33.0, 95.0)
PENDULUM = (-1200.0, -140.0)
LUNAR_LANDER = (-180.0, 280.0)
HALF_CHEETAH = (-280.0, 12_100.0)
HOPPER = (18.0, 3750.0)
BREAKOUT = (0.5, 60.0)
WALKER_RETURNS = (-100.0, 310.0)

# An algorithm and an environment -> the task.
TASKS = {
    "ppo CartPole-v1": Task(100_000, *CARTPOLE),
    "ppo Acrobot-v1": Task(1_000_000, *ACROBOT),
    "ppo MountainCar-v0": Task(1_000_000, *MOUNTAIN_CAR),
    "ppo Pendulum-v1": Task(100_000, *PENDULUM),
    # The Zoo's budget is a fifth of it.
    "ppo MountainCarContinuous-v0": Task(100_000, *MOUNTAIN_CAR_CONTINUOUS),
    "ppo LunarLander-v3": Task(1_000_000, *LUNAR_LANDER, seeds=5),
    "a2c CartPole-v1": Task(500_000, *CARTPOLE, settings={"n_envs": 8}),
    "dqn CartPole-v1": Task(50_000, *CARTPOLE),
    "dqn Acrobot-v1": Task(100_000, *ACROBOT),
    "dqn MountainCar-v0": Task(120_000, *MOUNTAIN_CAR),
    "dqn LunarLander-v3": Task(100_000, *LUNAR_LANDER, seeds=5),
    "qrdqn CartPole-v1": Task(50_000, *CARTPOLE),
    "qrdqn Acrobot-v1": Task(100_000, *ACROBOT, seeds=5),
    "qrdqn MountainCar-v0": Task(120_000, *MOUNTAIN_CAR),
    "qrdqn LunarLander-v3": Task(100_000, *LUNAR_LANDER, seeds=5),
    "sac Pendulum-v1": Task(20_000, *PENDULUM),
    "td3 Pendulum-v1": Task(20_000, *PENDULUM),
    "tqc Pendulum-v1": Task(20_000, *PENDULUM, seeds=5),
    "crossq Pendulum-v1": Task(5_000, *PENDULUM, seeds=3),
    "sac HalfCheetah-v5": Task(100_000, *HALF_CHEETAH, seeds=3, backends=MUJOCO),
    "sac Hopper-v5": Task(100_000, *HOPPER, seeds=3, backends=MUJOCO),
    "ppo CartPole-v1 without velocities": Task(
        100_000,
        *CARTPOLE,
        settings=TUNED["ppo"]["CartPole-v1"],
        make=cartpole_without_velocities,
        backends=IN_JAX,
    ),
    "recurrent_ppo CartPole-v1 without velocities": Task(
        100_000, *CARTPOLE, 5, CARTPOLE_LSTM, cartpole_without_velocities, "MlpLstmPolicy", backends=IN_JAX
    ),
    "maskable_ppo Taxi-v4": Task(500_000, -770.0, 8.0, settings=TAXI, backends=IN_JAX),
    "pqn CartPole-v1": Task(500_000, *CARTPOLE, backends=ALONE),
    "pqn MinAtar/Breakout-v1": Task(10_000_000, *BREAKOUT, seeds=5, backends=ALONE),
    "ppo MinAtar/Breakout-v1": Task(10_000_000, *BREAKOUT, 5, MINATAR_PPO, backends=ALONE),
    "dqn MinAtar/Breakout-v1": Task(10_000_000, *BREAKOUT, 3, MINATAR_DQN, backends=ALONE),
    "sac Pendulum-v1 SimBa": Task(20_000, *PENDULUM, 3, SIMBA, policy="SimbaPolicy", backends=ALONE),
    "sac BipedalWalker-v3": Task(200_000, *WALKER_RETURNS, 3, WALKER, backends=ALONE),
    "sac BipedalWalker-v3 SimBa": Task(
        200_000, *WALKER_RETURNS, 3, WALKER | SIMBA, policy="SimbaPolicy", backends=ALONE
    ),
    "sac HalfCheetah-v5 SimBa": Task(
        100_000, *HALF_CHEETAH, 3, {"learning_starts": 10_000} | SIMBA, policy="SimbaPolicy", backends={OURS: "native"}
    ),
    "sac BitFlipping of 15 bits": Task(
        20_000, 0.0, 1.0, 5, HINDSIGHT, fifteen_bits, "MultiInputPolicy", success_above=-15.0, backends=IN_JAX
    ),
}
