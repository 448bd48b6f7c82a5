"""What RL Baselines3 Zoo found for MuJoCo's robots and Atari's games (hyperparams/*.yml of DLR-RM/rl-baselines3-zoo).

The Zoo names the robots "-v3" and "-v4"; here the settings are those of the later versions of the same tasks too. Names
are as in `bridge.app.hyperparameters`; an activation is named as in torch.nn.
"""

from __future__ import annotations

from typing import Any

VERSIONS = ("v4", "v5")

_ROBOTS = ("Ant", "HalfCheetah", "Hopper", "Humanoid", "Swimmer", "Walker2d")

# Rows of ppo.yml: everything that was tuned for each.
_PPO_COLUMNS = (
    *("n_timesteps", "batch_size", "n_steps", "gamma", "learning_rate", "ent_coef", "clip_range", "n_epochs"),
    *("gae_lambda", "max_grad_norm", "vf_coef"),
)
_PPO_ROWS = {
    "HalfCheetah": (1_000_000, 64, 512, 0.98, 2.0633e-05, 0.000401762, 0.1, 20, 0.92, 0.8, 0.58096),
    "Hopper": (1_000_000, 32, 512, 0.999, 9.80828e-05, 0.00229519, 0.2, 5, 0.99, 0.7, 0.835671),
    "Humanoid": (10_000_000, 256, 512, 0.95, 3.56987e-05, 0.00238306, 0.3, 5, 0.9, 2.0, 0.431892),
    "HumanoidStandup": (10_000_000, 32, 512, 0.99, 2.55673e-05, 3.62109e-06, 0.3, 20, 0.9, 0.7, 0.430793),
    "InvertedDoublePendulum": (1_000_000, 512, 128, 0.98, 0.000155454, 1.05057e-06, 0.4, 10, 0.8, 0.5, 0.695929),
    "InvertedPendulum": (1_000_000, 64, 32, 0.999, 0.000222425, 1.37976e-07, 0.4, 5, 0.9, 0.3, 0.19816),
    "Reacher": (1_000_000, 32, 512, 0.9, 0.000104019, 7.52585e-08, 0.3, 5, 1.0, 0.9, 0.950368),
    "Walker2d": (1_000_000, 32, 512, 0.99, 5.05041e-05, 0.000585045, 0.1, 20, 0.95, 1.0, 0.871923),
}
_WIDE = ("HalfCheetah", "Hopper", "Humanoid", "HumanoidStandup")
_WIDE_POLICY = {
    "log_std_init": -2,
    "ortho_init": False,
    "activation_fn": "ReLU",
    "net_arch": {"pi": [256, 256], "vf": [256, 256]},
}


def _ppo(robot: str) -> dict[str, Any]:
    if robot not in _PPO_ROWS:  # SB3's defaults
        return {"normalize": True, "n_envs": 1, "n_timesteps": 1_000_000} | _discount(robot)
    tuned = {"normalize": True, "n_envs": 1, **dict(zip(_PPO_COLUMNS, _PPO_ROWS[robot], strict=True))}
    return tuned | ({"policy_kwargs": _WIDE_POLICY} if robot in _WIDE else {})


def _sac(robot: str) -> dict[str, Any]:
    return {"n_timesteps": _off_policy_steps(robot), "learning_starts": 10_000} | _discount(robot)


def _td3(robot: str) -> dict[str, Any]:
    return {
        "n_timesteps": _off_policy_steps(robot),
        "learning_starts": 10_000,
        "noise_type": "normal",
        "noise_std": 0.1,
        "train_freq": 1,
        "gradient_steps": 1,
        "learning_rate": 1e-3,
        "batch_size": 256,
        "policy_kwargs": {"net_arch": [400, 300]},
    } | _discount(robot)


def _crossq(robot: str) -> dict[str, Any]:
    return {
        "n_timesteps": 5_000_000,
        "buffer_size": 1_000_000,
        "learning_rate": 1e-3,
        "learning_starts": 5000,
        "policy_delay": 3,
        "policy_kwargs": {"net_arch": {"pi": [256, 256], "qf": [2048, 2048]}},
    } | ({"gamma": 0.999} if robot == "Swimmer" else {})


def _off_policy_steps(robot: str) -> int:
    return 2_000_000 if robot == "Humanoid" else 1_000_000


def _discount(robot: str) -> dict[str, Any]:
    return {"gamma": 0.9999} if robot == "Swimmer" else {}


def _versions(settings: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {f"{robot}-{version}": row for robot, row in settings.items() for version in VERSIONS}


# Algorithm -> environment -> settings.
MUJOCO: dict[str, dict[str, dict[str, Any]]] = {
    "ppo": _versions({robot: _ppo(robot) for robot in (*_PPO_ROWS, "Ant", "Swimmer")}),
    "sac": _versions({robot: _sac(robot) for robot in _ROBOTS}),
    "td3": _versions({robot: _td3(robot) for robot in _ROBOTS}),
    "crossq": _versions({robot: _crossq(robot) for robot in (*_ROBOTS, "HumanoidStandup")}),
    "tqc": _versions({robot: _sac(robot) for robot in _ROBOTS}),
}

# Algorithm -> settings of every game, in SB3's AtariWrapper.
ATARI: dict[str, dict[str, Any]] = {
    "ppo": {
        "frame_stack": 4,
        "n_envs": 8,
        "n_steps": 128,
        "n_epochs": 4,
        "batch_size": 256,
        "n_timesteps": 10_000_000,
        "learning_rate": "lin_2.5e-4",
        "clip_range": "lin_0.1",
        "vf_coef": 0.5,
        "ent_coef": 0.01,
    },
    "dqn": {
        "frame_stack": 4,
        "n_timesteps": 10_000_000,
        "buffer_size": 100_000,
        "learning_rate": 1e-4,
        "batch_size": 32,
        "learning_starts": 100_000,
        "target_update_interval": 1000,
        "train_freq": 4,
        "gradient_steps": 1,
        "exploration_fraction": 0.1,
        "exploration_final_eps": 0.01,
    },
    "qrdqn": {"frame_stack": 4, "n_timesteps": 10_000_000, "exploration_fraction": 0.025},
}
