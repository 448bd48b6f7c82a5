"""Replay buffers that store each observation once, and know the place of each transition in its episode."""

from bridge.replay.data.hindsight import HerReplayBuffer
from bridge.replay.data.replay_buffer import PrioritizedReplayBuffer, ReplayBuffer

__all__ = ["HerReplayBuffer", "PrioritizedReplayBuffer", "ReplayBuffer"]
