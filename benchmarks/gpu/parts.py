"""The tests and benchmarks of a GPU: a function for each part, which adds rows to tables."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np
import pytest
import stable_baselines3
import torch
from stable_baselines3.common.env_util import make_vec_env

import bridge
from benchmarks import common
from benchmarks import stepping as rollouts
from benchmarks import training as trainings
from benchmarks.common import Side
from benchmarks.peers.worker import Setting, Training
from jaxenvs import learn

CHECKOUT = Path(__file__).parent.parent.parent
ENV_ID = "CartPole-v1"
ROUNDS = 5
SETTINGS = {
    "8 envs": trainings.SMALL,
    "256 envs": trainings.LARGE,
    "4096 envs": Setting(4096, 16, batch_size=16384, n_epochs=4),
}
ITERATIONS = 10  # in a run of what is compiled; of Stable-Baselines3, one
NUM_SEEDS, NUM_STEPS = 20, 50


class Tables(Protocol):
    def add(self, table: str, rows: list[dict[str, Any]]) -> None: ...


def device() -> str:
    """Return the device on which PyTorch computes."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def jax_device() -> str:
    """Return the device on which JAX computes, as the tables name it."""
    return "CPU" if jax.default_backend() == "cpu" else "GPU"


def tests(tables: Tables, quick: bool) -> None:
    """The tests marked `gpu`.

    Raises:
      RuntimeError: one failed, or none was run, as where this process has no GPU and all would be skipped.
    """
    if not quick and (device(), jax_device()) != ("cuda", "GPU"):
        raise RuntimeError(f"PyTorch computes on {device()} in this process, JAX on the {jax_device()}")
    status = pytest.main(["-m", "gpu", str(CHECKOUT / "tests" / "gpu"), "-p", "no:cacheprovider", "-rA"])
    tables.add("tests", [{"pytest": pytest.ExitCode(status).name}])
    if status != pytest.ExitCode.OK and not (quick and status == pytest.ExitCode.NO_TESTS_COLLECTED):
        raise RuntimeError(f"pytest ended with {pytest.ExitCode(status).name}; see above")


def stepping(tables: Tables, quick: bool, env_ids: Sequence[str], nums_envs: Sequence[int]) -> None:
    """Compiled random rollouts."""
    for env_id in env_ids:
        for num_envs in [4] if quick else nums_envs:
            actions = rollouts.draw_actions(env_id, 2 if quick else NUM_STEPS, num_envs)
            side = rollouts.compiled(rollouts.jaxenvs_functional(env_id, num_envs), actions)
            [timing] = common.interleave({"": side}, 1 if quick else ROUNDS).values()
            tables.add("stepping", [{"env": env_id, "num_envs": num_envs, "device": jax_device()} | timing.row()])


def vec_env(tables: Tables, quick: bool) -> None:
    """`VecEnv.step`: NumPy in and out, and tensors that stay on the device."""
    for num_envs in [4] if quick else [8, 1024, 4096]:
        num_steps = 4 if quick else max(20, 2000 // num_envs)
        actions = np.random.default_rng(0).integers(0, 2, (num_steps, num_envs))
        sides = {}
        for name, make in (
            ("JaxVecEnv.step", bridge.make_vec_env),
            ("JaxVecEnv.step_torch", bridge.make_vec_env),
            ("DummyVecEnv.step", make_vec_env),
        ):
            venv = make(ENV_ID, num_envs, seed=0)
            venv.reset()
            steps: Any = torch.as_tensor(actions, device=device()) if "torch" in name else actions
            sides[name] = Side(functools.partial(_step_through, venv, steps), actions.size)
        timings = common.interleave(sides, 1 if quick else ROUNDS)
        rows = [
            {"num_envs": num_envs, "side": name, "device": jax_device() if "Jax" in name else "CPU"}
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


def training(tables: Tables, quick: bool, names: Sequence[str], on_cpu: bool = False) -> None:
    """Our sides in turns, with the policy on either device, and stock SB3.

    Args:
      names: in SETTINGS.
      on_cpu: measure only our sides, on the CPU of the same machine, if this process has JAX there.
    """
    where = dict.fromkeys(["cpu", "cpu" if on_cpu else device()])
    for setting in [trainings.QUICK] if quick else [SETTINGS[name] for name in names]:
        pure = functools.partial(trainings.pure_training, setting, ITERATIONS)
        sides: dict[str, Callable[[], Training]] = {"jaxenvs.learn, one compiled function": pure}
        for at in where:
            xla = functools.partial(bridge.PPO, engine="xla")
            ours = functools.partial(_model, xla, bridge.make_vec_env, setting, ITERATIONS, at)
            sides[f"bridge.PPO, policy on the {at}"] = ours
        for name, make in (("DummyVecEnv", make_vec_env), ("JaxVecEnv", bridge.make_vec_env)):
            for at in () if on_cpu else where:
                stock = functools.partial(_model, stable_baselines3.PPO, make, setting, 1, at)
                sides[f"stock SB3 on a {name}, policy on the {at}"] = stock
        _compare(tables, setting, sides, quick)


def _model(algorithm: Any, make: Callable[..., Any], setting: Setting, iterations: int, where: str) -> Training:
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
    rows = trainings.time_trainings(prepared, setting, 1 if quick else ROUNDS)
    tables.add("training", [about | row for row in rows] + failed)
    if failed:
        raise RuntimeError(f"{len(failed)} of {len(sides)} sides failed, the first with {failed[0]['failed']}")


def seeds(tables: Tables, quick: bool) -> None:
    """Measure one training, and many trainings by `vmap` in one compiled function."""
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
        compiled = jax.jit(function).lower(argument).compile()
        compile_seconds[name] = time.perf_counter() - start
        sides[name] = Side(functools.partial(compiled, argument), num * steps)
    timings = common.interleave(sides, 1 if quick else ROUNDS)
    one = statistics.median(timings["one seed"].seconds)
    rows = []
    for name, timing in timings.items():
        seconds = statistics.median(timing.seconds)
        row = {"setting": str(setting), "device": jax_device(), "side": name, "seconds": seconds}
        row |= {"times_one_seed": seconds / one, "steps_per_second": timing.steps_per_second}
        rows.append(row | {"compile_seconds": compile_seconds[name]})
    tables.add("seeds", rows)
