"""Helpers of the benchmark pages."""

from __future__ import annotations

import textwrap
from typing import Any

Rows = list[dict[str, Any]]


def fill(text: str) -> str:
    """Wrap a text to lines of 120 characters."""
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def filled_in(page: str, parts: dict[str, str]) -> str:
    """Return a page with these parts, each between its two marks, and everything else as it is."""
    for name, part in parts.items():
        begin, end = marks(name)
        before, _, rest = page.partition(begin)
        page = f"{before}{begin}\n{part}\n\n{end}{rest.partition(end)[2]}"
    return page


def marks(name: str) -> tuple[str, str]:
    """Return the lines before and after a part of a page."""
    return f"<!-- {name}: python -m benchmarks.docs -->\n", f"<!-- end of {name} -->\n"


def fastest(rows: Rows) -> dict[str, float]:
    """Return thousand steps per second of each side: its fastest row, if there are several numbers of threads."""
    best: dict[str, float] = {}
    for row in rows:
        side = row["side"].partition(",")[0]
        best[side] = max(best.get(side, 0.0), row["steps_per_second"] / 1000)
    return best
