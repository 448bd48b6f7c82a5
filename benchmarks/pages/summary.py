"""The figures of docs/benchmarks.md, whose text stands around them, and of README.md."""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks.common import markdown
from benchmarks.pages import figures
from benchmarks.pages.behind import behind, compared
from benchmarks.pages.tables import SECTIONS
from benchmarks.pages.text import Rows, fill


def parts(results: dict[str, Any]) -> dict[str, str]:
    """Return the parts of docs/benchmarks.md by the names of their marks."""
    number = len(list(compared(results)))
    ahead = (
        f"We compared {number} measurements with another library. The table lists every category in which the other "
        "library was ahead at least once, largest gap first. For time and memory, lower is better."
    )
    return {
        "where": _where(results),
        "scripts": _scripts(results),
        "imports": markdown(_imports(results)),
        "lunar-lander": markdown(lunar_lander_rows(results)),
        "behind": f"{fill(ahead)}\n\n{markdown(behind(results))}",
        "worse returns": _worse_returns(results),
        "costs": markdown(_costs(results)),
        "training": markdown(_training(results)),
        "off-policy": markdown(_off_policy(results)),
        "learning": markdown(_learning(results)),
        "stepping": markdown(_stepping(results)),
    }


def speed(results: dict[str, Any]) -> str:
    """Return what README.md says about speed."""
    stock, on_gymnasium, ours = (row["seconds"] for row in lunar_lander_rows(results))
    machine = results["lunar_lander"]["machine"]
    steps, seeds = (results["lunar_lander"]["settings"][name] for name in ("total_timesteps", "seeds"))
    plot = (
        f"The plot shows whole trainings with imports and compilation, on {machine['cores']} cores of an "
        f"{machine['cpu']}: {steps:,} steps, {seeds} seed{'s' if seeds > 1 else ''}. SB3 takes {stock:.0f} s, and "
        f"`jaxenvs.sb3` takes {ours:.0f} s, because its LunarLander is in JAX. With Gymnasium's LunarLander, whose "
        f"Box2D takes most of the time, `jaxenvs.sb3` takes {on_gymnasium:.0f} s."
    )
    if _is_earlier(results, "lunar_lander"):
        plot += " These figures are from an earlier version of jaxenvs."
    table = results["never_slower"]
    cells = table["tables"]["cells"]
    times = {kind: [row["times"] for row in cells if kind in row["cell"]] for kind in ("", "MlpPolicy", "CnnPolicy")}
    every, mlp, cnn = (f"{statistics.median(each):.2g}" for each in times.values())
    imports = (
        f"We changed the import in {len(cells)} scripts, and a callback's base class in {_scheduled(cells)}. The "
        f"scripts became {every}x faster in the median on {table['machine']['cores']} CPU cores: {mlp}x with MLP "
        f"policies, up to {max(times['']):.0f}x with a small network on JAX environments, and {cnn}x with CNNs, whose "
        "convolutions PyTorch runs."
    )
    return f"{fill(plot)}\n\n{fill(imports)}"


def lunar_lander_rows(results: dict[str, Any]) -> Rows:
    """Return for each side the medians of its trainings on LunarLander."""
    found: dict[str, Rows] = {}
    for row in results["lunar_lander"]["tables"]["trainings"]:
        found.setdefault(row["side"], []).append(row)
    names = ("seconds", "CPU_seconds", "return")
    return [
        {"side": side} | {name.replace("_", " "): statistics.median(row[name] for row in rows) for name in names}
        for side, rows in found.items()
    ]


def _where(results: dict[str, Any]) -> str:
    """Say which sections of the tables were measured on which machine."""
    sections: dict[str, list[str]] = {}
    for name, title in SECTIONS.items():
        if name in results and "gpu" not in results[name]["machine"]:
            machine = results[name]["machine"]
            state = ", with an earlier version of jaxenvs" if _is_earlier(results, name) else ""
            where = f"{machine['cores']} cores of an {machine['cpu']}{state}:"
            sections.setdefault(where, []).append(f"[{title}](benchmarks/tables.md#{title.lower().replace(' ', '-')})")
    bullets = (fill(f"* {where} {', '.join(titles)}.") for where, titles in sections.items())
    machines = "\n".join(bullet.replace("\n", "\n  ") for bullet in bullets)
    gpu = (
        "[Some figures](benchmarks/tables.md#on-a-gpu) were measured on a GPU too "
        f"({results['gpu']['machine']['gpu']}), and [others](gpu.md) show where a GPU pays."
    )
    return f"Figures are medians, without an accelerator:\n\n{machines}\n\n{fill(gpu)}"


def _is_earlier(results: dict[str, Any], name: str) -> bool:
    """Return whether these results are of another state of the product than the scripts' with a changed import."""
    return bool(results[name].get("product") != results["never_slower"]["product"])


def _scheduled(cells: Rows) -> int:
    """Return in how many scripts our side has a ScheduledCallback where SB3 has its BaseCallback."""
    return sum("callback scheduled" in row["cell"] for row in cells)


def _scripts(results: dict[str, Any]) -> str:
    cells = results["never_slower"]["tables"]["cells"]
    slower = sum(row["times"] < 1 for row in cells)
    worst = sum(row["at_worst"] < 1 for row in cells)
    return fill(
        f"We ran {len(cells)} scripts with different algorithms, policies, and kinds and numbers of environments. "
        f"By their medians, {slower or 'no'} script{'s' if slower > 1 else ''} got slower. In {worst} of {len(cells)}, "
        f"our slowest run was slower than SB3's fastest. In {_scheduled(cells)}, a callback is a subclass of "
        "ScheduledCallback, and of BaseCallback with SB3; the others differ in the import only."
    )


def _worse_returns(results: dict[str, Any]) -> str:
    """Name the tasks on which SB3's agents are better, by the intervals of the learning benchmark."""
    rows = results["learning"]["tables"]["learning"]
    found = [f"{row['task']} ({row['side']}: {row['difference']})" for row in rows if row["verdict"] == "worse"]
    return fill(
        f"Our return is significantly lower than SB3's (95 % interval) on {', '.join(found)}."
        if found
        else "On no task is our return significantly lower than SB3's (95 % interval)."
    )


def _imports(results: dict[str, Any]) -> Rows:
    rows: Rows = []
    for algorithm, cells in _by_algorithm(results).items():
        times = [row["times"] for row in cells]
        row = {"algorithm": algorithm, "scripts": len(times), "speedup: least": min(times)}
        rows.append(row | {"median": statistics.median(times), "most": max(times)})
    return rows


def _costs(results: dict[str, Any]) -> Rows:
    columns = {
        "first iteration, s: jaxenvs.sb3": "jaxenvs.sb3_first",
        "stock SB3, s": "stock_first",
        "memory, MB: jaxenvs.sb3": "jaxenvs.sb3_MB",
        "stock SB3, MB": "stock_MB",
    }
    return [
        {"algorithm": algorithm}
        | {name: statistics.median(row[column] for row in cells) for name, column in columns.items()}
        for algorithm, cells in _by_algorithm(results).items()
    ]


def _by_algorithm(results: dict[str, Any]) -> dict[str, Rows]:
    found: dict[str, Rows] = {}
    for row in results["never_slower"]["tables"]["cells"]:
        found.setdefault(row["cell"].split()[0], []).append(row)
    return found


def _training(results: dict[str, Any]) -> Rows:
    """Return thousand steps per second of PPO: ours, Stable-Baselines3's, and the fastest of the others."""
    rows: Rows = []
    for task, sides in figures.training(results).items():
        best = dict(sides)
        row: dict[str, Any] = {"thousand steps per second": task, "`jaxenvs.sb3`": best.pop("jaxenvs.sb3.PPO")}
        row |= {"`jaxenvs.learn`": best.pop("jaxenvs.learn", None), "Stable-Baselines3": best.pop("stock SB3")}
        other = max(best, key=best.__getitem__, default=None)
        rows.append(row | {"fastest other": f"{best[other]:.3g} ({other})" if other else None})
    return rows


def _off_policy(results: dict[str, Any]) -> Rows:
    data = figures.off_policy(results)
    sides = list(dict.fromkeys(side for cell in data.values() for side in cell))
    return [{"steps per second": name} | {side: cell.get(side) for side in sides} for name, cell in data.items()]


def _learning(results: dict[str, Any]) -> Rows:
    names = ("task", "side", "seeds", "IQM", "stock's_IQM", "difference", "verdict", "seeds_needed")
    return [
        {name.replace("_", " ").replace("stock", "SB3"): row[name] for name in names}
        for row in results["learning"]["tables"]["learning"]
    ]


def _stepping(results: dict[str, Any]) -> Rows:
    data = figures.stepping(results)
    nums_envs = sorted({number for sides in data.values() for speeds in sides.values() for number in speeds})
    return [
        {"million steps per second": f"{side}: {way}"} | {f"{number:,}": speeds.get(number) for number in nums_envs}
        for way, sides in data.items()
        for side, speeds in sides.items()
    ]
