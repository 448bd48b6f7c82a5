"""Compare training speed on CartPole-v1 with stock SB3, SBX, rejax, and PPO in PureJaxRL's style.

    python -m benchmarks.training [--parts a b c d] [--rounds 9] [--quick]

a: SB3's usual setting. b: many environments. c: compiled updates for Gymnasium's environments. d: from
`python train.py` to the solved task, including imports and compilation.

A full run installs rejax and SBX in separate virtual environments, .bench/rejax and .bench/sbx, if they are missing.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Mapping
from typing import Any

import jax

import jaxenvs
from benchmarks import common
from benchmarks.never_slower import fastest, time_cells
from benchmarks.peers import cell, client
from benchmarks.peers.cell import Cell
from benchmarks.peers.worker import Setting, Side
from jaxenvs import learn
from jaxenvs.compilation import compiler_options

ENV_ID = "CartPole-v1"
SMALL, LARGE = Setting(8, 256, batch_size=64, n_epochs=10), Setting(256, 32, batch_size=2048, n_epochs=4)
QUICK = Setting(4, 8, batch_size=16, n_epochs=2)
# In one run of a side that is one compiled function: enough for about half a second.
ITERATIONS = {SMALL: 20, LARGE: 10, QUICK: 2}

OURS, PURE = "bridge.PPO", "jaxenvs.learn"
STOCK, SBX, REJAX, PUREJAXRL = cell.STOCK, cell.SBX, "rejax", "PureJaxRL-style"
OUR_OPTIONS = " with our options"  # a peer's function, compiled with our options
ENVIRONMENTS = {cell.JAX: "JaxVecEnv", cell.GYMNASIUM: "DummyVecEnv"}

# Those that train in one compiled function, and the modules of their workers.
PEERS = {REJAX: "benchmarks.peers.rejax_worker", PUREJAXRL: "benchmarks.peers.purejaxrl_style"}
# What each peer does differently, its environment in .bench, and the packages that take part.
DIFFERENCES = {
    REJAX: (
        "gymnax's environments, which compute a reset in every step; an Adam (epsilon 1e-8) and a backward pass for "
        "each tower; gradients clipped element by element, not by norm; values clipped too; truncation taken for "
        "termination; no statistics of episodes or losses; its periodic evaluation is turned off",
        "rejax",
        ("rejax", "gymnax", "flax", "optax", "jax"),
    ),
    PUREJAXRL: (
        "gymnax's environments, which compute a reset in every step; values clipped too; truncation taken for "
        "termination; keeps the statistics of gymnax's LogWrapper for every step; losses computed, not kept",
        "rejax",
        ("gymnax", "flax", "optax", "jax"),
    ),
    SBX: (
        "an Adam, a gradient norm and a backward pass for each tower; of the losses only those of the last minibatch "
        "and the mean divergence are logged",
        "sbx",
        ("sbx-rl", "gymnasium", "stable-baselines3", "flax", "optax", "jax"),
    ),
}

NOTES = [
    "Every side trains PPO with two towers of 64-64 tanh units, Adam, and SB3's defaults for everything that the "
    "setting does not name. The numbers of environment steps, epochs and minibatches are the same. Advantages are "
    "normalized in each minibatch.",
    "Each side except jaxenvs.learn is one process from start to end. Sides take turns after a warm-up, and each "
    "continues its own training. Figures are from the median run.",
    "Compile seconds are not part of the other figures. For rejax and PureJaxRL-style, they cover both compiled "
    "functions (start, training). For jaxenvs.learn, they cover its only one. For bridge.PPO and SBX, they are the "
    "creation of the model and its first iteration, minus a later one.",
    "rejax and PureJaxRL-style train in one compiled function. They run with JAX's default compiler options, as "
    "their users run them, and once more with our options (jaxenvs.compilation.compiler_options). "
    "jaxenvs.learn.train is also one compiled function, with our options. Each run begins with the parameters of the "
    "run before.",
    "bridge.PPO returns to Python after each rollout and each update, for callbacks and logs. SBX and stock SB3 return "
    "after each step.",
    "DummyVecEnv is what SB3's make_vec_env returns: monitored Gymnasium environments.",
    "Stock SB3 runs with PyTorch's default number of threads and with one. Targets are compared with the faster run.",
]


def learner(setting: Setting, iterations: int, env_id: str = ENV_ID) -> learn.Training:
    """Return a training of `jaxenvs.learn` with this number of iterations."""
    venv = jaxenvs.make_vec(env_id, setting.n_envs)
    ppo = learn.PPO(n_steps=setting.n_steps, batch_size=setting.batch_size, n_epochs=setting.n_epochs)
    return learn.Training(venv, learn.ActorCritic.of(venv.env), ppo, iterations * setting.rollout)


def pure_training(setting: Setting, iterations: int, env_id: str = ENV_ID) -> Side:
    """Return a compiled training by `jaxenvs.learn.train`."""
    settings, key = learner(setting, iterations, env_id), jax.random.key(0)
    params = settings.init(key).learner.network_params
    start = time.perf_counter()
    compiled = jax.jit(learn.train, compiler_options=_options(setting)).lower(key, settings, params).compile()
    seconds = time.perf_counter() - start

    def run() -> Any:
        nonlocal params
        result = jax.block_until_ready(compiled(key, settings, params))
        params = result.params
        return result

    return Side(run, iterations * setting.rollout, seconds)


def _options(setting: Setting) -> dict[str, str]:
    """Return the compiler options: kernels side by side where minibatches are large, as in bridge.PPO."""
    return dict(compiler_options(in_order=setting.batch_size < LARGE.batch_size))


def compiled_sides(setting: Setting, peers: Mapping[str, client.Worker]) -> dict[str, Side]:
    """Return the trainings that are one compiled function: of `jaxenvs.learn`, and of the peers."""
    jax.clear_caches()  # what another part compiled would not be compiled again
    sides = {PURE: pure_training(setting, ITERATIONS[setting])}
    for name, worker in peers.items():
        compiling = _options(setting) if name.endswith(OUR_OPTIONS) else {}
        sides[name] = worker.prepare(setting, ITERATIONS[setting], compiling)
    return sides


def compare(
    report: common.Report,
    part: str,
    setting: Setting,
    kinds: dict[str, str],
    others: Mapping[str, Side],
    bars: dict[str, float],
) -> None:
    """Time bridge.PPO, stock SB3 and others in turns; hold bridge.PPO's speed against theirs.

    Args:
      kinds: of environments, by side: bridge.PPO, stock SB3 and SBX, if it takes part.
      bars: how many times as fast we want to be, by name of the other side.
    """
    sides = {}
    for name, kind in kinds.items():
        settings: dict[str, Any] = {"batch_size": setting.batch_size, "n_epochs": setting.n_epochs}
        if name == OURS and kind == cell.JAX:
            settings["engine"] = "xla"  # it raises if anything is not compiled
        model = Cell("PPO", "MlpPolicy 64-64", kind, setting.n_envs, setting.n_steps, settings=settings)
        sides[name] = (cell.OURS if name == OURS else name, model)
    timings, begun = time_cells(sides, report.options, {OURS: (None,)}, others)
    rows = []
    for (name, threads), timing in timings.items():
        side = f"{STOCK}, {threads} thread{'s' if threads > 1 else ''}" if name == STOCK else name
        environments = ENVIRONMENTS[kinds[name]] if name in kinds else "VectorEnv" if name == PURE else "gymnax"
        seconds = others[name].compile_seconds if name in others else None
        if name in (OURS, SBX):
            seconds = begun[name]["first_seconds"] - begun[name]["iteration_seconds"]
        about = {"part": part, "setting": str(setting), "side": side, "environments": environments}
        about["ms_per_iteration"] = 1000 * setting.rollout / timing.steps_per_second
        rows.append(about | timing.row() | {"compile_seconds": seconds})
    report.add("training", rows)
    for other, at_least in bars.items():
        if other in {name for name, _ in timings}:
            what = f"{part}: {setting}: {OURS} on {ENVIRONMENTS[kinds[OURS]]} / {other}"
            what += f" on {ENVIRONMENTS[kinds[other]]}" if other == STOCK else ""
            ours, theirs = (fastest(timings, name)[1].steps_per_second for name in (OURS, other))
            report.bar(what, ours / theirs, at_least)


# Of part d: the first run of a script compiles, and keeps its compiled functions on disk; the second loads them.
FIRST, SECOND = f"{OURS}, first run", f"{OURS}, second run"
SOLVED_BARS = {FIRST: 1.0, SECOND: 0.6}


def time_to_solved(report: common.Report, setting: str) -> None:
    """Time a script from start to end, with the imports of either side, and with `bridge.configure()`. It stops once it
    has solved the task.

    Args:
      setting: "default" or "zoo", as the script knows them.
    """
    num_seeds, budget = report.options.seeds, ["--total-timesteps", 512] * report.options.quick

    def run(side: str, seed: int, environment: dict[str, str]) -> dict[str, Any]:
        arguments = ["--side", side, "--setting", setting, "--seed", seed, *budget]
        start = time.perf_counter()
        printed = common.run_script("train_cartpole.py", *arguments, **os.environ | environment)
        return printed | {"seconds": time.perf_counter() - start}

    with tempfile.TemporaryDirectory() as folder:
        no_cache = {"JAXENVS_CACHE": "0"}
        cache = {"JAXENVS_CACHE": folder, "JAX_ENABLE_COMPILATION_CACHE": "true"}
        sides: dict[str, tuple[str, dict[str, str]]] = {}
        for name, side, caching in ((FIRST, "bridge", no_cache), (SECOND, "bridge", cache), (STOCK, STOCK, no_cache)):
            # PyTorch's threads slow down networks this small, on both sides: the faster way of each counts.
            sides |= {name: (side, caching), f"{name}, OMP_NUM_THREADS=1": (side, caching | {"OMP_NUM_THREADS": "1"})}
        run("bridge", 0, cache)  # the first, for the second
        results: dict[str, list[dict[str, Any]]] = {name: [] for name in sides}
        for seed in range(num_seeds):
            for name, (side, environment) in sides.items():
                results[name].append(run(side, seed, environment))
    rows = []
    for name, runs in results.items():
        seconds, timesteps = ([each[what] for each in runs] for what in ("seconds", "timesteps"))
        solved = sum(each["mean_return"] >= 475 for each in runs)
        row = {"part": "d", "setting": setting, "side": name, "seeds": num_seeds, "solved": solved}
        row |= {"seconds": statistics.median(seconds), "fastest": min(seconds), "slowest": max(seconds)}
        rows.append(row | {"timesteps": statistics.median(timesteps)})
    report.add("solved", rows)
    if report.options.quick:
        return
    first, second, stock = (
        min((row for row in rows if row["side"].startswith(name)), key=lambda row: row["seconds"])
        for name in (FIRST, SECOND, STOCK)
    )
    for ours, bar in zip((first, second), SOLVED_BARS.values()):
        ratio = ours["seconds"] / stock["seconds"]
        is_solved = ours["solved"] == stock["solved"] == num_seeds
        what = f"d: from `python train.py` to 475 on {ENV_ID}, {setting} setting: time of {ours['side']} / of stock SB3"
        report.require(what, ratio, f"<= {bar:g}, all seeds solved", ratio <= bar and is_solved)


def measure_speed(report: common.Report, parts: list[str]) -> None:
    """Measure the parts a, b and c, with the peers that are installed, or that can be installed."""
    install, pythons = not report.options.quick, {}
    small, large = (QUICK, QUICK) if report.options.quick else (SMALL, LARGE)
    with contextlib.ExitStack() as closing:
        peers: dict[str, client.Worker] = {}
        if {"a", "b"} & {*parts}:
            found = ((name, client.interpreter(name, install)) for name in ("rejax", "sbx"))
            pythons = {name: python for name, python in found if python is not None}
            if "rejax" in pythons:
                peers = {
                    name + options: closing.enter_context(client.Worker(module, pythons["rejax"]))
                    for name, module in PEERS.items()
                    for options in ("", OUR_OPTIONS)
                }
        if "a" in parts:
            kinds = {OURS: cell.JAX, STOCK: cell.GYMNASIUM} | ({SBX: cell.GYMNASIUM} if "sbx" in pythons else {})
            bars = {STOCK: 20, SBX: 10, REJAX: 1.05, PUREJAXRL: 1.5, PURE: 0.95}
            compare(report, "a", small, kinds, compiled_sides(small, peers), bars)
        if "b" in parts:
            kinds = {OURS: cell.JAX, STOCK: cell.JAX}
            compare(report, "b", large, kinds, compiled_sides(large, peers), {STOCK: 4, REJAX: 1.3})
    if not report.has("peers"):
        rows = [
            {"peer": name, "versions": client.versions(pythons[library], packages), "does differently": difference}
            for name, (difference, library, packages) in DIFFERENCES.items()
            if library in pythons
        ]
        report.add("peers", rows)
    if "c" in parts:
        compare(report, "c", small, {OURS: cell.GYMNASIUM, STOCK: cell.GYMNASIUM}, {}, {STOCK: 3})


def main(argv: list[str] | None = None) -> None:
    parser = common.Command(__doc__, parts=tuple("abcd"), rounds=9)
    parser.add_argument("--seeds", type=int, help="of part d; default 3; quick: 1")
    options = parser.options(argv)
    options.seeds = options.seeds or (1 if options.quick else 3)
    report = common.Report("training", NOTES, options)
    measure_speed(report, [part for part in options.parts if not report.has("training", part=part)])
    if "d" in options.parts:
        for setting in ("default",) if options.quick else ("default", "zoo"):
            if not report.has("solved", setting=setting):
                time_to_solved(report, setting)
    report.finish()


if __name__ == "__main__":
    main()
