"""docs/benchmarks/tables.md: every table of benchmarks/results, with what must be known to believe it."""

from __future__ import annotations

from typing import Any

from benchmarks.common import markdown
from benchmarks.pages.text import fill

SECTIONS = {
    "never_slower": "What changing the import costs",
    "host": "Environments on the host",
    "training": "Training",
    "off_policy": "Off-policy training",
    "learning": "What is learnt",
    "learning_off_policy": "What is learnt off-policy",
    "learning_contrib": "What is learnt with sb3-contrib's, and in hindsight",
    "stepping": "Stepping",
    "gpu": "On a GPU",
}
# Of results that are not named as what makes them.
COMMANDS = {name: f"learning --table {name}" for name in ("learning_off_policy", "learning_contrib")}
# What a reader must know of a table by its name, beside the notes that its benchmark writes.
ABOUT = {
    "peers": "Peers run in processes of their own, and do some things differently:",
    "solved": "From `python train.py` to an evaluated 475, each a process from its start: imports and compilation "
    "included; seconds:",
    "vec_env": "`VecEnv.step` on CartPole-v1:",
    "compiled": "Compiled random rollouts, the trajectory kept:",
}


def page(results: dict[str, Any]) -> str:
    """All tables, each with the command that makes it and what must be known to believe it."""
    parts = [
        """# All tables

[In short](../benchmarks.md). Written by `python -m benchmarks.docs` from `benchmarks/results/`. `make bench` installs
the peers and measures all of it anew, `make gpu` what is measured on a GPU. Every script has `--help`, and `--quick` to
see that it works. What was measured once, and is no longer, is in
[decisions](../decisions.md#what-was-measured-once).

No accelerator, unless it says so. Medians; slowest and fastest are runs."""
    ]
    for name, title in SECTIONS.items():
        if name in results:
            parts.append(f"## {title}\n\n{_about(name, results[name])}")
            for table, rows in results[name]["tables"].items():
                columns = dict.fromkeys(column for row in rows for column in row if column != "met")
                parts.extend([fill(ABOUT[table])] if table in ABOUT else [])
                parts.append(markdown([{column: row.get(column) for column in columns} for row in rows]))
    if "gpu" not in results:
        parts.append("## On a GPU\n\nNothing was measured on a GPU yet: `make gpu` does it ([GPUs](../gpu.md)).")
    bars = [bar for result in results.values() for bar in result["bars"]]
    missed = [bar for bar in bars if not bar["met"]]
    parts.append(f"## Bars\n\nThe project set itself {len(bars)} bars for these figures. Not reached: {len(missed)}.")
    parts.extend([markdown(missed)] if missed else [])
    return "\n\n".join(parts) + "\n"


def _options(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in settings.items() if value and name != "quick")


def _about(name: str, result: dict[str, Any]) -> str:
    """Where, with what and how it was measured."""
    machine = result["machine"]
    where = f"{machine['cores']} cores of an {machine['cpu']}"
    if "gpu" in machine:
        where = f"{machine['gpu']} (driver {machine['driver']}, CUDA {machine['cuda']}) and {where}"
    versions = ", ".join(f"{package} {version}" for package, version in result["versions"].items())
    later = [f"- measured in a later run: {_options(run['settings'])}" for run in result.get("later", ())]
    notes = "\n".join([*(f"- {note}" for note in result["notes"]), *later])
    command = COMMANDS.get(name, name)
    return f"{fill(f'`python -m benchmarks.{command}`, on {where}: {versions}.')}\n\n{notes}"
