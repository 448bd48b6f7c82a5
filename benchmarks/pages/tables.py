"""Write docs/benchmarks/tables.md: every table of benchmarks/results, and how it was measured."""

from __future__ import annotations

from typing import Any

from benchmarks.common import markdown
from benchmarks.pages.text import fill

SECTIONS = {
    "never_slower": "Changing the import",
    "host": "Environments on the host",
    "lunar_lander": "A whole training",
    "training": "Training",
    "off_policy": "Off-policy training",
    "learning": "Returns",
    "stepping": "Stepping",
    "extensions": "What SB3 does not have",
    "gpu": "On a GPU",
}
# Introductions of tables, by their names. The notes are written by the benchmarks.
ABOUT = {
    "commands": "Seconds of whole processes, including imports:",
    "peers": "The other libraries run in separate processes, and do some things differently:",
    "solved": "Seconds from `python train.py` to an evaluated return of 475. Each run is a new process, and includes "
    "imports and compilation:",
    "vec_env": "`VecEnv.step` on CartPole-v1:",
    "compiled": "Compiled random rollouts, which keep the trajectory:",
}


# Columns that the results name otherwise.
COLUMNS = {"num_envs": "environments", "bar": "target", "cell": "script", "cells": "scripts"}


def page(results: dict[str, Any]) -> str:
    """Return all tables, each with its command and how it was measured."""
    parts = [
        """# All tables

[Benchmarks](../benchmarks.md) is a summary of this page. `python -m benchmarks.docs` writes both from
`benchmarks/results/`.

* `make bench` installs the other libraries and measures everything again. `make gpu` measures on a GPU.
* Every script has `--help`, and `--quick`, which only checks whether it works.
* [Design decisions](../decisions.md#what-was-measured-once) has what was measured once.

Figures are medians, without an accelerator unless stated otherwise. Columns named slowest and fastest are single
runs."""
    ]
    for name, title in SECTIONS.items():
        if name in results:
            parts.append(f"## {title}\n\n{_about(name, results[name])}")
            for table, rows in results[name]["tables"].items():
                columns = dict.fromkeys(column for row in rows for column in row if column not in ("met", "curve"))
                parts.extend([fill(ABOUT[table])] if table in ABOUT else [])
                memory = [column for column in columns if table == "cells" and "MB" in column]
                for some in ([column for column in columns if column not in memory], memory and ["cell", *memory]):
                    lines = [_renamed({column: row.get(column) for column in some}) for row in rows]
                    parts.extend([markdown(lines)] if some else [])
    bars = [bar for result in results.values() for bar in result["bars"]]
    missed = [bar for bar in bars if not bar["met"]]
    set_itself = f"The project set itself {len(bars)} targets for these figures. It missed {len(missed)}:"
    parts.append(f"## Targets\n\n{set_itself if missed else 'All targets were reached.'}")
    parts.extend([markdown([_renamed(bar) for bar in missed])] if missed else [])
    return "\n\n".join(parts) + "\n"


def _renamed(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of results with the column names that readers know."""
    return {COLUMNS.get(column, column): value for column, value in row.items()}


def _about(name: str, result: dict[str, Any]) -> str:
    """Say where, with which versions and how it was measured."""
    machine = result["machine"]
    where = f"{machine['cores']} cores of an {machine['cpu']}"
    if "gpu" in machine:
        where = f"{machine['gpu']} (CUDA {machine['cuda']}) and {where}"
    versions = ", ".join(f"{package} {version}" for package, version in result["versions"].items())
    if "product" in result:
        versions += f"; {', '.join(f'{folder}/ {tree[:10]}' for folder, tree in result['product'].items())}"
    notes = "\n".join(f"- {note}" for note in result["notes"])
    return f"{fill(f'`python -m benchmarks.{name}`, on {where}: {versions}.')}\n\n{notes}"
