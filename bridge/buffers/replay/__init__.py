"""The replay buffer: a ring of lanes that stores observations once and knows each slot's place in its episode."""

from bridge.buffers.replay.replay_buffer import ReplayBuffer

__all__ = ["ReplayBuffer"]
