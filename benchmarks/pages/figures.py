"""Take from the results what the six plots and small tables of docs/benchmarks.md show."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

from benchmarks.pages.text import fastest

SETTINGS = (
    ("a", "8 JAX environments x 256 steps, batch 64, 10 epochs"),
    ("b", "256 JAX environments x 32 steps, batch 2048, 4 epochs"),
    ("c", "8 Gymnasium environments x 256 steps, batch 64, 10 epochs"),
)


def lunar_lander(results: dict[str, Any]) -> dict[str, list[list[list[float]]]]:
    """Return the learning curves of each side: pairs of seconds and mean return."""
    curves: defaultdict[str, list[list[list[float]]]] = defaultdict(list)
    for row in results["lunar_lander"]["tables"]["trainings"]:
        curves[row["side"]].append(row["curve"])
    return dict(curves)


def training(results: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Return thousand steps per second of PPO on CartPole, by setting and side."""
    rows = results["training"]["tables"]["training"]
    return {f"PPO on {what}": fastest([row for row in rows if row["part"] == part]) for part, what in SETTINGS}


def imports(results: dict[str, Any]) -> dict[str, dict[str, list[float]]]:
    """Return the speedups after changing the import, by algorithm and kind of policy, one for each script."""
    found: defaultdict[str, dict[str, list[float]]] = defaultdict(lambda: {"MLP": [], "CNN or MultiInput": []})
    for row in results["never_slower"]["tables"]["cells"]:
        algorithm, policy = row["cell"].split()[:2]
        found[algorithm]["MLP" if policy.startswith("Mlp") else "CNN or MultiInput"].append(_digits(row["times"]))
    return dict(found)


def off_policy(results: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Return steps per second by algorithm and setting, for each side on its kind of environments."""
    found: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for row in results["off_policy"]["tables"]["steps"]:
        if row["algorithm"] in ("PPO", "A2C"):
            continue
        number, kind = row["environments"].split()[:2]
        side = f"jaxenvs.sb3, {kind}" if row["side"].startswith("jaxenvs.sb3") else row["side"]
        zoo = "" if row["setting"] == "SB3's defaults" else f", {row['setting']}"
        cell = found[f"{row['algorithm']} {row['network']}, {number} env{'s' if number != '1' else ''}{zoo}"]
        cell[side] = max(cell.get(side, 0.0), _digits(row["steps_per_second"]))
    return dict(found)


def learning(results: dict[str, Any]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return by task and side the CPU seconds of a training, and the difference from SB3's return.

    The difference and both ends of its interval are percent of the range between random actions and the best agents.
    """
    found: defaultdict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    for row in results["learning"]["tables"]["learning"]:
        for side, column in ((row["side"], "CPU_seconds"), ("stock SB3", "stock's_CPU_seconds")):
            if row[column] is not None:
                found[row["task"]].setdefault(side, {"CPU seconds": _digits(row[column])})
        if row["difference"]:
            numbers = (float(number.replace(",", "")) for number in re.findall(r"-?[\d.,]+", row["difference"]))
            # The margin is 5 % of the range.
            shares = [_digits(5 * number / row["margin"]) for number in numbers]
            found[row["task"]].setdefault(row["side"], {})["difference"] = shares
    return {task: sides for task, sides in found.items() if len(sides) > 1}


def stepping(results: dict[str, Any]) -> dict[str, dict[str, dict[int, float]]]:
    """Return million steps of CartPole per second, by way of stepping, side and number of environments."""
    calls: defaultdict[str, dict[int, float]] = defaultdict(dict)
    tables = results["stepping"]["tables"]
    for row in tables["vec_env"]:
        calls[row["vec_env"]][row["num_envs"]] = _digits(row["steps_per_second"] / 1e6)
    compiled: defaultdict[str, dict[int, float]] = defaultdict(dict)
    for row in tables["compiled"]:
        if row["env"] == "CartPole-v1":
            compiled[row["side"]][row["num_envs"]] = _digits(row["steps_per_second"] / 1e6)
    return {"VecEnv.step, from Python": dict(calls), "whole rollouts in one compiled function": dict(compiled)}


def _digits(value: float) -> float:
    return float(f"{value:.4g}")
