"""What many seeds cost in one program: 20 trainings of PPO on CartPole-v1 side by side, and one.

    python -m benchmarks.sweep [--rounds 9] [--quick]

In a process of its own, because XLA gets more threads here than the other benchmarks have.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from pathlib import Path
from typing import Any

import jax

from benchmarks import common
from benchmarks.training import COMPILED_ITERATIONS, ENV_ID, QUICK, SMALL, learner
from jaxenvs import learn
from jaxenvs.compilation import compiler_options
from jaxenvs.learn.sweep import compile_sweep, reserve_threads

NOTES = [
    "jaxenvs.learn.train, the whole training as one pure function, in SB3's usual setting; not all of it, but so many "
    "iterations that a run takes long enough to be timed",
    "vmap: jax.vmap of it, on one core; sweep: jaxenvs.learn.sweep, one by one on every core",
]


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, help="runs of each side that are timed; default 9; quick: 1")
    parser.add_argument("--seeds", type=int, help="default 20; quick: 3")
    parser.add_argument("--quick", action="store_true", help="tiny, to see that it works")
    parser.add_argument("--output", type=Path, help="folder of the JSON file; default benchmarks/results; quick: none")
    options = parser.parse_args(argv)
    reserve_threads()  # before JAX runs anything
    quick, num_seeds = options.quick, options.seeds or (3 if options.quick else 20)
    setting, rounds = (QUICK, 1) if quick else (SMALL, 9)
    rounds = options.rounds or rounds
    if not quick:
        jax.config.update("jax_enable_compilation_cache", False)  # compile times are figures here

    report = common.Report("sweep", {"env": ENV_ID, "rounds": rounds, "seeds": num_seeds, "quick": quick}, NOTES)
    settings = learner(setting, COMPILED_ITERATIONS[setting])

    def train(key: jax.Array) -> learn.Result:
        return learn.train(key, settings)

    def compiled(function: Any, argument: jax.Array) -> Any:
        return jax.jit(function, compiler_options=compiler_options()).lower(argument).compile()

    keys = jax.random.split(jax.random.key(0), num_seeds)
    makers = {
        "one seed": (functools.partial(compiled, train, keys[0]), keys[0], 1),
        f"{num_seeds} seeds, sweep": (functools.partial(compile_sweep, train, keys), keys, num_seeds),
        f"{num_seeds} seeds, vmap": (functools.partial(compiled, jax.vmap(train), keys), keys, num_seeds),
    }
    sides, compile_seconds = {}, {}
    for name, (make, argument, count) in makers.items():
        start = time.perf_counter()
        program = make()
        compile_seconds[name] = time.perf_counter() - start
        steps = count * settings.num_iterations * setting.rollout
        sides[name] = common.Side(functools.partial(program, argument), steps, lambda _: 0)
    timings = common.interleave(sides, rounds)
    one = statistics.median(timings["one seed"].seconds)
    rows = []
    for name, timing in timings.items():
        seconds = statistics.median(timing.seconds)
        row: dict[str, Any] = {
            "setting": str(setting),
            "side": name,
            "seconds": seconds,
            "times_one_seed": seconds / one,
        }
        rows.append(row | {"steps_per_second": timing.steps_per_second, "compile_seconds": compile_seconds[name]})
    report.add("sweep", rows)
    if not quick:
        ratio = rows[1]["times_one_seed"]
        report.require(f"{setting}: time of {num_seeds} seeds / of one", ratio, "<= 12", ratio <= 12)
    report.finish(options.output or (None if quick else common.RESULTS))


if __name__ == "__main__":
    main()
