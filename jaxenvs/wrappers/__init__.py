"""Wrappers: environments that hold another environment, and change its observations, actions, rewards or ends."""

from jaxenvs.wrappers.action_masker import ActionMasker, ActionMaskerState
from jaxenvs.wrappers.action_repeat import ActionRepeat
from jaxenvs.wrappers.clip_action import ClipAction
from jaxenvs.wrappers.flatten_observation import FlattenObservation
from jaxenvs.wrappers.frame_stack import FrameStack, FrameStackState
from jaxenvs.wrappers.multi_agent.agents import Agents, AgentState
from jaxenvs.wrappers.multi_agent.self_play import Opponents, SelfPlay, SelfPlayState
from jaxenvs.wrappers.pixels import Pixels
from jaxenvs.wrappers.randomized_parameters import RandomizedParameters, RandomizedParametersState
from jaxenvs.wrappers.rescale_action import RescaleAction
from jaxenvs.wrappers.sticky_action import StickyAction, StickyActionState
from jaxenvs.wrappers.time_limit import TimeLimit, TimeLimitState
from jaxenvs.wrappers.transform_observation import TransformObservation
from jaxenvs.wrappers.transform_reward import TransformReward

__all__ = [
    "ActionMasker",
    "ActionMaskerState",
    "ActionRepeat",
    "AgentState",
    "Agents",
    "ClipAction",
    "FlattenObservation",
    "FrameStack",
    "FrameStackState",
    "Opponents",
    "Pixels",
    "RandomizedParameters",
    "RandomizedParametersState",
    "RescaleAction",
    "SelfPlay",
    "SelfPlayState",
    "StickyAction",
    "StickyActionState",
    "TimeLimit",
    "TimeLimitState",
    "TransformObservation",
    "TransformReward",
]
