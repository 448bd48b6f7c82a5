"""Write docs/benchmarks.md: a summary to read in three minutes, which starts with the libraries that are ahead."""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks.common import markdown
from benchmarks.pages import figures
from benchmarks.pages.behind import behind, compared
from benchmarks.pages.text import Rows, fill


def page(results: dict[str, Any]) -> str:
    """Return the page: where others are ahead, then six plots with a small table each."""
    return (
        "\n\n".join(
            [
                "# Benchmarks",
                _where(results),
                f"## Where others are ahead\n\n{fill(_BEHIND.format(compared(results)))}",
                markdown(behind(results)),
                _listed(*_BEHIND_ONCE),
                _learnt_less(results),
                _section(
                    "A whole training", "lunar-lander", _LUNAR_LANDER, lunar_lander_rows(results), "a-whole-training"
                ),
                _section("Training", "training", _TRAINING, training_rows(results), "training"),
                _section(
                    "Speedup after changing the import", "imports", _imports_text(results), _imports(results), None
                ),
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
        row: dict[str, Any] = {"thousand steps per second": task, "`bridge`": best.pop("bridge.PPO")}
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
    "With compiled functions on the GPU, stock SB3 is up to 2.2 times as fast where little is computed (A2C on "
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
_TRAINING = (
    "Training PPO on CartPole-v1, without the time to compile. The other JAX libraries use gymnax's CartPole, and SBX "
    "uses Gymnasium's. The full tables list what each library does differently."
)
_OFF_POLICY = (
    "Steps per second including their updates, after the warm-up. SB3 and SBX step Gymnasium's environment. `bridge` "
    "steps either the same environment, or the JAX environment inside its compiled function. If two networks of 256 "
    "units take most of the time, as with SAC, the gain is smaller. An update of SAC multiplies sixteen pairs of 256 x "
    "256 matrices, which is 0.54 GFLOP. On 2 cores of an AMD EPYC, these products alone take 3.5 ms at the 155 GFLOP/s "
    "that XLA reaches, the whole update takes 4.5 ms, and a step on Gymnasium's Pendulum takes 5.4 to 6.8 ms."
)
_LEARNING = (
    "Both sides train agents of several seeds with the same settings and budget. The table has the interquartile mean "
    "(IQM) of the returns over the seeds, and the difference from SB3's IQM with its 95 % bootstrap interval. The "
    "tolerance is 5 % of the range between the returns of random actions and of the best known agents. The verdict is "
    "`equal` if the whole interval is within the tolerance, `not worse` if only the upper end of the interval exceeds "
    "the tolerance, and `not shown` if there are too few seeds to say. The last column estimates how many seeds a side "
    "would show that two sides are equal, if they are. The plot shows the difference in percent of that range with its "
    "interval, the tolerance in grey, and the CPU time of a whole training. If SB3's own code gets the actions and the "
    "batches of a compiled training, it ends with the same weights: tests/bridge/algorithms/test_same_training.py "
    "shows this for PPO, RecurrentPPO, A2C, DQN, QR-DQN, TD3, SAC, TQC and CrossQ. On Gymnasium environments, DQN "
    "and QR-DQN draw the same numbers as SB3's, so the same seed gives the same training until rounding grows."
)
_STEPPING = (
    "The upper plot shows steps of a VecEnv from Python, as SB3 calls it: one call per step, with NumPy arrays as "
    "input and output. The lower plot shows rollouts with random actions, each in one compiled function that returns "
    "the whole trajectory."
)
_MORE = (
    "[All tables](benchmarks/tables.md) has every figure, and the targets that were not reached. [Design "
    "decisions](decisions.md) lists what was tried and did not help, and [what was measured "
    "once](decisions.md#what-was-measured-once): EnvPool, other libraries' environments, clusters, replay buffers, "
    "many seeds, tuning, the suites, and ten minutes in one process."
)


def _where(results: dict[str, Any]) -> str:
    machine = results["training"]["machine"]
    gpu = results["gpu"]["machine"]["gpu"]
    where = (
        f"All figures are medians, measured on {machine['cores']} cores of an {machine['cpu']} without an accelerator."
    )
    other = (
        f"[Some figures](benchmarks/tables.md#on-a-gpu) were measured on a GPU too ({gpu}), and [others](gpu.md) show "
        "where a GPU pays."
    )
    how = (
        "[All tables](benchmarks/tables.md) has versions, commands, and how each figure was measured. `python -m "
        "benchmarks.docs` writes this page from `benchmarks/results/`, and `make bench` measures again."
    )
    return fill(f"{where} {other} {how}")


def _learnt_less(results: dict[str, Any]) -> str:
    """Name the tasks on which SB3's agents are better, by the intervals of the learning benchmark."""
    rows = results["learning"]["tables"]["learning"]
    found = [f"{row['task']} ({row['side']}: {row['difference']})" for row in rows if row["verdict"] == "worse"]
    return fill(
        f"The return is lower than SB3's, by the 95 % interval of the difference, on {', '.join(found)}."
        if found
        else "On no task does the 95 % interval of the difference show a return lower than SB3's."
    )


def _listed(first: str, *points: str) -> str:
    """Return a sentence and a list."""
    return "\n".join([f"{fill(first)}\n", *(fill(f"* {point}").replace("\n", "\n  ") for point in points)])


def _section(title: str, name: str, text: str, rows: Rows, anchor: str | None) -> str:
    more = f" [Full tables](benchmarks/tables.md#{anchor})." if anchor else ""
    return f"## {title}\n\n{fill(text + more)}\n\n![{title}](benchmarks/{name}.svg)\n\n{markdown(rows)}"


def _imports_text(results: dict[str, Any]) -> str:
    cells = results["never_slower"]["tables"]["cells"]
    slower = sum(row["times"] < 1 for row in cells)
    worst = sum(row["at_worst"] < 1 for row in cells)
    return (
        f"We ran {len(cells)} scripts with different algorithms, policies, and kinds and numbers of environments. "
        f"Comparing medians, {slower or 'none'} of them {'is' if slower == 1 else 'are'} slower than with SB3. "
        f"Comparing bridge's slowest run with SB3's fastest, {worst} {'is' if worst == 1 else 'are'} slower. "
        "Convolutions run in PyTorch on both sides, and gain little. The first iteration takes longer, because "
        "functions are compiled. [Full tables](benchmarks/tables.md#changing-the-import)."
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
                "speedup: least": min(times),
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
    return [{"steps per second": name} | {side: cell.get(side) for side in sides} for name, cell in data.items()]


def _learning(results: dict[str, Any]) -> Rows:
    names = ("task", "side", "seeds", "IQM", "stock's_IQM", "difference", "verdict", "seeds_needed")
    return [{name.replace("_", " "): row[name] for name in names} for row in results["learning"]["tables"]["learning"]]


def _stepping(results: dict[str, Any]) -> Rows:
    data = figures.stepping(results)
    nums_envs = sorted({number for sides in data.values() for speeds in sides.values() for number in speeds})
    return [
        {"million steps per second": f"{side}: {way}"} | {f"{number:,}": speeds.get(number) for number in nums_envs}
        for way, sides in data.items()
        for side, speeds in sides.items()
    ]
