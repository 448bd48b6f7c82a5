"""Replay buffers with SB3's arrays, which draw slices of episodes and move to the device for compiled functions."""

from bridge.replay.hindsight import HerReplayBuffer
from bridge.replay.priorities import PrioritizedReplayBuffer
from bridge.replay.replay_buffer import ReplayBuffer

__all__ = ["HerReplayBuffer", "PrioritizedReplayBuffer", "ReplayBuffer"]
