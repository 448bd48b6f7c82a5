"""Compare stock SB3 with `bridge` and engine="auto" after changing the import: speed and memory, over many scripts.

    python -m benchmarks.never_slower [--only "A2C CnnPolicy .* JAX"] [--rounds 9] [--quick]

No script ("cell") of benchmarks/cells.py may be slower with `bridge`, also with callbacks, with short calls of `learn`,
with an environment of many objects and with HER. Commands `jaxenvs train` are compared with a script for stock SB3.
The scripts most at risk are measured first.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import dataclasses
import functools
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from benchmarks import cells, common
from benchmarks.peers import callbacks, client
from benchmarks.peers.cell import FULL_BUFFER, GYMNASIUM, JAX, MEMORY_ITERATIONS, OURS, SBX, STOCK, Cell
from bridge.app.tuned import settings_for

# A run has enough iterations to take this long. A cell has as many rounds as fit into its time, and at least two.
SHORTEST_RUN_SECONDS, SECONDS = 0.5, 6.0
FEWEST_TURNS = 3  # of the cells of `further_cells`, and of commands
# Of cells with pictures. PyTorch takes most of the time on both sides, and runs differ by a tenth.
PICTURES_TURNS = 5

SPEED, MEMORY = 1.0, 1.1  # at least, at most
NAMED_SPEED, NAMED_FIRST_SECONDS = 1.2, 15

# Columns of both sides, and what `peers.cell` answers to `begin`.
ANSWERS = {
    "first": "first_seconds",
    "MB": "peak_megabytes",
    "MB_kept": "kept_megabytes",
    "imports_MB": "imports_megabytes",
}

NOTES = [
    "The two sides differ only in the import of the algorithm, as for a user who changes it. Gymnasium environments "
    "come from SB3's make_vec_env: monitored, in a DummyVecEnv. JAX environments are a JaxVecEnv on both sides.",
    "Environments: CartPole-v1 for MlpPolicy and MlpLstmPolicy. Other policies get pictures that cost next to "
    "nothing, the same from Gymnasium and JAX environments. MaskablePPO gets four numbers instead of pictures, and "
    "four actions, of which another one is illegal in each step.",
    "Settings: the defaults of SB3 and sb3-contrib, except for what the name of a script says, and for the rollouts of "
    f"PPO and MaskablePPO. On both sides, these have {cells.PPO_ROLLOUT} steps over all environments "
    f"({cells.PPO_IMAGES_ROLLOUT} with pictures, and at least two per environment) instead of {cells.PPO_STEPS} per "
    "environment. The default rollouts would take minutes and, with pictures, up to 15 GB.",
    f"An off-policy iteration counts as {cells.OFF_POLICY_ITERATION} steps over all environments "
    f"({cells.OFF_POLICY_IMAGES_ITERATION} with pictures) and their updates.",
    "Each side is one process from start to end, without JAX's persistent cache. The two sides take turns: each "
    "continues its own training, and one waits while the other runs. Figures are from the median run. At worst "
    "compares our slowest run with the fastest run of stock SB3.",
    "MlpPolicy: each side runs with PyTorch's default number of threads and with one. The faster run counts. Scripts "
    f"with callbacks, learn(1), dicts or HerReplayBuffer run with one thread, and at least {FEWEST_TURNS} times on "
    f"each side. Scripts with pictures run at least {PICTURES_TURNS} times.",
    "callback: each callback does something in every run. no-op: a callback that does nothing. scheduled: a callback "
    f"that reads the return of each episode, and all locals at one step in {callbacks.CALLS_BETWEEN}. With bridge, it "
    "is a ScheduledCallback that announces this step. evaluation: EvalCallback and CheckpointCallback, both every "
    f"{callbacks.CALLS_BETWEEN} calls; an evaluation is one short episode. evaluation below a rollout: the same with "
    "two evaluations in each rollout. On-policy scripts with callbacks have 8 environments (RecurrentPPO: 1), "
    "off-policy scripts have 1.",
    f"buffer_size {FULL_BUFFER['buffer_size']}: the replay buffer is full in every timed run. learn(1): `learn` is "
    "called once for each rollout. 100,000 dicts: the environment holds as many Python objects. HerReplayBuffer: the "
    "environment has 15 bits, and a goal.",
    "jaxenvs train: whole processes take turns. An earlier run of the command has filled its compilation cache. The "
    "script for stock SB3 (benchmarks/peers/stock_script.py) has the same settings, and writes the same episodes, "
    "checkpoints and evaluations.",
    "first: seconds from the end of the imports to the end of the first iteration, including the creation of "
    "environments and model.",
    f"MB: peak resident memory during {MEMORY_ITERATIONS} iterations, minus the memory after importing "
    "Stable-Baselines3 or bridge. With JAX environments, the process of stock SB3 also imports bridge. kept: the "
    "same for the memory that remains afterwards.",
]


def time_cells(
    sides: Mapping[str, tuple[str, Cell]],
    options: argparse.Namespace,
    threads: Mapping[str, tuple[int | None, ...]] = MappingProxyType({}),
    others: Mapping[str, common.Side] = MappingProxyType({}),
    seconds: float = math.inf,
    fewest_rounds: int = 2,
) -> tuple[dict[tuple[str, int], common.Timing], dict[str, dict[str, Any]]]:
    """Train in turns, each side in a separate process.

    Args:
      sides: by name: stock SB3, bridge or SBX, and what it trains.
      options: with `rounds` and `quick`.
      threads: numbers of PyTorch threads by the name of a side; None: PyTorch's default. Without them, sides run with
        the default and with one, except for SBX, which only has the default.
      others: sides that run in turns with these, and have no threads of PyTorch.
      seconds: run as many rounds as fit, but at least `fewest_rounds`.

    Returns:
      By name and number of threads (0 for `others`), how long it took; by name, what `peers.cell` answers to `begin`.
    """
    with contextlib.ExitStack() as closing, concurrent.futures.ThreadPoolExecutor() as pool:
        workers = {
            name: closing.enter_context(
                client.Worker("benchmarks.peers.cell", client.interpreter("sbx") if side == SBX else sys.executable)
            )
            for name, (side, _) in sides.items()
        }

        def load(name: str) -> int:
            side, cell = sides[name]
            count: int = workers[name].ask(do="load", side=side, environments=cell.environments)["threads"]
            return count

        most = dict(zip(workers, pool.map(load, workers), strict=True))
        begun, one_round = {}, 0.0
        runs = {(name, 0): side for name, side in others.items()}
        for name, (side, cell) in sides.items():
            begun[name] = workers[name].ask(do="begin", cell=dataclasses.asdict(cell))
            each = begun[name]["iteration_seconds"]
            # In multiples, so that a run has its share of each callback's events.
            fewest = cell.fewest_iterations
            iterations = fewest * (1 if options.quick else math.ceil(SHORTEST_RUN_SECONDS / (each * fewest)))
            counts = threads.get(name, (None,) if side == SBX else (None, 1))
            for count in dict.fromkeys(count or most[name] for count in counts):
                run = functools.partial(workers[name].ask, do="run", iterations=iterations, threads=count)
                runs[name, count] = common.Side(run, iterations * cell.rollout)
                one_round += iterations * each
        rounds = options.rounds
        if math.isfinite(seconds):
            rounds = min(rounds, max(fewest_rounds, int(seconds / one_round)))
        # Iterations that fill a run alone are warm after those before it.
        is_warm = not others and all(run.steps == sides[name][1].rollout for (name, _), run in runs.items())
        return common.interleave(runs, rounds, warm_up=int(not is_warm)), begun


def fastest(timings: dict[tuple[str, int], common.Timing], name: str) -> tuple[int, common.Timing]:
    """Return with how many threads a side is fastest, and how long it took."""
    found = ((threads, timing) for (side, threads), timing in timings.items() if side == name)
    return max(found, key=lambda item: item[1].steps_per_second)


def measure_steps(report: common.Report, sides: Mapping[str, tuple[str, Cell]], setting: str) -> dict[str, float]:
    """Train in turns, and add a row for each side and number of threads.

    Args:
      sides: as for `time_cells`.
      setting: what the rows have as setting.

    Returns:
      The steps per second of each side with the number of threads with which it is fastest.
    """
    timings, begun = time_cells(sides, report.options)
    rows = []
    for (name, threads), timing in timings.items():
        side, cell = sides[name]
        environments = f"{cell.n_envs} {JAX if cell.environments == JAX else GYMNASIUM}"
        about = {"algorithm": cell.algorithm, "network": cell.network, "setting": setting, "side": side}
        about |= {"environments": environments, "threads": threads}
        rows.append(about | timing.row() | {"first": begun[name]["first_seconds"]})
    report.add("steps", rows)
    return {name: fastest(timings, name)[1].steps_per_second for name in sides}


def measure(report: common.Report, cell: Cell, at_least: float = SPEED) -> None:
    """Time both sides of a cell in turns, read their memory, and add a row and its bars.

    Args:
      at_least: times as fast as stock SB3.
    """
    threads: tuple[int | None, ...] = (None, 1)
    fewest_rounds = 2
    if cell.has_images:
        threads, fewest_rounds = (None,), PICTURES_TURNS
    elif cell in cells.further_cells():
        threads, fewest_rounds = (1,), FEWEST_TURNS
    sides = {side: (side, cell) for side in (STOCK, OURS)}
    timings, begun = time_cells(
        sides, report.options, dict.fromkeys(sides, threads), seconds=SECONDS, fewest_rounds=fewest_rounds
    )
    (stock_threads, stock), (our_threads, ours) = (fastest(timings, side) for side in (STOCK, OURS))
    speed = ours.steps_per_second / stock.steps_per_second
    row: dict[str, Any] = {
        "cell": str(cell),
        "n_steps": cell.n_steps,
        "stock_steps_per_second": stock.steps_per_second,
        "threads": stock_threads,
        "bridge_steps_per_second": ours.steps_per_second,
        "bridge_threads": our_threads,
        "times": speed,
        "at_worst": ours.row()["slowest"] / stock.row()["fastest"],
        "rounds": len(ours.seconds),
    }
    for column, answer in ANSWERS.items():
        row |= {f"stock_{column}": begun[STOCK][answer], f"bridge_{column}": begun[OURS][answer]}
    row["times_MB"] = row["bridge_MB"] / row["stock_MB"]
    report.add("cells", [row])
    report.bar(f"{cell}: steps per second, {OURS} / {STOCK}", speed, at_least)
    if cell in cells.named_cells():
        report.at_most(f"{cell}: first iteration [s]", row["bridge_first"], NAMED_FIRST_SECONDS)
    report.at_most(f"{cell}: memory, {OURS} / {STOCK}", row["times_MB"], MEMORY)


def measure_command(report: common.Report, command: str) -> None:
    """Time whole processes in turns: `jaxenvs train`, with a compilation cache that one run has filled, and stock SB3.

    Args:
      command: the arguments of both.
    """
    name, arguments = f"jaxenvs train {command}", command.split()
    settings = settings_for(*arguments[:2], is_game=False, path=None)
    modules = {
        STOCK: ["benchmarks.peers.stock_script", *arguments, "--settings", json.dumps(settings)],
        OURS: ["jaxenvs.cli", "train", *arguments],
    }
    not_of_a_command = ("JAX_ENABLE_COMPILATION_CACHE", "PJRT_NPROC")
    environment = {name: value for name, value in os.environ.items() if name not in not_of_a_command}
    with tempfile.TemporaryDirectory() as folder:
        environment["JAXENVS_CACHE"] = f"{folder}/cache"

        def run(side: str) -> None:
            line = [sys.executable, "-m", *modules[side], "--out", f"{tempfile.mkdtemp(dir=folder)}/run"]
            process = subprocess.run(
                line, cwd=common.CHECKOUT, env=environment, check=False, capture_output=True, text=True
            )
            if process.returncode:
                raise RuntimeError(f"{side} ended with {process.returncode}: {process.stderr}")

        runs = {side: common.Side(functools.partial(run, side), 1) for side in modules}
        timings = common.interleave(runs, min(report.options.rounds, FEWEST_TURNS), warm_up=1)
    stock, ours = (timings[side].seconds for side in (STOCK, OURS))
    times = statistics.median(stock) / statistics.median(ours)
    row = {"cell": name, "stock_seconds": statistics.median(stock), "bridge_seconds": statistics.median(ours)}
    report.add("commands", [row | {"times": times, "at_worst": min(stock) / max(ours), "rounds": len(ours)}])
    report.bar(f"{name}: {OURS} / {STOCK}", times, SPEED)


def main(argv: list[str] | None = None) -> None:
    parser = common.Command(__doc__, rounds=9)
    parser.add_argument("--only", metavar="REGEX", default="", help="cells in whose name it is found; default: all")
    options = parser.options(argv)
    commands, some = (
        (cells.QUICK_COMMANDS, cells.quick_cells()) if options.quick else (cells.COMMANDS, cells.all_cells())
    )
    scripts = {f"jaxenvs train {command}": functools.partial(measure_command, command=command) for command in commands}
    for cell in some:
        at_least = NAMED_SPEED if cell in cells.named_cells() else SPEED
        scripts[str(cell)] = functools.partial(measure, cell=cell, at_least=at_least)
    chosen = [name for name in scripts if re.search(options.only, name)]
    if not chosen:
        parser.error(f"--only {options.only!r} is found in no cell: {'; '.join(scripts)}.")
    report = common.Report("never_slower", NOTES, options)
    for name in chosen:
        if report.has("cells", cell=name) or report.has("commands", cell=name):
            continue
        try:
            scripts[name](report)
        except RuntimeError as error:
            # A side that ended has said why. The other cells are worth knowing all the same.
            print(f"\n{name}: {error}", flush=True)
            report.require(f"{name}: runs to the end", 0.0, "both sides", met=False)
    report.finish()


if __name__ == "__main__":
    main()
