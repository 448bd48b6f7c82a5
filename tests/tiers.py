"""Select the cases of a test that `make test` runs. `make test-all` also runs cases that only repeat the others."""

from collections.abc import Iterable
from typing import Any

import pytest


def tiered(cases: Iterable[Any], *always: Any) -> list[Any]:
    """Parameters of a test, of which those that are not named behind them are marked `thorough`.

    Args:
      cases: one value each, or a tuple with a value for each argument.
    """
    cases = list(cases)
    missing = [case for case in always if case not in cases]
    assert not missing, f"no case is {missing}"
    return [case if case in always else pytest.param(*_values(case), marks=pytest.mark.thorough) for case in cases]


def _values(case: Any) -> tuple[Any, ...]:
    return case if isinstance(case, tuple) else (case,)
