"""See `bridge.buffers.replay`."""

from bridge.replay.store.ring import InMemory, Ring

__all__ = ["InMemory", "Ring"]
