"""See `bridge.buffers.replay`."""

from bridge.replay.data.replay_buffer import ReplayBuffer

__all__ = ["ReplayBuffer"]
