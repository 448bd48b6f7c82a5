"""Which cases of a test `make test` runs, and which show once more what those show: `make test-all` alone."""

from collections.abc import Iterable
from typing import Any

import pytest


def tiered(cases: Iterable[Any], *always: Any) -> list[Any]:
    """Parameters of a test, of which those that are not named after them are marked `thorough`."""
    cases = list(cases)
    missing = [case for case in always if case not in cases]
    assert not missing, f"there is no case {missing}"
    return [case if case in always else pytest.param(case, marks=pytest.mark.thorough) for case in cases]
