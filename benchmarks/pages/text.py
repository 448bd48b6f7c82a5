"""Helpers of the benchmark pages."""

from __future__ import annotations

import textwrap
from typing import Any

Rows = list[dict[str, Any]]


def fill(text: str) -> str:
    """Wrap a text to lines of 120 characters."""
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def fastest(rows: Rows) -> dict[str, float]:
    """Return thousand steps per second of each side: its fastest row, if there are several numbers of threads."""
    best: dict[str, float] = {}
    for row in rows:
        side = row["side"].partition(",")[0]
        best[side] = max(best.get(side, 0.0), row["steps_per_second"] / 1000)
    return best
