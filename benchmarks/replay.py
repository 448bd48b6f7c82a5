"""The replay buffer beside Stable-Baselines3's and TorchRL's.

    python -m benchmarks.replay [--parts slices add sample memory memmap] [--rounds 5] [--quick]

slices: 256 slices of 4 steps, of buffers of up to 600 million transitions. add: a step of 1024 environments. sample:
256 transitions. memory: bytes a transition. memmap: sampling from files.
"""

from __future__ import annotations

import functools
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common import buffers

import bridge
from benchmarks import common
from benchmarks.common import Side
from benchmarks.peers import client
from bridge.host_env.step_infos import StepInfos
from bridge.vec_env.infos import QuietInfos

PARTS = ("slices", "add", "sample", "memory", "memmap")
OURS, STOCK = "bridge", "stock SB3"

# Stored and capacity, in transitions of one lane; how often is sampled.
FILLS = ((5_000_000, 6_000_000), (5_000_000, 600_000_000), (346_000_000, 600_000_000))
NUM_SLICES, SLICE_LEN, EPISODE, WRITES, CHUNK = 256, 4, 1000, 1000, 1_000_000
BYTE = spaces.Box(0, 1, (1,), np.uint8)

LANES, BATCH = 1024, 256
ACTION = spaces.Box(-1, 1, (6,), np.float32)
CALLS = 200  # in a run of a side

# What must be reached.
SLICES_MS, SLICES_GROWTH, TORCHRL_WRITES, TORCHRL_CACHED = 0.5, 2, 500, 3
ADD, SAMPLE, MEMORY, MEMMAP = 20, 2, 0.6, 0.2

NOTES = [
    f"slices: {NUM_SLICES} of {SLICE_LEN} steps; observations and actions are of one byte, so that bookkeeping is what "
    f"is measured; episodes of {EPISODE} steps in one lane; *with writes*: {WRITES} transitions are added before each. "
    "TorchRL's SliceSampler finds episodes by their `done`, with or without its cache, and its buffer holds nothing "
    "but that and the observation. Sides run one after the other, as both do not fit in memory",
    f"add: a step of {LANES} environments of so many numbers and six actions, one in 25 of which ends; SB3 asks the "
    "infos of every environment. *lazy infos* are those of bridge's VecEnvs on the host, made when somebody "
    "reads them. add_rollout: 64 steps at once, a step of them",
    "memory: 17 numbers of float32 and six actions, episodes of 200 steps",
    "memmap: the same samples from files in the page cache, and read from the disk anew for each batch",
]


def microseconds(run: Callable[[], Any], count: int) -> float:
    """Of the median call."""
    seconds = []
    for _ in range(count + count // 10 + 1):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return 1e6 * statistics.median(seconds[count // 10 + 1 :])


def measure_slices(report: common.Report, rounds: int, fills: tuple[tuple[int, int], ...], quick: bool) -> None:
    """Slices of small and large buffers, and TorchRL's."""
    python = client.interpreter("torchrl", install=not quick)
    ours: dict[tuple[tuple[int, int], bool], float] = {}
    for fill in fills:
        buffer, write = _bytes_buffer(*fill)
        for writes in (False, True):

            def run(buffer: Any = buffer, write: Any = write, writes: bool = writes) -> None:
                if writes:
                    write(WRITES)
                buffer.sample_slices(NUM_SLICES, SLICE_LEN)

            ours[fill, writes] = microseconds(run, 100 * rounds) / 1000
            report.add("slices", [_slices_row(fill, OURS, writes, ours[fill, writes])])
        del buffer, write
    for (fill, writes), milliseconds in ours.items():
        what = f"{fill[0]:,} of {fill[1]:,}{', with writes' if writes else ''}"
        report.require(f"slices: ms, {what}", milliseconds, f"<= {SLICES_MS}", milliseconds <= SLICES_MS)
        if fill == fills[-1]:
            growth = milliseconds / ours[fills[0], writes]
            report.require(f"slices: {what} / the smallest", growth, f"<= {SLICES_GROWTH}", growth <= SLICES_GROWTH)
    if python is None:
        return
    with client.Worker("benchmarks.peers.torchrl_worker", python) as worker:
        for fill in fills:
            for cache in (False, True):
                made = {"episode": EPISODE, "num_slices": NUM_SLICES, "slice_len": SLICE_LEN, "cache": cache}
                worker.ask(do="make", stored=fill[0], capacity=fill[1], **made)
                for writes in (False, True):
                    answer = worker.ask(do="run", writes=WRITES if writes else 0, rounds=max(rounds, 3))
                    milliseconds = 1000 * answer["seconds"]
                    side = f"TorchRL, {'cached' if cache else 'no cache'}"
                    report.add("slices", [_slices_row(fill, side, writes, milliseconds)])
                    if fill == fills[-1] and writes != cache:
                        at_least = TORCHRL_WRITES if writes else TORCHRL_CACHED
                        report.bar(f"slices, {side} / {OURS}", milliseconds / ours[fill, writes], at_least)


def _slices_row(fill: tuple[int, int], side: str, writes: bool, milliseconds: float) -> dict[str, Any]:
    row = {"stored": f"{fill[0]:,}", "capacity": f"{fill[1]:,}", "side": side}
    return {**row, "with_writes": "yes" if writes else "no", "ms": milliseconds}


def _bytes_buffer(stored: int, capacity: int) -> tuple[bridge.ReplayBuffer, Callable[[int], None]]:
    buffer = bridge.ReplayBuffer(capacity, BYTE, BYTE, device="cpu")
    zeros = np.zeros((CHUNK, 1), np.uint8)
    ends = (np.arange(CHUNK) % EPISODE == EPISODE - 1)[:, None]

    def write(count: int) -> None:
        some = zeros[:count]
        buffer.add_rollout(some, some, some, ends[:count], np.zeros_like(ends[:count]), some)

    for _ in range(stored // CHUNK):
        write(CHUNK)
    return buffer, write


def measure_add(report: common.Report, rounds: int, lanes: int, numbers: int) -> None:
    """One step of many environments, whose observations are of so many numbers."""
    rng, space = np.random.default_rng(0), spaces.Box(-1, 1, (numbers,), np.float32)
    observation = rng.uniform(-1, 1, (lanes, numbers)).astype(np.float32)
    done = rng.random(lanes) < 0.04
    following = np.where(done[:, None], observation + 1, observation)
    step = (np.zeros((lanes, 6), np.float32), np.zeros(lanes, np.float32), done)
    plain: list[dict[str, Any]] = [{} for _ in range(lanes)]
    quiet = QuietInfos(lanes)

    def add(buffer: Any, lazy: bool) -> None:
        for _ in range(CALLS):
            buffer.add(observation, following, *step, StepInfos(quiet) if lazy else plain)

    for what in ("plain infos", "lazy infos"):
        sides = {
            side: Side(functools.partial(add, _filled(cls, space, lanes), what == "lazy infos"), CALLS, lambda _: 0)
            for side, cls in ((STOCK, buffers.ReplayBuffer), (OURS, bridge.ReplayBuffer))
        }
        timings = common.interleave(sides, rounds)
        us = {side: 1e6 / timing.steps_per_second for side, timing in timings.items()}
        report.add("add", [{"numbers": numbers, "what": what, **{f"{side} [µs]": value for side, value in us.items()}}])
        report.bar(f"add, {numbers} numbers, {what}: {STOCK} / {OURS}", us[STOCK] / us[OURS], ADD)
    buffer = _filled(bridge.ReplayBuffer, space, lanes)
    rows = [np.broadcast_to(part, (64, *part.shape)) for part in (observation, *step, done & False, following)]
    each = microseconds(lambda: buffer.add_rollout(*rows), 10 * rounds) / 64
    report.add("add", [{"numbers": numbers, "what": "add_rollout", f"{STOCK} [µs]": None, f"{OURS} [µs]": each}])


def _filled(cls: Any, space: spaces.Box, lanes: int, rows: int = 200, **settings: Any) -> Any:
    """A buffer whose memory has been touched, with an episode end in 200 steps."""
    buffer = cls(rows * lanes, space, ACTION, device="cpu", n_envs=lanes, **settings)
    observation, reward = np.zeros((lanes, *space.shape), np.float32), np.zeros(lanes, np.float32)
    infos: list[dict[str, Any]] = [{} for _ in range(lanes)]
    for row in range(rows):
        done = (np.arange(lanes) + row) % 200 == 0
        buffer.add(observation, observation, np.zeros((lanes, 6), np.float32), reward, done, infos)
    return buffer


def measure_sample(report: common.Report, rounds: int, rows: int) -> None:
    """Batches of transitions."""
    for numbers, lanes in ((4, 1), (17, 1), (17, 8)):
        space = spaces.Box(-1, 1, (numbers,), np.float32)
        made = {
            side: _filled(cls, space, lanes, rows // lanes)
            for side, cls in ((STOCK, buffers.ReplayBuffer), (OURS, bridge.ReplayBuffer))
        }
        sides = {
            side: Side(lambda buffer=buffer: [buffer.sample(BATCH) for _ in range(CALLS)], CALLS, lambda _: 0)  # type: ignore[misc]
            for side, buffer in made.items()
        }
        timings = common.interleave(sides, rounds)
        us = {side: 1e6 / timing.steps_per_second for side, timing in timings.items()}
        row = {"numbers": numbers, "environments": lanes, "transitions": rows}
        report.add("sample", [{**row, **{f"{side} [µs]": value for side, value in us.items()}}])
        report.bar(f"sample, {numbers} numbers, {lanes} environments: {STOCK} / {OURS}", us[STOCK] / us[OURS], SAMPLE)


def measure_memory(report: common.Report, rows: int) -> None:
    """Bytes of all arrays."""
    space = spaces.Box(-1, 1, (17,), np.float32)
    stock, ours = (_filled(cls, space, 1, rows) for cls in (buffers.ReplayBuffer, bridge.ReplayBuffer))
    size = {
        side: sum(array.nbytes for array in vars(holder).values() if isinstance(array, np.ndarray)) / rows
        for side, holder in ((STOCK, stock), (OURS, ours.take_ring()))
    }
    report.add("memory", [{"side": side, "bytes_a_transition": value} for side, value in size.items()])
    ratio = size[OURS] / size[STOCK]
    report.require(f"memory: {OURS} / {STOCK}", ratio, f"<= {MEMORY}", ratio <= MEMORY)


def measure_memmap(report: common.Report, rounds: int, rows: int) -> None:
    """Sampling from files."""
    space = spaces.Box(-1, 1, (17,), np.float32)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "buffer"
        buffer = _filled(bridge.ReplayBuffer, space, 1, rows, storage="memmap", path=path)
        in_memory = _filled(bridge.ReplayBuffer, space, 1, rows)
        buffer.flush()

        def forget() -> None:
            for file in path.glob("*.bin"):
                with open(file, "rb") as opened:
                    os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

        def cold() -> float:
            forget()
            start = time.perf_counter()
            buffer.sample(BATCH)
            return 1e6 * (time.perf_counter() - start)

        us = {
            "in memory": microseconds(lambda: in_memory.sample(BATCH), CALLS * rounds),
            "files, warm": microseconds(lambda: buffer.sample(BATCH), CALLS * rounds),
        }
        if hasattr(os, "posix_fadvise"):
            us["files, from the disk"] = statistics.median(cold() for _ in range(10 * rounds))
        report.add("memmap", [{"where": where, "us": value} for where, value in us.items()])
        report.bar("memmap: in memory / files, warm", us["in memory"] / us["files, warm"], MEMMAP)
        buffer.close()


def main(argv: list[str] | None = None) -> None:
    parser = common.Command(__doc__, parts=PARTS, rounds=5)
    arguments = parser.options(argv)
    quick, parts = arguments.quick, arguments.parts
    rounds = arguments.rounds
    report = common.Report("replay", {"parts": " ".join(parts), "rounds": rounds, "quick": quick}, NOTES)
    if "slices" in parts:
        measure_slices(report, rounds, ((1_000_000, 2_000_000),) if quick else FILLS, quick)
    if "add" in parts:
        for numbers in (4, 17):
            measure_add(report, rounds, 64 if quick else LANES, numbers)
    if "sample" in parts:
        measure_sample(report, rounds, 2000 if quick else 200_000)
    if "memory" in parts:
        measure_memory(report, 2000 if quick else 20_000)
    if "memmap" in parts:
        measure_memmap(report, rounds, 2000 if quick else 200_000)
    report.finish(arguments)


if __name__ == "__main__":
    main()
