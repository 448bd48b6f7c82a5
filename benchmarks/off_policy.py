"""Compare off-policy training with stock SB3 and SBX, and A2C, MaskablePPO and RecurrentPPO with stock SB3.

    python -m benchmarks.off_policy [--parts steps images on_policy memory] [--rounds 5] [--quick]

steps: SAC, TD3, DQN and sb3-contrib's QR-DQN, TQC and CrossQ on JAX environments and on Gymnasium's. images: DQN's
CnnPolicy. on_policy: A2C, MaskablePPO and RecurrentPPO, whose iterations run together as long as no callback looks.
memory: a training with a million transitions. benchmarks.learning measures the returns.

A full run installs SBX in a separate virtual environment, .bench/sbx, if it is missing.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from benchmarks import common, never_slower
from benchmarks.never_slower import time_cells
from benchmarks.peers import client
from benchmarks.peers.cell import GYMNASIUM, HINDSIGHT, HOST, JAX, MEMORY_ITERATIONS, OURS, SBX, STOCK, Cell
from bridge.app.tuned import TUNED

PARTS = ("steps", "images", "on_policy", "memory")

DEFAULTS, ZOO = "SB3's defaults", "RL-Zoo's setting"
# Of the Zoo's: what belongs to the run, and what the name of a network says.
NOT_SETTINGS = ("n_timesteps", "policy_kwargs")
ZOO_DQN = {name: value for name, value in TUNED["dqn"]["CartPole-v1"].items() if name not in NOT_SETTINGS}
CROSSQ_NETWORK = "MlpPolicy 256-256, 1024-1024, Pendulum-v1"
# Of SBX's defaults, that one which is not SB3's.
DQN_TARGETS = {"target_update_interval": 10_000}
# 56 GB of pictures with SB3's.
IMAGES_BUFFER = {"buffer_size": 4000}


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A comparison and its targets.

    Attributes:
      cell: what our side trains, on JAX environments.
      name: of the setting.
      bars: of ours on these environments, times stock SB3 and times SBX, on Gymnasium's; None: no bar.
    """

    cell: Cell
    name: str
    bars: dict[str, tuple[float, float | None]]


def _cell(algorithm: str, network: str, n_steps: int, n_envs: int = 1, **settings: Any) -> Cell:
    return Cell(algorithm, network, JAX, n_envs, n_steps, settings=settings)


# As many steps of an iteration as take stock SB3 about a second, and more than 100, when learning starts.
STEPS = (
    Comparison(_cell("SAC", "MlpPolicy 256-256, Pendulum-v1", 128), DEFAULTS, {JAX: (4, 2), HOST: (3, 1.5)}),
    Comparison(_cell("TD3", "MlpPolicy 400-300, Pendulum-v1", 128), DEFAULTS, {JAX: (4, 2), HOST: (3, 1.5)}),
    Comparison(_cell("DQN", "MlpPolicy 64-64", 1024, **DQN_TARGETS), DEFAULTS, {JAX: (15, None), HOST: (5, None)}),
    Comparison(_cell("QRDQN", "MlpPolicy 64-64", 512), DEFAULTS, {JAX: (12, None), HOST: (1.7, None)}),
    Comparison(_cell("TQC", "MlpPolicy 256-256, Pendulum-v1", 128), DEFAULTS, {JAX: (1.8, None), HOST: (1.4, None)}),
    Comparison(_cell("CrossQ", CROSSQ_NETWORK, 128), DEFAULTS, {JAX: (1.8, 1), HOST: (1.4, 1)}),
    Comparison(_cell("DQN", "MlpPolicy 256-256", 1280, **ZOO_DQN), ZOO, {JAX: (4, 1.8)}),
    Comparison(
        _cell("SAC", "MultiInputPolicy 256-256, BitFlipping(15)", 128, **HINDSIGHT),
        "SB3's defaults, HerReplayBuffer",
        {JAX: (3, None), HOST: (1.4, None)},
    ),
)
IMAGES = (Comparison(_cell("DQN", "CnnPolicy 4x84x84", 128, **IMAGES_BUFFER), DEFAULTS, {JAX: (1.2, None)}),)
# sb3-contrib's defaults, except for the rollout.
MASKABLE = _cell("MaskablePPO", "MlpPolicy 64-64, legal actions", 256, n_envs=8)
MASKABLE_PPO = Comparison(MASKABLE, DEFAULTS, {JAX: (18, None), HOST: (9, None)})
RECURRENT = _cell("RecurrentPPO", "MlpLstmPolicy 64-64", 128, n_envs=8)
RECURRENT_PPO = Comparison(RECURRENT, DEFAULTS, {JAX: (8, None), HOST: (5, None)})
A2C = Comparison(_cell("A2C", "MlpPolicy 64-64", 5, n_envs=8), DEFAULTS, {JAX: (15, None)})
QUICK = Comparison(_cell("DQN", "MlpPolicy 64-64", 128, buffer_size=1000), DEFAULTS, {JAX: (1, None)})
STORES = 1.1

# A million transitions of 128 numbers, so that the store is what takes memory: full after MEMORY_ITERATIONS.
MEMORY_ENVS, CAPACITY = 8, 1_000_000
BYTES = 4 * (128 + 128 + 2 + 1 + 1 + 1)  # as SB3 stores them: two observations, an action, a reward and two flags
SMALL_STORE = 100  # a hundredth of it

NOTES = [
    "Each side is one process from start to end, as in never_slower. Sides take turns, and each continues its own "
    "training. Figures are from the median run.",
    "environments: JAX means a JaxVecEnv. Gymnasium environments come from make_vec_env of each side's package, for "
    "bridge with backend='serial'.",
    "Stock SB3 and bridge run with PyTorch's default number of threads and with one. Targets are compared with the "
    "faster run. SBX has SB3's layers and settings here, but no limit to the norm of DQN's gradients.",
    f"images: pictures of 84 x 84 x 4 that cost next to nothing, and a buffer of {IMAGES_BUFFER['buffer_size']:,}.",
    "on_policy: A2C with SB3's defaults and 8 environments x 5 steps. MaskablePPO with 8 x 256 steps, batch 64 and 10 "
    "epochs, on four numbers and four actions, of which another one is illegal in each step. RecurrentPPO with its "
    "defaults and 8 environments.",
    f"memory: DQN with a buffer of {CAPACITY:,}, filled once, and observations of 128 float32 numbers. The table has "
    "the peak memory of the process beyond its imports, and the same with a hundredth of the buffer. The difference "
    "is compared with the bytes of SB3's arrays.",
]


@dataclasses.dataclass
class Options(never_slower.Options):
    """Options of a run; `sbx` is the Python that has SBX, if there is one."""

    sbx: Path | None


def sides_of(comparison: Comparison, options: Options) -> list[tuple[str, Cell]]:
    """Side and what it trains: ours on each kind of environments, the others on Gymnasium's."""
    ours = [(OURS, dataclasses.replace(comparison.cell, environments=kind)) for kind in comparison.bars]
    others = [STOCK] + [SBX] * (options.sbx is not None and any(bar is not None for _, bar in comparison.bars.values()))
    return ours + [(side, dataclasses.replace(comparison.cell, environments=HOST)) for side in others]


def measure(report: common.Report, comparison: Comparison, options: Options) -> None:
    """Measure steps per second of all sides in turns, and compare them with the targets."""
    sides = {
        f"{side}, {cell.environments}": (side, cell, options.sbx if side == SBX else None)
        for side, cell in sides_of(comparison, options)
    }
    timings, begun = time_cells(sides, options)
    speeds: dict[tuple[str, str], float] = {}
    rows = []
    for key, timing in timings.items():
        name, _, threads = key.rpartition(", ")
        side, cell, _ = sides[name]
        at = side, cell.environments
        speeds[at] = max(speeds.get(at, 0.0), timing.steps_per_second)
        row: dict[str, Any] = {
            "algorithm": cell.algorithm,
            "network": cell.network,
            "setting": comparison.name,
            "side": side,
            "environments": f"{cell.n_envs} {JAX if cell.environments == JAX else GYMNASIUM}",
            "threads": int(threads),
        }
        rows.append(row | timing.row() | {"first": begun[name]["first_seconds"]})
    report.add("steps", rows)
    if options.quick:
        return
    what = f"{comparison.cell.algorithm} {comparison.cell.network}, {comparison.name}"
    for environments, bars in comparison.bars.items():
        where = "JAX environments" if environments == JAX else "Gymnasium's"
        for other, at_least in zip((STOCK, SBX), bars):
            if at_least is not None and (other, HOST) in speeds:
                ratio = speeds[OURS, environments] / speeds[other, HOST]
                report.bar(f"{what}: {OURS} on {where} / {other}", ratio, at_least)


def measure_memory(report: common.Report, options: Options, capacity: int = CAPACITY) -> None:
    """Measure the peak memory of a training that fills its store, and how much of it the store takes."""
    for side, kind in ((OURS, JAX), (STOCK, GYMNASIUM)):
        peaks = [_peak(side, kind, size) for size in (capacity // SMALL_STORE, capacity)]
        stores = BYTES * capacity * (1 - 1 / SMALL_STORE) / 1e6
        times = (peaks[1] - peaks[0]) / stores
        row: dict[str, Any] = {"side": side, "environments": f"{MEMORY_ENVS} {kind}", "transitions": f"{capacity:,}"}
        report.add("memory", [row | {"peak_MB": peaks[1], "with_a_small_store_MB": peaks[0], "times_the_store": times}])
        if side == OURS and not options.quick:
            what = f"memory of a training with {capacity:,} transitions, less that with few / of SB3's arrays"
            report.require(what, times, f"<= {STORES:g}", times <= STORES)


def _peak(side: str, kind: str, capacity: int) -> float:
    n_steps = math.ceil(capacity / MEMORY_ENVS / MEMORY_ITERATIONS)
    settings = {"buffer_size": capacity, "train_freq": 64, "gradient_steps": 4}
    cell = Cell("DQN", "MlpPolicy of 128 numbers", kind, MEMORY_ENVS, n_steps, settings=settings)
    with client.Worker("benchmarks.peers.cell") as worker:
        worker.ask(do="load", side=side, environments=kind)
        peak: float = worker.ask(do="begin", cell=dataclasses.asdict(cell))["peak_megabytes"]
    return peak


def main(argv: Sequence[str] | None = None) -> None:
    parser = common.Command(__doc__, parts=PARTS, rounds=5)
    parser.add_argument("--only", metavar="TEXT", default="", help="comparisons of algorithms with it in their names")
    arguments = parser.options(argv)
    quick, parts = arguments.quick, arguments.parts
    if not quick:
        # Compile times are figures here. In the environment too, for the workers.
        os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
        jax.config.update("jax_enable_compilation_cache", False)
    sbx = client.interpreter("sbx", install=not quick) if "steps" in parts else None
    options = Options(arguments.rounds, quick, sbx)
    settings = {"parts": " ".join(parts), "rounds": options.rounds, "quick": quick}
    report = common.Report("off_policy", settings, NOTES, arguments)
    comparisons = [QUICK] if quick and "steps" in parts else []
    if not quick:
        comparisons += (STEPS if "steps" in parts else ()) + (IMAGES if "images" in parts else ())
        comparisons += (A2C, MASKABLE_PPO, RECURRENT_PPO) if "on_policy" in parts else ()
    for comparison in comparisons:
        cell = comparison.cell
        is_done = report.has("steps", algorithm=cell.algorithm, network=cell.network, setting=comparison.name)
        if arguments.only in cell.algorithm and not is_done:
            measure(report, comparison, options)
    if "memory" in parts and not report.has("memory", side=STOCK):
        measure_memory(report, options, *([3000] if quick else []))
    report.finish()


if __name__ == "__main__":
    main()
