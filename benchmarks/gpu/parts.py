"""The parts of `make gpu`: functions that write each row as soon as it is measured, the most telling rows first."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import functools
import importlib
import importlib.util
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import stable_baselines3
import torch
from stable_baselines3.common.env_util import make_vec_env

import bridge
import jaxenvs
from benchmarks import stepping, training
from benchmarks.cells import FLAT, PICTURES, make_cell, named_cells, quick_cells
from benchmarks.common import CHECKOUT
from benchmarks.never_slower import SHORTEST_RUN_SECONDS
from benchmarks.peers.cell import GYMNASIUM, JAX, OURS, SBX, STOCK, Cell
from benchmarks.peers.client import Worker
from benchmarks.peers.worker import Setting, Side
from jaxenvs import learn
from jaxenvs.compilation import compiler_options, faults

SECONDS, MOST_RUNS = 3.0, 5  # of the timed runs of a side
ITERATIONS = 10

CELLS = {
    "ppo": [
        Cell("PPO", FLAT[0], GYMNASIUM, 1, 512),
        *(make_cell("PPO", FLAT[0], kind, 8) for kind in (GYMNASIUM, JAX)),
        Cell("PPO", FLAT[0], JAX, 1024, 16, settings={"batch_size": 2048}),
    ],
    "others": [
        make_cell("A2C", FLAT[0], GYMNASIUM, 8),
        *(make_cell("DQN", FLAT[0], kind, 1) for kind in (GYMNASIUM, JAX)),
        *(make_cell("SAC", "MlpPolicy 256-256, Pendulum-v1", kind, 1) for kind in (GYMNASIUM, JAX)),
    ],
    "pictures": [make_cell("DQN", PICTURES[0], GYMNASIUM, 1), *named_cells()],
}
SETTINGS = [Setting(n_envs, 16, batch_size=4 * n_envs, n_epochs=4) for n_envs in (2048, 4096, 32768)]
SEEDS = (1, 64, 1024)
OFF_POLICY = {
    "SAC Pendulum-v1": ("Pendulum-v1", learn.SAC, learn.SACPolicy),
    "DQN CartPole-v1": ("CartPole-v1", learn.DQN, learn.DQNPolicy),
}


@dataclasses.dataclass
class Rows:
    """File of rows, each of which is on disk as soon as it is added.

    Attributes:
      path: a row of JSON in each line.
      table: of the rows that are added.
      quick: whether sizes are tiny, and each side runs once.
      num_failed: the sides that failed, except for libraries that are not installed.
    """

    path: Path
    table: str
    quick: bool = False
    num_failed: int = 0

    def add(self, **row: Any) -> None:
        line = json.dumps({"table": self.table, **row})
        with self.path.open("a") as file:
            file.write(f"{line}\n")
        print(line, flush=True)

    def time(self, run: Callable[[], Any], count: int, unit: str = "steps", **about: Any) -> float:
        """Time a side after a warm-up, add its row, and return how many units it does per second in the median run.

        Args:
          run: does the work; what it returns is waited for.
          count: units in one run.
          about: further columns.
        """
        jax.block_until_ready(run())
        seconds: list[float] = []
        while not seconds or (not self.quick and len(seconds) < MOST_RUNS and sum(seconds) < SECONDS):
            start = time.perf_counter()
            jax.block_until_ready(run())
            seconds.append(time.perf_counter() - start)
        speed = count / statistics.median(seconds)
        self.add(**about, **{f"{unit}_per_second": speed, "runs": len(seconds)})
        return speed

    @contextlib.contextmanager
    def side(self, **about: Any) -> Iterator[None]:
        """Run a side, so that its error is a row, and the other sides run."""
        try:
            yield
        except Exception as error:
            self.num_failed += not isinstance(error, ImportError)
            what = "skipped" if isinstance(error, ImportError) else "failed"
            self.add(**about, **{what: f"{type(error).__name__}: {str(error)[:200]}"})


def devices() -> list[str]:
    """Return the devices of PyTorch."""
    return ["cuda", "cpu"] if torch.cuda.is_available() else ["cpu"]


def miscompilations(rows: Rows) -> None:
    """Run the reproducers of XLA's faults, which count wrong results."""
    for find in (faults.count_wrong_sums, faults.count_wrong_rows, faults.count_wrong_shifts,
                 faults.count_wrong_slices, faults.copies_in_loops):  # fmt: skip
        with rows.side(reproducer=find.__name__):
            rows.add(reproducer=find.__name__, found=int(find()))


def tests(rows: Rows) -> None:
    """Run the tests marked `gpu`.

    Raises:
      RuntimeError: a test failed, or no test ran, as without a GPU.
    """

    class Outcomes:
        def pytest_runtest_logreport(self, report: Any) -> None:
            if report.when == "call" or not report.passed:
                rows.add(test=report.nodeid.partition("::")[2], outcome=report.outcome, seconds=report.duration)

    options = ["-m", "gpu", str(CHECKOUT / "tests" / "gpu"), "-p", "no:cacheprovider"]
    status = pytest.main([*options, *(["--collect-only"] if rows.quick else [])], plugins=[Outcomes()])
    if status != pytest.ExitCode.OK:
        raise RuntimeError(f"pytest ended with {pytest.ExitCode(status).name}; see above")


def cells(rows: Rows, name: str) -> None:
    """Compare scripts with `bridge` and `device="auto"` with stock SB3 on each device, and with SBX if it is there."""
    sides = {OURS: (OURS, "auto"), **{f"{STOCK}, {device}": (STOCK, device) for device in reversed(devices())}}
    if importlib.util.find_spec(SBX.lower()) is not None:
        sides[SBX] = (SBX, "auto")
    with contextlib.ExitStack() as closing, concurrent.futures.ThreadPoolExecutor() as pool:
        workers: dict[str, tuple[Worker, int]] = {}

        def begin(name: str, cell: Cell) -> Any:
            side, device = sides[name]
            if name not in workers:
                worker = closing.enter_context(Worker("benchmarks.peers.cell"))
                workers[name] = worker, worker.ask(do="load", side=side, environments=JAX)["threads"]
            placed = dataclasses.replace(cell, settings=cell.settings | {"device": device})
            return workers[name][0].ask(do="begin", cell=dataclasses.asdict(placed))

        for cell in quick_cells()[:1] if rows.quick else CELLS[name]:
            has_sbx = cell.algorithm in ("SAC", "DQN") and cell.environments == GYMNASIUM and not cell.has_images
            names = [name for name in sides if name != SBX or has_sbx]
            futures = {name: pool.submit(begin, name, cell) for name in names}
            concurrent.futures.wait(futures.values())
            speeds: dict[str, float] = {}
            for name, future in futures.items():
                with rows.side(cell=str(cell), side=name):
                    try:
                        begun, (worker, most) = future.result(), workers[name]
                        count = 1 if rows.quick else math.ceil(SHORTEST_RUN_SECONDS / begun["iteration_seconds"])
                        threads = most if cell.has_images else 1
                        run = functools.partial(worker.ask, do="run", iterations=count, threads=threads)
                        about = {"first_seconds": begun["first_seconds"], "plan": begun["plan"].replace("\n", "; ")}
                        speeds[name] = rows.time(run, count * cell.rollout, cell=str(cell), side=name, **about)
                    except Exception:
                        workers.pop(name, None)  # the next cell gets another process
                        raise
            stock = [speed for name, speed in speeds.items() if name.startswith(STOCK)]
            if stock and OURS in speeds:
                rows.add(cell=str(cell), side=f"{OURS} / the faster {STOCK}", times=speeds[OURS] / max(stock))


def ppo(rows: Rows) -> None:
    """Train PPO with many environments, in one compiled function, beside other libraries."""
    for setting in [training.QUICK] if rows.quick else SETTINGS:
        _time_training(rows, training.pure_training, setting, side=training.PURE)
        for name, module in training.PEERS.items():
            with rows.side(setting=str(setting), side=name):
                prepare = functools.partial(importlib.import_module(module).prepare, compiler_options={})
                _time_training(rows, prepare, setting, side=name)


def _time_training(rows: Rows, prepare: Callable[..., Side], setting: Setting, **about: Any) -> None:
    about = {"setting": str(setting), **about}
    with rows.side(**about):
        side = prepare(setting, iterations=ITERATIONS)
        rows.time(side.run, side.steps, **about, compile_seconds=side.compile_seconds)


def off_policy(rows: Rows) -> None:
    """Train SAC and DQN in compiled functions; `cells` has the same through Stable-Baselines3."""
    count = 20 if rows.quick else 2000
    for what, (env_id, algorithm, policy) in OFF_POLICY.items():
        for n_envs in (1,) if rows.quick else (1, 64):
            with rows.side(what=what, n_envs=n_envs):
                venv = jaxenvs.make_vec(env_id, n_envs)
                settings = algorithm(learning_starts=100, buffer_size=100_000)
                task = learn.Training(venv, policy.of(venv.env), settings, total_timesteps=10**9)
                rows.time(_advancing(task, count), count, "iterations", what=what, n_envs=n_envs)


def _advancing(task: learn.Training, count: int) -> Callable[[], None]:
    advance = jax.jit(learn.advance, static_argnums=2, donate_argnums=1, compiler_options=compiler_options())
    state = task.init(jax.random.key(0))

    def run() -> None:
        nonlocal state
        state, _ = jax.block_until_ready(advance(task, state, count))

    return run


def seeds(rows: Rows) -> None:
    """Train many seeds by `vmap` in one compiled function."""
    setting = training.QUICK if rows.quick else training.SMALL
    task = training.learner(setting, ITERATIONS)
    for count in (1, 2) if rows.quick else SEEDS:
        with rows.side(seeds=count):
            keys, start = jax.random.split(jax.random.key(0), count), time.perf_counter()
            compiled = jax.jit(jax.vmap(lambda key: learn.train(key, task))).lower(keys).compile()
            seconds, steps = time.perf_counter() - start, count * ITERATIONS * setting.rollout
            rows.time(functools.partial(compiled, keys), steps, seeds=count, compile_seconds=seconds)


def games(rows: Rows) -> None:
    """Train in MinAtar, and step LunarLander, whose step is a loop of 180 rounds."""
    prepare = functools.partial(training.pure_training, env_id="MinAtar/Breakout-v1")
    _time_training(rows, prepare, training.QUICK if rows.quick else SETTINGS[0], what="learn.PPO MinAtar/Breakout-v1")
    n_envs, n_steps = (4, 2) if rows.quick else (4096, 20)
    with rows.side(what="steps of LunarLander-v3"):
        actions = stepping.draw_actions("LunarLander-v3", n_steps, n_envs)
        side = stepping.compiled(stepping.jaxenvs_functional("LunarLander-v3", n_envs), actions)
        rows.time(side.run, side.steps, what=f"steps of {n_envs} LunarLander-v3")


def calls(rows: Rows) -> None:
    """Time calls from Python: `VecEnv.step`, `predict`, and both in turns, with NumPy arrays and with tensors."""
    for n_envs in (4,) if rows.quick else (1, 8, 1024):
        env, host = (make("CartPole-v1", n_envs, seed=0) for make in (bridge.make_vec_env, make_vec_env))
        observation, actions, _ = env.reset(), np.zeros(n_envs, np.int64), host.reset()
        functions = {"JaxVecEnv.step": functools.partial(env.step, actions)}
        functions["DummyVecEnv.step"] = functools.partial(host.step, actions)
        for device in devices():
            settings = {"n_steps": 16, "batch_size": 16 * n_envs, "seed": 0, "device": device}
            stock, ours = (package.PPO("MlpPolicy", env, **settings) for package in (stable_baselines3, bridge))
            tensor, acts = torch.as_tensor(observation, device=device), torch.as_tensor(actions, device=device)
            functions |= {
                f"step_torch, {device}": functools.partial(env.step_torch, acts),
                f"predict(array), {device}": functools.partial(ours.predict, observation),
                f"predict(array) of {STOCK}, {device}": functools.partial(stock.predict, observation),
                f"predict(tensor), {device}": functools.partial(ours.predict, tensor),
                f"predict(tensor) and step_torch, {device}": functools.partial(_act_in, env, ours, tensor),
                f"predict(array) of {STOCK} and step, {device}": functools.partial(_act_in, env, stock, observation),
            }
        for name, function in functions.items():
            with rows.side(call=name, n_envs=n_envs):
                # `predict` is compiled beside its second hundred calls.
                _repeat(function, 250 if "predict" in name and not rows.quick else 1)
                count = 1 + int(0.1 / (_repeat(function, 5) / 5))
                rows.time(functools.partial(_repeat, function, count), count, "calls", call=name, n_envs=n_envs)


def _act_in(env: Any, model: Any, observation: Any) -> None:
    actions, _ = model.predict(observation)
    (env.step_torch if isinstance(actions, torch.Tensor) else env.step)(actions)


def _repeat(function: Callable[[], Any], count: int) -> float:
    """Call a function, and return the seconds that all calls took."""
    start = time.perf_counter()
    for _ in range(count):
        function()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start
