"""Compare training speed on CartPole-v1 with stock SB3, SBX, rejax, and PPO in PureJaxRL's style.

    python -m benchmarks.training [--only a b c d] [--rounds 9] [--quick]

a: SB3's usual setting. b: many environments. c: compiled updates for Gymnasium's environments. d: from
`python train.py` to the solved task, including imports and compilation.

A full run installs rejax and SBX in separate virtual environments, .bench/rejax and .bench/sbx, if they are missing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import jax
import stable_baselines3
import torch
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv

import bridge
import jaxenvs
from benchmarks import common
from benchmarks.peers import client
from benchmarks.peers.worker import Setting, Training, sb3_training
from jaxenvs import learn
from jaxenvs.compilation import compiler_options

ENV_ID = "CartPole-v1"
SMALL, LARGE = Setting(8, 256, batch_size=64, n_epochs=10), Setting(256, 32, batch_size=2048, n_epochs=4)
QUICK = Setting(4, 8, batch_size=16, n_epochs=2)

# In one run: enough for about half a second, of the sides that are compiled and of those that are not.
COMPILED_ITERATIONS = {SMALL: 20, LARGE: 10, QUICK: 2}
HOST_ITERATIONS = {SMALL: 2, LARGE: 4, QUICK: 1}

OURS, PURE = "bridge.PPO", "jaxenvs.learn"
STOCK, SBX, REJAX, PUREJAXRL = "stock SB3", "SBX", "rejax", "PureJaxRL-style"
OUR_OPTIONS = " with our options"  # a peer's function, compiled with our options
JAX_ENVS, GYMNASIUM_ENVS = "JaxVecEnv", "DummyVecEnv"
MAKE = {JAX_ENVS: bridge.make_vec_env, GYMNASIUM_ENVS: make_vec_env}

# Environment of the peers -> name -> module of its worker.
PEERS = {
    "rejax": {
        name + options: f"benchmarks.peers.{module}"
        for name, module in ((REJAX, "rejax_worker"), (PUREJAXRL, "purejaxrl_style"))
        for options in ("", OUR_OPTIONS)
    },
    "sbx": {SBX: "benchmarks.peers.sbx_worker"},
}
DIFFERENCES = {
    REJAX: "gymnax's environments, which compute a reset in every step; an Adam (epsilon 1e-8) and a backward pass for "
    "each tower; gradients clipped element by element, not by norm; values clipped too; truncation taken for "
    "termination; no statistics of episodes or losses; its periodic evaluation is turned off",
    PUREJAXRL: "gymnax's environments, which compute a reset in every step; values clipped too; truncation taken for "
    "termination; keeps the statistics of gymnax's LogWrapper for every step; losses computed, not kept",
    SBX: "an Adam, a gradient norm and a backward pass for each tower; of the losses only those of the last minibatch "
    "and the mean divergence are logged",
}

NOTES = [
    "Every side trains PPO with two towers of 64-64 tanh units, Adam, and SB3's defaults for everything that the "
    "setting does not name. The numbers of environment steps, epochs and minibatches are the same. Advantages are "
    "normalized in each minibatch.",
    "Sides take turns after a warm-up, and each continues its own training. Figures are from the median run.",
    "Compile seconds are not part of the other figures. For rejax and PureJaxRL-style, they cover both compiled "
    "functions (start, training). For jaxenvs.learn, they cover its only one. For bridge.PPO and SBX, they are the "
    "first iteration minus the second.",
    "rejax and PureJaxRL-style train in one compiled function. They run with JAX's default compiler options, as "
    "their users run them, and once more with our options (jaxenvs.compilation.compiler_options). "
    "jaxenvs.learn.train is also one compiled function, with our options. Each run begins with the parameters of the "
    "run before.",
    "bridge.PPO returns to Python after each rollout and each update, for callbacks and logs. SBX and stock SB3 return "
    "after each step.",
    "DummyVecEnv is what SB3's make_vec_env returns: monitored Gymnasium environments.",
    "Stock SB3 runs with PyTorch's default number of threads and with one. Targets are compared with the faster run.",
]


@dataclasses.dataclass
class Options:
    """Options of a run.

    Attributes:
      threads: PyTorch's default number.
      quick: tiny settings, and no bars.
    """

    rounds: int
    threads: int
    quick: bool
    peers: dict[str, client.Worker]

    @property
    def thread_counts(self) -> list[int]:
        """The numbers of threads with which stock SB3 runs."""
        return sorted({self.threads, 1}, reverse=True)


def model_training(
    algorithm: Callable[..., Any],
    venv: VecEnv,
    setting: Setting,
    iterations: int,
    threads: int,
    compiles: bool,
    device: str = "cpu",
) -> Training:
    """Return a training of a model in this process, with this number of PyTorch threads."""
    torch.set_num_threads(threads)
    model = algorithm("MlpPolicy", venv, seed=0, device=device, **setting.hyperparameters)
    training = sb3_training(model, setting, iterations, compiles)

    def run() -> Any:
        torch.set_num_threads(threads)
        return training.run()

    return Training(run, iterations, training.compile_seconds)


def learner(setting: Setting, iterations: int, env_id: str = ENV_ID) -> learn.Training:
    """Return a training of `jaxenvs.learn` with this number of iterations."""
    venv = jaxenvs.make_vec(env_id, setting.n_envs)
    return learn.Training(
        venv, learn.ActorCritic.of(venv.env), learn.PPO(**setting.hyperparameters), iterations * setting.rollout
    )


def pure_training(setting: Setting, iterations: int, env_id: str = ENV_ID) -> Training:
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

    return Training(run, iterations, seconds)


def _options(setting: Setting) -> dict[str, str]:
    """Return the compiler options: kernels side by side where minibatches are large, as in bridge.PPO."""
    return dict(compiler_options(in_order=setting.batch_size < LARGE.batch_size))


def time_trainings(prepared: dict[str, Training], setting: Setting, rounds: int) -> list[dict[str, Any]]:
    """Time the sides in turns, and return a row for each."""
    sides = {name: common.Side(each.run, each.iterations * setting.rollout) for name, each in prepared.items()}
    return [
        {"side": name, "ms_per_iteration": 1000 * setting.rollout / timing.steps_per_second}
        | timing.row()
        | {"compile_seconds": prepared[name].compile_seconds}
        for name, timing in common.interleave(sides, rounds).items()
    ]


def compare(
    report: common.Report,
    part: str,
    setting: Setting,
    options: Options,
    ours_on: str,
    stock_on: str,
    peers: tuple[str, ...],
    bars: dict[str, float],
) -> None:
    """Time bridge.PPO, jaxenvs.learn, stock SB3 and peers in turns; hold bridge.PPO's speed against theirs.

    Args:
      ours_on, stock_on: JAX_ENVS or GYMNASIUM_ENVS.
      bars: how many times as fast we want to be, by name of the other side.
    """
    if report.has("training", part=part):
        return
    if options.quick:
        setting, bars = QUICK, {}
    # What another part compiled would not be compiled again.
    jax.clear_caches()
    with contextlib.ExitStack() as closing:

        def make(kind: str) -> VecEnv:
            venv: VecEnv = MAKE[kind](ENV_ID, setting.n_envs, seed=0)
            closing.callback(venv.close)
            return venv

        # Where the environments are not ours, collecting cannot be compiled, and engine="xla" would say so.
        ours = functools.partial(bridge.PPO, engine="xla" if ours_on == JAX_ENVS else "auto")
        iterations = (COMPILED_ITERATIONS if ours_on == JAX_ENVS else HOST_ITERATIONS)[setting]
        trainings = {OURS: model_training(ours, make(ours_on), setting, iterations, options.threads, compiles=True)}
        if ours_on == JAX_ENVS:
            trainings[PURE] = pure_training(setting, iterations)
        for threads in options.thread_counts:
            trainings[f"{STOCK}, {threads} thread{'s' if threads > 1 else ''}"] = model_training(
                stable_baselines3.PPO, make(stock_on), setting, HOST_ITERATIONS[setting], threads, compiles=False
            )
        for name in peers:
            if name in options.peers:
                iterations = (HOST_ITERATIONS if name == SBX else COMPILED_ITERATIONS)[setting]
                compiling = _options(setting) if name.endswith(OUR_OPTIONS) else {}
                trainings[name] = options.peers[name].prepare(setting, iterations, compiling)

        measured = time_trainings(trainings, setting, options.rounds)
    envs = {OURS: ours_on, PURE: "VectorEnv", STOCK: stock_on, SBX: GYMNASIUM_ENVS}
    rows = []
    for row in measured:
        environments = envs.get(row["side"].partition(",")[0], "gymnax")
        about = {"part": part, "setting": str(setting), "side": row["side"], "environments": environments}
        rows.append(about | row)
    report.add("training", rows)
    speeds = {row["side"]: row["steps_per_second"] for row in rows}

    for other, at_least in bars.items():
        theirs = [name for name in speeds if name.startswith(other) and not name.endswith(OUR_OPTIONS)]
        if theirs:
            what = f"{part}: {setting}: {OURS} on {ours_on} / {other}" + (f" on {stock_on}" if other == STOCK else "")
            report.bar(what, speeds[OURS] / max(speeds[name] for name in theirs), at_least)


def run_script(side: str, setting: str, seed: int, quick: bool, **environment: str) -> dict[str, Any]:
    """Train in a new process. Return the seconds until it ended, and what it printed last."""
    path = client.CHECKOUT / "benchmarks" / "peers" / "train_cartpole.py"
    budget = ["--total-timesteps", "512"] if quick else []
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, path, "--side", side, "--setting", setting, "--seed", str(seed), *budget],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return {"seconds": time.perf_counter() - start} | json.loads(done.stdout.splitlines()[-1])


# Of part d: the first run of a script compiles, and keeps its compiled functions on disk; the second loads them.
FIRST, SECOND = f"{OURS}, first run", f"{OURS}, second run"
SOLVED_BARS = {FIRST: 1.0, SECOND: 0.6}


def time_to_solved(report: common.Report, setting: str, num_seeds: int, options: Options) -> None:
    """Time a script from start to end, with the imports of either side, and with `bridge.configure()`. It stops once it
    has solved the task.

    Args:
      setting: "default" or "zoo", as the script knows them.
    """
    if report.has("solved", setting=setting):
        return
    threads = [{}, {"OMP_NUM_THREADS": "1"}] if len(options.thread_counts) > 1 else [{}]
    with tempfile.TemporaryDirectory() as folder:
        no_cache = {"JAXENVS_CACHE": "0"}
        cache = {"JAXENVS_CACHE": folder, "JAX_ENABLE_COMPILATION_CACHE": "true"}
        sides: dict[str, tuple[str, dict[str, str]]] = {}
        for name, side, caching in (
            (FIRST, "bridge", no_cache),
            (SECOND, "bridge", cache),
            (STOCK, STOCK, no_cache),
        ):
            for environment in threads:
                label = ", ".join([name, *(f"{variable}={value}" for variable, value in environment.items())])
                sides[label] = (side, {**caching, **environment})
        run_script("bridge", setting, 0, options.quick, **cache)  # the first, for the second
        results: dict[str, list[dict[str, Any]]] = {name: [] for name in sides}
        for seed in range(num_seeds):
            for name, (side, environment) in sides.items():
                results[name].append(run_script(side, setting, seed, options.quick, **environment))
    rows = []
    for name, runs in results.items():
        seconds, timesteps = ([run[what] for run in runs] for what in ("seconds", "timesteps"))
        row: dict[str, Any] = {
            "part": "d",
            "setting": setting,
            "side": name,
            "seeds": num_seeds,
            "solved": sum(run["mean_return"] >= 475 for run in runs),
        }
        row |= {"seconds": statistics.median(seconds), "fastest": min(seconds), "slowest": max(seconds)}
        rows.append(row | {"timesteps": statistics.median(timesteps)})
    report.add("solved", rows)
    if options.quick:
        return
    # PyTorch's threads slow down networks this small, on both sides: the faster way of each.
    first, second, stock = (
        min((row for row in rows if row["side"].startswith(name)), key=lambda row: row["seconds"])
        for name in (FIRST, SECOND, STOCK)
    )
    for ours, bar in zip((first, second), SOLVED_BARS.values()):
        ratio = ours["seconds"] / stock["seconds"]
        solved = ours["solved"] == stock["solved"] == num_seeds
        what = f"d: from `python train.py` to 475 on {ENV_ID}, {setting} setting: time of {ours['side']} / of stock SB3"
        report.require(what, ratio, f"<= {bar:g}, all seeds solved", ratio <= bar and solved)


def open_peers(install: bool, closing: contextlib.ExitStack) -> dict[str, client.Worker]:
    """Start a process for each other library that is installed, or that can be installed if requested."""
    peers: dict[str, client.Worker] = {}
    for environment, modules in PEERS.items():
        python = client.interpreter(environment, install)
        if python is not None:
            peers |= {name: closing.enter_context(client.Worker(module, python)) for name, module in modules.items()}
    return peers


def describe_peers(report: common.Report, peers: dict[str, client.Worker]) -> None:
    """Return what took part, and what each library does differently."""
    rows = []
    for name, difference in DIFFERENCES.items():
        if (worker := peers.get(name)) is None:
            continue
        versions = ", ".join(f"{package} {version}" for package, version in worker.versions.items())
        rows.append({"peer": name, "versions": versions, "does differently": difference})
    report.add("peers", rows)


def main(argv: list[str] | None = None) -> None:
    parser = common.Command(__doc__, rounds=9)
    parser.add_argument("--only", nargs="+", choices="abcd", default=list("abcd"), help="parts; default: all")
    parser.add_argument("--seeds", type=int, help="of part d; default 3; quick: 1")
    arguments = parser.options(argv)
    quick, parts = arguments.quick, arguments.only
    if not quick:
        # Compile times are figures here. In the environment too, for the workers.
        os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
        jax.config.update("jax_enable_compilation_cache", False)

    seeds = arguments.seeds or (1 if quick else 3)
    options = Options(arguments.rounds, torch.get_num_threads(), quick, {})
    settings: dict[str, Any] = {"env": ENV_ID, "parts": "".join(parts), "rounds": options.rounds, "seeds": seeds}
    settings |= {"torch_threads": options.threads, "quick": quick}
    report = common.Report("training", settings, NOTES, arguments)
    with contextlib.ExitStack() as closing:
        if {"a", "b"} & set(parts):
            options.peers = open_peers(not quick, closing)
        if "a" in parts:
            bars = {STOCK: 20, SBX: 10, REJAX: 1.05, PUREJAXRL: 1.5, PURE: 0.95}
            compare(report, "a", SMALL, options, JAX_ENVS, GYMNASIUM_ENVS, (SBX, *PEERS["rejax"]), bars)
        if "b" in parts:
            compare(report, "b", LARGE, options, JAX_ENVS, JAX_ENVS, tuple(PEERS["rejax"]), {STOCK: 4, REJAX: 1.3})
        if not report.has("peers"):
            describe_peers(report, options.peers)
    if "c" in parts:
        compare(report, "c", SMALL, options, GYMNASIUM_ENVS, GYMNASIUM_ENVS, (), {STOCK: 3})
    if "d" in parts:
        for setting in ("default",) if quick else ("default", "zoo"):
            time_to_solved(report, setting, seeds, options)
    torch.set_num_threads(options.threads)
    report.finish()


if __name__ == "__main__":
    main()
