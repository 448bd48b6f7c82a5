"""Trainings as pure functions: settings with an `update`, a `Training` around them, and `sweep` for many at once."""

from jaxenvs.learn.devices import gather, make_mesh
from jaxenvs.learn.interfaces import CollectorState, Masked, Recalled
from jaxenvs.learn.learner_state import LearnerState
from jaxenvs.learn.networks.actor_critic import ActionHead, ActorCritic, FlattenExtractor, Network
from jaxenvs.learn.networks.distributions import (
    Bernoulli,
    Categorical,
    DiagonalGaussian,
    Distribution,
    MultiCategorical,
    SquashedGaussian,
    StateDependentGaussian,
)
from jaxenvs.learn.networks.recurrent_actor_critic import RecurrentActorCritic
from jaxenvs.learn.normalization import Moments, Normalizer
from jaxenvs.learn.off_policy.contrib.crossq import CrossQ, CrossQPolicy
from jaxenvs.learn.off_policy.contrib.qrdqn import QRDQN, QRDQNPolicy
from jaxenvs.learn.off_policy.contrib.tqc import TQC, TQCPolicy
from jaxenvs.learn.off_policy.dqn import DQN
from jaxenvs.learn.off_policy.loop import OffPolicyTrainingState
from jaxenvs.learn.off_policy.noise import NormalActionNoise, OrnsteinUhlenbeckActionNoise
from jaxenvs.learn.off_policy.policies import DQNPolicy, OffPolicyPolicy, SACPolicy, TD3Policy
from jaxenvs.learn.off_policy.sac import SAC
from jaxenvs.learn.off_policy.settings import OffPolicySettings
from jaxenvs.learn.off_policy.store.hindsight import Hindsight
from jaxenvs.learn.off_policy.store.replay import Replay, Transitions
from jaxenvs.learn.off_policy.td3 import DDPG, TD3
from jaxenvs.learn.on_policy.a2c import A2C
from jaxenvs.learn.on_policy.collecting import Rollout, advantages, collect
from jaxenvs.learn.on_policy.maskable_ppo import MaskablePPO, MaskableRecurrentPPO
from jaxenvs.learn.on_policy.minibatches import MinibatchSettings
from jaxenvs.learn.on_policy.ppo import PPO
from jaxenvs.learn.on_policy.pqn import PQN, PQNNetwork
from jaxenvs.learn.on_policy.recurrent_ppo import RecurrentPPO
from jaxenvs.learn.on_policy.settings import OnPolicySettings
from jaxenvs.learn.self_play_training import SelfPlayResult, self_play
from jaxenvs.learn.settings import Settings
from jaxenvs.learn.training import Result, Training, advance, train
from jaxenvs.learn.training_state import TrainingState, place

__all__ = [
    "A2C",
    "DDPG",
    "DQN",
    "PPO",
    "PQN",
    "QRDQN",
    "SAC",
    "TD3",
    "TQC",
    "ActionHead",
    "ActorCritic",
    "Bernoulli",
    "Categorical",
    "CollectorState",
    "CrossQ",
    "CrossQPolicy",
    "DQNPolicy",
    "DiagonalGaussian",
    "Distribution",
    "FlattenExtractor",
    "Hindsight",
    "LearnerState",
    "MaskablePPO",
    "MaskableRecurrentPPO",
    "Masked",
    "MinibatchSettings",
    "Moments",
    "MultiCategorical",
    "Network",
    "NormalActionNoise",
    "Normalizer",
    "OffPolicyPolicy",
    "OffPolicySettings",
    "OffPolicyTrainingState",
    "OnPolicySettings",
    "OrnsteinUhlenbeckActionNoise",
    "PQNNetwork",
    "QRDQNPolicy",
    "Recalled",
    "RecurrentActorCritic",
    "RecurrentPPO",
    "Replay",
    "Result",
    "Rollout",
    "SACPolicy",
    "SelfPlayResult",
    "Settings",
    "SquashedGaussian",
    "StateDependentGaussian",
    "TD3Policy",
    "TQCPolicy",
    "Training",
    "TrainingState",
    "Transitions",
    "advance",
    "advantages",
    "collect",
    "gather",
    "make_mesh",
    "place",
    "self_play",
    "train",
]
