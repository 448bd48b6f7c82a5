"""What is tested and measured on a GPU: a function for each part, from tables to rows in them."""

from __future__ import annotations

import dataclasses
import functools
import gc
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np
import pytest
import stable_baselines3
import torch
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv

import bridge
import jaxenvs
from benchmarks import common, raw_stepping
from benchmarks import training as trainings
from benchmarks.common import Side
from benchmarks.gpu.landers import landers as landers
from benchmarks.peers.worker import Setting, Training
from jaxenvs import learn

CHECKOUT = Path(__file__).parent.parent.parent
ENV_ID = "CartPole-v1"
ROUNDS = 5
SETTINGS = {
    "8 envs": Setting(8, 256, batch_size=64, n_epochs=10),
    "256 envs": Setting(256, 32, batch_size=2048, n_epochs=4),
    "4096 envs": Setting(4096, 16, batch_size=16384, n_epochs=4),
}
ITERATIONS = 10  # in a run of what is compiled; of Stable-Baselines3, one
NUM_SEEDS = 20


class Tables(Protocol):
    def add(self, table: str, rows: list[dict[str, Any]]) -> None: ...


def device() -> str:
    """Where PyTorch computes."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def jax_device() -> str:
    """Where JAX computes, in the words of the tables."""
    return "CPU" if jax.default_backend() == "cpu" else "GPU"


# --- Tests ------------------------------------------------------------------------------------------------------


def tests(tables: Tables, quick: bool) -> None:
    """The tests marked `gpu`.

    Raises:
      RuntimeError: one failed; or none ran, unless this is quick.
    """
    outcomes = _Outcomes(tables)
    pytest.main(["-m", "gpu", str(CHECKOUT / "tests" / "gpu"), "-p", "no:cacheprovider"], plugins=[outcomes])
    counts = {outcome: outcomes.seen.count(outcome) for outcome in dict.fromkeys(outcomes.seen)}
    if "failed" in counts or ("passed" not in counts and not quick):
        raise RuntimeError(", ".join(f"{count} {outcome}" for outcome, count in counts.items()) or "no test ran")


class _Outcomes:
    """A plugin of pytest that puts each test into the tables as soon as it ends."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.seen: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            self.seen.append(report.outcome)
            message = None if report.passed else report.longreprtext.strip().splitlines()[-1]
            row = {"test": report.nodeid.partition("::")[-1], "outcome": report.outcome, "seconds": report.duration}
            self.tables.add("tests", [row | {"message": message}])


# --- Stepping ---------------------------------------------------------------------------------------------------


def stepping(tables: Tables, quick: bool) -> None:
    """Compiled random rollouts, and one call from Python for each step."""
    for env_id in [ENV_ID] if quick else [ENV_ID, "Acrobot-v1", "Pendulum-v1"]:
        for num_envs in [64] if quick else [1024, 65536, 1_048_576]:
            num_steps = 8 if quick else max(32, raw_stepping.steps_that_fit(env_id, num_envs))
            actions = raw_stepping.draw_actions(env_id, num_steps, num_envs)
            limit = jaxenvs.spec(env_id).max_episode_steps
            ages = np.random.default_rng(1).integers(0, limit, num_envs, np.int32)
            functional = raw_stepping.jaxenvs_functional(env_id, num_envs, ages)
            sides = {
                "compiled, stacked": raw_stepping.compiled(functional, actions, stacked=True),
                "compiled, reduced": raw_stepping.compiled(functional, actions, stacked=False),
                "calls, NumPy out": raw_stepping.called(functional, actions[:32]),
            }
            timings = common.interleave(sides, 1 if quick else ROUNDS)
            about = {"env": env_id, "lanes": num_envs, "device": jax_device()}
            tables.add("stepping", [about | {"side": name} | timing.row() for name, timing in timings.items()])


def vec_env(tables: Tables, quick: bool) -> None:
    """`VecEnv.step`: NumPy in and out, and tensors that stay on the device."""
    for num_envs in [4] if quick else [8, 1024, 4096]:
        num_steps = 4 if quick else max(20, 2000 // num_envs)
        actions = np.random.default_rng(0).integers(0, 2, (num_steps, num_envs))
        venvs = {
            "JaxVecEnv.step": bridge.make_vec_env(ENV_ID, num_envs, seed=0),
            "JaxVecEnv.step_torch": bridge.make_vec_env(ENV_ID, num_envs, seed=0),
            "DummyVecEnv.step": make_vec_env(ENV_ID, num_envs, seed=0),
        }
        sides = {}
        for name, venv in venvs.items():
            venv.reset()
            steps: Any = actions if name != "JaxVecEnv.step_torch" else torch.as_tensor(actions, device=device())
            sides[name] = Side(functools.partial(_step_through, venv, steps), actions.size, lambda _: 0)
        timings = common.interleave(sides, 1 if quick else ROUNDS)
        for venv in venvs.values():
            venv.close()
        rows = [
            {"lanes": num_envs, "side": name, "device": jax_device() if "Jax" in name else "CPU"}
            | {"us_per_call": 1e6 * num_envs / timing.steps_per_second}
            for name, timing in timings.items()
        ]
        tables.add("vec_env", rows)


def _step_through(venv: Any, actions: Any) -> None:
    step = venv.step_torch if isinstance(actions, torch.Tensor) else venv.step
    for action in actions:
        step(action)
    if device() == "cuda":
        torch.cuda.synchronize()


# --- Training ---------------------------------------------------------------------------------------------------


def training(tables: Tables, quick: bool, which: str) -> None:
    """bridge.PPO, jaxenvs.learn and stock Stable-Baselines3, each with its policy on the CPU and on the GPU."""
    setting = trainings.QUICK if quick else SETTINGS[which]
    ours: dict[str, Any] = {}
    for where in dict.fromkeys(["cpu", device()]):
        ours[f"bridge.PPO, policy on the {where}"] = functools.partial(
            _model, functools.partial(bridge.PPO, engine="xla"), bridge.make_vec_env, setting, ITERATIONS, where
        )
    ours["jaxenvs.learn, one program"] = functools.partial(trainings.pure_training, setting, ITERATIONS)
    stock = {
        f"stock SB3 on a {name}, policy on the {where}": functools.partial(
            _model, stable_baselines3.PPO, make, setting, 1, where
        )
        for name, make in (("DummyVecEnv", make_vec_env), ("JaxVecEnv", bridge.make_vec_env))
        for where in dict.fromkeys(["cpu", device()])
    }
    _compare(tables, setting, ours | stock, quick)


def training_on_cpu(tables: Tables, quick: bool) -> None:
    """What the same machine's CPU makes of it, where this process has JAX there."""
    for setting in [trainings.QUICK] if quick else SETTINGS.values():
        sides = {
            "bridge.PPO, policy on the cpu": functools.partial(
                _model, functools.partial(bridge.PPO, engine="xla"), bridge.make_vec_env, setting, ITERATIONS, "cpu"
            ),
            "jaxenvs.learn, one program": functools.partial(trainings.pure_training, setting, ITERATIONS),
        }
        _compare(tables, setting, sides, quick)


def _model(algorithm: Any, make: Callable[..., VecEnv], setting: Setting, iterations: int, where: str) -> Training:
    venv, threads = make(ENV_ID, setting.n_envs, seed=0), torch.get_num_threads()
    compiles = algorithm is not stable_baselines3.PPO
    return trainings.model_training(algorithm, venv, setting, iterations, threads, compiles, device=where)


def _compare(tables: Tables, setting: Setting, sides: dict[str, Callable[[], Training]], quick: bool) -> None:
    """Time the sides in turns; one that fails is a row that says why."""
    prepared: dict[str, Training] = {}
    failed = []
    about = {"setting": str(setting), "JAX on the": jax_device()}
    for name, prepare in sides.items():
        try:
            prepared[name] = prepare()
        except Exception as error:
            reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            failed.append(about | {"side": name, "failed": reason})
    timings = common.interleave(
        {name: Side(each.run, each.iterations * setting.rollout, lambda _: 0) for name, each in prepared.items()},
        1 if quick else ROUNDS,
    )
    rows = [
        about
        | {"side": name, "ms_per_iteration": 1000 * setting.rollout / timing.steps_per_second}
        | {what: timing.row()[what] for what in ("steps_per_second", "slowest", "fastest")}
        | {"compile_seconds": prepared[name].compile_seconds}
        for name, timing in timings.items()
    ]
    tables.add("training", rows + failed)
    if failed:
        raise RuntimeError(f"{len(failed)} of {len(sides)} sides failed, the first with {failed[0]['failed']}")


# --- Many seeds, and phases ----------------------------------------------------------------------------------


def seeds(tables: Tables, quick: bool) -> None:
    """One training, and many of them by `vmap` in one program."""
    setting = trainings.QUICK if quick else SETTINGS["8 envs"]
    count = 2 if quick else NUM_SEEDS
    settings, steps = trainings.learner(setting, ITERATIONS), ITERATIONS * setting.rollout
    sides, compile_seconds = {}, {}
    keys = jax.random.split(jax.random.key(0), count)

    def train(key: jax.Array) -> Any:
        return learn.train(key, settings)

    for name, function, argument, num in (
        ("one seed", train, keys[0], 1),
        (f"{count} seeds, vmap", jax.vmap(train), keys, count),
    ):
        start = time.perf_counter()
        program = jax.jit(function).lower(argument).compile()
        compile_seconds[name] = time.perf_counter() - start
        sides[name] = Side(functools.partial(program, argument), num * steps, lambda _: 0)
    timings = common.interleave(sides, 1 if quick else ROUNDS)
    one = statistics.median(timings["one seed"].seconds)
    rows = []
    for name, timing in timings.items():
        seconds = statistics.median(timing.seconds)
        row = {"setting": str(setting), "device": jax_device(), "side": name, "seconds": seconds}
        row |= {"times_one_seed": seconds / one, "steps_per_second": timing.steps_per_second}
        rows.append(row | {"compile_seconds": compile_seconds[name]})
    tables.add("seeds", rows)


def phases(tables: Tables, quick: bool) -> None:
    """Collecting and learning as programs, and as SB3 does it: each phase of an iteration."""
    for setting in [trainings.QUICK] if quick else [SETTINGS["256 envs"], SETTINGS["4096 envs"]]:
        sides = {
            'bridge.PPO, engine="xla"': functools.partial(bridge.PPO, engine="xla"),
            "stock SB3": stable_baselines3.PPO,
        }
        models, clocks = {}, {}
        for name, algorithm in sides.items():
            venv = bridge.make_vec_env(ENV_ID, setting.n_envs, seed=0)
            models[name] = algorithm("MlpPolicy", venv, seed=0, device=device(), **setting.hyperparameters)
            clocks[name] = _Clocks(models[name])
        for _ in range(common.WARM_UP_ROUNDS + (1 if quick else ROUNDS)):
            for model in models.values():
                gc.collect()
                model.learn(setting.rollout, reset_num_timesteps=False)
        rows = [
            {"setting": str(setting), "side": name, "policy on the": device(), "JAX on the": jax_device()}
            | {f"{phase}_ms": 1000 * clock.median(phase) for phase in ("collect_rollouts", "train")}
            for name, clock in clocks.items()
        ]
        tables.add("phases", rows)


@dataclasses.dataclass
class _Clocks:
    """Around the two phases of a model's iterations."""

    model: Any

    def __post_init__(self) -> None:
        self.seconds: dict[str, list[float]] = {"collect_rollouts": [], "train": []}
        for phase in self.seconds:
            setattr(self.model, phase, functools.partial(self._timed, phase, getattr(self.model, phase)))

    def _timed(self, phase: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        result = function(*args, **kwargs)
        if device() == "cuda":
            torch.cuda.synchronize()
        self.seconds[phase].append(time.perf_counter() - start)
        return result

    def median(self, phase: str) -> float:
        """Of the seconds, but for the first runs."""
        return statistics.median(self.seconds[phase][common.WARM_UP_ROUNDS :])
