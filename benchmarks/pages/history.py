"""Write docs/benchmarks/history.md: main figures of each state of the records, from git."""

from __future__ import annotations

import json
import statistics
import subprocess
from collections.abc import Iterator
from typing import Any

from benchmarks.common import CHECKOUT, markdown
from benchmarks.pages.figures import SETTINGS
from benchmarks.pages.text import Rows, fastest, fill

TEXT = (
    "How many times as fast as SB3 our main figures were, from the records in `benchmarks/results/` of each commit "
    "that measured them. Both sides ran in turns. The median is over [the scripts](../benchmarks.md) in which only the "
    "import changed, whose number grew. PPO trains on CartPole-v1, on [this number](tables.md#training) of "
    "environments. `python -m benchmarks.docs` writes this page."
)


def page() -> str:
    """Return the page."""
    rows: Rows = []
    figures: dict[str, Any] = {}
    for commit, time, record in sorted(_records(), key=lambda each: each[1]):
        now = _figures(record["tables"])
        if any(figures.get(what) != value for what, value in now.items()):
            figures |= now
            machine = record["machine"]["cpu"].replace("(R)", "").removesuffix(" Processor")
            rows.append({"date": time[:10], "commit": commit, "machine": machine, **figures})
    columns = dict.fromkeys(column for row in reversed(rows) for column in row)
    table = markdown([{column: row.get(column) for column in columns} for row in reversed(rows)])
    return f"# History of the benchmarks\n\n{fill(TEXT)}\n\n{table}\n"


def _records() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Return the commits that changed a record: their hash, their time, and the record."""
    for name in ("never_slower", "training"):
        path = f"benchmarks/results/{name}.json"
        for line in _git("log", "--abbrev=7", "--format=%h %cI", "--", path).splitlines():
            commit, time = line.split()
            yield commit, time, json.loads(_git("show", f"{commit}:{path}"))


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout


def _figures(tables: dict[str, Rows]) -> dict[str, Any]:
    """Return the main figures of a record of never_slower or of training."""
    if times := [row["times"] for row in tables.get("cells", ())]:
        return {"scripts": len(times), "median of the scripts": statistics.median(times)}
    found = {}
    for part, what in SETTINGS:
        speeds = fastest([row for row in tables["training"] if row["part"] == part])
        ours = speeds.get("bridge.PPO", speeds.get("jaxenvs.sb3.PPO"))
        if ours:
            found[f"PPO, {' '.join(what.split()[:2])}"] = ours / speeds["stock SB3"]
    return found
