"""Compare stock SB3 with `bridge` and engine="auto" after changing the import: speed and memory, over many scripts.

    python -m benchmarks.never_slower [--only "A2C CnnPolicy .* JAX"] [--inductor | --first] [--rounds 9] [--quick]

No script ("cell") may be slower with `bridge`. The scripts most at risk are measured first. --first measures only how
long they take to the end of the first iteration, and their memory, where an earlier run has filled the compilation
cache.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import functools
import math
import os
import re
import statistics
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import common
from benchmarks.peers import client
from benchmarks.peers.cell import GYMNASIUM, INDUCTOR, JAX, MEMORY_ITERATIONS, OFF_POLICY, OURS, SBX, STOCK, Cell

ENVIRONMENTS = ((GYMNASIUM, 1), (GYMNASIUM, 8), (JAX, 8), (JAX, 256))
FLAT = ("MlpPolicy 64-64", "MlpPolicy 256-256")
PICTURES = ("CnnPolicy 4x84x84", "CnnPolicy 84x84x3", "MultiInputPolicy")
NORMALIZED = ((GYMNASIUM, 8), (JAX, 8))

OFF_POLICY_ENVIRONMENTS = ((GYMNASIUM, 1), (GYMNASIUM, 8), (JAX, 1), (JAX, 8))
OFF_POLICY_FLAT = {
    "DQN": FLAT,
    "SAC": ("MlpPolicy 256-256, Pendulum-v1",),
    "TD3": ("MlpPolicy 400-300, Pendulum-v1",),
    "DDPG": ("MlpPolicy 400-300, Pendulum-v1",),
    "QRDQN": ("MlpPolicy 64-64",),
    "TQC": ("MlpPolicy 256-256, Pendulum-v1",),
    "CrossQ": ("MlpPolicy 256-256, 1024-1024, Pendulum-v1",),
}
# Those that are measured on pictures: the others' are no larger.
OFF_POLICY_OF_PICTURES = ("DQN", "SAC", "TD3", "DDPG")
OFF_POLICY_PICTURES = ("CnnPolicy 4x84x84, Box actions", "MultiInputPolicy, Box actions")

# sb3-contrib's of the same kind, of which a wide network is no other case.
ON_POLICY_CONTRIB = {"MaskablePPO": "MlpPolicy 64-64, legal actions", "RecurrentPPO": "MlpLstmPolicy 64-64"}
A2C_STEPS, PPO_STEPS, RECURRENT_STEPS = 5, 2048, 128
# Of one iteration of PPO over all environments, where SB3's default for each of them would take minutes.
PPO_ROLLOUT, PPO_IMAGES_ROLLOUT = 2048, 128
NAMED_SETTINGS = {"batch_size": 256, "n_epochs": 4}
# Of what counts as one iteration off-policy, over all environments: more than there are before learning starts. Of
# pictures, batches of 256 would take seconds each, and a million of them 56 GB.
OFF_POLICY_ITERATION, OFF_POLICY_IMAGES_ITERATION = 128, 32
PICTURES_SETTINGS = {"buffer_size": 2000, "batch_size": 32, "learning_starts": 16}

# A run has enough iterations to take this long. A cell has as many rounds as fit into its time, and at least two.
SHORTEST_RUN_SECONDS, SECONDS = 0.5, 6.0

SPEED, MEMORY = 1.0, 1.1  # at least, at most
NAMED_SPEED, NAMED_FIRST_SECONDS = 1.2, 15

NOTES = [
    "The two sides differ only in the import of the algorithm, as for a user who changes it. Gymnasium environments "
    "come from SB3's make_vec_env: monitored, in a DummyVecEnv. JAX environments are a JaxVecEnv on both sides.",
    "Environments: CartPole-v1 for MlpPolicy and MlpLstmPolicy. Other policies get pictures that cost next to "
    "nothing, the same from Gymnasium and JAX environments. MaskablePPO gets four numbers instead of pictures, and "
    "four actions, of which another one is illegal in each step.",
    "Settings: the defaults of SB3 and sb3-contrib, except for what the name of a script says, and for the rollouts of "
    f"PPO and MaskablePPO. On both sides, these have {PPO_ROLLOUT} steps over all environments ({PPO_IMAGES_ROLLOUT} "
    f"with pictures, and at least two per environment) instead of {PPO_STEPS} per environment. The default rollouts "
    "would take minutes and, with pictures, up to 15 GB.",
    f"An off-policy iteration counts as {OFF_POLICY_ITERATION} steps over all environments "
    f"({OFF_POLICY_IMAGES_ITERATION} with pictures) and their updates.",
    "Each side is one process from start to end, without JAX's persistent cache. The two sides take turns: each "
    "continues its own training, and one waits while the other runs. Figures are from the median run. at_worst "
    "compares our slowest run with the fastest run of stock SB3.",
    "MlpPolicy: each side runs with PyTorch's default number of threads and with one. The faster run counts.",
    'th.compile, with --inductor: stock SB3 after `model.policy = th.compile(model.policy, backend="inductor")`, which '
    "compiles what acts. Updates call evaluate_actions, which stays as it is.",
    "first: seconds from the end of the imports to the end of the first iteration, including the creation of "
    "environments and model.",
    "--first: each round is a new process of each side. One process before has filled the compilation cache of bridge.",
    f"MB: peak resident memory during {MEMORY_ITERATIONS} iterations, minus the memory after importing "
    "Stable-Baselines3 or bridge. With JAX environments, the process of stock SB3 also imports bridge. kept: the "
    "same for the memory that remains afterwards.",
]


@dataclasses.dataclass
class Options:
    """Options of a run. `quick` means one round and no targets, `inductor` that SB3 with th.compile is measured too."""

    rounds: int
    quick: bool
    inductor: bool = dataclasses.field(default=False, kw_only=True)


def make_cell(algorithm: str, network: str, environments: str, n_envs: int, normalize: bool = False) -> Cell:
    """Return a cell with SB3's defaults, and the rollouts that the notes describe."""
    if algorithm in OFF_POLICY:
        is_flat = network.startswith("MlpPolicy")
        steps = (OFF_POLICY_ITERATION if is_flat else OFF_POLICY_IMAGES_ITERATION) // n_envs
        return Cell(algorithm, network, environments, n_envs, steps, settings={} if is_flat else PICTURES_SETTINGS)
    short = {"A2C": A2C_STEPS, "RecurrentPPO": RECURRENT_STEPS}
    if algorithm in short:
        return Cell(algorithm, network, environments, n_envs, short[algorithm], normalize)
    rollout = PPO_ROLLOUT if network.startswith("MlpPolicy") else PPO_IMAGES_ROLLOUT
    return Cell(algorithm, network, environments, n_envs, max(2, rollout // n_envs), normalize)


def named_cells() -> list[Cell]:
    """Return the cells with special targets."""
    return [Cell("PPO", "CnnPolicy 4x84x84", kind, 8, 128, settings=NAMED_SETTINGS) for kind in (JAX, GYMNASIUM)]


def all_cells() -> list[Cell]:
    """Return the cells of the table, in the order in which they are measured."""
    cells = [
        make_cell(algorithm, network, environments, n_envs)
        for algorithm in ("A2C", "PPO")
        for network in (*FLAT, *PICTURES)
        for environments, n_envs in ENVIRONMENTS
    ]
    cells += [
        make_cell(algorithm, network, environments, n_envs, normalize=True)
        for algorithm in ("A2C", "PPO")
        for network in FLAT
        for environments, n_envs in NORMALIZED
    ]
    cells += [
        make_cell(algorithm, network, environments, n_envs)
        for algorithm, network in ON_POLICY_CONTRIB.items()
        for environments, n_envs in ENVIRONMENTS[:3]  # 256 with memories take minutes an iteration
    ]
    cells += [
        make_cell(algorithm, network, environments, n_envs)
        for algorithm in OFF_POLICY
        for network in OFF_POLICY_FLAT[algorithm]
        for environments, n_envs in OFF_POLICY_ENVIRONMENTS
    ]
    cells += [
        make_cell(algorithm, network, environments, 1)
        for algorithm in OFF_POLICY_OF_PICTURES
        for network in (PICTURES if algorithm == "DQN" else OFF_POLICY_PICTURES)
        for environments in (GYMNASIUM, JAX)
    ]
    # Images and the environments of the host leave the least to be gained, and the fewest of them the most to be lost.
    cells.sort(key=lambda cell: (not cell.has_images, cell.environments == JAX, cell.n_envs))
    return named_cells() + cells


def quick_cells() -> list[Cell]:
    """Return small cells, for both kinds of environments."""
    return [make_cell("A2C", "MlpPolicy 64-64", kind, 8) for kind in (GYMNASIUM, JAX)]


def time_cells(
    sides: Mapping[str, tuple[str, Cell, Path | None]],
    options: Options,
    threads: tuple[int, ...] = (1,),
    seconds: float = math.inf,
) -> tuple[dict[str, common.Timing], dict[str, dict[str, Any]]]:
    """Train in turns, each side in a separate process.

    Args:
      sides: by name: stock SB3, bridge or SBX; what it trains; the Python that has it, if that is another one.
      threads: a number of PyTorch threads, in addition to PyTorch's default; SBX has none.
      seconds: run as many rounds as fit, but at least two.

    Returns:
      By name and number of threads, as "stock SB3, 2", how long it took; by name, what `peers.cell` answers to `begin`.
    """
    with contextlib.ExitStack() as closing, concurrent.futures.ThreadPoolExecutor() as pool:
        workers = {
            name: closing.enter_context(client.Worker("benchmarks.peers.cell", python or sys.executable))
            for name, (_, _, python) in sides.items()
        }

        def load(name: str) -> int:
            side, cell, _ = sides[name]
            count: int = workers[name].ask(do="load", side=side, environments=cell.environments)["threads"]
            return count

        most = dict(zip(workers, pool.map(load, workers), strict=True))
        begun, runs, one_round = {}, {}, 0.0
        for name, (side, cell, _) in sides.items():
            begun[name] = workers[name].ask(do="begin", cell=dataclasses.asdict(cell))
            each = begun[name]["iteration_seconds"]
            iterations = 1 if options.quick else math.ceil(SHORTEST_RUN_SECONDS / each)
            for count in dict.fromkeys([most[name], *(threads if side != SBX else ())]):
                run = functools.partial(workers[name].ask, do="run", iterations=iterations, threads=count)
                runs[f"{name}, {count}"] = common.Side(run, iterations * cell.rollout)
                one_round += iterations * each
        rounds = options.rounds if math.isinf(seconds) else min(options.rounds, max(2, int(seconds / one_round)))
        # Iterations that fill a run alone are warm after those before it.
        is_warm = all(run.steps == sides[name.rpartition(", ")[0]][1].rollout for name, run in runs.items())
        return common.interleave(runs, rounds, warm_up=int(not is_warm)), begun


def measure_first(report: common.Report, cell: Cell, rounds: int) -> None:
    """Time the first iteration of both sides in new processes, with a compilation cache that one run has filled."""

    def begin(side: str) -> dict[str, Any]:
        with client.Worker("benchmarks.peers.cell", sys.executable) as worker:
            worker.ask(do="load", side=side, environments=cell.environments)
            answer: dict[str, Any] = worker.ask(do="begin", cell=dataclasses.asdict(cell))
            return answer

    begin(OURS)
    begun: dict[str, list[dict[str, Any]]] = {side: [] for side in (STOCK, OURS)}
    for _ in range(rounds):
        for side, answers in begun.items():
            answers.append(begin(side))
    stock, ours = (
        {what: statistics.median(answer[what] for answer in answers) for what in answers[0]}
        for answers in begun.values()
    )
    row = {"cell": str(cell), "stock_first": stock["first_seconds"], "bridge_first": ours["first_seconds"]}
    row |= {"times": stock["first_seconds"] / ours["first_seconds"]}
    row |= {"stock_MB": stock["peak_megabytes"], "bridge_MB": ours["peak_megabytes"]}
    row |= {"stock_imports_MB": stock["imports_megabytes"], "bridge_imports_MB": ours["imports_megabytes"]}
    report.add("first", [row])
    report.bar(f"{cell}: to the end of the first iteration, {STOCK} / {OURS}", row["times"], SPEED)


def measure(report: common.Report, cell: Cell, options: Options, at_least: float = SPEED) -> None:
    """Time both sides of a cell in turns, and read their memory.

    Args:
      at_least: times as fast as stock SB3.
    """
    threads = (1,) if not cell.has_images else ()
    sides = [STOCK, OURS, INDUCTOR] if options.inductor else [STOCK, OURS]
    timings, begun = time_cells({side: (side, cell, None) for side in sides}, options, threads, SECONDS)
    add(report, cell, timings, begun, options, at_least)


def add(
    report: common.Report,
    cell: Cell,
    timings: dict[str, common.Timing],
    begun: dict[str, dict[str, Any]],
    options: Options,
    at_least: float,
) -> None:
    """The row of a cell, and its bars.

    Args:
      timings: by side and number of PyTorch's threads, as "stock SB3, 2".
      begun: by side, what `peers.cell` answers to `begin`.
    """
    (stock_name, stock), (our_name, ours) = (
        max(
            ((name, timing) for name, timing in timings.items() if name.startswith(side)),
            key=lambda item: item[1].steps_per_second,
        )
        for side in (STOCK, OURS)
    )
    speed = ours.steps_per_second / stock.steps_per_second
    first, megabytes = (
        {side: begun[side][what] for side in (STOCK, OURS)} for what in ("first_seconds", "peak_megabytes")
    )
    memory = megabytes[OURS] / megabytes[STOCK]
    row: dict[str, Any] = {
        "cell": str(cell),
        "n_steps": cell.n_steps,
        "stock_steps_per_second": stock.steps_per_second,
        "threads": stock_name.rpartition(" ")[2],
        "bridge_steps_per_second": ours.steps_per_second,
        "bridge_threads": our_name.rpartition(" ")[2],
        "times": speed,
        "at_worst": ours.row()["slowest"] / stock.row()["fastest"],
        "rounds": len(ours.seconds),
        "stock_first": first[STOCK],
        "bridge_first": first[OURS],
        "stock_MB": megabytes[STOCK],
        "bridge_MB": megabytes[OURS],
        "times_MB": memory,
        "stock_MB_kept": begun[STOCK]["kept_megabytes"],
        "bridge_MB_kept": begun[OURS]["kept_megabytes"],
        "stock_imports_MB": begun[STOCK]["imports_megabytes"],
        "bridge_imports_MB": begun[OURS]["imports_megabytes"],
    }
    if compiled := [timing.steps_per_second for name, timing in timings.items() if name.startswith(INDUCTOR)]:
        row |= {"th.compile_steps_per_second": max(compiled), "th.compile_first": begun[INDUCTOR]["first_seconds"]}
    report.add("cells", [row])
    if options.quick:
        return
    report.bar(f"{cell}: steps per second, {OURS} / {STOCK}", speed, at_least)
    if cell in named_cells():
        seconds = first[OURS]
        report.require(
            f"{cell}: first iteration [s]", seconds, f"<= {NAMED_FIRST_SECONDS}", seconds <= NAMED_FIRST_SECONDS
        )
    report.require(f"{cell}: memory, {OURS} / {STOCK}", memory, f"<= {MEMORY}", memory <= MEMORY)


def main(argv: list[str] | None = None) -> None:
    parser = common.Command(__doc__, rounds=9)
    parser.add_argument("--only", metavar="REGEX", default="", help="cells in whose name it is found; default: all")
    parser.add_argument("--inductor", action="store_true", help='also SB3 with th.compile(policy, backend="inductor")')
    parser.add_argument("--first", action="store_true", help="only first iterations, with a filled compilation cache")
    arguments = parser.options(argv)
    quick = arguments.quick
    options = Options(arguments.rounds, quick, inductor=arguments.inductor)
    cells = [cell for cell in (quick_cells() if quick else all_cells()) if re.search(arguments.only, str(cell))]
    if not cells:
        parser.error(f"--only {arguments.only!r} is found in no cell: {'; '.join(map(str, all_cells()))}.")
    if arguments.first:
        os.environ["JAXENVS_CACHE"] = tempfile.mkdtemp()
    elif not quick:
        os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"  # of the workers, whose compile times are figures here

    settings = {"only": arguments.only, "first": arguments.first, "cells": len(cells)}
    settings |= {"rounds": options.rounds, "quick": quick}
    report = common.Report("never_slower", settings, NOTES)
    for cell in cells:
        try:
            if arguments.first:
                measure_first(report, cell, options.rounds)
                continue
            measure(report, cell, options, NAMED_SPEED if cell in named_cells() else SPEED)
        except RuntimeError as error:
            # A side that ended has said why. The other cells are worth knowing all the same.
            print(f"\n{cell}: {error}", flush=True)
            report.require(f"{cell}: runs to the end", 0.0, "both sides", met=False)
    missed = [bar["what"] for bar in report.content["bars"] if not bar["met"]]
    print(f"\n{len(missed)} bars missed" + "".join(f"\n- {what}" for what in missed))
    report.finish(arguments)


if __name__ == "__main__":
    main()
