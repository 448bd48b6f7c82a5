"""Compare environment steps per second with other libraries: `VecEnv.step` from Python, and compiled rollouts.

    python -m benchmarks.stepping [--parts vec_env compiled] [--num-envs 8 1024] [--quick]

vec_env: one call per step, NumPy in and out, of JaxVecEnv, SB3's VecEnvs and EnvPool, on CartPole-v1. compiled: one
compiled function scans over actions drawn beforehand, resets episodes that end, and keeps the whole trajectory. It is
compared with gymnax, which a full run installs in a separate virtual environment, .bench/gymnax, if it is missing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import math
import multiprocessing
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

import jaxenvs
from benchmarks import common
from benchmarks.common import Side
from benchmarks.peers import client

ENV_ID = "CartPole-v1"
ENVS = (ENV_ID, "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1")
NUM_ENVS = {"vec_env": (8, 64, 1024, 4096), "compiled": (64, 1024, 8192, 65536)}
# Of a rollout in each environment, and of all environments together, so that the trajectory takes at most 100 MB.
MAX_STEPS, MAX_STEPS_OF_ALL = 1000, 3_000_000
# Of all environments of a VecEnv together, in one run of the slowest side. A run of a fast side takes them again and
# again, for at least so long: the first steps after another side had its turn are slower than the others.
STEPS_OF_ALL, SHORTEST_RUN_SECONDS = 20_000, 0.25
MOST_PROCESSES = 64

OURS, MONITORED, BARE = "JaxVecEnv", "DummyVecEnv with Monitor", "DummyVecEnv"
PROCESSES, POOL = "SubprocVecEnv with Monitor", "EnvPool adapter"

NOTES = [
    "Every side gets the same actions, which are random and drawn beforehand. Every side resets the episodes that end. "
    "The sides take turns after a warm-up, and figures are from the median run.",
    "vec_env: every VecEnv except the bare DummyVecEnv reports the return and length of an episode that ended, as "
    "Monitor does. DummyVecEnv with Monitor is what SB3's make_vec_env returns.",
    "EnvPool resets in the step after the end. Its adapter, a GymVecEnv, resets the ended environments at once, as SB3 "
    "expects.",
    "compiled: jaxenvs and gymnax start with episodes of random ages, the same in both, so that not all environments "
    "reach a time limit at once. Both are compiled with JAX's defaults. jaxenvs also counts the returns and lengths of "
    "episodes.",
]


# --- From Python ------------------------------------------------------------------------------------------------


def make_vec_envs(num_envs: int, envpool: ModuleType | None) -> dict[str, Any]:
    """Create the available VecEnvs, by name."""
    # Here, because the environment of gymnax has no PyTorch.
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    import bridge

    venvs: dict[str, Any] = {
        OURS: bridge.make_vec_env(ENV_ID, num_envs, seed=0),
        MONITORED: make_vec_env(ENV_ID, num_envs, seed=0),
        BARE: DummyVecEnv([lambda: gymnasium.make(ENV_ID)] * num_envs),
    }
    if num_envs <= MOST_PROCESSES:
        venvs[PROCESSES] = make_vec_env(ENV_ID, num_envs, seed=0, vec_env_cls=SubprocVecEnv)
    else:
        print(f"\nskipped: {PROCESSES} with {num_envs} environments, because each would be a process")
    if envpool is not None:
        threads = min(common.cores(), num_envs)
        pool = envpool.make(ENV_ID, env_type="gymnasium", num_envs=num_envs, num_threads=threads, seed=0)
        venvs[POOL] = bridge.GymVecEnv(pool)
    return venvs


def steps_of(venv: Any, actions: np.ndarray, shortest: float) -> Side:
    """Return `VecEnv.step` and nothing else, with all actions (steps, num_envs) in turns, for `shortest` seconds."""

    def run(repeats: int) -> None:
        for _ in range(repeats):
            for action in actions:
                venv.step(action)

    venv.reset()
    run(1)
    start = time.perf_counter()
    run(1)
    repeats = max(1, math.ceil(shortest / (time.perf_counter() - start)))
    return Side(lambda: run(repeats), repeats * actions.size)


def time_vec_envs(report: common.Report, num_envs: int, envpool: ModuleType | None) -> None:
    """Measure the steps of all VecEnvs in turns."""
    quick = report.options.quick
    steps = 10 if quick else max(10, STEPS_OF_ALL // num_envs)
    actions = np.random.default_rng(0).integers(0, 2, (steps, num_envs))
    with contextlib.ExitStack() as closing:
        sides = {}
        for name, venv in make_vec_envs(num_envs, envpool).items():
            closing.callback(venv.close)
            sides[name] = steps_of(venv, actions, 0.0 if quick else SHORTEST_RUN_SECONDS)
        timings = common.interleave(sides, report.options.rounds)
    rows = [
        {"num_envs": num_envs, "vec_env": name}
        | timing.row()
        | {"us_per_call": 1e6 * num_envs / timing.steps_per_second}
        for name, timing in timings.items()
    ]
    report.add("vec_env", rows)
    if at_least := {8: 2, 1024: 20, 4096: 40}.get(num_envs):
        for other in (MONITORED, BARE):
            ratio = timings[OURS].steps_per_second / timings[other].steps_per_second
            report.bar(f"VecEnv.step, {num_envs} environments: {OURS} / {other}", ratio, at_least)


# --- In one compiled function -----------------------------------------------------------------------------------


class Functional(NamedTuple):
    """A functional vectorized environment.

    Attributes:
      start: makes the first carry. Every call makes a new one, which may be donated.
      step: from (carry, actions of one step) to (carry, (observation, reward, done)).
    """

    start: Callable[[], Any]
    step: Callable[[Any, Any], tuple[Any, tuple[Any, ...]]]


def jaxenvs_functional(env_id: str, num_envs: int) -> Functional:
    """The jaxenvs side."""
    venv = jaxenvs.make_vec(env_id, num_envs)

    @jax.jit
    def start() -> Any:
        state, _ = venv.reset(jax.random.key(0))
        return state.replace(env_states=dataclasses.replace(state.env_states, elapsed_steps=ages(env_id, num_envs)))

    def step(state: Any, action: Any) -> Any:
        state, timestep = venv.step(state, action)
        return state, (timestep.observation, timestep.reward, timestep.done)

    return Functional(start, step)


def gymnax_functional(gymnax: ModuleType, env_id: str, num_envs: int) -> Functional:
    """The gymnax side, as its documentation shows: one key for each environment and step, and its own auto-reset."""
    env, params = gymnax.make(env_id)

    @jax.jit
    def start() -> Any:
        key, reset_key = jax.random.split(jax.random.key(0))
        _, state = jax.vmap(env.reset, in_axes=(0, None))(jax.random.split(reset_key, num_envs), params)
        return key, state.replace(time=ages(env_id, num_envs))

    def step(carry: Any, action: Any) -> Any:
        key, state = carry
        key, step_key = jax.random.split(key)
        step_all = jax.vmap(env.step, in_axes=(0, 0, 0, None))
        observation, state, reward, *flags, _ = step_all(jax.random.split(step_key, num_envs), state, action, params)
        return (key, state), (observation, reward, functools.reduce(jnp.logical_or, flags))

    return Functional(start, step)


def ages(env_id: str, num_envs: int) -> jax.Array:
    """Return the ages of all episodes at the beginning of a run, int32."""
    limit = jaxenvs.spec(env_id).max_episode_steps
    return jnp.asarray(np.random.default_rng(1).integers(0, limit, num_envs, np.int32))


def compiled(side: Functional, actions: np.ndarray) -> Side:
    """Return one compiled function that takes all steps. Each run continues where the one before stopped."""
    roll = jax.jit(lambda carry, actions: jax.lax.scan(side.step, carry, actions))
    carry, on_device = side.start(), jnp.asarray(actions)

    def run() -> Any:
        nonlocal carry
        carry, outputs = roll(carry, on_device)
        return outputs

    return Side(run, actions.shape[0] * actions.shape[1])


def draw_actions(env_id: str, num_steps: int, num_envs: int) -> np.ndarray:
    """Random actions, (num_steps, num_envs, *shape of an action), int32 or float32."""
    space, random = jaxenvs.make(env_id).action_space, np.random.default_rng(0)
    if isinstance(space, gymnasium.spaces.Discrete):
        return random.integers(0, space.n, (num_steps, num_envs), np.int32)
    return random.uniform(space.low, space.high, (num_steps, num_envs, *space.shape)).astype(np.float32)


def time_compiled(report: common.Report, env_id: str, num_envs: int, gymnax: ModuleType | None) -> None:
    """Measure random rollouts in all environments."""
    num_steps = min(50 if report.options.quick else MAX_STEPS, MAX_STEPS_OF_ALL // num_envs)
    actions = draw_actions(env_id, num_steps, num_envs)
    functionals = {"jaxenvs": jaxenvs_functional(env_id, num_envs)}
    if gymnax is not None:
        functionals["gymnax"] = gymnax_functional(gymnax, env_id, num_envs)
    sides = {name: compiled(functional, actions) for name, functional in functionals.items()}
    timings = common.interleave(sides, report.options.rounds)
    report.add(
        "compiled",
        [{"env": env_id, "num_envs": num_envs, "side": name} | timing.row() for name, timing in timings.items()],
    )
    if gymnax is not None and num_envs in (1024, 65536):
        ratio = timings["jaxenvs"].steps_per_second / timings["gymnax"].steps_per_second
        report.bar(f"{env_id}, {num_envs} environments: jaxenvs / gymnax", ratio, 3 if env_id == ENV_ID else 2)


def main(argv: list[str] | None = None) -> None:
    parser = common.Command(__doc__, parts=tuple(NUM_ENVS), rounds=9)
    parser.add_argument("--num-envs", type=int, nargs="+", help=f"default {NUM_ENVS}; quick: 8")
    options = parser.options(argv)
    quick, parts = options.quick, options.parts

    python = client.interpreter("gymnax", install=True) if "compiled" in parts and not quick else None
    if python is not None and Path(sys.prefix).resolve() != python.parent.parent.resolve():
        given = sys.argv[1:] if argv is None else argv
        # The last one counts of an option that is given twice.
        subprocess.run([python, "-m", "benchmarks.stepping", *given, "--parts", "compiled"], check=True)
        parts = [part for part in parts if part != "compiled"]
        if not parts:
            return

    if "vec_env" in parts:
        importlib.import_module("bridge")  # before JAX runs: then compiled functions run in the calling thread
    report = common.Report("stepping", NOTES, options)
    if "vec_env" in parts:
        # SubprocVecEnv's processes are forked from one that has imported what they need.
        multiprocessing.set_forkserver_preload(["__main__", "stable_baselines3.common.vec_env"])
        envpool = common.peer("envpool")
        for num_envs in options.num_envs or ([8] if quick else NUM_ENVS["vec_env"]):
            if not report.has("vec_env", num_envs=num_envs):
                time_vec_envs(report, num_envs, envpool)
    if "compiled" in parts:
        gymnax = common.peer("gymnax")
        for env_id in [ENV_ID] if quick else ENVS:
            for num_envs in options.num_envs or ([8] if quick else NUM_ENVS["compiled"]):
                if not report.has("compiled", env=env_id, num_envs=num_envs):
                    time_compiled(report, env_id, num_envs, gymnax)
    report.finish()


if __name__ == "__main__":
    main()
