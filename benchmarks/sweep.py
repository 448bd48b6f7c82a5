"""What many seeds cost in one program: 20 trainings side by side, and one: PPO on CartPole-v1, SAC on Pendulum-v1.

    python -m benchmarks.sweep [--algorithms PPO SAC] [--rounds 9] [--quick]

In a process of its own, because XLA gets more threads here than the other benchmarks have.
"""

from __future__ import annotations

import functools
import statistics
import time
from typing import Any

import jax

import jaxenvs
from benchmarks import common
from benchmarks.training import COMPILED_ITERATIONS, ENV_ID, QUICK, SMALL, learner
from jaxenvs import learn
from jaxenvs.compilation import compiler_options
from jaxenvs.learn.sweep import compile_sweep, reserve_threads

ALGORITHMS = ("PPO", "SAC")
SAC_ENV_ID = "Pendulum-v1"

NOTES = [
    "jaxenvs.learn.train, the whole training as one pure function, PPO in SB3's usual setting, SAC with SB3's "
    "defaults; not all of it, but so many iterations that a run takes long enough to be timed",
    "SAC: a store with room for the training, as jaxenvs train --seeds has it",
    "vmap: jax.vmap of it, on one core; sweep: jaxenvs.learn.sweep, one by one on every core",
]


def sac(num_steps: int) -> learn.Training:
    """SAC with SB3's defaults, but for a store that has room for no more than this training."""
    venv = jaxenvs.make_vec(SAC_ENV_ID, 1)
    settings = learn.SAC(buffer_size=num_steps)
    return learn.Training(venv, learn.SACPolicy.of(venv.env), settings, total_timesteps=num_steps)


def measure(report: common.Report, setting: str, settings: learn.Training, num_seeds: int, rounds: int) -> float:
    """The rows of a training. How much longer all seeds take in a sweep than one."""

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
    timesteps = settings.num_iterations * settings.algorithm.steps_per_iteration * settings.venv.num_envs
    for name, (make, argument, count) in makers.items():
        start = time.perf_counter()
        program = make()
        compile_seconds[name] = time.perf_counter() - start
        sides[name] = common.Side(functools.partial(program, argument), count * timesteps, lambda _: 0)
    timings = common.interleave(sides, rounds)
    one = statistics.median(timings["one seed"].seconds)
    rows = []
    for name, timing in timings.items():
        seconds = statistics.median(timing.seconds)
        row: dict[str, Any] = {"setting": setting, "side": name, "seconds": seconds, "times_one_seed": seconds / one}
        rows.append(row | {"steps_per_second": timing.steps_per_second, "compile_seconds": compile_seconds[name]})
    report.add("sweep", rows)
    ratio: float = rows[1]["times_one_seed"]
    return ratio


def main(argv: list[str] | None = None) -> None:
    parser = common.Command(__doc__, rounds=9)
    parser.add_argument("--algorithms", nargs="+", choices=ALGORITHMS, default=ALGORITHMS)
    parser.add_argument("--seeds", type=int, help="default 20; quick: 3")
    options = parser.options(argv)
    reserve_threads()  # before JAX runs anything
    quick, num_seeds = options.quick, options.seeds or (3 if options.quick else 20)
    rounds = options.rounds
    if not quick:
        jax.config.update("jax_enable_compilation_cache", False)  # compile times are figures here

    settings = {"algorithms": " ".join(options.algorithms), "rounds": rounds, "seeds": num_seeds, "quick": quick}
    report = common.Report("sweep", settings, NOTES)
    ppo, steps = QUICK if quick else SMALL, 110 if quick else 400
    trainings = {
        "PPO": (f"PPO, {ENV_ID}, {ppo}", learner(ppo, COMPILED_ITERATIONS[ppo])),
        "SAC": (f"SAC, {SAC_ENV_ID}, {steps} steps", sac(steps)),
    }
    for algorithm in options.algorithms:
        setting, training = trainings[algorithm]
        ratio = measure(report, setting, training, num_seeds, rounds)
        if not quick:
            report.require(f"{setting}: time of {num_seeds} seeds / of one", ratio, "<= 12", ratio <= 12)
    report.finish(options)


if __name__ == "__main__":
    main()
