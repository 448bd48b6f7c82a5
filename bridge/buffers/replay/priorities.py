"""See `bridge.buffers.replay`."""

from bridge.replay.data.priorities import Priorities, SumTree

__all__ = ["Priorities", "SumTree"]
