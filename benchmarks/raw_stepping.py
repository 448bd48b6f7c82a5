"""How many environment steps a second: compiled rollouts and single calls, beside gymnax, EnvPool and Gymnasium.

    python -m benchmarks.raw_stepping [--lanes 64 1024] [--envs CartPole-v1] [--quick]

Compiled: one program scans over actions drawn beforehand and resets episodes that end. It returns the observation,
reward and done of every step ("stacked"), or their sums for every lane ("reduced").
Calls: one call from Python for each step, whose outputs are kept as NumPy arrays.

A full run takes place in the environment of gymnax, .bench/gymnax, which it installs if it is missing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

import jaxenvs
from benchmarks import common
from benchmarks.common import Side, Timing
from benchmarks.peers import client

ENVS = ("CartPole-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1")
LANES = (64, 1024, 8192, 65536)
MAX_TRAJECTORY_BYTES = 100e6
MAX_STEPS, MAX_CALLS = 1000, 256
MAX_CALLED_STEPS = 1_000_000  # over all lanes, in a run of calls: EnvPool takes a second or two for them
SLOW_LANES = 64  # SyncVectorEnv is not timed with more lanes than these

NOTES = [
    "every side gets the same actions, random and drawn beforehand; episodes that end are reset in all of them",
    "steps/s are environment steps over all lanes, of the median run; the sides take turns, after two runs to warm up",
    "bridge is not imported, so that JAX's default dispatch applies, to jaxenvs and gymnax alike",
    "jaxenvs and gymnax start with episodes of random ages, the same in both, lest all lanes reach a time limit at "
    "once; EnvPool and Gymnasium cannot: their ends come in waves where only the limit ends an episode",
    "jaxenvs and gymnax are compiled with JAX's defaults; jaxenvs also counts the returns and lengths of episodes",
    "EnvPool and Gymnasium reset in the step after the end, jaxenvs and gymnax within it",
]

# From (carry, actions of one step) to (carry, arrays: observation, reward, and one or two flags).
Step = Callable[[Any, Any], tuple[Any, tuple[Any, ...]]]


@dataclasses.dataclass
class Functional:
    """A functional environment with `num_envs` lanes.

    Attributes:
      start: makes the first carry. Every call makes a new one, which may be donated.
      step: returns observation, reward and done.
      step_flags: returns observation, reward and the flags that there are.
    """

    start: Callable[[], Any]
    step: Step
    step_flags: Step


def jaxenvs_functional(env_id: str, num_envs: int, ages: np.ndarray) -> Functional:
    """The jaxenvs side, in episodes that are `ages` steps old."""
    venv = jaxenvs.make_vec(env_id, num_envs)

    @jax.jit
    def start() -> Any:
        state, _ = venv.reset(jax.random.key(0))
        return state.replace(lanes=dataclasses.replace(state.lanes, elapsed_steps=jnp.asarray(ages)))

    def step(state: Any, action: Any) -> Any:
        state, timestep = venv.step(state, action)
        return state, (timestep.observation, timestep.reward, timestep.done)

    def step_flags(state: Any, action: Any) -> Any:
        state, timestep = venv.step(state, action)
        return state, (timestep.observation, timestep.reward, timestep.terminated, timestep.truncated)

    return Functional(start, step, step_flags)


def gymnax_functional(gymnax: ModuleType, env_id: str, num_envs: int, ages: np.ndarray) -> Functional:
    """The gymnax side, in the way its documentation shows: one key for each lane and step, and its own auto-reset."""
    env, params = gymnax.make(env_id)

    @jax.jit
    def start() -> Any:
        key, reset_key = jax.random.split(jax.random.key(0))
        _, state = jax.vmap(env.reset, in_axes=(0, None))(jax.random.split(reset_key, num_envs), params)
        return key, state.replace(time=jnp.asarray(ages))

    def step(carry: Any, action: Any) -> Any:
        key, state = carry
        key, step_key = jax.random.split(key)
        keys = jax.random.split(step_key, num_envs)
        step_all = jax.vmap(env.step, in_axes=(0, 0, 0, None))
        observation, state, reward, *flags, _ = step_all(keys, state, action, params)
        return (key, state), (observation, reward, *flags)

    def step_done(carry: Any, action: Any) -> Any:
        carry, (observation, reward, *flags) = step(carry, action)
        return carry, (observation, reward, functools.reduce(jnp.logical_or, flags))

    return Functional(start, step_done, step)


def compiled(side: Functional, actions: np.ndarray, stacked: bool) -> Side:
    """One program that takes all the steps. Each run goes on where the one before stopped."""

    def stack(carry: Any, actions: Any) -> Any:
        return jax.lax.scan(side.step, carry, actions)

    def reduce(carry: Any, actions: Any) -> Any:
        def step(carry: Any, action: Any) -> Any:
            carry, sums = carry
            carry, outputs = side.step(carry, action)
            return (carry, tuple(total + leaf for total, leaf in zip(sums, outputs))), None

        _, shapes = jax.eval_shape(side.step, carry, actions[0])
        zeros = tuple(jnp.zeros(leaf.shape, jnp.int32 if leaf.dtype == bool else leaf.dtype) for leaf in shapes)
        carry, _ = jax.lax.scan(step, (carry, zeros), actions)
        return carry

    program = jax.jit(stack if stacked else reduce)
    carry, on_device = side.start(), jnp.asarray(actions)

    def run() -> Any:
        nonlocal carry
        carry, outputs = program(carry, on_device)
        return outputs

    return Side(run, actions.shape[0] * actions.shape[1], lambda outputs: int(np.sum(outputs[-1])))


def called(side: Functional, actions: np.ndarray) -> Side:
    """One call of a compiled step for each step."""
    program = jax.jit(side.step_flags, donate_argnums=0)
    carry = side.start()

    def step(action: np.ndarray) -> tuple[np.ndarray, ...]:
        nonlocal carry
        carry, outputs = program(carry, action)
        return tuple(np.asarray(leaf) for leaf in outputs)

    return stepped(step, actions)


def stepped(step: Callable[[np.ndarray], tuple[Any, ...]], actions: np.ndarray) -> Side:
    """One call from Python for each step; what the calls return is kept."""

    def ends(outputs: list[tuple[Any, ...]]) -> int:
        return sum(int(np.logical_or.reduce(flags).sum()) for _, _, *flags in outputs)

    return Side(lambda: [step(action) for action in actions], actions.shape[0] * actions.shape[1], ends)


def make_sides(
    env_id: str,
    num_envs: int,
    actions: np.ndarray,
    calls: int,
    gymnax: ModuleType | None,
    envpool: ModuleType | None,
    closing: contextlib.ExitStack,
) -> dict[str, Side]:
    """All sides there are for an environment. The names start with "compiled" or "calls"."""
    ages = np.random.default_rng(1).integers(0, jaxenvs.spec(env_id).max_episode_steps, num_envs, np.int32)
    functional = {"jaxenvs": jaxenvs_functional(env_id, num_envs, ages)}
    if gymnax is not None:
        functional["gymnax"] = gymnax_functional(gymnax, env_id, num_envs, ages)
    sides = {f"compiled, stacked: {name}": compiled(side, actions, True) for name, side in functional.items()}
    sides |= {f"compiled, reduced: {name}": compiled(side, actions, False) for name, side in functional.items()}

    actions = actions[:calls]
    sides |= {f"calls: {name}": called(side, actions) for name, side in functional.items()}
    if envpool is not None:
        for what, offset in (("a thread for each core", -1), ("the same, pinned", 0)):
            pool = envpool.make(
                env_id,
                env_type="gymnasium",
                num_envs=num_envs,
                batch_size=num_envs,
                num_threads=min(common.cores(), num_envs),
                thread_affinity_offset=offset,
                seed=0,
            )
            closing.callback(pool.close)
            pool.reset()
            sides[f"calls: EnvPool, {what}"] = stepped(lambda action, pool=pool: pool.step(action)[:4], actions)
    modes = ["vector_entry_point"] if gymnasium.spec(env_id).vector_entry_point else []
    if num_envs <= SLOW_LANES:
        modes.append("sync")
    for mode in modes:
        vector = gymnasium.make_vec(env_id, num_envs, vectorization_mode=mode)
        closing.callback(vector.close)
        vector.reset(seed=0)
        sides[f"calls: Gymnasium, {mode}"] = stepped(lambda action, vector=vector: vector.step(action)[:4], actions)
    return sides


def draw_actions(env_id: str, num_steps: int, num_envs: int) -> np.ndarray:
    """Random actions, (num_steps, num_envs, *shape of an action), int32 or float32."""
    space, random = jaxenvs.make(env_id).action_space, np.random.default_rng(0)
    if isinstance(space, gymnasium.spaces.Discrete):
        return random.integers(0, space.n, (num_steps, num_envs), np.int32)
    return random.uniform(space.low, space.high, (num_steps, num_envs, *space.shape)).astype(np.float32)


def steps_that_fit(env_id: str, num_envs: int) -> int:
    """So many that a stacked trajectory stays small beside the memory of any machine."""
    env = jaxenvs.make(env_id)
    action_and_reward, done = 8, 1
    bytes_per_step = num_envs * (4 * int(np.prod(env.observation_space.shape)) + action_and_reward + done)
    return int(min(MAX_STEPS, MAX_TRAJECTORY_BYTES // bytes_per_step))


def hold_against_bars(report: common.Report, env_id: str, num_envs: int, timings: dict[str, Timing]) -> None:
    """Add the ratios that have a bar."""
    speeds = {name: timing.steps_per_second for name, timing in timings.items()}
    for form in ("stacked", "reduced"):
        ours, theirs = f"compiled, {form}: jaxenvs", f"compiled, {form}: gymnax"
        if num_envs in (1024, 65536) and theirs in speeds:
            at_least = 3 if env_id == "CartPole-v1" else 2
            report.bar(f"{env_id}, {num_envs} lanes: {ours} / gymnax", speeds[ours] / speeds[theirs], at_least)


def warn_of_different_work(timings: dict[str, Timing]) -> None:
    """Say so where jaxenvs and gymnax see very different numbers of episodes end."""
    for form in ("stacked", "reduced"):
        ours, theirs = (timings.get(f"compiled, {form}: {name}") for name in ("jaxenvs", "gymnax"))
        few, many = sorted([ours.ends, theirs.ends]) if ours and theirs else (0, 0)
        if many > 50 and many > 2 * few:
            print(f"WARNING: the sides do different work, episode ends ({form}): {ours.ends} and {theirs.ends}")


def main(argv: list[str] | None = None) -> None:
    parser = common.Command(__doc__, rounds=9, quick_rounds=2)
    parser.add_argument("--lanes", type=int, nargs="+", help=f"default {LANES}; quick: 64")
    parser.add_argument("--envs", nargs="+", help=f"default {ENVS}; quick: {ENVS[0]}")
    options = parser.options(argv)
    lanes = options.lanes or ([64] if options.quick else list(LANES))
    envs = options.envs or ([ENVS[0]] if options.quick else list(ENVS))
    rounds = options.rounds

    python = None if options.quick else client.interpreter("gymnax", install=True)
    if python is not None and Path(sys.prefix).resolve() != python.parent.parent.resolve():
        command = [python, "-m", "benchmarks.raw_stepping", *(sys.argv[1:] if argv is None else argv)]
        sys.exit(subprocess.run(command, check=False).returncode)

    settings = {"envs": envs, "lanes": lanes, "rounds": rounds, "quick": options.quick}
    report = common.Report("raw_stepping", settings, NOTES)
    gymnax, envpool = common.peer("gymnax"), common.peer("envpool")
    for env_id in envs:
        for num_envs in lanes:
            num_steps = min(50 if options.quick else MAX_STEPS, steps_that_fit(env_id, num_envs))
            calls = min(num_steps, MAX_CALLS, max(10, MAX_CALLED_STEPS // num_envs))
            actions = draw_actions(env_id, num_steps, num_envs)
            with contextlib.ExitStack() as closing:
                sides = make_sides(env_id, num_envs, actions, calls, gymnax, envpool, closing)
                timings = common.interleave(sides, rounds)
            report.add(
                "stepping",
                [
                    {"env": env_id, "lanes": num_envs, "side": name, "steps_in_a_run": sides[name].steps // num_envs}
                    | timing.row()
                    for name, timing in timings.items()
                ],
            )
            warn_of_different_work(timings)
            hold_against_bars(report, env_id, num_envs, timings)
    report.finish(options)


if __name__ == "__main__":
    main()
