"""Compare off-policy training with stock SB3 and SBX, and A2C, MaskablePPO and RecurrentPPO with stock SB3.

    python -m benchmarks.off_policy [--parts steps memory] [--only DQN] [--rounds 5] [--quick]

steps: the algorithms of SB3 and sb3-contrib on JAX environments and on Gymnasium's, with networks and pictures. memory:
a training with a million transitions. benchmarks.learning measures the returns.

A full run installs SBX in a separate virtual environment, .bench/sbx, if it is missing.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from benchmarks import common
from benchmarks.never_slower import measure_steps
from benchmarks.peers import client
from benchmarks.peers.cell import GYMNASIUM, HINDSIGHT, HOST, JAX, MEMORY_ITERATIONS, OURS, SBX, STOCK, Cell
from bridge.app.tuned import TUNED

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
      bars: of ours on these environments, times stock SB3 and times SBX, on Gymnasium's; None: no bar.
      name: of the setting.
    """

    cell: Cell
    bars: dict[str, tuple[float, float | None]]
    name: str = "SB3's defaults"


def _cell(algorithm: str, network: str, n_steps: int, n_envs: int = 1, **settings: Any) -> Cell:
    return Cell(algorithm, network, JAX, n_envs, n_steps, settings=settings)


# As many steps of an iteration as take stock SB3 about a second, and more than 100, when learning starts. sb3-contrib's
# on-policy algorithms have its defaults, except for the rollout.
STEPS = (
    Comparison(_cell("SAC", "MlpPolicy 256-256, Pendulum-v1", 128), {JAX: (4, 2), HOST: (3, 1.5)}),
    Comparison(_cell("TD3", "MlpPolicy 400-300, Pendulum-v1", 128), {JAX: (4, 2), HOST: (3, 1.5)}),
    Comparison(_cell("DQN", "MlpPolicy 64-64", 1024, **DQN_TARGETS), {JAX: (15, None), HOST: (5, None)}),
    Comparison(_cell("QRDQN", "MlpPolicy 64-64", 512), {JAX: (12, None), HOST: (1.7, None)}),
    Comparison(_cell("TQC", "MlpPolicy 256-256, Pendulum-v1", 128), {JAX: (1.8, None), HOST: (1.4, None)}),
    Comparison(_cell("CrossQ", CROSSQ_NETWORK, 128), {JAX: (1.8, 1), HOST: (1.4, 1)}),
    Comparison(_cell("DQN", "MlpPolicy 256-256", 1280, **ZOO_DQN), {JAX: (4, 1.8)}, "RL-Zoo's setting"),
    Comparison(
        _cell("SAC", "MultiInputPolicy 256-256, BitFlipping(15)", 128, **HINDSIGHT),
        {JAX: (3, None), HOST: (1.4, None)},
        "SB3's defaults, HerReplayBuffer",
    ),
    Comparison(_cell("DQN", "CnnPolicy 4x84x84", 128, **IMAGES_BUFFER), {JAX: (1.2, None)}),
    Comparison(_cell("A2C", "MlpPolicy 64-64", 5, n_envs=8), {JAX: (15, None)}),
    Comparison(_cell("MaskablePPO", "MlpPolicy 64-64, legal actions", 256, 8), {JAX: (18, None), HOST: (9, None)}),
    Comparison(_cell("RecurrentPPO", "MlpLstmPolicy 64-64", 128, 8), {JAX: (8, None), HOST: (5, None)}),
)
QUICK = Comparison(_cell("DQN", "MlpPolicy 64-64", 128, buffer_size=1000), {JAX: (1, None)})
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
    f"CnnPolicy: pictures of 84 x 84 x 4 that cost next to nothing, and a buffer of {IMAGES_BUFFER['buffer_size']:,}.",
    "A2C with SB3's defaults and 8 environments x 5 steps. MaskablePPO with 8 x 256 steps, batch 64 and 10 "
    "epochs, on four numbers and four actions, of which another one is illegal in each step. RecurrentPPO with its "
    "defaults and 8 environments.",
    f"memory: DQN with a buffer of {CAPACITY:,}, filled once, and observations of 128 float32 numbers. The table has "
    "the peak memory of the process beyond its imports, and the same with a hundredth of the buffer. The difference "
    "is compared with the bytes of SB3's arrays.",
]


def sides_of(comparison: Comparison, has_sbx: bool) -> dict[str, tuple[str, Cell]]:
    """Side and what it trains: ours on each kind of environments, the others on Gymnasium's."""
    others = [STOCK] + [SBX] * (has_sbx and any(bar is not None for _, bar in comparison.bars.values()))
    sides = [*((OURS, kind) for kind in comparison.bars), *((side, HOST) for side in others)]
    return {f"{side}, {kind}": (side, dataclasses.replace(comparison.cell, environments=kind)) for side, kind in sides}


def measure(report: common.Report, comparison: Comparison, has_sbx: bool) -> None:
    """Measure steps per second of all sides in turns, and compare them with the targets."""
    speeds = measure_steps(report, sides_of(comparison, has_sbx), comparison.name)
    what = f"{comparison.cell.algorithm} {comparison.cell.network}, {comparison.name}"
    for environments, bars in comparison.bars.items():
        where = "JAX environments" if environments == JAX else "Gymnasium's"
        for other, at_least in zip((STOCK, SBX), bars):
            if at_least is not None and f"{other}, {HOST}" in speeds:
                ratio = speeds[f"{OURS}, {environments}"] / speeds[f"{other}, {HOST}"]
                report.bar(f"{what}: {OURS} on {where} / {other}", ratio, at_least)


def measure_memory(report: common.Report, capacity: int) -> None:
    """Measure the peak memory of a training that fills its store, and how much of it the store takes."""
    for side, kind in ((OURS, JAX), (STOCK, GYMNASIUM)):
        peaks = [_peak(side, kind, size) for size in (capacity // SMALL_STORE, capacity)]
        stores = BYTES * capacity * (1 - 1 / SMALL_STORE) / 1e6
        times = (peaks[1] - peaks[0]) / stores
        row: dict[str, Any] = {"side": side, "environments": f"{MEMORY_ENVS} {kind}", "transitions": f"{capacity:,}"}
        report.add("memory", [row | {"peak_MB": peaks[1], "with_a_small_store_MB": peaks[0], "times_the_store": times}])
        if side == OURS:
            what = f"memory of a training with {capacity:,} transitions, less that with few / of SB3's arrays"
            report.at_most(what, times, STORES)


def _peak(side: str, kind: str, capacity: int) -> float:
    n_steps = math.ceil(capacity / MEMORY_ENVS / MEMORY_ITERATIONS)
    settings = {"buffer_size": capacity, "train_freq": 64, "gradient_steps": 4}
    cell = Cell("DQN", "MlpPolicy of 128 numbers", kind, MEMORY_ENVS, n_steps, settings=settings)
    with client.Worker("benchmarks.peers.cell") as worker:
        worker.ask(do="load", side=side, environments=kind)
        peak: float = worker.ask(do="begin", cell=dataclasses.asdict(cell))["peak_megabytes"]
    return peak


def main(argv: Sequence[str] | None = None) -> None:
    parser = common.Command(__doc__, parts=("steps", "memory"), rounds=5)
    parser.add_argument("--only", metavar="TEXT", default="", help="comparisons of algorithms with it in their names")
    options = parser.options(argv)
    report = common.Report("off_policy", NOTES, options)
    if "steps" in options.parts:
        has_sbx = client.interpreter("sbx", install=not options.quick) is not None
        for comparison in [QUICK] if options.quick else STEPS:
            cell = comparison.cell
            is_done = report.has("steps", algorithm=cell.algorithm, network=cell.network, setting=comparison.name)
            if options.only in cell.algorithm and not is_done:
                measure(report, comparison, has_sbx)
    if "memory" in options.parts and not report.has("memory", side=STOCK):
        measure_memory(report, 3000 if options.quick else CAPACITY)
    report.finish()


if __name__ == "__main__":
    main()
