"""What a second device gains: PPO's iteration over one device on one core, and over two on two.

    python -m benchmarks.scale [--rounds 5] [--quick]

And what the devices tell each other for it: the bytes of a minibatch, in the program and by the model.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import time
from typing import Any

from benchmarks import common

NUM_ENVS, N_STEPS, WIDTH, N_EPOCHS = 2048, 32, 256, 4
BATCH_SIZES, QUICK_BATCH_SIZES = (2048, 8192, 32768), (32768,)
ITERATIONS = 2
NOTES = [
    f"PPO on CartPole-v1, {NUM_ENVS} x {N_STEPS} steps, {WIDTH}-{WIDTH} units for actor and critic, {N_EPOCHS} epochs; "
    "learn.advance over learn.make_mesh(devices)",
    "each in a process of its own, pinned to as many cores as it has devices; seconds are the median of an iteration",
    "bytes of a minibatch: of the largest sum over all devices in the compiled program; the model says 4 for each "
    "parameter",
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


def largest_sum(program: str) -> int:
    """The bytes of the largest sum over devices in a program, which is that of a gradient."""
    sizes = re.findall(r"= f32\[(\d+)\]\S* all-reduce(?:-start)?\(", program)
    return max((4 * int(size) for size in sizes), default=0)


def in_process(num_devices: int, batch_size: int, rounds: int) -> dict[str, Any]:
    """`measure`, in a process that is pinned to as many cores as it has devices."""
    cores = sorted(os.sched_getaffinity(0))[:num_devices]
    code = (
        f"import os; os.sched_setaffinity(0, {cores}); import json; from benchmarks.scale import measure; "
        f"print(json.dumps(measure({num_devices}, {batch_size}, {rounds})))"
    )
    flags = f"--xla_force_host_platform_device_count={num_devices}"
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, check=True)
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


def main(argv: list[str] | None = None) -> None:
    options = common.Command(__doc__, rounds=5).options(argv)
    report = common.Report("scale", {"rounds": options.rounds, "quick": options.quick}, NOTES)
    for batch_size in QUICK_BATCH_SIZES if options.quick else BATCH_SIZES:
        one, two = (in_process(num_devices, batch_size, options.rounds) for num_devices in (1, 2))
        gain = one["seconds"] / two["seconds"]
        report.add("devices", [row | {"gain": one["seconds"] / row["seconds"]} for row in (one, two)])
        share = two["bytes_of_a_minibatch"] / two["bytes_by_the_model"]
        report.require(f"bytes of a minibatch of {batch_size} / the model's", share, "0.8 to 1.2", 0.8 < share < 1.2)
        if not options.quick and batch_size == BATCH_SIZES[-1]:
            report.bar(f"two devices / one, minibatches of {batch_size}", gain, 1.4)
            ratio = two["compile_seconds"] / one["compile_seconds"]
            report.require("time to compile, two devices / one", ratio, "<= 1.3", ratio <= 1.3)
    report.finish(options)


if __name__ == "__main__":
    main()
