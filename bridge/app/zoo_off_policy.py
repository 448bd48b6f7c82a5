"""What RL Baselines3 Zoo found for classic control and Box2D's worlds, off-policy (hyperparams/*.yml of
DLR-RM/rl-baselines3-zoo). Names are as in `bridge.app.hyperparameters`.
"""

from __future__ import annotations

from typing import Any

# Environment -> settings.
Settings = dict[str, dict[str, Any]]

# Of DQN, for two environments.
ACROBOT: dict[str, Any] = {
    "n_timesteps": 100_000,
    "learning_rate": 6.3e-4,
    "batch_size": 128,
    "buffer_size": 50_000,
    "learning_starts": 0,
    "gamma": 0.99,
    "target_update_interval": 250,
    "train_freq": 4,
    "gradient_steps": -1,
    "exploration_fraction": 0.12,
    "exploration_final_eps": 0.1,
    "policy_kwargs": {"net_arch": [256, 256]},
}

DQN: Settings = {
    "CartPole-v1": {
        "n_timesteps": 50_000,
        "learning_rate": 2.3e-3,
        "batch_size": 64,
        "buffer_size": 100_000,
        "learning_starts": 1000,
        "gamma": 0.99,
        "target_update_interval": 10,
        "train_freq": 256,
        "gradient_steps": 128,
        "exploration_fraction": 0.16,
        "exploration_final_eps": 0.04,
        "policy_kwargs": {"net_arch": [256, 256]},
    },
    "MountainCar-v0": {
        "n_timesteps": 120_000,
        "learning_rate": 4e-3,
        "batch_size": 128,
        "buffer_size": 10_000,
        "learning_starts": 1000,
        "gamma": 0.98,
        "target_update_interval": 600,
        "train_freq": 16,
        "gradient_steps": 8,
        "exploration_fraction": 0.2,
        "exploration_final_eps": 0.07,
        "policy_kwargs": {"net_arch": [256, 256]},
    },
    "Acrobot-v1": ACROBOT,
    "LunarLander-v3": ACROBOT,
}

SAC: Settings = {
    "LunarLanderContinuous-v3": {
        "n_timesteps": 500_000,
        "batch_size": 256,
        "learning_rate": "lin_0.00073",
        "buffer_size": 1_000_000,
        "ent_coef": "auto",
        "gamma": 0.99,
        "tau": 0.01,
        "train_freq": 1,
        "gradient_steps": 1,
        "learning_starts": 10_000,
        "policy_kwargs": {"net_arch": [400, 300]},
    },
    "Pendulum-v1": {"n_timesteps": 20_000, "learning_rate": 1e-3},
    "MountainCarContinuous-v0": {
        "n_timesteps": 50_000,
        "learning_rate": 3e-4,
        "buffer_size": 50_000,
        "batch_size": 512,
        "ent_coef": 0.1,
        "train_freq": 32,
        "gradient_steps": 32,
        "gamma": 0.9999,
        "tau": 0.01,
        "learning_starts": 0,
        "use_sde": True,
        "policy_kwargs": {"log_std_init": -3.67, "net_arch": [64, 64]},
    },
    "BipedalWalker-v3": {
        "n_timesteps": 500_000,
        "learning_rate": 7.3e-4,
        "buffer_size": 300_000,
        "batch_size": 256,
        "ent_coef": "auto",
        "gamma": 0.98,
        "tau": 0.02,
        "train_freq": 64,
        "gradient_steps": 64,
        "learning_starts": 10_000,
        "use_sde": True,
        "policy_kwargs": {"log_std_init": -3, "net_arch": [400, 300]},
    },
    "BipedalWalkerHardcore-v3": {
        "n_timesteps": 10_000_000,
        "learning_rate": "lin_7.3e-4",
        "buffer_size": 1_000_000,
        "batch_size": 256,
        "ent_coef": 0.005,
        "gamma": 0.99,
        "tau": 0.01,
        "train_freq": 1,
        "gradient_steps": 1,
        "learning_starts": 10_000,
        "policy_kwargs": {"net_arch": [400, 300]},
    },
}

# Quantiles beside what DQN has.
QRDQN: Settings = {
    **{
        env_id: DQN[env_id] | {"policy_kwargs": {"net_arch": [256, 256], "n_quantiles": n_quantiles}}
        for env_id, n_quantiles in (("CartPole-v1", 10), ("MountainCar-v0", 25), ("Acrobot-v1", 25))
    },
    "LunarLander-v3": {
        "n_timesteps": 100_000,
        "learning_rate": "lin_1.5e-3",
        "batch_size": 128,
        "buffer_size": 100_000,
        "learning_starts": 10_000,
        "gamma": 0.995,
        "target_update_interval": 1,
        "train_freq": 256,
        "gradient_steps": -1,
        "exploration_fraction": 0.24,
        "exploration_final_eps": 0.18,
        "policy_kwargs": {"net_arch": [256, 256], "n_quantiles": 170},
    },
}

# SAC's, but for the hardcore walker, whose worlds it may see for a fifth of the steps, with an entropy that is learned.
TQC = SAC | {
    "BipedalWalkerHardcore-v3": SAC["BipedalWalkerHardcore-v3"] | {"n_timesteps": 2_000_000, "ent_coef": "auto"}
}

CROSSQ: Settings = {
    "MountainCarContinuous-v0": {
        "n_timesteps": 50_000,
        "learning_rate": 7e-4,
        "buffer_size": 50_000,
        "train_freq": 32,
        "gradient_steps": 32,
        "gamma": 0.9999,
        "learning_starts": 100,
        "use_sde": True,
        "policy_delay": 2,
        "policy_kwargs": {"use_expln": True, "log_std_init": -1, "net_arch": [64, 64]},
    },
    "Pendulum-v1": {"n_timesteps": 20_000, "policy_delay": 2, "policy_kwargs": {"net_arch": [256, 256]}},
    "LunarLanderContinuous-v3": {"n_timesteps": 200_000, "buffer_size": 1_000_000, "learning_starts": 10_000},
    "BipedalWalker-v3": {
        "n_timesteps": 200_000,
        "buffer_size": 300_000,
        "gamma": 0.98,
        "learning_starts": 10_000,
        "policy_kwargs": {"net_arch": {"pi": [256, 256], "qf": [1024, 1024]}},
    },
}

TD3: Settings = {
    "Pendulum-v1": {
        "n_timesteps": 20_000,
        "gamma": 0.98,
        "buffer_size": 200_000,
        "learning_starts": 10_000,
        "noise_type": "normal",
        "noise_std": 0.1,
        "learning_rate": 1e-3,
    },
    "MountainCarContinuous-v0": {"n_timesteps": 300_000, "noise_type": "ornstein-uhlenbeck", "noise_std": 0.5},
}

# Algorithm -> environment -> settings. DDPG has those of TD3.
OFF_POLICY_TUNED: dict[str, Settings] = {
    "dqn": DQN,
    "qrdqn": QRDQN,
    "sac": SAC,
    "tqc": TQC,
    "crossq": CROSSQ,
    "td3": TD3,
    "ddpg": TD3,
}
