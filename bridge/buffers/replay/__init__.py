"""Where replay buffers were before `bridge.replay`: the names that are in pickles of them."""

from bridge.replay import ReplayBuffer

__all__ = ["ReplayBuffer"]
