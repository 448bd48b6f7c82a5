"""What a Stable-Baselines3 script gains: JaxVecEnv beside SB3's VecEnvs and EnvPool, on CartPole-v1.

    python -m benchmarks.vec_env [--lanes 8 1024] [--parts steps ppo memory] [--quick]

steps: `VecEnv.step` alone. ppo: an iteration of stock SB3 PPO, collection and update apart. memory: what a million
steps leave behind.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import gc
import math
import multiprocessing
import statistics
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv

import bridge
from benchmarks import common
from benchmarks.common import Side
from benchmarks.memory import resident_megabytes

ENV_ID = "CartPole-v1"
LANES = (8, 64, 1024, 4096)
# In one run of the slowest side. A run of a fast side takes them again and again, for at least so long: the first
# steps after another side had its turn are slower than those of a program that does nothing else.
STEPS = {8: 1000, 64: 300, 1024: 40, 4096: 15}
SHORTEST_RUN_SECONDS = 0.25
PARTS = ("steps", "ppo", "memory")
MOST_PROCESSES = 64

OURS, MONITORED, BARE, PROCESSES, POOL = (
    "JaxVecEnv",
    "DummyVecEnv with Monitor",
    "DummyVecEnv",
    "SubprocVecEnv with Monitor",
    "EnvPool adapter",
)

NOTES = [
    "every VecEnv gets the same actions (ppo: the same policy to begin with) and returns NumPy arrays and a list of "
    "infos; they take turns, after a warm-up; figures are of the median run",
    "all but the bare DummyVecEnv tell the return and length of an episode that ended, as Monitor does",
    "SB3's make_vec_env gives what is called DummyVecEnv with Monitor here",
    "EnvPool resets in the step after the end; its adapter resets the ended lanes at once, as SB3 wants it",
    "`import bridge` makes JAX run programs in the calling thread (jax_cpu_enable_async_dispatch = False), for all of "
    "this process",
]


class EnvPoolVecEnv(VecEnv):
    """EnvPool as SB3 wants a VecEnv: resets within the step, and infos as JaxVecEnv's.

    EnvPool by itself returns the first observation of the next episode one step later, for an action that it
    ignores and a reward of 0. Here one further call resets all lanes that ended, so that no such step is seen.
    """

    def __init__(self, envpool: ModuleType, env_id: str, num_envs: int, seed: int = 0) -> None:
        threads = min(common.cores(), num_envs)
        self.pool = envpool.make(env_id, env_type="gymnasium", num_envs=num_envs, num_threads=threads, seed=seed)
        self.start = time.time()
        super().__init__(num_envs, self.pool.observation_space, self.pool.action_space)

    def reset(self) -> np.ndarray:
        self.returns, self.lengths = np.zeros(self.num_envs), np.zeros(self.num_envs, np.int32)
        observation, _ = self.pool.reset()
        return observation

    def step_async(self, actions: np.ndarray) -> None:
        self.pool.send(np.asarray(actions))

    def step_wait(self) -> Any:
        observation, reward, terminated, truncated, _ = self.pool.recv()
        done = terminated | truncated
        self.returns += reward
        self.lengths += 1
        infos: list[dict[str, Any]] = [{"TimeLimit.truncated": False} for _ in range(self.num_envs)]
        ended = done.nonzero()[0].astype(np.int32)
        if ended.size:
            seconds = round(time.time() - self.start, 6)
            returns, lengths = self.returns[ended].round(6).tolist(), self.lengths[ended].tolist()
            for row, lane in enumerate(ended.tolist()):
                infos[lane] = {
                    "TimeLimit.truncated": bool(truncated[lane] and not terminated[lane]),
                    "episode": {"r": returns[row], "l": lengths[row], "t": seconds},
                    "terminal_observation": observation[lane].copy(),
                }
            observation[ended], _ = self.pool.reset(ended)
            self.returns[ended], self.lengths[ended] = 0, 0
        return observation, reward, done, infos

    def close(self) -> None:
        self.pool.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        if attr_name != "render_mode":
            raise AttributeError(attr_name)
        return [None] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise NotImplementedError

    def env_method(self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any) -> list[Any]:
        raise NotImplementedError

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        return [issubclass(wrapper_class, Monitor)] * self.num_envs


def make_vec_envs(
    names: list[str], num_envs: int, envpool: ModuleType | None, closing: contextlib.ExitStack
) -> dict[str, VecEnv]:
    """The VecEnvs of these names, as far as there are any. All are closed with `closing`, whatever happens."""
    makers: dict[str, Callable[[], VecEnv]] = {
        OURS: lambda: bridge.make_vec_env(ENV_ID, num_envs, seed=0),
        MONITORED: lambda: make_vec_env(ENV_ID, num_envs, seed=0),
        BARE: lambda: DummyVecEnv([lambda: gymnasium.make(ENV_ID)] * num_envs),
        PROCESSES: lambda: make_vec_env(ENV_ID, num_envs, seed=0, vec_env_cls=SubprocVecEnv),
        POOL: lambda: EnvPoolVecEnv(envpool, ENV_ID, num_envs),
    }
    venvs = {}
    for name in names:
        if name == POOL and envpool is None:
            continue
        if name == PROCESSES and num_envs > MOST_PROCESSES:
            print(f"\nskipped: {PROCESSES} with {num_envs} lanes, because each lane would be a process")
            continue
        venvs[name] = makers[name]()
        closing.callback(venvs[name].close)
    return venvs


def time_steps(
    report: common.Report, num_envs: int, steps: int, shortest: float, rounds: int, envpool: ModuleType | None
) -> None:
    """`VecEnv.step` and nothing else, in runs of at least `shortest` seconds."""
    actions = np.random.default_rng(0).integers(0, 2, (steps, num_envs))

    def side(venv: VecEnv) -> Side:
        def run(repeats: int) -> int:
            ends = 0
            for _ in range(repeats):
                for action in actions:
                    _, _, done, _ = venv.step(action)
                    ends += int(np.count_nonzero(done))
            return ends

        venv.reset()
        run(1)
        start = time.perf_counter()
        run(1)
        repeats = max(1, math.ceil(shortest / (time.perf_counter() - start)))
        return Side(lambda: run(repeats), repeats * steps * num_envs, int)

    with contextlib.ExitStack() as closing:
        venvs = make_vec_envs([OURS, MONITORED, BARE, PROCESSES, POOL], num_envs, envpool, closing)
        timings = common.interleave({name: side(venv) for name, venv in venvs.items()}, rounds)
    report.add(
        "steps",
        [
            {"lanes": num_envs, "vec_env": name, "steps_in_a_run": timing.steps // num_envs}
            | timing.row()
            | {"us_per_call": 1e6 * num_envs / timing.steps_per_second}
            for name, timing in timings.items()
        ],
    )
    if at_least := {8: 2, 1024: 20, 4096: 40}.get(num_envs):
        for other in (MONITORED, BARE):
            ratio = timings[OURS].steps_per_second / timings[other].steps_per_second
            report.bar(f"VecEnv.step, {num_envs} lanes: {OURS} / {other}", ratio, at_least)


class TimedPPO(PPO):
    """SB3's PPO, with a clock around its two phases."""

    def collect_rollouts(self, *args: Any, **kwargs: Any) -> bool:
        start = time.perf_counter()
        goes_on = super().collect_rollouts(*args, **kwargs)
        self.collection_seconds = time.perf_counter() - start
        return goes_on

    def train(self) -> None:
        start = time.perf_counter()
        super().train()
        self.update_seconds = time.perf_counter() - start


def time_ppo(
    report: common.Report, num_envs: int, num_steps: int, batch_size: int, rounds: int, envpool: ModuleType | None
) -> None:
    """Iterations of stock PPO, one of each side in turns. The first of each is not counted."""
    with contextlib.ExitStack() as closing:
        names = [OURS, MONITORED, POOL] if num_envs > 8 else [OURS, MONITORED, PROCESSES, POOL]
        models = {
            name: TimedPPO("MlpPolicy", venv, n_steps=num_steps, batch_size=batch_size, seed=0, device="cpu")
            for name, venv in make_vec_envs(names, num_envs, envpool, closing).items()
        }
        collection: dict[str, list[float]] = {name: [] for name in models}
        update: dict[str, list[float]] = {name: [] for name in models}
        for count in range(rounds + 1):
            for name, model in models.items():
                gc.collect()
                model.learn(num_envs * num_steps, reset_num_timesteps=False)
                if count:
                    collection[name].append(model.collection_seconds)
                    update[name].append(model.update_seconds)
    rows = [
        {
            "settings": f"{num_envs} lanes x {num_steps} steps, batch {batch_size}",
            "vec_env": name,
            "collection_ms": 1000 * statistics.median(collection[name]),
            "update_ms": 1000 * statistics.median(update[name]),
            "steps_per_second": num_envs
            * num_steps
            / statistics.median(map(sum, zip(collection[name], update[name], strict=True))),
        }
        for name in models
    ]
    report.add("ppo", rows)
    if num_envs == 1024:
        ratio = statistics.median(collection[MONITORED]) / statistics.median(collection[OURS])
        report.bar(f"PPO collection, {num_envs} x {num_steps}: {OURS} / {MONITORED}", ratio, 8)


def memory_after(checkpoints: list[int]) -> list[float]:
    """Megabytes after so many steps of eight lanes each."""
    venv = bridge.make_vec_env(ENV_ID, 8, seed=0)
    actions = np.random.default_rng(0).integers(0, 2, (1000, 8))
    venv.reset()
    megabytes, count = [], 0
    for checkpoint in checkpoints:
        while count < checkpoint:
            venv.step(actions[count % 1000])
            count += 1
        gc.collect()
        megabytes.append(resident_megabytes())
    return megabytes


def measure_memory(report: common.Report, steps: int) -> None:
    """In a process of its own, where nothing freed before can hide what is lost."""
    checkpoints = [steps // 100, steps // 10, steps]
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as process:
        megabytes = process.submit(memory_after, checkpoints).result()
    report.add(
        "memory",
        [
            {"vec_env": OURS, "lanes": 8, "calls_of_step": str(calls), "resident_MB": size}
            for calls, size in zip(checkpoints, megabytes, strict=True)
        ],
    )
    growth = megabytes[-1] - megabytes[0]
    what = f"memory that {checkpoints[0]} to {checkpoints[-1]} calls of step add [MB]"
    report.require(what, growth, "<= 50", growth <= 50)


def main(argv: list[str] | None = None) -> None:
    parser = common.Command(__doc__, parts=PARTS, rounds=9, quick_rounds=2)
    parser.add_argument("--lanes", type=int, nargs="+", help=f"of the part `steps`; default {LANES}; quick: 8")
    parser.add_argument("--torch-threads", type=int, help="of the part `ppo`; default: PyTorch's own choice")
    parser.add_argument("--memory-steps", type=int, help="default 1,000,000; quick: 2,000")
    options = parser.options(argv)
    lanes = options.lanes or ([8] if options.quick else list(LANES))
    rounds = options.rounds

    # SubprocVecEnv's processes are forked from one that has imported what they need.
    multiprocessing.set_forkserver_preload(["__main__", "stable_baselines3.common.vec_env"])
    if options.torch_threads:
        torch.set_num_threads(options.torch_threads)
    settings = {
        "env": ENV_ID,
        "lanes": lanes,
        "parts": options.parts,
        "rounds": rounds,
        "torch_threads": torch.get_num_threads(),
        "quick": options.quick,
    }
    report = common.Report("vec_env", settings, NOTES)
    envpool = common.peer("envpool")
    if "steps" in options.parts:
        for num_envs in lanes:
            steps = 10 if options.quick else STEPS.get(num_envs, max(10, 40_000 // num_envs))
            shortest = 0.0 if options.quick else SHORTEST_RUN_SECONDS
            time_steps(report, num_envs, steps, shortest, rounds, envpool)
    if "ppo" in options.parts:
        for num_envs, num_steps, batch_size in [(4, 8, 32)] if options.quick else [(8, 256, 64), (1024, 16, 1024)]:
            time_ppo(report, num_envs, num_steps, batch_size, rounds, envpool)
    if "memory" in options.parts:
        measure_memory(report, options.memory_steps or (2_000 if options.quick else 1_000_000))
    report.finish(options)


if __name__ == "__main__":
    main()
