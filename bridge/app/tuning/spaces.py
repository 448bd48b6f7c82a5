"""Search spaces: one for each algorithm of the command, which a user can replace.

The ranges are from RL Baselines3 Zoo (rl_zoo3/hyperparams_opt.py of DLR-RM/rl-baselines3-zoo). Settings that shape a
compiled function (sizes of rollouts, batches and networks, epochs) have fewer values between the Zoo's lowest and
highest, because each combination is compiled once. The Zoo has no space for MaskablePPO, which uses PPO's here, nor for
CrossQ, which uses SAC's without the arguments that CrossQ lacks. `log_std_init`, which the Zoo searches for SAC and
TQC, has no effect without state-dependent exploration and is left out.

docs/tuning.md describes how a space is written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from bridge.algorithms.specs import ALGORITHMS
from bridge.app.config import TrainingConfig, nearest_divisor
from jaxenvs import learn
from jaxenvs.cli.user_errors import UserError

# By name: choices, a range, or one of Optuna's distributions.
Space = Mapping[str, Any]

POLICY_KWARGS, ONE_MINUS, SUBSAMPLE_STEPS = "policy_kwargs.", "one_minus_", "subsample_steps"
TINY, SMALL, MEDIUM, BIG = [64], [64, 64], [256, 256], [400, 300]
GAMMAS = [0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 0.9999]

_ON_POLICY: Space = {
    "n_steps": [32, 128, 512, 2048],
    "one_minus_gamma": {"low": 1e-4, "high": 0.03, "log": True},
    "one_minus_gae_lambda": {"low": 1e-4, "high": 0.1, "log": True},
    "learning_rate": {"low": 1e-5, "high": 2e-3, "log": True},
    "ent_coef": {"low": 1e-8, "high": 0.1, "log": True},
    "max_grad_norm": {"low": 0.3, "high": 2.0},
    "policy_kwargs.activation_fn": ["Tanh", "ReLU"],
}
_OFF_POLICY: Space = {
    "gamma": GAMMAS,
    "learning_rate": {"low": 1e-5, "high": 1.0, "log": True},
    "batch_size": [16, 128, 512, 2048],
    "buffer_size": [10_000, 100_000, 1_000_000],
    "train_freq": [1, 8, 64, 512],
    "gradient_steps": [-1],  # one for each step, which the Zoo writes as train_freq
    "policy_kwargs.net_arch": [SMALL, MEDIUM, BIG],
}
_TAU: Space = {"tau": [0.001, 0.005, 0.01, 0.02, 0.05, 0.08]}
_STARTS: Space = {"learning_starts": [0, 1000, 10_000, 20_000]}
_SAC: Space = {**_OFF_POLICY, **_TAU, **_STARTS, "ent_coef": ["auto"]}
_DQN: Space = {
    "gamma": GAMMAS,
    "learning_rate": {"low": 1e-5, "high": 1.0, "log": True},
    "batch_size": [16, 64, 128, 512],
    "buffer_size": [10_000, 100_000, 1_000_000],
    "exploration_final_eps": {"low": 0.0, "high": 0.2},
    "exploration_fraction": {"low": 0.0, "high": 0.5},
    "target_update_interval": [1, 1000, 5000, 10_000, 15_000, 20_000],
    "learning_starts": [0, 1000, 10_000, 20_000],
    "train_freq": [1, 8, 128, 1000],
    "subsample_steps": [1, 2, 4, 8],
    "policy_kwargs.net_arch": [TINY, SMALL, MEDIUM],
}

# The space of each class of settings; a subclass that is not here has the space of its base class.
_SPACE_OF: dict[type[learn.Settings], Space] = {
    learn.OnPolicySettings: {**_ON_POLICY, "policy_kwargs.net_arch": [SMALL, MEDIUM]},
    learn.PPO: {
        **_ON_POLICY,
        "batch_size": [32, 128, 512],
        "n_epochs": [1, 5, 20],
        "clip_range": [0.1, 0.2, 0.3, 0.4],
        "policy_kwargs.net_arch": [TINY, SMALL, MEDIUM],
    },
    learn.OffPolicySettings: {**_OFF_POLICY, **_TAU},
    learn.DQN: _DQN,
    learn.QRDQN: {**_DQN, "policy_kwargs.n_quantiles": [5, 50, 200]},
    learn.SAC: _SAC,
    # The Zoo drops any number of TQC's quantiles; these are fewer than the fewest quantiles.
    learn.TQC: {**_SAC, "policy_kwargs.n_quantiles": [5, 25, 50], "top_quantiles_to_drop_per_net": [0, 2, 4]},
    learn.CrossQ: {**_OFF_POLICY, **_STARTS, "ent_coef": ["auto"]},
    learn.TD3: {
        **_OFF_POLICY,
        **_TAU,
        "noise_type": ["ornstein-uhlenbeck", "normal", None],
        "noise_std": {"low": 0.0, "high": 1.0},
    },
}
SPACES: dict[str, Space] = {
    name: next(_SPACE_OF[each] for each in spec.settings.__mro__ if each in _SPACE_OF)
    for name, spec in ALGORITHMS.items()
}


def distributions(space: Space) -> dict[str, BaseDistribution]:
    """Return Optuna's distributions of a space.

    Raises:
      UserError: a value is neither a list of choices nor a range.
    """
    return {name: _distribution(name, among) for name, among in space.items()}


def meant_by(name: str) -> str:
    """Return the hyperparameter that a name of a space sets."""
    return "gradient_steps" if name == SUBSAMPLE_STEPS else name.removeprefix(ONE_MINUS)


def settings(params: Mapping[str, Any], config: TrainingConfig) -> dict[str, Any]:
    """Return the hyperparameters of a trial: the hyperparameters of `config`, changed by what the trial drew.

    Rollouts and warm-ups that are longer than the training are cut to its length, and a batch size that does not divide
    the rollout is replaced by the nearest that does.

    Args:
      params: the params of Optuna's trial, with the names of a space.
      config: the training; its hyperparameters are those that the trial did not draw.
    """
    found: dict[str, Any] = dict(config.hyperparameters)
    steps_of_each = config.total_timesteps // config.num_envs
    longest = {"n_steps": steps_of_each, "train_freq": steps_of_each, "learning_starts": config.total_timesteps - 1}
    policy_kwargs = dict(found["policy_kwargs"] or {})
    for name, value in params.items():
        value = json.loads(value) if isinstance(value, str) and value.startswith(("[", "{")) else value
        if name.startswith(POLICY_KWARGS):
            policy_kwargs[name.removeprefix(POLICY_KWARGS)] = value
        elif name.startswith(ONE_MINUS):
            found[meant_by(name)] = 1 - value
        elif name != SUBSAMPLE_STEPS:
            found[name] = min(value, longest[name]) if name in longest and isinstance(value, int) else value
    found["policy_kwargs"] = policy_kwargs or found["policy_kwargs"]
    if SUBSAMPLE_STEPS in params:
        found["gradient_steps"] = max(found["train_freq"] // params[SUBSAMPLE_STEPS], 1)
    if found.get("batch_size") is not None and not ALGORITHMS[config.algorithm].is_off_policy:
        found["batch_size"] = nearest_divisor(config.num_envs * found["n_steps"], found["batch_size"])
    return found


def _distribution(name: str, among: Any) -> BaseDistribution:
    if isinstance(among, BaseDistribution):
        return among
    try:
        if isinstance(among, list | tuple):
            # Optuna's storages keep numbers, strings and None; other choices are written as JSON.
            return CategoricalDistribution(
                [json.dumps(choice) if isinstance(choice, list | tuple | dict) else choice for choice in among]
            )
        if isinstance(among, Mapping) and {"low", "high"} <= among.keys():
            is_int = all(type(among[end]) is int for end in ("low", "high"))
            return (IntDistribution if is_int else FloatDistribution)(**among)
        raise ValueError("this is neither")
    except (TypeError, ValueError) as error:
        raise UserError(
            f'{name} in a space must be choices or a range, such as [32, 64] or {{"low": 1e-5, "high": 0.01, "log": '
            f"true}}, got {among!r}: {error}."
        ) from error
