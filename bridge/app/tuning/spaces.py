"""In which hyper-parameters are searched: a table for each algorithm, which a user can replace.

Ranges are those of RL Baselines3 Zoo (rl_zoo3/hyperparams_opt.py of DLR-RM/rl-baselines3-zoo). Of what is compiled into
a program (sizes of rollouts, batches and networks, epochs) there are fewer values between the Zoo's least and greatest,
as each combination is compiled once. The Zoo has no space for MaskablePPO, which has PPO's here, nor for CrossQ, which
has SAC's without what it does not have. `log_std_init`, which the Zoo draws for SAC and TQC, changes nothing without
state-dependent exploration, and is left out.

A space is JSON: by name, a list of choices; or a range, {"low": 1e-5, "high": 2e-3, "log": true}, of ints if its ends
are ints, with "step" too, as Optuna's distributions have it. Names are those of the algorithm's arguments, and

* policy_kwargs.NAME, one of the arguments of the policy, as policy_kwargs.net_arch;
* one_minus_NAME, whose value is 1 - NAME, for discounts on a logarithmic scale;
* subsample_steps: gradient_steps is train_freq divided by it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from bridge.app.config import TrainingConfig, nearest_divisor
from bridge.app.hyperparameters import OFF_POLICY
from jaxenvs.cli import UserError

# By name: choices, a range, or one of Optuna's distributions.
Space = Mapping[str, Any]

POLICY_KWARGS, ONE_MINUS = "policy_kwargs.", "one_minus_"
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
A2C: Space = {**_ON_POLICY, "policy_kwargs.net_arch": [SMALL, MEDIUM]}
PPO: Space = {
    **_ON_POLICY,
    "batch_size": [32, 128, 512],
    "n_epochs": [1, 5, 20],
    "clip_range": [0.1, 0.2, 0.3, 0.4],
    "policy_kwargs.net_arch": [TINY, SMALL, MEDIUM],
}
_OFF_POLICY: Space = {
    "gamma": GAMMAS,
    "learning_rate": {"low": 1e-5, "high": 1.0, "log": True},
    "batch_size": [16, 128, 512, 2048],
    "buffer_size": [10_000, 100_000, 1_000_000],
    "train_freq": [1, 8, 64, 512],
    "gradient_steps": [-1],  # as many as steps, which the Zoo writes as train_freq
    "policy_kwargs.net_arch": [SMALL, MEDIUM, BIG],
}
_TAU: Space = {"tau": [0.001, 0.005, 0.01, 0.02, 0.05, 0.08]}
_STARTS: Space = {"learning_starts": [0, 1000, 10_000, 20_000]}
SAC: Space = {**_OFF_POLICY, **_TAU, **_STARTS, "ent_coef": ["auto"]}
TD3: Space = {
    **_OFF_POLICY,
    **_TAU,
    "noise_type": ["ornstein-uhlenbeck", "normal", None],
    "noise_std": {"low": 0.0, "high": 1.0},
}
DQN: Space = {
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
# The Zoo drops any number of TQC's quantiles; these are fewer than the fewest quantiles.
TQC: Space = {**SAC, "policy_kwargs.n_quantiles": [5, 25, 50], "top_quantiles_to_drop_per_net": [0, 2, 4]}

# Algorithm -> where to search.
SPACES: dict[str, Space] = {
    "a2c": A2C,
    "ppo": PPO,
    "maskable_ppo": PPO,
    "recurrent_ppo": PPO,
    "dqn": DQN,
    "qrdqn": {**DQN, "policy_kwargs.n_quantiles": [5, 50, 200]},
    "sac": SAC,
    "tqc": TQC,
    "crossq": {**_OFF_POLICY, **_STARTS, "ent_coef": ["auto"]},
    "td3": TD3,
    "ddpg": TD3,
}


def distributions(space: Space, config: TrainingConfig) -> dict[str, BaseDistribution]:
    """Optuna's distributions of a space, without choices that no training of `config` can have: rollouts, and steps
    before anything is learned, that are longer than the training, and batches larger than all of its rollouts.

    Raises:
      UserError: something is neither a list of choices nor a range, or no choice is possible.
    """
    if not space:
        raise UserError("The space has no hyper-parameter to search: all are given.")
    possible = dict(space)
    most = {"n_steps": config.total_timesteps // config.num_envs, "learning_starts": config.total_timesteps - 1}
    if config.algorithm in OFF_POLICY:
        most["train_freq"] = most.pop("n_steps")
    else:
        longest = possible.get("n_steps", config.hyperparameters["n_steps"])
        if isinstance(longest, list):
            longest = max((steps for steps in longest if steps <= most["n_steps"]), default=1)
        if isinstance(longest, int):
            most["batch_size"] = config.num_envs * longest
    for name, limit in most.items():
        if isinstance(choices := possible.get(name), list):
            possible[name] = [choice for choice in choices if choice <= limit]
            if not possible[name]:
                raise UserError(
                    f"{name} must be at most {limit} in a training of {config.total_timesteps} steps of "
                    f"{config.num_envs} environments, and the space has {choices}."
                )
    return {name: _distribution(name, among) for name, among in possible.items()}


def settings(params: Mapping[str, Any], config: TrainingConfig) -> dict[str, Any]:
    """The hyper-parameters that a trial's params mean, those of `config` included.

    In the place of a batch size that does not divide the rollout comes the nearest that does.

    Args:
      params: by the names of a space, as Optuna's trials have them.
    """
    found: dict[str, Any] = dict(config.hyperparameters)
    values = {name: _decoded(value) for name, value in params.items()}
    policy_kwargs = {
        name.removeprefix(POLICY_KWARGS): value for name, value in values.items() if name.startswith(POLICY_KWARGS)
    }
    if policy_kwargs:
        found["policy_kwargs"] = {**(found["policy_kwargs"] or {}), **policy_kwargs}
    for name, value in values.items():
        if name.startswith(ONE_MINUS):
            found[name.removeprefix(ONE_MINUS)] = 1 - value
        elif name != "subsample_steps" and not name.startswith(POLICY_KWARGS):
            found[name] = value
    if "subsample_steps" in values:
        found["gradient_steps"] = max(found["train_freq"] // values["subsample_steps"], 1)
    if found.get("batch_size") is not None and "n_steps" in found and config.algorithm not in OFF_POLICY:
        found["batch_size"] = nearest_divisor(config.num_envs * found["n_steps"], found["batch_size"])
    return found


def _distribution(name: str, among: Any) -> BaseDistribution:
    """
    Raises:
      UserError: it is none.
    """
    if isinstance(among, BaseDistribution):
        return among
    try:
        if isinstance(among, list | tuple):
            return CategoricalDistribution([_encoded(choice) for choice in among])
        if isinstance(among, Mapping) and {"low", "high"} <= among.keys():
            is_int = all(type(among[end]) is int for end in ("low", "high"))
            return (IntDistribution if is_int else FloatDistribution)(**among)
        raise ValueError("it is neither")
    except (TypeError, ValueError) as error:
        expected = '[32, 64] or {"low": 1e-5, "high": 0.01, "log": true}'
        raise UserError(
            f"{name} of a space must be choices or a range, as {expected}, got {among!r}: {error}."
        ) from error


def _encoded(choice: Any) -> Any:
    """A choice as Optuna keeps it: what is no number, text or None as JSON."""
    return json.dumps(choice) if isinstance(choice, list | tuple | dict) else choice


def _decoded(choice: Any) -> Any:
    return json.loads(choice) if isinstance(choice, str) and choice.startswith(("[", "{")) else choice
