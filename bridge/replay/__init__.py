"""Replay buffers: a ring of lanes that stores observations once and knows each slot's place in its episode."""

from bridge.replay.data.hindsight import HerReplayBuffer
from bridge.replay.data.replay_buffer import PrioritizedReplayBuffer, ReplayBuffer

__all__ = ["HerReplayBuffer", "PrioritizedReplayBuffer", "ReplayBuffer"]
