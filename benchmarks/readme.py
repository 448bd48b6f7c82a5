"""Writes the speed tables of README.md from benchmarks/results/*.json: python -m benchmarks.readme"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS, markdown

README = Path(__file__).parent.parent / "README.md"
BEGIN, END = "<!-- speed: benchmarks/readme.py -->\n", "<!-- end of speed -->\n"


def write() -> None:
    """Put the tables in place of those between the two marks."""
    names = ("training", "sweep", "learning", "raw_stepping", "vec_env")
    results = {name: json.loads((RESULTS / f"{name}.json").read_text()) for name in names}
    before, _, rest = README.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    README.write_text(before + BEGIN + speed(results) + END + after)


def speed(results: dict[str, Any]) -> str:
    """The tables, each with the command that makes it."""
    raw, vec, training = results["raw_stepping"], results["vec_env"], results["training"]
    machine, versions = raw["machine"], {**raw["versions"], **vec["versions"], **training["versions"]}
    peers = ", ".join(f"{name} {version}" for name, version in versions.items())
    ppo = [
        {
            "setting": row["settings"],
            "environments": row["vec_env"],
            "collection, ms": row["collection_ms"],
            "update, ms": row["update_ms"],
        }
        for row in vec["tables"]["ppo"]
    ]
    versions |= dict(
        version.split(" ") for row in training["tables"]["peers"] for version in row["versions"].split(", ")
    )
    bars = [bar for result in results.values() for bar in result["bars"]]
    return f"""
Measured on {machine["cores"]} cores of an {machine["cpu"]}, no accelerator; medians of interleaved runs in one process,
all sides with the same actions and the same outputs kept. `make bench` installs the peers and repeats it.

{peers}.

**Training PPO on CartPole-v1**, thousand steps a second, compile time apart (`python -m benchmarks.training`, which
also says what each peer does differently):

{markdown(_training(training["tables"]["training"]))}

**From `python train.py` to an evaluated 475**, seconds, imports and compilation included, two settings (same script):

{markdown([_without(row, "part") for row in training["tables"]["solved"]])}

**Many seeds in one program** (`python -m benchmarks.sweep`):

{markdown([_without(row, "setting") for row in results["sweep"]["tables"]["sweep"]])}

**What it learns**, with RL Baselines3 Zoo's hyper-parameters, over seeds (`python -m benchmarks.learning`). Returns are
means of 100 deterministic episodes; the threshold is the bar. Seeds of MountainCarContinuous-v0 solve it or get stuck,
on both sides, so that ten of them say little:

{markdown([_without(row, "met") for row in results["learning"]["tables"]["learning"]])}

**`VecEnv.step` on CartPole-v1**, microseconds a call, NumPy out, infos complete (`python -m benchmarks.vec_env`):

{markdown(_pivot(vec["tables"]["steps"], "vec_env", "lanes", "us_per_call"))}

**Stock SB3 PPO**, one iteration (same script). With 8 environments JaxVecEnv does not pay here: between two calls of
the policy its caches are cold, and the update takes most of the time anyway:

{markdown(ppo)}

**Compiled random rollouts**, million steps a second, against gymnax (`python -m benchmarks.raw_stepping`); *stacked*
keeps the whole trajectory, *reduced* its sums:

{markdown(_compiled(raw["tables"]["stepping"]))}

**One call from Python a step**, CartPole-v1, million steps a second, NumPy out (same script):

{markdown(_pivot(_calls(raw["tables"]["stepping"]), "side", "lanes", "millions"))}

The project set itself {len(bars)} bars for these figures (they stand in `benchmarks/results/`). Not reached:

{markdown([bar for bar in bars if not bar["met"]])}

"""


def _training(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "setting": row["setting"],
            "side": row["side"],
            "environments": row["environments"],
            "ms per iteration": row["ms_per_iteration"],
            "thousand steps/s": row["steps_per_second"] / 1000,
            "compile, s": row["compile_seconds"],
        }
        for row in rows
    ]


def _without(row: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in names}


def _pivot(rows: list[dict[str, Any]], name: str, across: str, value: str) -> list[dict[str, Any]]:
    """One row for each `name`, one column for each value of `across`."""
    columns = list(dict.fromkeys(row[across] for row in rows))
    cells = {(row[name], row[across]): row[value] for row in rows}
    return [
        {name.replace("vec_env", "environments"): label} | {f"{c} {across}": cells.get((label, c)) for c in columns}
        for label in dict.fromkeys(row[name] for row in rows)
    ]


def _compiled(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
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


def _calls(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The per-step calls of CartPole-v1, in million steps a second."""
    calls = [row for row in rows if row["env"] == "CartPole-v1" and row["side"].startswith("calls: ")]
    return [{**row, "side": row["side"][len("calls: ") :], "millions": row["steps_per_second"] / 1e6} for row in calls]


if __name__ == "__main__":
    write()
