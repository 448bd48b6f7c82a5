"""See `bridge.buffers.replay`."""

from bridge.replay.data.storage import OnDevice

__all__ = ["OnDevice"]
