"""Fixtures that set how many steps a compiled off-policy function takes."""

import pytest

from bridge.engine.callbacks.callback_schedule import Pace


@pytest.fixture
def one_by_one(monkeypatch):
    """Let compiled functions take one step each."""
    monkeypatch.setattr(Pace, "next", lambda self, most: 1)


@pytest.fixture
def in_one(monkeypatch):
    """Programs as long as they may be."""
    monkeypatch.setattr(Pace, "next", lambda self, most: most)
