"""Environments on the host: training, stepping, and what a prediction costs, beside stock SB3 and Gymnasium.

    python -m benchmarks.host [--parts training acting stepping processes pipeline native] [--rounds 5] [--quick]

training: PPO and A2C on Gymnasium's environments. acting: `predict`, and an EvalCallback. stepping: `VecEnv.step` of
environments that cost so many microseconds. processes: PPO on eight processes. pipeline: the two groups of
`pipeline=True`. native: vectorised sources.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import math
import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import stable_baselines3
import torch
from gymnasium import spaces
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv

import bridge
from benchmarks import common, never_slower
from benchmarks.common import Side
from benchmarks.peers.cell import HOST, OURS, STOCK, Cell
from bridge.engine.on_policy.host_loop import step_together
from bridge.engine.on_policy.pipelining import Pipeline
from bridge.host_env.native import BufferPool

PARTS = ("training", "acting", "stepping", "processes", "pipeline", "native")

# What must be reached, times stock SB3.
TRAININGS = (
    (Cell("PPO", "MlpPolicy 64-64", HOST, 1, 2048), 7),
    (Cell("PPO", "MlpPolicy 64-64", HOST, 8, 256), 10),
    (Cell("A2C", "MlpPolicy 64-64", HOST, 8, 5), 3.5),
    (Cell("PPO", "MlpPolicy Pendulum-v1", HOST, 16, 128, normalize=True), 8),
    (Cell("PPO", "MultiInputPolicy of vectors", HOST, 8, 256), 5),
    (Cell("PPO", "MlpPolicy 256-256", HOST, 8, 256), 3.2),
)
PREDICT, EVALUATE, SERIAL, PROCESS, GROUPED, ON_PROCESSES, PIPELINED = 5, 3, 1.2, 1, 2, 2, 1.3
NATIVE_SHARE, NATIVE_TIMES, NATIVE_ADDS = 0.8, 500, 1.1

MICROSECONDS, LANES = (0, 50, 200, 1000), (1, 2, 8, 32)
STEPPING_SECONDS = 0.25  # of one run of a side
GROUP = 4
PIPELINE_LANES = 256

NOTES = [
    "training: as in never_slower, each side a process of its own; the environments are those of the make_vec_env of "
    "the side's package, of bridge with backend='serial': two imports are changed",
    "stepping: environments busy for so long in each step, whose episodes take 100 steps; every VecEnv but "
    "AsyncVectorEnv tells returns and lengths of episodes; sides take turns, figures are of the median run",
    f"grouped: {GROUP} environments in each process, and all of 2",
    "processes: eight of an environment of 200 µs; policy and update are PPO's defaults, rollouts are "
    "of 64 steps, and as many of PyTorch's threads as it takes or one, whichever is faster",
    f"pipeline: {PIPELINE_LANES} lanes in two processes, a policy of 512-512; a step of the VecEnv takes as long as "
    "acting for all lanes, so that two groups, in turns, are some 4/3 as fast at best. The environments wait for "
    "something, or compute, and then want both cores. steps: acting and stepping alone; rollouts: with the values and "
    "advantages behind them, without updates",
]


class Busy(gymnasium.Env[np.ndarray, np.int64]):
    """Four numbers that do not change, for 100 steps, each of which takes so many µs: of a core, or waiting."""

    observation_space = spaces.Box(-1, 1, (4,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, microseconds: float, waits: bool = False) -> None:
        self.seconds, self.waits, self.observation = microseconds * 1e-6, waits, np.zeros(4, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.count = 0
        return self.observation, {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        until = time.perf_counter() + self.seconds
        if self.waits and self.seconds:
            time.sleep(self.seconds)
        while time.perf_counter() < until:
            pass
        self.count += 1
        return self.observation, 1.0, False, self.count == 100, {}


def monitored(microseconds: int) -> gymnasium.Env[Any, Any]:
    return Monitor(Busy(microseconds))


def measure_training(report: common.Report, options: never_slower.Options) -> None:
    """Whole trainings, in processes of their own."""
    for cell, at_least in TRAININGS:
        never_slower.measure(report, cell, options, at_least)


def measure_acting(report: common.Report, rounds: int) -> None:
    """One prediction, and the callback that makes most of them."""
    models = {
        side: package.PPO("MlpPolicy", make_vec_env("CartPole-v1", 8, seed=0), n_steps=64, seed=0, device="cpu")
        for side, package in ((STOCK, stable_baselines3), (OURS, bridge))
    }
    for model in models.values():
        model.learn(512)
    models[OURS].set_parameters(models[STOCK].get_parameters())  # episodes must be equally long
    observation = np.zeros(4, np.float32)

    def predict(model: Any, count: int = 2000) -> None:
        for _ in range(count):
            model.predict(observation, deterministic=True)

    callbacks = {side: _eval_callback(model) for side, model in models.items()}
    evaluations = {side: functools.partial(_evaluate, callback) for side, callback in callbacks.items()}
    for what, runs, at_least in (
        ("predict of one observation", {s: functools.partial(predict, m) for s, m in models.items()}, PREDICT),
        ("EvalCallback of 10 episodes", evaluations, EVALUATE),
    ):
        timings = common.interleave({s: Side(run, 1, lambda _: 0) for s, run in runs.items()}, rounds)
        seconds = {side: 1 / timing.steps_per_second for side, timing in timings.items()}
        report.add("acting", [{"what": what, **{f"{side} [s]": value for side, value in seconds.items()}}])
        report.bar(f"{what}: {STOCK} / {OURS}", seconds[STOCK] / seconds[OURS], at_least)
    returns = {side: callback.last_mean_reward for side, callback in callbacks.items()}
    if len(set(returns.values())) > 1:
        raise RuntimeError(f"Both sides must evaluate the same episodes, got mean returns of {returns}.")


def _eval_callback(model: Any) -> EvalCallback:
    callback = EvalCallback(make_vec_env("CartPole-v1", 1, seed=0), n_eval_episodes=10, eval_freq=1, verbose=0)
    callback.init_callback(model)
    return callback


def _evaluate(callback: EvalCallback) -> None:
    callback.n_calls = 1
    callback._on_step()


def measure_stepping(report: common.Report, rounds: int, cells: list[tuple[int, int]]) -> None:
    """Steps of all lanes a second, of every kind of VecEnv."""
    for microseconds, lanes in cells:
        monitors = [functools.partial(monitored, microseconds)] * lanes
        bare = [functools.partial(Busy, microseconds)] * lanes
        group = min(GROUP, max(1, lanes // 2)) if lanes > 2 else lanes
        makers: dict[str, Callable[[], Any]] = {
            "DummyVecEnv": lambda monitors=monitors: DummyVecEnv(monitors),
            "SerialVecEnv": lambda bare=bare: bridge.SerialVecEnv(bare),
            "SubprocVecEnv": lambda monitors=monitors: SubprocVecEnv(monitors),
            "ProcessVecEnv": lambda bare=bare: bridge.ProcessVecEnv(bare),
            "ProcessVecEnv, grouped": lambda bare=bare, group=group: bridge.ProcessVecEnv(bare, group),
            "AsyncVectorEnv alone": lambda bare=bare: gymnasium.vector.AsyncVectorEnv(bare, context="forkserver"),
        }
        if lanes > max(LANES):  # a process each, three times, is more than memory holds
            makers = {name: makers[name] for name in ("DummyVecEnv", "SerialVecEnv")}
        with contextlib.ExitStack() as closing:
            sides = {}
            for name, make in makers.items():
                env = make()
                closing.callback(env.close)
                env.reset()
                sides[name] = _stepping(env, lanes)
            timings = common.interleave(sides, rounds, warm_up=1)
        speeds = {name: timing.steps_per_second for name, timing in timings.items()}
        report.add("stepping", [{"microseconds": microseconds, "lanes": lanes, **speeds}])
        cell = f"{microseconds} µs, {lanes} lanes"
        if microseconds == 0 and lanes >= 8:
            report.bar(f"{cell}: SerialVecEnv / DummyVecEnv", speeds["SerialVecEnv"] / speeds["DummyVecEnv"], SERIAL)
        if "SubprocVecEnv" not in speeds:
            continue
        ratio = speeds["ProcessVecEnv"] / speeds["SubprocVecEnv"]
        report.bar(f"{cell}: ProcessVecEnv / SubprocVecEnv", ratio, PROCESS)
        if microseconds == 0 and lanes >= 8:
            ratio = speeds["ProcessVecEnv, grouped"] / speeds["SubprocVecEnv"]
            report.bar(f"{cell}: ProcessVecEnv, grouped / SubprocVecEnv", ratio, GROUPED)


def _stepping(env: Any, lanes: int) -> Side:
    actions = np.zeros(lanes, np.int64)
    env.step(actions)
    start = time.perf_counter()
    for _ in range(20):
        env.step(actions)
    count = max(20, math.ceil(STEPPING_SECONDS / ((time.perf_counter() - start) / 20)))

    def run() -> None:
        for _ in range(count):
            env.step(actions)

    return Side(run, count * lanes, lambda _: 0)


def measure_processes(report: common.Report, rounds: int) -> None:
    """PPO on eight processes of an environment that takes 200 µs."""
    threads = torch.get_num_threads()
    with contextlib.ExitStack() as closing:

        def model_of(package: Any, env: VecEnv) -> Any:
            closing.callback(env.close)
            return package.PPO("MlpPolicy", env, n_steps=64, seed=0, device="cpu")

        stock = model_of(stable_baselines3, SubprocVecEnv([functools.partial(monitored, 200)] * 8))
        ours = model_of(bridge, bridge.ProcessVecEnv([functools.partial(Busy, 200)] * 8))

        def learn(model: Any, count: int) -> None:
            torch.set_num_threads(count)
            model.learn(512, reset_num_timesteps=False)

        sides = {
            f"{name}, {count}": Side(functools.partial(learn, model, count), 512, lambda _: 0)
            for name, model in ((STOCK, stock), (OURS, ours))
            for count in {1, threads}
        }
        timings = common.interleave(sides, rounds)
    torch.set_num_threads(threads)
    speeds = {name: timing.steps_per_second for name, timing in timings.items()}
    report.add("processes", [{"side": name, "steps_per_second": speed} for name, speed in speeds.items()])
    best = {side: max(speed for name, speed in speeds.items() if name.startswith(side)) for side in (STOCK, OURS)}
    report.bar("8 processes of 200 µs: PPO, bridge / stock SB3", best[OURS] / best[STOCK], ON_PROCESSES)


def measure_pipeline(report: common.Report, rounds: int) -> None:
    """Steps in two groups and in one, of environments whose step takes as long as acting does."""
    first_lanes = [0, PIPELINE_LANES // 2]  # of each process, which take the time of all

    def model_of(env: VecEnv, pipeline: bool) -> bridge.PPO:
        settings: dict[str, Any] = {"n_steps": 64, "policy_kwargs": {"net_arch": [512, 512]}, "pipeline": pipeline}
        model = bridge.PPO("MlpPolicy", env, seed=0, device="cpu", **settings)
        model.train = lambda: None  # type: ignore[method-assign]
        return model

    for what in ("wait", "compute"):
        make = functools.partial(Busy, 0, waits=what == "wait")
        with contextlib.closing(bridge.ProcessVecEnv([make] * PIPELINE_LANES, first_lanes[1])) as env:
            models = {"in one": model_of(env, False), "in two groups": model_of(env, True)}
            acting, seconds = _acting_seconds(models["in one"]), 0.0
            for _ in range(4):  # what the VecEnv itself takes is in it
                env.set_attr("seconds", seconds, first_lanes)
                env.reset()
                stepping = (
                    PIPELINE_LANES / common.interleave({"": _stepping(env, PIPELINE_LANES)}, 3)[""].steps_per_second
                )
                seconds = max(0.0, seconds + acting - stepping)
            for kind, side in (("steps", _steps_side), ("rollouts", _rollouts_side)):
                timings = common.interleave({name: side(model) for name, model in models.items()}, rounds)
                speeds = {name: timing.steps_per_second for name, timing in timings.items()}
                ratio = speeds["in two groups"] / speeds["in one"]
                costs = {"acting [µs]": acting * 1e6, "VecEnv.step [µs]": stepping * 1e6}
                report.add("pipeline", [{"environments": what, "of": kind, **costs, **speeds, "ratio": ratio}])
                if (what, kind) == ("wait", "steps"):
                    report.bar("acting and stepping take the same: pipeline=True / without", ratio, PIPELINED)


def _acting_seconds(model: bridge.PPO) -> float:
    actor, lanes = model.plan.actor, model.n_envs
    assert actor is not None
    observation, noise = np.zeros((lanes, 4), np.float32), actor.draw_noise(lanes, 1, 1)[0]

    def run() -> None:
        for _ in range(200):
            actor.act(observation, noise)

    return 1 / common.interleave({"": Side(run, 200, lambda _: 0)}, 5)[""].steps_per_second


def _steps_side(model: bridge.PPO, count: int = 256) -> Side:
    actor, env = model.plan.actor, model.env
    assert actor is not None
    assert isinstance(env, bridge.ProcessVecEnv)
    noise = actor.draw_noise(env.num_envs, count, 1)

    def run() -> None:
        take_step = functools.partial(step_together, env, noise)
        if model.pipeline:
            take_step = Pipeline(env, noise, looks_ahead=True).step  # type: ignore[assignment]
        observation: Any = env.reset()
        for step in range(count):
            *_, (observation, _, _, _) = take_step(actor.act, observation, step)

    return Side(run, count * env.num_envs, lambda _: 0)


def _rollouts_side(model: bridge.PPO) -> Side:
    steps = 4 * model.n_steps * model.n_envs
    return Side(lambda: model.learn(steps, reset_num_timesteps=False) and None, steps, lambda _: 0)


def measure_native(report: common.Report, rounds: int, lanes: int) -> None:
    """Vectorised sources: what GymVecEnv adds to Gymnasium's own CartPole, and CartPole in C."""
    actions = np.random.default_rng(0).integers(2, size=(256, lanes))

    def side(step: Callable[[np.ndarray], Any], count: int = 256) -> Side:
        def run() -> None:
            for at in range(count):
                step(actions[at])

        return Side(run, count * lanes, lambda _: 0)

    source, inner = (gymnasium.make_vec("CartPole-v1", lanes, vectorization_mode="vector_entry_point") for _ in "ab")
    ours = bridge.GymVecEnv(inner)
    sides = {"Gymnasium's native CartPole": side(source.step), "the same in GymVecEnv": side(ours.step)}
    python = make_vec_env("CartPole-v1", lanes)
    sides["CartPole in Python, DummyVecEnv"] = side(python.step, 8)
    source.reset(seed=0)
    ours.seed(0)
    ours.reset()
    python.reset()
    native = _c_cartpole(lanes)
    if native is not None:
        bare, venv = native
        sides |= {"CartPole in C": side(bare), "CartPole in C, NativeVecEnv": side(venv.step)}
    timings = common.interleave(sides, rounds)
    speeds = {name: timing.steps_per_second for name, timing in timings.items()}
    report.add(
        "native", [{"lanes": lanes, "source": name, "steps_per_second": speed} for name, speed in speeds.items()]
    )
    adds = speeds["Gymnasium's native CartPole"] / speeds["the same in GymVecEnv"]
    report.require("GymVecEnv / its native source, time", adds, f"<= {NATIVE_ADDS}", adds <= NATIVE_ADDS)
    if native is not None:
        in_c = speeds["CartPole in C, NativeVecEnv"]
        report.bar(
            "CartPole in C / in Python, VecEnv.step", in_c / speeds["CartPole in Python, DummyVecEnv"], NATIVE_TIMES
        )
        report.bar("CartPole in C, VecEnv.step / bare", in_c / speeds["CartPole in C"], NATIVE_SHARE)


def _c_cartpole(lanes: int) -> tuple[Callable[[np.ndarray], Any], VecEnv] | None:
    """Its bare step and its VecEnv, if there is a compiler."""
    path = common.CHECKOUT / "examples" / "native_c" / "cartpole.py"
    spec = importlib.util.spec_from_file_location("native_cartpole", path)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    with tempfile.TemporaryDirectory() as folder:
        try:
            library = example.build(folder)
        except RuntimeError as error:
            print(f"skipped: {error}")
            return None
    source, venv = example.CCartPole(library, lanes), bridge.NativeVecEnv(example.CCartPole(library, lanes))
    buffers = BufferPool(lanes, source.observation_space).take()
    source.reset_into(buffers, np.arange(lanes, dtype=np.uint64))
    venv.seed(0)
    venv.reset()
    return lambda actions: source.step_into(actions, buffers), venv


def main(argv: list[str] | None = None) -> None:
    parser = common.Command(__doc__, parts=PARTS, rounds=5)
    arguments = parser.options(argv)
    quick, parts = arguments.quick, arguments.parts
    rounds = arguments.rounds
    os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"  # of the workers, as in never_slower
    report = common.Report("host", {"parts": " ".join(parts), "rounds": rounds, "quick": quick}, NOTES)
    if "training" in parts and not quick:  # never_slower --quick has tried the same
        measure_training(report, never_slower.Options(rounds, quick))
    if "acting" in parts:
        measure_acting(report, rounds)
    if "stepping" in parts:
        measure_stepping(report, rounds, [(0, 2)] if quick else [(cost, n) for cost in MICROSECONDS for n in LANES])
        if not quick:
            measure_stepping(report, rounds, [(0, 64)])
    if "processes" in parts and not quick:
        measure_processes(report, rounds)
    if "pipeline" in parts and not quick:
        measure_pipeline(report, rounds)
    if "native" in parts:
        measure_native(report, rounds, 8 if quick else 1024)
    report.finish(arguments)


if __name__ == "__main__":
    main()
