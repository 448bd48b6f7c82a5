"""Compare environments on the host with stock SB3 and Gymnasium: training, stepping, and the cost of a prediction.

    python -m benchmarks.host [--parts training acting stepping tensors] [--rounds 5] [--quick]

training: PPO and A2C on Gymnasium's environments. acting: `predict`, and an EvalCallback. stepping: `VecEnv.step` of
environments that take a given number of microseconds. tensors: PPO on a CartPole in PyTorch.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import stable_baselines3
from gymnasium import spaces
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

import bridge
from benchmarks import common, never_slower
from benchmarks.common import Side
from benchmarks.peers.cell import HOST, OURS, STOCK, Cell
from benchmarks.peers.torch_cartpole import InArrays, TorchCartPole
from benchmarks.stepping import steps_of

# What must be reached, times stock SB3.
TRAININGS = (
    (Cell("PPO", "MlpPolicy 64-64", HOST, 1, 2048), 7),
    (Cell("PPO", "MlpPolicy 64-64", HOST, 8, 256), 10),
    (Cell("A2C", "MlpPolicy 64-64", HOST, 8, 5), 3.5),
    (Cell("PPO", "MlpPolicy Pendulum-v1", HOST, 16, 128, normalize=True), 8),
    (Cell("PPO", "MultiInputPolicy of vectors", HOST, 8, 256), 5),
    (Cell("PPO", "MlpPolicy 256-256", HOST, 8, 256), 3.2),
)
PREDICT, EVALUATE, SERIAL, PROCESS, GROUPED = 5, 3, 1.2, 1, 2

MICROSECONDS, NUM_ENVS = (0, 50, 200, 1000), (1, 2, 8, 32)
STEPPING_SECONDS = 0.25  # of one run of a side
GROUP = 4
EVALUATION = "EvalCallback of 10 episodes"
# Environments of tensors, steps of each in a rollout, and sizes of a minibatch.
TENSOR_ENVS, TENSOR_STEPS, TENSOR_BATCHES = 1024, 16, (1024, 4096)
AS_ARRAYS, AS_STOCK = 1.0, 2.5

NOTES = [
    "training: as in never_slower, with one process per side. The environments come from make_vec_env of each side's "
    "package, for bridge with backend='serial', so two imports are changed.",
    "stepping: the environments keep a core busy for the given time in each step, and their episodes have 100 steps. "
    "Every VecEnv except AsyncVectorEnv reports returns and lengths of episodes. Sides take turns, and figures are "
    "from the median run.",
    f"grouped: {GROUP} environments in each process. Where there are only 2 environments, both are in one process.",
    "tensors: the sides train on a GymVecEnv around the same environment, whose reset and step take and return PyTorch "
    "tensors. On the second side, a class around the environment converts them to NumPy arrays and back. Sides take "
    "turns, and figures are from the median run.",
]


class Busy(gymnasium.Env[np.ndarray, np.int64]):
    """Environment with four constant numbers and 100 steps, each of which keeps a core busy for a given time."""

    observation_space = spaces.Box(-1, 1, (4,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, microseconds: float) -> None:
        self.seconds, self.observation = microseconds * 1e-6, np.zeros(4, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.count = 0
        return self.observation, {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        until = time.perf_counter() + self.seconds
        while time.perf_counter() < until:
            pass
        self.count += 1
        return self.observation, 1.0, False, self.count == 100, {}


def monitored(microseconds: int) -> gymnasium.Env[Any, Any]:
    return Monitor(Busy(microseconds))


def measure_acting(report: common.Report) -> None:
    """Measure one prediction, and the callback that makes most predictions."""
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

    callbacks = {}
    for side, model in models.items():
        env = make_vec_env("CartPole-v1", 1, seed=0)
        callbacks[side] = EvalCallback(env, n_eval_episodes=10, eval_freq=1, verbose=0)
        callbacks[side].init_callback(model)
    evaluations = {side: callback._on_step for side, callback in callbacks.items()}
    for what, runs, at_least in (
        ("predict of one observation", {s: functools.partial(predict, m) for s, m in models.items()}, PREDICT),
        (EVALUATION, evaluations, EVALUATE),
    ):
        timings = common.interleave({s: Side(run, 1) for s, run in runs.items()}, report.options.rounds)
        seconds = {side: 1 / timing.steps_per_second for side, timing in timings.items()}
        report.add("acting", [{"what": what, **{f"{side} [s]": value for side, value in seconds.items()}}])
        report.bar(f"{what}: {STOCK} / {OURS}", seconds[STOCK] / seconds[OURS], at_least)
    returns = {side: callback.last_mean_reward for side, callback in callbacks.items()}
    if len(set(returns.values())) > 1:
        raise RuntimeError(f"Both sides must evaluate the same episodes, got mean returns of {returns}.")


def measure_stepping(report: common.Report, cells: list[tuple[int, int]]) -> None:
    """Measure steps per second of all environments together, for every kind of VecEnv."""
    for microseconds, num_envs in cells:
        if report.has("stepping", microseconds=microseconds, num_envs=num_envs):
            continue
        monitors = [functools.partial(monitored, microseconds)] * num_envs
        bare = [functools.partial(Busy, microseconds)] * num_envs
        group = min(GROUP, max(1, num_envs // 2)) if num_envs > 2 else num_envs
        makers: dict[str, Callable[[], Any]] = {
            "DummyVecEnv": lambda monitors=monitors: DummyVecEnv(monitors),
            "SerialVecEnv": lambda bare=bare: bridge.SerialVecEnv(bare),
            "SubprocVecEnv": lambda monitors=monitors: SubprocVecEnv(monitors),
            "ProcessVecEnv": lambda bare=bare: bridge.ProcessVecEnv(bare),
            "ProcessVecEnv, grouped": lambda bare=bare, group=group: bridge.ProcessVecEnv(bare, group),
            "AsyncVectorEnv alone": lambda bare=bare: gymnasium.vector.AsyncVectorEnv(bare, context="forkserver"),
        }
        if num_envs > max(NUM_ENVS):  # a process each, three times, is more than memory holds
            makers = {name: makers[name] for name in ("DummyVecEnv", "SerialVecEnv")}
        with contextlib.ExitStack() as closing:
            sides = {}
            for name, make in makers.items():
                env = make()
                closing.callback(env.close)
                sides[name] = steps_of(env, np.zeros((20, num_envs), np.int64), STEPPING_SECONDS)
            timings = common.interleave(sides, report.options.rounds, warm_up=1)
        speeds = {name: timing.steps_per_second for name, timing in timings.items()}
        report.add("stepping", [{"microseconds": microseconds, "num_envs": num_envs, **speeds}])
        bars = [("ProcessVecEnv", "SubprocVecEnv", PROCESS)]
        if microseconds == 0 and num_envs >= 8:
            bars += [("SerialVecEnv", "DummyVecEnv", SERIAL), ("ProcessVecEnv, grouped", "SubprocVecEnv", GROUPED)]
        for ours, other, at_least in bars:
            if other in speeds:
                what = f"{microseconds} µs, {num_envs} environments: {ours} / {other}"
                report.bar(what, speeds[ours] / speeds[other], at_least)


def measure_tensors(report: common.Report, num_envs: int, batch_sizes: tuple[int, ...]) -> None:
    """Measure PPO on environments of tensors, on the same behind NumPy arrays, and SB3's."""
    in_arrays = f"{OURS}, NumPy arrays"
    for batch_size in batch_sizes:
        if report.has("tensors", batch_size=batch_size):
            continue
        sides = {}
        for name in (OURS, in_arrays, STOCK):
            env, package = TorchCartPole(num_envs), stable_baselines3 if name == STOCK else bridge
            venv = bridge.GymVecEnv(InArrays(env) if name == in_arrays else env)
            sizes = {"n_steps": TENSOR_STEPS, "batch_size": batch_size}
            model = package.PPO("MlpPolicy", venv, seed=0, device="cpu", **sizes)
            steps = 2 * TENSOR_STEPS * num_envs
            sides[name] = Side(functools.partial(model.learn, steps, reset_num_timesteps=False), steps)
        timings = common.interleave(sides, report.options.rounds)
        about = {"num_envs": num_envs, "batch_size": batch_size}
        report.add("tensors", [about | {"side": name} | timing.row() for name, timing in timings.items()])
        for other, at_least in ((in_arrays, AS_ARRAYS), (STOCK, AS_STOCK)):
            ratio = timings[OURS].steps_per_second / timings[other].steps_per_second
            report.bar(f"{num_envs} environments of tensors, batch {batch_size}: {OURS} / {other}", ratio, at_least)


def main(argv: list[str] | None = None) -> None:
    options = common.Command(__doc__, parts=("training", "acting", "stepping", "tensors"), rounds=5).options(argv)
    quick, parts = options.quick, options.parts
    report = common.Report("host", NOTES, options)
    if "training" in parts and not quick:  # never_slower --quick has tried the same
        for cell, at_least in TRAININGS:
            if not report.has("cells", cell=str(cell)):
                never_slower.measure(report, cell, at_least)
    if "acting" in parts and not report.has("acting", what=EVALUATION):
        measure_acting(report)
    if "stepping" in parts:
        cells = [*itertools.product(MICROSECONDS, NUM_ENVS), (0, 64)]
        measure_stepping(report, [(0, 2)] if quick else cells)
    if "tensors" in parts:
        measure_tensors(report, 8 if quick else TENSOR_ENVS, (64,) if quick else TENSOR_BATCHES)
    report.finish()


if __name__ == "__main__":
    main()
