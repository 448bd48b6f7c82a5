"""Fixtures of the tests of bridge."""

from concurrent.futures import Future

import pytest

from bridge.algorithms.common import predicting


@pytest.fixture
def compiled_predict(monkeypatch):
    """Let `predict` run compiled functions from the first call on, compiled before it."""
    compiled = Future()
    compiled.set_result(None)
    monkeypatch.setattr(predicting, "CALLS_BEFORE_COMPILING", 0)
    monkeypatch.setattr(predicting, "compile_meanwhile", lambda *arguments: compiled)
    monkeypatch.setattr(predicting, "is_slower_compiled", lambda policy: False)
