"""Write docs/benchmarks.md: a summary to read in three minutes, which starts with what changing the import gains."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

from benchmarks.common import markdown
from benchmarks.pages import figures
from benchmarks.pages.behind import behind, compared
from benchmarks.pages.text import Rows, fill


def page(results: dict[str, Any]) -> str:
    """Return the page: the change of an import, where others are ahead, what it costs, and the other comparisons."""
    return (
        "\n\n".join(
            [
                "# Benchmarks",
                _where(results),
                _section("Your script after changing the import", "imports", _imports_text(results), _imports(results)),
                _section(
                    "A whole training", "lunar-lander", _LUNAR_LANDER, lunar_lander_rows(results), "a-whole-training"
                ),
                f"## Where others are ahead\n\n{fill(_BEHIND.format(compared(results)))}",
                markdown(behind(results)),
                _listed(*_BEHIND_ONCE),
                _learnt_less(results),
                f"## What it costs\n\n{fill(_COSTS)}",
                markdown(_costs(results)),
                _section("Training", "training", _TRAINING, training_rows(results), "training"),
                _section("Off-policy", "off-policy", _OFF_POLICY, _off_policy(results), "off-policy-training"),
                _section("Returns and CPU time", "learning", _LEARNING, _learning(results), "returns"),
                _section("Stepping", "stepping", _STEPPING, _stepping(results), "stepping"),
                "## More\n\n" + fill(_MORE),
            ]
        )
        + "\n"
    )


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


def training_rows(results: dict[str, Any]) -> Rows:
    """Return thousand steps per second of PPO: ours, Stable-Baselines3's, and the fastest of the others."""
    rows: Rows = []
    for task, sides in figures.training(results).items():
        best = dict(sides)
        row: dict[str, Any] = {"thousand steps per second": task, "`jaxenvs.sb3`": best.pop("jaxenvs.sb3.PPO")}
        row |= {"`jaxenvs.learn`": best.pop("jaxenvs.learn", None), "Stable-Baselines3": best.pop("stock SB3")}
        other = max(best, key=best.__getitem__, default=None)
        rows.append(row | {"fastest other": f"{best[other]:.3g} ({other})" if other else None})
    return rows


_BEHIND = (
    "We compared {} measurements with another library. The table lists every category in which the other library was "
    "ahead at least once, largest gap first. For time and memory, lower is better."
)
_BEHIND_ONCE = (
    "The following was measured once, and not with each release:",
    "On an NVIDIA H200, rejax and PPO in PureJaxRL's style are 1.03 to 1.04 times as fast with 32,768 environments. "
    "With compiled functions on the GPU, stock SB3 is up to 2.2 times as fast in models that compute little (A2C on "
    "Gymnasium, DQN with CnnPolicy): see [On a GPU](benchmarks/tables.md#on-a-gpu).",
    "Gymnasium's own vectorized CartPole is up to 2.8 times as fast as `jaxenvs.make_vec`, with one call per step "
    "and 64 environments. From 8,192 environments on, `jaxenvs` is ahead.",
    "EnvPool's own step is up to 1.71 times as fast as the same step through `VecEnv` (CartPole-v1, 8 environments).",
    "A CartPole in C is 2.47 times as fast by itself as through `NativeVecEnv`. Gymnasium's vectorized CartPole is "
    "1.31 times as fast by itself as through `GymVecEnv`.",
    "Of 18 comparisons with other libraries' own rollouts, brax, xminigrid and jumanji are ahead in 5. The largest gap "
    "is 1.28 times (`brax/inverted_pendulum`).",
)
_LUNAR_LANDER = (
    "PPO on LunarLander-v3 with RL Baselines3 Zoo's hyperparameters, from the start of the process on, with imports "
    "and compilation. The script is the same, with other imports. `jaxenvs.sb3` makes the environment in JAX, or "
    'Gymnasium\'s with `backend="serial"`. The return is the mean of the last 100 training episodes.'
)
_COSTS = (
    "Functions are compiled in the first iteration, and compiling takes memory. The table has medians over the scripts "
    "of each algorithm: the seconds from the end of the imports to the end of the first iteration, and the peak memory "
    "beyond the imports. The scripts ran without a cache of compiled functions on disk. [Full "
    "tables](benchmarks/tables.md#changing-the-import)."
)
_TRAINING = (
    "The speed of PPO on CartPole-v1, without the time to compile. The other JAX libraries use gymnax's CartPole, and "
    "SBX uses Gymnasium's. The full tables list what each library does differently."
)
_OFF_POLICY = (
    "Figures are steps per second with their updates, after the warm-up. SB3 and SBX step Gymnasium's environment. "
    "`jaxenvs.sb3` steps either the same environment, or the JAX environment inside its compiled function.\n\n"
    "The gain is smaller if two networks of 256 units take most of the time, as with SAC. An update of SAC multiplies "
    "sixteen pairs of 256 x 256 matrices, which is 0.54 GFLOP. On 2 cores of an AMD EPYC, these products alone take "
    "3.5 ms at the 155 GFLOP/s that XLA reaches. The whole update takes 4.5 ms, and a step on Gymnasium's Pendulum 5.4 "
    "to 6.8 ms."
)
_LEARNING = (
    "Both sides train agents of several seeds with the same settings and budget. The table has the interquartile mean "
    "(IQM) of the returns over the seeds, and the difference from SB3's IQM with its 95 % bootstrap interval. The "
    "tolerance is 5 % of the range between the returns of random actions and of the best known agents. The verdict is "
    "`equal` if the whole interval is within the tolerance, `not worse` if only the upper end of the interval exceeds "
    "the tolerance, and `undecided` if there are too few seeds to say. The last column estimates how many seeds per "
    "side it would take to show that the two are equal.\n\n"
    "The plot shows the difference in percent of that range with its interval, the tolerance in grey, and the CPU time "
    "of a whole training.\n\n"
    "If SB3's own code gets the actions and the batches of a compiled training, it ends with the same weights: "
    "[test_same_training.py](../tests/bridge/algorithms/test_same_training.py) shows this for PPO, RecurrentPPO, A2C, "
    "DQN, QR-DQN, TD3, SAC, TQC and CrossQ. On Gymnasium environments, DQN and QR-DQN draw the same numbers as SB3, so "
    "the same seed gives the same training until rounding errors grow."
)
_STEPPING = (
    "The upper plot shows steps of a VecEnv from Python, as SB3 calls it: one call per step, with NumPy arrays as "
    "input and output. The lower plot shows rollouts with random actions, each in one compiled function that returns "
    "the whole trajectory."
)
_MORE = (
    "[All tables](benchmarks/tables.md) has every figure, and the targets that were not reached. "
    "[History](benchmarks/history.md) shows how the figures changed. [Design "
    "decisions](decisions.md) lists what was tried and did not help, and [what was measured "
    "once](decisions.md#what-was-measured-once): EnvPool, other libraries' environments, clusters, replay buffers, "
    "many seeds, tuning, the suites, and ten minutes in one process."
)


def _where(results: dict[str, Any]) -> str:
    machine = results["training"]["machine"]
    gpu = results["gpu"]["machine"]["gpu"]
    where = (
        f"Unless a section names another machine, figures are medians, measured on {machine['cores']} cores of an "
        f"{machine['cpu']} without an accelerator."
    )
    other = (
        f"[Some figures](benchmarks/tables.md#on-a-gpu) were measured on a GPU too ({gpu}), and [others](gpu.md) show "
        "where a GPU pays."
    )
    how = (
        "[All tables](benchmarks/tables.md) has versions, commands, and how each figure was measured. `python -m "
        "benchmarks.docs` writes this page from `benchmarks/results/`, and `make bench` measures again."
    )
    return fill(f"{where} {earlier(results['never_slower'])} {other} {how}")


def earlier(record: dict[str, Any]) -> str:
    """Return a sentence if a record does not say which state of the product it measured."""
    return "" if "product" in record else "These figures are from an earlier version of jaxenvs."


def _learnt_less(results: dict[str, Any]) -> str:
    """Name the tasks on which SB3's agents are better, by the intervals of the learning benchmark."""
    rows = results["learning"]["tables"]["learning"]
    found = [f"{row['task']} ({row['side']}: {row['difference']})" for row in rows if row["verdict"] == "worse"]
    return fill(
        f"Our return is significantly lower than SB3's (95 % interval) on {', '.join(found)}."
        if found
        else "On no task is our return significantly lower than SB3's (95 % interval)."
    )


def _listed(first: str, *points: str) -> str:
    """Return a sentence and a list."""
    return "\n".join([f"{fill(first)}\n", *(fill(f"* {point}").replace("\n", "\n  ") for point in points)])


def _section(title: str, name: str, text: str, rows: Rows, anchor: str | None = None) -> str:
    more = f" [Full tables](benchmarks/tables.md#{anchor})." if anchor else ""
    filled = "\n\n".join(map(fill, f"{text}{more}".split("\n\n")))
    return f"## {title}\n\n{filled}\n\n![{title}](benchmarks/{name}.svg)\n\n{markdown(rows)}"


def _imports_text(results: dict[str, Any]) -> str:
    cells = results["never_slower"]["tables"]["cells"]
    slower = sum(row["times"] < 1 for row in cells)
    worst = sum(row["at_worst"] < 1 for row in cells)
    return (
        f"We ran {len(cells)} scripts with different algorithms, policies, and kinds and numbers of environments. "
        f"By their medians, {slower or 'no'} script{'s' if slower > 1 else ''} got slower. In {worst} of {len(cells)}, "
        "our slowest run was slower than SB3's fastest. "
        "Convolutions run in PyTorch on both sides, and gain little. [Full "
        "tables](benchmarks/tables.md#changing-the-import)."
    )


def _imports(results: dict[str, Any]) -> Rows:
    rows: Rows = []
    for algorithm, cells in _by_algorithm(results):
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
        for algorithm, cells in _by_algorithm(results)
    ]


def _by_algorithm(results: dict[str, Any]) -> Iterator[tuple[str, Rows]]:
    cells = results["never_slower"]["tables"]["cells"]
    for algorithm in figures.imports(results):
        yield algorithm, [row for row in cells if row["cell"].split()[0] == algorithm]


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
