"""What a program begins with: an algorithm, its settings and environments, and a model whose weights are known."""

from __future__ import annotations

import dataclasses
import zlib
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer
from torch import nn

import bridge
from bridge.algorithms.specs import SPECS
from jaxenvs import learn
from tests.differential.environments import LONGEST, make_env
from tests.differential.user_classes import buffers, extractors
from tests.differential.user_classes.overriding import subclass

ALGORITHMS = ("PPO", "A2C", "DQN", "SAC", "TD3", "DDPG", "QRDQN", "TQC", "MaskablePPO", "CrossQ", "RecurrentPPO")
# Which SB3 does not have. Their programs are drawn from negative numbers, so that those of the others keep theirs.
OURS = ("MaskableRecurrentPPO", "PQN")
# And those of others with the residual networks of our own, which SB3 trains too.
SIMBA = tuple(name for name in ALGORITHMS if "SimbaPolicy" in getattr(bridge, name).policy_aliases)
# Whose settings are of a class, or of one that begins as that does.
ON_POLICY, IN_MINIBATCHES, PPOS, Q_LEARNING, SOFT = (
    tuple(name for name in (*ALGORITHMS, *OURS) if issubclass(SPECS[name].settings, of))
    for of in (learn.OnPolicySettings, learn.MinibatchSettings, learn.PPO, learn.DQN, learn.SAC)
)
# The ends of the names of running statistics, which begin as they are made.
RUNNING = ("ra_mean", "ra_var", "steps")
POLICIES = {"dict": "MultiInputPolicy", "goal": "MultiInputPolicy", "parts": "MultiInputPolicy", "image": "CnnPolicy"}
# Of two actions whose logits differ by so much one is sure, in float32.
SURE = 60.0


@dataclasses.dataclass(frozen=True)
class Setting:
    """What a program begins with.

    Attributes:
      algorithm: one of ALGORITHMS or OURS.
      env: "jax" or "gymnasium".
      observations: "box", "discrete" or "dict"; "bytes" and "image" are of uint8; "large" is of int64 beyond 32 bits,
        "parts" a Dict with such; "goal" with a HerReplayBuffer, which on the host draws what SB3's does.
      exact: nothing that is drawn has an effect: actions are certain, and a replay buffer has one row, or a rollout one
        minibatch; so models learn, and all their numbers are the same. Otherwise they draw, and the learning rate is 0.
      num_envs, length, truncates: of the environments.
      overrides: of a subclass's methods; `overriding`.
      frequency: an update of one gradient step each "step", of two every "third", or of as many as an "episode" had.
      noise: of actions: "", SB3's "normal", or a class of one's "own". Neither varies.
      extractor: "", "scaled" by a number in an object of the user's, "running", by the mean of a RunningMeanStd, or
        "counting" its calls in a dict.
      rate: of the learning rate: "constant", "linear", or "decaying" each time that it is asked for.
      optimizer: "adam" or "sgd"; A2C's own where "".
      logged: "": by SB3's own logger, to nowhere. "rows": a format keeps rows. "own": a subclass of Logger does.
      wrapper: "", "normalize", "monitor", "own" or, of Gymnasium's alone, "aliasing"; `make_env`.
      sde: state-dependent exploration.
      buffer: "" or "own": a subclass of SB3's replay buffer, whose `sample` looks at the model.
      networks: "", or "simba" of a SimbaPolicy.
    """

    algorithm: str
    env: str = "jax"
    observations: str = "box"
    exact: bool = True
    num_envs: int = 1
    length: int = 5
    truncates: int = 0
    overrides: tuple[tuple[Any, ...], ...] = ()
    frequency: str = "step"
    noise: str = ""
    extractor: str = ""
    rate: str = "constant"
    optimizer: str = "adam"
    logged: str = ""
    wrapper: str = ""
    sde: bool = False
    buffer: str = ""
    networks: str = ""

    @property
    def is_on_policy(self) -> bool:
        return self.algorithm in ON_POLICY

    @property
    def actions(self) -> str:
        if self.algorithm in ("MaskablePPO", "MaskableRecurrentPPO", "PQN"):
            return "discrete"
        if self.is_on_policy:
            return "box" if self.sde or not (self.exact or self.num_envs == 1) else "discrete"
        return "discrete" if self.algorithm in Q_LEARNING else "box"

    def __repr__(self) -> str:
        given = [
            f"{field.name}={getattr(self, field.name)!r}"
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != field.default
        ]
        return f"Setting({', '.join(given)})"


class Linear:
    """A learning rate that decays to nothing."""

    def __init__(self, first: float) -> None:
        self.first = first

    def __call__(self, progress_remaining: float) -> float:
        return self.first * progress_remaining


class Decaying:
    """A learning rate with a memory, as one of PyTorch's schedulers has."""

    def __init__(self, first: float) -> None:
        self.rate = first

    def __call__(self, progress_remaining: float) -> float:
        self.rate *= 0.97
        return self.rate


RATES = {"constant": lambda first: first, "linear": Linear, "decaying": Decaying}


class OwnNoise(NormalActionNoise):
    """Adds more than what it inherits from."""

    def __call__(self) -> Any:
        return super().__call__() * 2


def make(library: Any, setting: Setting, number: int) -> Any:
    """A model of a library.

    Args:
      number: of models of one program; each has weights of its own.
    """
    env = new_env(setting)
    first = 0.02 if setting.exact else 0.0
    policy_kwargs: dict[str, Any] = {"net_arch": [4], "activation_fn": nn.Tanh}
    if setting.optimizer == "adam":
        # Where a gradient is hardly there, its sign alone would else decide.
        policy_kwargs["optimizer_kwargs"] = {"eps": 1e-2}
    elif setting.optimizer == "sgd":
        policy_kwargs["optimizer_class"] = torch.optim.SGD
    policy_kwargs |= extractors.of(setting.observations, setting.extractor)
    arguments: dict[str, Any] = {
        "learning_rate": RATES[setting.rate](first),
        "gamma": 0.9,
        "seed": number,
        "device": "cpu",
    }
    if setting.sde:
        arguments["use_sde"] = True
    arguments |= _on_policy(setting) if setting.is_on_policy else _off_policy(setting)
    if setting.algorithm == "A2C":
        arguments["use_rms_prop"] = not setting.optimizer
    policy: Any = POLICIES.get(setting.observations, "MlpPolicy")
    if setting.networks:
        policy = getattr(bridge, setting.algorithm).policy_aliases["SimbaPolicy"]
    if "Recurrent" in setting.algorithm:
        policy = policy.replace("Policy", "LstmPolicy")
        policy_kwargs["lstm_hidden_size"] = 4
    cls = subclass(getattr(library, setting.algorithm), setting.overrides)
    model = cls(policy, env, policy_kwargs=policy_kwargs, **arguments)
    begin(model, setting, number)
    if setting.buffer:
        model.replay_buffer.model = model
    return model


def new_env(setting: Setting, num_envs: int | None = None, length: int | None = None) -> Any:
    return make_env(
        setting.env,
        num_envs or setting.num_envs,
        length or setting.length,
        setting.truncates,
        setting.observations,
        setting.actions,
        setting.wrapper,
    )


def sizes(setting: Setting, num_envs: int) -> dict[str, int]:
    """Of a rollout one minibatch; of a replay buffer one row, where nothing drawn may have an effect."""
    if setting.is_on_policy:
        return {"batch_size": 4 * num_envs} if setting.algorithm in IN_MINIBATCHES else {}
    return {"buffer_size": num_envs if setting.exact and setting.observations != "goal" else 16}


def _on_policy(setting: Setting) -> dict[str, Any]:
    arguments: dict[str, Any] = {"n_steps": 4, **sizes(setting, setting.num_envs)}
    if setting.algorithm in IN_MINIBATCHES:
        arguments["n_epochs"] = 2
    if setting.algorithm == "PQN":
        epsilon = 0.0 if setting.exact else 0.5
        arguments |= {"exploration_initial_eps": epsilon, "exploration_final_eps": epsilon / 2}
    return arguments


def _off_policy(setting: Setting) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "learning_starts": 0 if setting.exact else 3,
        "batch_size": 4,
        "train_freq": {"step": 1, "third": 3, "episode": (1, "episode")}[setting.frequency],
        "gradient_steps": {"step": 1, "third": 2, "episode": -1}[setting.frequency],
        **sizes(setting, setting.num_envs),
    }
    if setting.observations == "goal":
        arguments |= {"replay_buffer_class": HerReplayBuffer, "learning_starts": LONGEST * setting.num_envs}
    if setting.buffer:
        dicts = POLICIES.get(setting.observations) == "MultiInputPolicy"
        arguments["replay_buffer_class"] = buffers.OwnDictReplayBuffer if dicts else buffers.OwnReplayBuffer
    if setting.noise:
        given = np.full(1, 0.25), np.zeros(1)
        arguments["action_noise"] = OwnNoise(*given) if setting.noise == "own" else NormalActionNoise(*given)
    if setting.algorithm in Q_LEARNING:
        epsilon = 0.0 if setting.exact else 0.5
        arguments |= {"tau": 0.5, "target_update_interval": 5, "exploration_fraction": 0.5}
        arguments |= {"exploration_initial_eps": epsilon, "exploration_final_eps": epsilon / 2}
    elif setting.algorithm in SOFT:
        arguments |= {"ent_coef": 0.0 if setting.exact else "auto"}
        arguments |= {} if setting.algorithm == "CrossQ" else {"tau": 0.5}
    else:
        arguments |= {"tau": 0.5}
        if setting.algorithm == "TD3":
            arguments |= {"target_policy_noise": 0.0 if setting.exact else 0.2}
    return arguments


@torch.no_grad()
def begin(model: Any, setting: Setting, number: int) -> None:
    """Write into a model the weights with which programs begin, the same for each library."""
    state = model.policy.state_dict()
    for name, values in state.items():
        if name.endswith(RUNNING) or name == "exploration_rate":
            continue
        # Of targets, the same as of what they follow.
        begins_at = zlib.crc32(name.replace("_target", "").encode()) % 1000 + 100 * number
        values.copy_(torch.from_numpy(0.6 * np.sin(begins_at + 1.7 * np.arange(values.numel()))).view_as(values))
        if setting.exact and setting.algorithm in SOFT and "log_std" in name:
            values.fill_(0.0 if name.endswith("weight") else -30.0)
        if setting.exact and setting.is_on_policy and name in ("action_net.bias", "mlp_extractor.q_net.3.bias"):
            values.copy_(torch.tensor([SURE, 0.0]))
    model.policy.load_state_dict(state)
