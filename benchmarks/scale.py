"""What a second device gains: PPO's iteration over one device on one core, and over two on two.

    python -m benchmarks.scale [--parts speed learning] [--rounds 5] [--quick]

And what the devices tell each other for it: the bytes of a minibatch, in the program and by the model. And whether as
much is learnt: CartPole over one device and over four, from many seeds.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks import common

NUM_ENVS, N_STEPS, WIDTH, N_EPOCHS = 2048, 32, 256, 4
BATCH_SIZES, QUICK_BATCH_SIZES = (2048, 8192, 32768), (32768,)
ITERATIONS = 2
# Of what is learnt: so many seeds, iterations and, of these, last ones whose episodes count.
SEEDS, QUICK_SEEDS, MANY, FEW, LAST = 20, 3, 150, 4, 40
LEAST_CHANCE = 0.01
NOTES = [
    f"PPO on CartPole-v1, {NUM_ENVS} x {N_STEPS} steps, {WIDTH}-{WIDTH} units for actor and critic, {N_EPOCHS} epochs; "
    "learn.advance over learn.make_mesh(devices)",
    "each in a process of its own, pinned to as many cores as it has devices; seconds are the median of an iteration",
    "bytes of a minibatch: of the largest sum over all devices in the compiled program; the model says 4 for each "
    "parameter",
    f"what is learnt: PPO on CartPole-v1, 64 x 16 steps, minibatches of 256, 4 epochs, {MANY} iterations; a seed's "
    f"return is that of the episodes of the last {LAST}; chance: of 20 000 random divisions of all returns in two, the "
    "share whose means differ at least as much",
]


def measure(num_devices: int, batch_size: int, rounds: int) -> dict[str, Any]:
    """The row of a number of devices; in a process that has so many."""
    import jax

    import jaxenvs
    from jaxenvs import learn
    from jaxenvs.compilation import compiler_options

    jax.config.update("jax_enable_compilation_cache", False)  # compile times are figures here
    venv = jaxenvs.make_vec("CartPole-v1", NUM_ENVS)
    network = learn.ActorCritic.of(venv.env, actor=(WIDTH, WIDTH), critic=(WIDTH, WIDTH))
    ppo = learn.PPO(n_steps=N_STEPS, batch_size=batch_size, n_epochs=N_EPOCHS)
    training, mesh = learn.Training(venv, network, ppo, total_timesteps=10**8), learn.make_mesh(num_devices)
    state = training.init(jax.random.key(0), mesh=mesh)
    # Of large kernels: docs/pure-jax.md.
    options = compiler_options(in_order=False)
    program = jax.jit(learn.advance, static_argnums=(2, 3), donate_argnums=1, compiler_options=options)
    start = time.perf_counter()
    compiled = program.lower(training, state, ITERATIONS, mesh).compile()
    compile_seconds = time.perf_counter() - start
    seconds = []
    for _ in range(1 + rounds):  # the first of which warms up
        start = time.perf_counter()
        state, _ = jax.block_until_ready(compiled(training, state))
        seconds.append((time.perf_counter() - start) / ITERATIONS)
    num_params = sum(leaf.size for leaf in jax.tree.leaves(state.learner.params))
    return {
        "batch_size": batch_size,
        "devices": num_devices,
        "seconds": statistics.median(seconds[1:]),
        "compile_seconds": compile_seconds,
        "bytes_of_a_minibatch": largest_sum(compiled.as_text()),
        "bytes_by_the_model": 4 * num_params * (num_devices > 1),
    }


def learn_seeds(num_devices: int, seeds: int, iterations: int) -> list[float]:
    """The returns of CartPole's agents over so many devices, of each seed; in a process that has so many."""
    import jax

    import jaxenvs
    from jaxenvs import learn
    from jaxenvs.compilation import compiler_options

    venv = jaxenvs.make_vec("CartPole-v1", 64)
    ppo = learn.PPO(n_steps=16, batch_size=256, n_epochs=4, learning_rate=5e-4)
    training, mesh = learn.Training(venv, learn.ActorCritic.of(venv.env), ppo), learn.make_mesh(num_devices)
    program = jax.jit(learn.advance, static_argnums=(2, 3), compiler_options=compiler_options())
    returns = []
    for seed in range(seeds):
        _, metrics = program(training, training.init(jax.random.key(seed), mesh=mesh), iterations, mesh)
        count, mean = (np.asarray(metrics[name])[-LAST:] for name in ("episodes", "episode_return"))
        returns.append(float((count * mean).sum() / max(count.sum(), 1)))
    return returns


def chance(one: Sequence[float], other: Sequence[float], divisions: int = 20_000) -> float:
    """How often the means of two samples differ at least as much if it is drawn by lot which numbers are in which."""
    numbers, size = np.array([*one, *other]), len(one)
    drawn = np.random.default_rng(0).permuted(np.tile(numbers, (divisions, 1)), axis=1)
    differences = np.abs(drawn[:, :size].mean(1) - drawn[:, size:].mean(1))
    # That which is there is one of the divisions; 1e-9 for what is equal but for its rounding.
    return float((1 + np.sum(differences >= abs(np.mean(one) - np.mean(other)) - 1e-9)) / (1 + divisions))


def largest_sum(program: str) -> int:
    """The bytes of the largest sum over devices in a program, which is that of a gradient."""
    sizes = re.findall(r"= f32\[(\d+)\]\S* all-reduce(?:-start)?\(", program)
    return max((4 * int(size) for size in sizes), default=0)


def in_process(function: Callable[..., Any], num_devices: int, *arguments: int) -> Any:
    """What a function of this file gives in a process with so many devices, pinned to as many cores, if there are."""
    cores = sorted(os.sched_getaffinity(0))[:num_devices]
    code = (
        f"import os; os.sched_setaffinity(0, {cores}); import json; from benchmarks import scale; "
        f"print(json.dumps(scale.{function.__name__}(*{(num_devices, *arguments)})))"
    )
    flags = f"--xla_force_host_platform_device_count={num_devices}"
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def speed(report: common.Report, options: Any) -> None:
    """What a second device gains."""
    for batch_size in QUICK_BATCH_SIZES if options.quick else BATCH_SIZES:
        one, two = (in_process(measure, num_devices, batch_size, options.rounds) for num_devices in (1, 2))
        gain = one["seconds"] / two["seconds"]
        report.add("devices", [row | {"gain": one["seconds"] / row["seconds"]} for row in (one, two)])
        share = two["bytes_of_a_minibatch"] / two["bytes_by_the_model"]
        report.require(f"bytes of a minibatch of {batch_size} / the model's", share, "0.8 to 1.2", 0.8 < share < 1.2)
        if not options.quick and batch_size == BATCH_SIZES[-1]:
            report.bar(f"two devices / one, minibatches of {batch_size}", gain, 1.4)
            ratio = two["compile_seconds"] / one["compile_seconds"]
            report.require("time to compile, two devices / one", ratio, "<= 1.3", ratio <= 1.3)


def learning(report: common.Report, options: Any) -> None:
    """Whether as much is learnt over four devices as over one."""
    seeds, iterations = (QUICK_SEEDS, FEW) if options.quick else (SEEDS, MANY)
    returns = {number: in_process(learn_seeds, number, seeds, iterations) for number in (1, 4)}
    p = chance(returns[1], returns[4])
    rows = [
        {"devices": number, "seeds": seeds, "mean_return": statistics.mean(each), "deviation": statistics.stdev(each)}
        | {"least": min(each), "median": statistics.median(each), "chance": None if number == 1 else p}
        for number, each in returns.items()
    ]
    report.add("learning", rows)
    if not options.quick:
        bar = f">= {LEAST_CHANCE}"
        report.require("chance of what is learnt over 1 and over 4 devices to differ so", p, bar, p >= LEAST_CHANCE)


PARTS = {"speed": speed, "learning": learning}


def main(argv: list[str] | None = None) -> None:
    options = common.Command(__doc__, parts=list(PARTS), rounds=5).options(argv)
    settings = {"parts": " ".join(options.parts), "rounds": options.rounds, "quick": options.quick}
    report = common.Report("scale", settings, NOTES)
    for part in options.parts:
        PARTS[part](report, options)
    report.finish(options)


if __name__ == "__main__":
    main()
