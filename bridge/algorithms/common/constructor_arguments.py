"""Keyword arguments of the algorithms' constructors, for type checkers, editors and the reference.

They are Stable-Baselines3's and sb3-contrib's, whose pages describe them at length; `tests/bridge/test_signatures.py`
compares the names. At run time the constructors take what the installed versions take.
"""

from __future__ import annotations

from typing import Any, TypeAlias, TypedDict

import torch
from stable_baselines3.common.buffers import ReplayBuffer, RolloutBuffer
from stable_baselines3.common.noise import ActionNoise
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import Schedule
from stable_baselines3.common.vec_env import VecEnv

from bridge.sb3 import AnyEnv
from jaxenvs import Environment, VectorEnv

Policy: TypeAlias = str | type[BasePolicy]
Env: TypeAlias = AnyEnv | VecEnv | Environment[Any] | VectorEnv | str | None


class _Arguments(TypedDict, total=False):
    """Keyword arguments that all algorithms share."""

    learning_rate: float | Schedule
    """Learning rate of the optimizer, or a function of the remaining progress, which falls from 1 to 0."""
    gamma: float
    """Discount factor."""
    tensorboard_log: str | None
    """Folder of the TensorBoard log; None for no log."""
    policy_kwargs: dict[str, Any] | None
    """Keyword arguments of the policy, such as `net_arch`."""
    verbose: int
    """What is printed: 0 nothing, 1 the log, 2 debugging messages too."""
    seed: int | None
    """Seed of the weights, the actions and the environments."""
    device: torch.device | str
    """PyTorch's device for the weights."""
    _init_setup_model: bool


class _OnPolicyArguments(_Arguments, total=False):
    """Keyword arguments of algorithms with a rollout buffer."""

    n_steps: int
    """Number of steps in each environment between updates."""
    gae_lambda: float
    """Weight of long returns in the advantage estimates (GAE); 1 for the whole return."""
    ent_coef: float
    """Coefficient of the entropy in the loss."""
    vf_coef: float
    """Coefficient of the value function in the loss."""
    max_grad_norm: float
    """Largest norm of the gradient, which is scaled down to it."""
    normalize_advantage: bool
    """Whether to normalize the advantages."""
    stats_window_size: int
    """Number of episodes over which the log averages returns and lengths."""


class _ExplorationArguments(TypedDict, total=False):
    """Keyword arguments of state-dependent exploration."""

    use_sde: bool
    """Whether to explore with state-dependent noise (gSDE)."""
    sde_sample_freq: int
    """Number of steps after which gSDE draws a new noise matrix; -1 for once in a rollout."""


class _RolloutBufferArguments(TypedDict, total=False):
    """Keyword arguments that choose a rollout buffer."""

    rollout_buffer_class: type[RolloutBuffer] | None
    """Class of the rollout buffer. Updates are compiled only for SB3's own classes."""
    rollout_buffer_kwargs: dict[str, Any] | None
    """Keyword arguments of the rollout buffer."""


class A2CArguments(_OnPolicyArguments, _ExplorationArguments, _RolloutBufferArguments, total=False):
    """Keyword arguments of A2C."""

    rms_prop_eps: float
    """Epsilon of RMSprop."""
    use_rms_prop: bool
    """Whether to optimize with RMSprop instead of Adam."""


class _ClippedArguments(_OnPolicyArguments, total=False):
    """Keyword arguments of PPO and its variants."""

    batch_size: int | None
    """Number of steps in a minibatch."""
    n_epochs: int
    """Number of passes through a rollout in an update."""
    clip_range: float | Schedule
    """Range around 1 to which the probability ratio is clipped, or a function of the remaining progress."""
    clip_range_vf: float | Schedule | None
    """Range to which changes of the value function are clipped; None for no clipping."""
    target_kl: float | None
    """KL divergence above which an update stops early; None for no limit."""


class PPOArguments(_ClippedArguments, _ExplorationArguments, _RolloutBufferArguments, total=False):
    """Keyword arguments of PPO."""


class RecurrentPPOArguments(_ClippedArguments, _ExplorationArguments, total=False):
    """Keyword arguments of RecurrentPPO."""


class MaskablePPOArguments(_ClippedArguments, _RolloutBufferArguments, total=False):
    """Keyword arguments of MaskablePPO."""


class PQNArguments(_Arguments, _RolloutBufferArguments, total=False):
    """Keyword arguments of PQN."""

    n_steps: int
    """Number of steps in each environment between updates."""
    batch_size: int
    """Number of steps in a minibatch."""
    n_epochs: int
    """Number of passes through a rollout in an update."""
    gae_lambda: float
    """Weight of long returns in the lambda returns; 1 for the whole return."""
    max_grad_norm: float
    """Largest norm of the gradient, which is scaled down to it."""
    exploration_fraction: float
    """Share of the training in which the share of random actions falls."""
    exploration_initial_eps: float
    """Share of random actions at the beginning."""
    exploration_final_eps: float
    """Share of random actions after it has fallen."""
    stats_window_size: int
    """Number of episodes over which the log averages returns and lengths."""


class _OffPolicyArguments(_Arguments, total=False):
    """Keyword arguments of algorithms with a replay buffer."""

    buffer_size: int
    """Number of transitions in the replay buffer."""
    learning_starts: int
    """Number of steps before the first update, in which actions are random."""
    batch_size: int
    """Number of transitions in a minibatch."""
    train_freq: int | tuple[int, str]
    """Number of steps between updates, or `(number, "step")` or `(number, "episode")`."""
    gradient_steps: int
    """Number of gradient steps in an update; -1 for as many as each environment took steps."""
    replay_buffer_class: type[ReplayBuffer] | None
    """Class of the replay buffer, such as HerReplayBuffer."""
    replay_buffer_kwargs: dict[str, Any] | None
    """Keyword arguments of the replay buffer."""
    optimize_memory_usage: bool
    """Whether SB3's replay buffer stores each observation once instead of twice."""
    n_steps: int
    """Number of rewards in the n-step return."""


class DQNArguments(_OffPolicyArguments, total=False):
    """Keyword arguments of DQN and QRDQN."""

    tau: float
    """Coefficient of the Polyak update of the target networks; 1 copies the weights."""
    target_update_interval: int
    """Number of steps between updates of the target networks."""
    exploration_fraction: float
    """Part of the training over which the exploration rate falls."""
    exploration_initial_eps: float
    """First exploration rate: the probability of a random action."""
    exploration_final_eps: float
    """Last exploration rate."""
    max_grad_norm: float
    """Largest norm of the gradient, which is scaled down to it."""
    stats_window_size: int
    """Number of episodes over which the log averages returns and lengths."""


class DDPGArguments(_OffPolicyArguments, total=False):
    """Keyword arguments of DDPG."""

    tau: float
    """Coefficient of the Polyak update of the target networks; 1 copies the weights."""
    action_noise: ActionNoise | None
    """Noise that is added to the actions of the policy."""


class TD3Arguments(DDPGArguments, total=False):
    """Keyword arguments of TD3."""

    policy_delay: int
    """Number of updates of the critics for one update of the actor."""
    target_policy_noise: float
    """Standard deviation of the noise that is added to the actions of the target policy."""
    target_noise_clip: float
    """Largest absolute value of that noise."""
    stats_window_size: int
    """Number of episodes over which the log averages returns and lengths."""


class _EntropyArguments(_OffPolicyArguments, _ExplorationArguments, total=False):
    """Keyword arguments of algorithms that maximize the entropy too."""

    action_noise: ActionNoise | None
    """Noise that is added to the actions of the policy."""
    ent_coef: str | float
    """Coefficient of the entropy; "auto" learns it, and "auto_0.1" learns it from 0.1 on."""
    target_entropy: str | float
    """Entropy that a learned coefficient aims at; "auto" for minus the number of action dimensions."""
    use_sde_at_warmup: bool
    """Whether actions before `learning_starts` are gSDE's instead of uniform."""
    stats_window_size: int
    """Number of episodes over which the log averages returns and lengths."""


class SACArguments(_EntropyArguments, total=False):
    """Keyword arguments of SAC."""

    tau: float
    """Coefficient of the Polyak update of the target networks; 1 copies the weights."""
    target_update_interval: int
    """Number of steps between updates of the target networks."""


class TQCArguments(SACArguments, total=False):
    """Keyword arguments of TQC."""

    top_quantiles_to_drop_per_net: int
    """Number of the largest quantiles of each critic that the target leaves out."""


class CrossQArguments(_EntropyArguments, total=False):
    """Keyword arguments of CrossQ, which has no target networks."""

    policy_delay: int
    """Number of updates of the critics for one update of the actor."""
