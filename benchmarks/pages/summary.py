"""docs/benchmarks.md: what a person reads in three minutes, those first who are faster."""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks.common import markdown
from benchmarks.pages import figures
from benchmarks.pages.behind import behind, compared
from benchmarks.pages.text import Rows, fill


def page(results: dict[str, Any]) -> str:
    """Where others are ahead, then five plots with a small table each."""
    return (
        "\n\n".join(
            [
                "# Benchmarks",
                _where(results),
                f"## Where others are ahead\n\n{fill(_BEHIND.format(compared(results)))}",
                markdown(behind(results)),
                fill(_BEHIND_ONCE),
                _learnt_less(results),
                _section("Training", "training", _TRAINING, training_rows(results), "training"),
                _section("The same script, another import", "imports", _imports_text(results), _imports(results), None),
                _section("Off-policy", "off-policy", _OFF_POLICY, _off_policy(results), "off-policy-training"),
                _section(
                    "What is learnt, and for how much", "learning", _LEARNING, _learning(results), "what-is-learnt"
                ),
                _section("Stepping", "stepping", _STEPPING, _stepping(results), "stepping"),
                "## More\n\n" + fill(_MORE),
            ]
        )
        + "\n"
    )


def training_rows(results: dict[str, Any]) -> Rows:
    """PPO's thousand steps a second: ours, Stable-Baselines3's, and the fastest of all others."""
    rows: Rows = []
    for task, sides in figures.training(results).items():
        best = dict(sides)
        row: dict[str, Any] = {"thousand steps a second": task, "`bridge`": best.pop("bridge.PPO")}
        row |= {"`jaxenvs.learn`": best.pop("jaxenvs.learn", None), "Stable-Baselines3": best.pop("stock SB3")}
        other = max(best, key=best.__getitem__, default=None)
        rows.append(row | {"fastest other": f"{best[other]:.3g} ({other})" if other else None})
    return rows


_BEHIND = (
    "{} figures of ours have others beside them. These are the kinds in which the other was ahead at least once, "
    "the greatest difference first; of seconds and memory, less is ahead."
)
_BEHIND_ONCE = (
    "Measured once, and not with each release: a call a step of Gymnasium's own vectorised CartPole is up to 2.8 times "
    "as fast as of `jaxenvs.make_vec` (64 environments; from 8,192 on ours are ahead), EnvPool's own step up to 1.71 "
    "times as fast as through `VecEnv` (CartPole-v1, 8 environments), a CartPole in C 2.47 times as fast as through "
    "`NativeVecEnv`, and Gymnasium's own 1.31 times as fast as through `GymVecEnv`; of 18 comparisons with other "
    "libraries' own rollouts brax, xminigrid and jumanji are ahead in 5, at most 1.28 times (`brax/inverted_pendulum`)."
)
_TRAINING = (
    "PPO on CartPole-v1, compilation apart. Peers on JAX use gymnax's CartPole, SBX Gymnasium's; what each does "
    "differently is said beside the long table."
)
_OFF_POLICY = (
    "Steps a second with the updates that belong to them, after the warm-up. SB3 and SBX step Gymnasium's environment; "
    "bridge that one, or the JAX one inside of its program. Where two networks of 256 units are most of the time, as "
    "with SAC, there is less to gain."
)
_LEARNING = (
    "The same settings and budget on both sides, agents of several seeds. Returns are medians over the seeds, of "
    "deterministic episodes at the end; where SB3's are better by more than "
    "seeds differ, the top of this page says so."
)
_STEPPING = (
    "Above: one call a step, NumPy in and out, as SB3 steps a VecEnv. Below: random rollouts in one program, the "
    "trajectory kept."
)
_MORE = (
    "[All tables](benchmarks/tables.md), with the bars that were not reached. [Decisions](decisions.md): what was "
    "tried and did not help, and [what was measured once](decisions.md#what-was-measured-once): EnvPool's worlds, "
    "other libraries' environments, clusters, replay buffers, many seeds, tuning, the suites, ten minutes in one "
    "process."
)


def _where(results: dict[str, Any]) -> str:
    machine = results["training"]["machine"]
    gpu = results.get("gpu", {}).get("machine", {}).get("gpu")
    where = f"On {machine['cores']} cores of an {machine['cpu']}, without an accelerator, medians."
    other = f"[On a GPU](benchmarks/tables.md#on-a-gpu) ({gpu}) it was measured too." if gpu else "Not on a GPU yet."
    how = (
        "Versions, commands and how each was measured: [all tables](benchmarks/tables.md). `python -m benchmarks.docs` "
        "writes this page from `benchmarks/results/`; `make bench` measures anew."
    )
    return fill(f"{where} {other} {how}")


def _learnt_less(results: dict[str, Any]) -> str:
    """Say where the median agent of others was better by more than the seeds of either side differ."""
    found = []
    for name in ("learning", "learning_off_policy", "learning_contrib"):
        rows = {(row["env"], row["side"].split(".")[0]): row for row in results.get(name, _NONE)["tables"]["learning"]}
        for (env, side), ours in rows.items():
            other = rows.get((env, "stock SB3"))
            if side != "bridge" or other is None:
                continue
            gap = other["median_return"] - ours["median_return"]
            if gap > max(ours["interquartile_range"], other["interquartile_range"]) / 2:
                found.append(f"{env} ({ours['median_return']:.4g}, SB3 {other['median_return']:.4g})")
    return fill(
        "What the median agent learnt is below SB3's, by more than half of the interquartile range over the seeds, on "
        f"{', '.join(found)}."
        if found
        else "What the median agent learnt is nowhere below SB3's by more than half of the range over the seeds."
    )


_NONE: dict[str, Any] = {"tables": {"learning": []}}


def _section(title: str, name: str, text: str, rows: Rows, anchor: str | None) -> str:
    more = f" [All of it](benchmarks/tables.md#{anchor})." if anchor else ""
    return f"## {title}\n\n{fill(text + more)}\n\n![{title}](benchmarks/{name}.svg)\n\n{markdown(rows)}"


def _imports_text(results: dict[str, Any]) -> str:
    cells = results["never_slower"]["tables"]["cells"]
    slower = sum(row["times"] < 1 for row in cells)
    worst = sum(row["at_worst"] < 1 for row in cells)
    return (
        f"{len(cells)} scripts, of algorithms, policies, environments and their numbers: {slower or 'none'} slower "
        f"than with SB3 in the median, {worst} when our slowest run is put beside its fastest. Convolutions are "
        "PyTorch's on both sides, and gain little. The first iteration comes later, as programs are compiled. "
        "[All of it](benchmarks/tables.md#what-changing-the-import-costs)."
    )


def _imports(results: dict[str, Any]) -> Rows:
    cells = results["never_slower"]["tables"]["cells"]
    rows: Rows = []
    for algorithm in figures.imports(results):
        mine = [row for row in cells if row["cell"].split()[0] == algorithm]
        times = [row["times"] for row in mine]
        rows.append(
            {
                "algorithm": algorithm,
                "scripts": len(times),
                "times, least": min(times),
                "median": statistics.median(times),
                "most": max(times),
                "first iteration, s: bridge": statistics.median(row["bridge_first"] for row in mine),
                "stock SB3": statistics.median(row["stock_first"] for row in mine),
            }
        )
    return rows


def _off_policy(results: dict[str, Any]) -> Rows:
    data = figures.off_policy(results)
    sides = list(dict.fromkeys(side for cell in data.values() for side in cell))
    return [{"steps a second": name} | {side: cell.get(side) for side in sides} for name, cell in data.items()]


def _learning(results: dict[str, Any]) -> Rows:
    rows: Rows = []
    for env, sides in figures.learning(results).items():
        row: dict[str, Any] = {"": env}
        for side in ("bridge", "stock SB3"):
            mine = sides.get(side, {})
            row |= {f"{side}: median return": mine.get("return"), f"{side}: CPU s": mine.get("seconds")}
        rows.append(row)
    return rows


def _stepping(results: dict[str, Any]) -> Rows:
    data = figures.stepping(results)
    lanes = sorted({number for sides in data.values() for speeds in sides.values() for number in speeds})
    return [
        {"million steps a second": f"{side}: {way}"} | {f"{number:,}": speeds.get(number) for number in lanes}
        for way, sides in data.items()
        for side, speeds in sides.items()
    ]
