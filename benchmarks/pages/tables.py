"""docs/benchmarks/tables.md: every table of benchmarks/results, with what must be known to believe it."""

from __future__ import annotations

from typing import Any

from benchmarks.common import markdown
from benchmarks.pages.text import Rows, fill

# Of results that are not named as what makes them.
COMMANDS = {name: f"learning --table {name}" for name in ("learning_off_policy", "learning_contrib")}


def page(results: dict[str, Any]) -> str:
    """All tables, each with the command that makes it and what must be known to believe it."""
    parts = [
        """# All tables

[In short](../benchmarks.md). Written by `python -m benchmarks.docs` from `benchmarks/results/`. `make bench` installs
the peers and measures all of it anew, `make gpu` what is measured on a GPU. Every script has `--help`, and `--quick` to
see that it works.

No accelerator, unless it says so. Medians; slowest and fastest runs are in the files."""
    ]
    sections = {
        "never_slower": ("What changing the import costs", _never_slower),
        "host": ("Environments on the host", _all_tables),
        "cluster": ("Environments on a cluster", _all_tables),
        "envpool": ("EnvPool's worlds", _all_tables),
        "training": ("Training", _training),
        "off_policy": ("Off-policy training", _all_tables),
        "replay": ("Replay buffers", _all_tables),
        "sweep": ("Many seeds in one program", _sweep),
        "scale": ("One training over several devices", _all_tables),
        "tune": ("Tuning", _all_tables),
        "learning": ("What is learnt", _learning),
        "learning_off_policy": ("What is learnt off-policy", _learning_off_policy),
        "learning_contrib": ("What is learnt with sb3-contrib's, and in hindsight", _learning_contrib),
        "worlds_learning": ("What is learnt in the suites", _all_tables),
        "worlds": ("Suites, adapters and pictures", _all_tables),
        "vec_env": ("VecEnv", _vec_env),
        "raw_stepping": ("Stepping", _raw_stepping),
        "soak": ("Ten minutes in one process", _all_tables),
        "gpu": ("On a GPU", _gpu),
    }
    for name, (title, tables) in sections.items():
        if name in results:
            parts.append(f"## {title}\n\n{_about(name, results[name])}")
            parts.extend(tables(results[name]["tables"]))
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


def _training(tables: dict[str, Rows]) -> list[str]:
    training = [
        {
            "setting": row["setting"],
            "side": row["side"],
            "environments": row["environments"],
            "ms per iteration": row["ms_per_iteration"],
            "thousand steps/s": row["steps_per_second"] / 1000,
            "compile, s": row["compile_seconds"],
        }
        for row in tables["training"]
    ]
    peers = [f"- {row['peer']} ({row['versions']}): {row['does differently']}." for row in tables["peers"]]
    return [
        "PPO on CartPole-v1. Peers run in processes of their own, and do some things differently:",
        "\n".join(peers),
        markdown(training),
        "From `python train.py` to an evaluated 475, each a process from its start: imports and compilation included, "
        "JAX's\npersistent cache off; seconds:",
        markdown([_without(row, "part") for row in tables["solved"]]),
    ]


def _sweep(tables: dict[str, Rows]) -> list[str]:
    return [markdown(tables["sweep"])]


def _learning(tables: dict[str, Rows]) -> list[str]:
    return [
        "Seeds of MountainCarContinuous-v0 solve it or get stuck, on both sides, so that ten of them say little.",
        markdown([_without(row, "met") for row in tables["learning"]]),
    ]


def _learning_off_policy(tables: dict[str, Rows]) -> list[str]:
    return [markdown([_without(row, "met") for row in tables["learning"]])]


def _learning_contrib(tables: dict[str, Rows]) -> list[str]:
    # All seeds say what their quartiles and the worst of them do.
    return [markdown([_without(row, "met", "interquartile_range", "worst_seed") for row in tables["learning"]])]


def _vec_env(tables: dict[str, Rows]) -> list[str]:
    ppo = [
        {
            "setting": row["settings"],
            "environments": row["vec_env"],
            "collection, ms": row["collection_ms"],
            "update, ms": row["update_ms"],
        }
        for row in tables["ppo"]
    ]
    return [
        "`VecEnv.step` on CartPole-v1, microseconds a call:",
        markdown(_pivot(tables["steps"], "vec_env", "lanes", "us_per_call")),
        "Stock SB3 PPO on them, one iteration. With 8 environments JaxVecEnv does not pay here: between two calls of "
        "the policy\nits caches are cold, and the update takes most of the time anyway.",
        markdown(ppo),
        "Memory of a process that steps eight environments:",
        markdown(tables["memory"]),
    ]


def _raw_stepping(tables: dict[str, Rows]) -> list[str]:
    rows = tables["stepping"]
    return [
        "Compiled random rollouts, million steps a second, against gymnax; *stacked* keeps the whole trajectory, "
        "*reduced* its\nsums. Both sides are compiled with JAX's defaults:",
        markdown(_compiled(rows)),
        "One call from Python a step, CartPole-v1, million steps a second, NumPy out:",
        markdown(_pivot(_calls(rows), "side", "lanes", "millions")),
    ]


def _never_slower(tables: dict[str, Rows]) -> list[str]:
    return [markdown(tables["cells"])]


def _gpu(tables: dict[str, Rows]) -> list[str]:
    parts = []
    for name, rows in tables.items():
        columns = list(dict.fromkeys(column for row in rows for column in row))
        parts.append(f"### {name.replace('_', ' ').capitalize()}")
        parts.append(markdown([{column: row.get(column) for column in columns} for row in rows]))
    return parts


def _all_tables(tables: dict[str, Rows]) -> list[str]:
    return [markdown(rows) for rows in tables.values() if rows]


def _without(row: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in names}


def _pivot(rows: Rows, name: str, across: str, value: str) -> Rows:
    """One row for each `name`, one column for each value of `across`."""
    columns = list(dict.fromkeys(row[across] for row in rows))
    cells = {(row[name], row[across]): row[value] for row in rows}
    return [
        {name.replace("vec_env", "environments"): label} | {f"{c} {across}": cells.get((label, c)) for c in columns}
        for label in dict.fromkeys(row[name] for row in rows)
    ]


def _compiled(rows: Rows) -> Rows:
    """jaxenvs, gymnax and their ratio, for each environment and number of lanes."""
    speeds = {(row["env"], row["lanes"], row["side"]): row["steps_per_second"] / 1e6 for row in rows}
    table = []
    for env, lanes in dict.fromkeys((row["env"], row["lanes"]) for row in rows):
        line = {"environment": env, "lanes": lanes}
        for form in ("reduced", "stacked"):
            ours = speeds[env, lanes, f"compiled, {form}: jaxenvs"]
            theirs = speeds[env, lanes, f"compiled, {form}: gymnax"]
            line |= {f"{form}: jaxenvs": ours, f"{form}: gymnax": theirs, f"{form}: ratio": ours / theirs}
        table.append(line)
    return table


def _calls(rows: Rows) -> Rows:
    """The per-step calls of CartPole-v1, in million steps a second."""
    calls = [row for row in rows if row["env"] == "CartPole-v1" and row["side"].startswith("calls: ")]
    return [{**row, "side": row["side"][len("calls: ") :], "millions": row["steps_per_second"] / 1e6} for row in calls]
