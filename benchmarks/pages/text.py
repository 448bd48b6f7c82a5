"""What the pages of the benchmarks share."""

from __future__ import annotations

import textwrap
from typing import Any

Rows = list[dict[str, Any]]


def fill(text: str) -> str:
    """The text in lines of 120 characters."""
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def fastest(rows: Rows) -> dict[str, float]:
    """Thousand steps a second of each side, which may have rows with several numbers of threads."""
    best: dict[str, float] = {}
    for row in rows:
        side = row["side"].partition(",")[0]
        best[side] = max(best.get(side, 0.0), row["steps_per_second"] / 1000)
    return best
