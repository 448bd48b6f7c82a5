"""Environments in the actors of a Ray cluster, beside as many processes of one machine.

    python -m benchmarks.cluster [--parts stepping rollouts] [--rounds 5] [--quick]

stepping: `VecEnv.step` of environments that take so many milliseconds. rollouts: what PPO collects, step by step and
with whole rollouts in the actors.
"""

from __future__ import annotations

import contextlib
import functools
import os
from typing import Any

import cloudpickle
import numpy as np

import bridge
from benchmarks import common, host
from benchmarks.common import Side

PARTS = ("stepping", "rollouts")
ACTORS, LANES = 2, 8
MILLISECONDS = (1, 5, 20)
# Of ProcessVecEnv's rate, and with steps of how many milliseconds.
STEPPING, AT = 0.9, 20
ROLLOUTS, ROLLOUTS_AT = 0.9, 1
STEPS = 128

NOTES = [
    f"{LANES} environments in {ACTORS} actors of a Ray on this machine, or in {ACTORS} processes; those of an actor or "
    "process step one after another; both at niceness 0, where Ray's default for actors is 15",
    "stepping: environments wait for so long in each step, as for a simulator elsewhere, so that nothing but what a "
    "step adds takes a core; ideal: as if it added nothing",
    f"rollouts: PPO's, of {STEPS} steps, with the values and advantages behind them, without updates",
]


def measure_stepping(report: common.Report, rounds: int, cells: tuple[int, ...], seconds: float) -> None:
    """Steps of all lanes a second.

    Args:
      cells: milliseconds of an environment's step.
      seconds: of a run of a side.
    """
    for milliseconds in cells:
        makers = [functools.partial(host.Busy, 1000 * milliseconds, waits=True)] * LANES
        with contextlib.ExitStack() as closing:
            sides = {}
            for name, env in _envs(makers, closing).items():
                env.reset()
                sides[name] = _stepping(env, max(1, round(seconds / (LANES // ACTORS * milliseconds * 1e-3))))
            timings = common.interleave(sides, rounds, warm_up=1)
        speeds = {name: timing.steps_per_second for name, timing in timings.items()}
        ratio = speeds["RayVecEnv"] / speeds["ProcessVecEnv"]
        ideal = 1000 * ACTORS / milliseconds
        adds = {f"{name} adds [ms]": 1e3 * LANES * (1 / speed - 1 / ideal) for name, speed in speeds.items()}
        report.add("stepping", [{"milliseconds": milliseconds, "ideal": ideal, **speeds, "ratio": ratio, **adds}])
        if milliseconds == AT:
            what = f"{ACTORS} actors of {LANES // ACTORS} environments of {AT} ms: RayVecEnv / ProcessVecEnv"
            report.bar(what, ratio, STEPPING)


def measure_rollouts(report: common.Report, rounds: int, cells: tuple[int, ...]) -> None:
    """Steps of all lanes a second, of PPO without its updates.

    Args:
      cells: milliseconds of an environment's step.
    """
    for milliseconds in cells:
        makers = [functools.partial(host.Busy, 1000 * milliseconds, waits=True)] * LANES
        with contextlib.ExitStack() as closing:
            envs = _envs(makers, closing)
            rolling = bridge.RayVecEnv(makers, LANES // ACTORS, num_cpus=0, whole_rollouts=True)
            closing.callback(rolling.close)
            envs["RayVecEnv, whole rollouts"] = rolling
            timings = common.interleave({name: _collecting(env) for name, env in envs.items()}, rounds)
        speeds = {name: timing.steps_per_second for name, timing in timings.items()}
        ratio = speeds["RayVecEnv, whole rollouts"] / speeds["ProcessVecEnv"]
        report.add("rollouts", [{"milliseconds": milliseconds, **speeds, "ratio": ratio}])
        if milliseconds == ROLLOUTS_AT:
            what = f"{ACTORS} actors of {LANES // ACTORS} environments of {milliseconds} ms: whole rollouts"
            report.bar(f"{what} / ProcessVecEnv", ratio, ROLLOUTS)


def _envs(makers: list[Any], closing: contextlib.ExitStack) -> dict[str, bridge.ProcessVecEnv | bridge.RayVecEnv]:
    envs: dict[str, bridge.ProcessVecEnv | bridge.RayVecEnv] = {
        "ProcessVecEnv": bridge.ProcessVecEnv(makers, LANES // ACTORS),
        "RayVecEnv": bridge.RayVecEnv(makers, LANES // ACTORS, num_cpus=0),
    }
    for env in envs.values():
        closing.callback(env.close)
    return envs


def _collecting(env: Any) -> Side:
    model = bridge.PPO("MlpPolicy", env, n_steps=STEPS, seed=0, device="cpu")
    model.train = lambda: None  # type: ignore[method-assign]
    steps = STEPS * LANES
    return Side(lambda: model.learn(steps, reset_num_timesteps=False) and None, steps, lambda _: 0)


def _stepping(env: Any, count: int) -> Side:
    actions = np.zeros(LANES, np.int64)

    def run() -> None:
        for _ in range(count):
            env.step(actions)

    return Side(run, count * LANES, lambda _: 0)


def main(argv: list[str] | None = None) -> None:
    options = common.Command(__doc__, parts=PARTS, rounds=5).options(argv)
    if common.peer("ray") is None:
        return
    os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's default is 15, and processes have 0
    # By its name a process would import all that this imports.
    cloudpickle.register_pickle_by_value(host)
    settings = {"rounds": options.rounds, "actors": ACTORS, "lanes": LANES}
    report = common.Report("cluster", settings, NOTES)
    if "stepping" in options.parts:
        cells, seconds = ((1,), 0.02) if options.quick else (MILLISECONDS, 2.0)
        measure_stepping(report, options.rounds, cells, seconds)
    if "rollouts" in options.parts:
        measure_rollouts(report, options.rounds, (1,) if options.quick else MILLISECONDS)
    report.finish(options)


if __name__ == "__main__":
    main()
