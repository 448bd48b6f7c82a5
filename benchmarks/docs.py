"""Write what the pages show of benchmarks/results. The command is `python -m benchmarks.docs`.

These are docs/benchmarks/tables.md and history.md, the plots, and the figures between the marks in README.md and
docs/benchmarks.md.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.common import CHECKOUT, RESULTS
from benchmarks.pages import history, plots, summary, tables
from benchmarks.pages.text import filled_in

README, SUMMARY = CHECKOUT / "README.md", CHECKOUT / "docs" / "benchmarks.md"
TABLES = CHECKOUT / "docs" / "benchmarks" / "tables.md"
# Names in the records, and what the pages show instead.
SHOWN = {"bridge/app/": "", "bridge": "jaxenvs.sb3", "not shown": "undecided"}


def write() -> None:
    """Write the pages, and draw the plots."""
    results = read()
    TABLES.write_text(tables.page(results))
    TABLES.with_name("history.md").write_text(history.page())
    for page, parts in parts_of_pages(results).items():
        page.write_text(filled_in(page.read_text(), parts))
    plots.write(results)


def parts_of_pages(results: dict[str, Any]) -> dict[Path, dict[str, str]]:
    """Return for each page that people write the parts that stand between marks."""
    return {README: {"speed": summary.speed(results)}, SUMMARY: summary.parts(results)}


def read() -> dict[str, Any]:
    """Return the results of every benchmark that has run, by name."""
    results = {path.stem: json.loads(_text(path)) for path in sorted(RESULTS.glob("*.json"))}
    return results | {"gpu": in_tables(_text(RESULTS / "gpu.jsonl").splitlines())}


def _text(path: Path) -> str:
    text = path.read_text()
    for name, shown in SHOWN.items():
        text = text.replace(name, shown)
    return text


def in_tables(lines: list[str]) -> dict[str, Any]:
    """Return the rows of the last run of `benchmarks.gpu` in tables. Its first row has its machine."""
    result: dict[str, Any] = {}
    for row in map(json.loads, lines):
        table = row.pop("table")
        if "machine" in row:
            result = row | {"tables": {}, "bars": []}
        else:
            result["tables"].setdefault(table, []).append(row)
    return result


if __name__ == "__main__":
    write()
