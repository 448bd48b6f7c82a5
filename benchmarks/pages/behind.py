"""Find in the results where other libraries are faster or need less, so that no new figure is left out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

from benchmarks.pages.text import Rows

OURS = ("jaxenvs", "JaxVecEnv")


class Pair(NamedTuple):
    """One of our figures, compared with the best figure of the other libraries."""

    what: str
    case: str
    other: str
    times: float  # how much better the other is: above 1 if it is ahead


def behind(results: dict[str, Any]) -> Rows:
    """Return a row for each category in which another library is ahead at least once, largest gap first."""
    kinds: defaultdict[str, list[Pair]] = defaultdict(list)
    for pair in compared(results):
        kinds[pair.what].append(pair)
    rows: Rows = []
    for what, pairs in kinds.items():
        ahead = sorted((pair for pair in pairs if pair.times > 1), key=lambda pair: -pair.times)
        if ahead:
            rows.append(
                {
                    "what": what,
                    "library that is ahead": ", ".join(dict.fromkeys(pair.other for pair in ahead)),
                    "how often": f"{len(ahead)} of {len(pairs)}",
                    "largest gap, times": ahead[0].times,
                    "case of the largest gap": ahead[0].case,
                }
            )
    return sorted(rows, key=lambda row: -row["largest gap, times"])


def compared(results: dict[str, Any]) -> Iterator[Pair]:
    """Yield each of our figures that was compared with another library."""
    tables = {name: result["tables"] for name, result in results.items()}
    yield from _by_case("PPO's steps per second", tables["training"]["training"], "setting", "part")
    solved = {(row["setting"], row["side"]): row["seconds"] for row in tables["training"]["solved"]}
    for setting in dict.fromkeys(setting for setting, _ in solved):
        other = min(seconds for (where, side), seconds in solved.items() if where == setting and "stock" in side)
        ours = min(seconds for (where, side), seconds in solved.items() if where == setting and "stock" not in side)
        yield Pair("seconds from `python train.py` to a solved CartPole", f"{setting} settings", "SB3", ours / other)

    steps = (*tables["off_policy"]["steps"], *tables["extensions"]["steps"])
    rows = [row for row in steps if row["environments"].endswith("Gymnasium")]
    yield from _by_case("steps per second on Gymnasium environments", rows, "algorithm", "network", "setting")

    for row in tables["never_slower"]["cells"]:
        first = row["jaxenvs.sb3_first"] / row["stock_first"]
        yield Pair("steps per second after changing the import", row["cell"], "SB3", 1 / row["times"])
        yield Pair("seconds to the first iteration, including compilation", row["cell"], "SB3", first)
        yield Pair("memory during training, beyond the imports", row["cell"], "SB3", row["times_MB"])
    for row in tables["never_slower"].get("commands", ()):
        yield Pair("seconds of `jaxenvs train`, including imports", row["cell"], "SB3", 1 / row["times"])

    for row in tables["host"]["cells"]:
        yield Pair("steps per second after changing the imports", row["cell"], "SB3", 1 / row["times"])
    for row in tables["host"]["acting"]:
        yield Pair("acting", row["what"], "SB3", row["jaxenvs.sb3 [s]"] / row["stock SB3 [s]"])
    for row in tables["host"]["stepping"]:
        case = f"{row['num_envs']} environments of {row['microseconds']} µs"
        for name, other in (("SerialVecEnv", "DummyVecEnv"), ("ProcessVecEnv", "SubprocVecEnv")):
            if row.get(name) and row.get(other):
                yield Pair("`VecEnv.step` of Gymnasium environments", case, f"SB3's {other}", row[other] / row[name])

    rows = [{**row, "side": row["vec_env"]} for row in tables["stepping"]["vec_env"]]
    yield from _by_case("`VecEnv.step` on CartPole-v1", rows, "num_envs")
    yield from _by_case("compiled random rollouts", tables["stepping"]["compiled"], "env", "num_envs")


def _by_case(what: str, rows: Rows, *names: str) -> Iterator[Pair]:
    """Compare the fastest of ours with the fastest of the others, for rows that agree in these columns."""
    cases: defaultdict[str, Rows] = defaultdict(list)
    for row in rows:
        values = (f"{row[name]} environments" if name == "num_envs" else str(row[name]) for name in names)
        cases[", ".join(dict.fromkeys(values))].append(row)
    for case, sides in cases.items():
        ours = [row["steps_per_second"] for row in sides if row["side"].startswith(OURS)]
        others = {row["side"]: row["steps_per_second"] for row in sides if not row["side"].startswith(OURS)}
        if ours and others:
            other = max(others, key=others.__getitem__)
            yield Pair(what, case, other.replace("stock SB3", "SB3"), others[other] / max(ours))
