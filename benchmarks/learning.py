"""What training reaches: bridge.PPO beside stock SB3, with RL Baselines3 Zoo's hyper-parameters, over seeds.

    python -m benchmarks.learning [--envs CartPole-v1 ...] [--seeds 10] [--stock-seeds 10] [--quick]

Each training is a process of its own. What has ended is kept in runs/learning.jsonl, so that a run that was interrupted
goes on where it was; --fresh starts anew.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import stable_baselines3
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecEnv, VecNormalize, sync_envs_normalization

import bridge
from benchmarks import common
from jaxenvs.app.hyperparameters import SCHEDULED, TUNED, to_schedule

# Environment -> environment steps of a training, and the return that the median seed should reach.
TASKS = {
    "CartPole-v1": (100_000, 500.0),
    "Acrobot-v1": (1_000_000, -80.0),
    "MountainCar-v0": (1_000_000, -115.0),
    "Pendulum-v1": (100_000, -180.0),
    # The Zoo's budget is a fifth of it.
    "MountainCarContinuous-v0": (100_000, 90.0),
}
OURS, STOCK = "bridge.PPO", "stock SB3"
EVALUATIONS = 20  # in the course of a training
LANES = 20
EPISODES = {"during": 20, "after": 100}
RECORDS = Path(__file__).parent.parent / "runs" / "learning.jsonl"

NOTES = [
    "hyper-parameters: RL Baselines3 Zoo's (jaxenvs/app/hyperparameters.py), the same for both sides, and so are the "
    "environments: bridge.make_vec_env",
    "return: the mean of 100 deterministic episodes after the training, on fresh environments, with the statistics of "
    "the training's VecNormalize and rewards as they are; of it the median over seeds and the quartiles",
    f"threshold: first of {EVALUATIONS} evaluations (20 deterministic episodes each) that reaches the bar; its steps "
    "and CPU seconds are medians over seeds, empty if half of them never reached it",
    "CPU seconds: those that the process computed, so that what else the machine does changes them little; of the "
    "training alone, compilation included, imports and evaluations not; with one of PyTorch's threads",
]


@dataclasses.dataclass(frozen=True)
class Run:
    """One training."""

    env_id: str
    side: str
    seed: int
    total_timesteps: int


class Evaluations(BaseCallback):
    """Evaluates at regular intervals, between an update and the next rollout, with the clock of the training stopped.

    Attributes:
      curve: timesteps, CPU seconds of training and mean return, of every evaluation.
    """

    def __init__(self, evaluate: Callable[[], float], every: int) -> None:
        super().__init__()
        self.evaluate = evaluate
        self.every = every
        self.curve: list[tuple[int, float, float]] = []

    def measure(self) -> None:
        """Evaluate now."""
        stopped = time.process_time()
        timesteps = self.model.num_timesteps
        self.curve.append((timesteps, stopped - self._began, self.evaluate()))
        self._next = (timesteps // self.every + 1) * self.every
        self._began += time.process_time() - stopped

    def _on_training_start(self) -> None:
        self._began, self._next = time.process_time(), self.every

    def _on_rollout_start(self) -> None:
        if self.model.num_timesteps >= self._next:
            self.measure()

    def _on_step(self) -> bool:
        return True


def train(run: Run) -> dict[str, Any]:
    """Train and evaluate: the run's fields, the `curve` of Evaluations and the `mean_return` after the training."""
    torch.set_num_threads(1)
    model = make_model(run)
    during, after = (make_evaluation(run, offset) for offset in (1000, 2000))
    evaluations = Evaluations(
        lambda: mean_return(model, during, EPISODES["during"]), max(1, run.total_timesteps // EVALUATIONS)
    )
    model.learn(run.total_timesteps, callback=evaluations)
    evaluations.measure()
    result = mean_return(model, after, EPISODES["after"])
    return dataclasses.asdict(run) | {"curve": evaluations.curve, "mean_return": result}


def make_model(run: Run) -> BaseAlgorithm:
    """The model with the Zoo's hyper-parameters and environments."""
    settings = dict(TUNED["ppo"][run.env_id])
    n_envs, normalize = settings.pop("n_envs"), settings.pop("normalize", False)
    del settings["n_timesteps"]
    settings |= {name: to_schedule(settings[name]) for name in SCHEDULED if name in settings}
    # As SB3 cuts it, with a warning.
    settings["batch_size"] = min(settings.get("batch_size", 64), n_envs * settings["n_steps"])
    env: VecEnv = bridge.make_vec_env(run.env_id, n_envs, seed=run.seed)
    if normalize:
        env = VecNormalize(env, gamma=settings["gamma"])
    arguments = {**settings, "seed": run.seed, "device": "cpu"}
    if run.side == STOCK:
        return stable_baselines3.PPO("MlpPolicy", env, **arguments)
    model: BaseAlgorithm = bridge.PPO("MlpPolicy", env, engine="xla", **arguments)
    return model


def make_evaluation(run: Run, offset: int) -> VecEnv:
    """Environments that no training has seen."""
    env: VecEnv = bridge.make_vec_env(run.env_id, LANES, seed=run.seed + offset)
    if TUNED["ppo"][run.env_id].get("normalize"):
        env = VecNormalize(env, training=False, norm_reward=False)
    return env


def mean_return(model: BaseAlgorithm, env: VecEnv, episodes: int) -> float:
    """Of deterministic episodes, with the present statistics of the training."""
    if isinstance(env, VecNormalize):
        training_env = model.get_env()
        assert training_env is not None
        sync_envs_normalization(training_env, env)
    mean, _ = evaluate_policy(model, env, episodes, deterministic=True)
    return float(np.mean(mean))


def train_all(runs: list[Run], records: Path, processes: int) -> list[dict[str, Any]]:
    """The results of the runs, from the file of records or made and put there."""
    done: dict[Run, dict[str, Any]] = {}
    if records.exists():
        for record in map(json.loads, records.read_text().splitlines()):
            done[Run(**{field.name: record[field.name] for field in dataclasses.fields(Run)})] = record
    missing = [run for run in runs if run not in done]
    print(f"\n{len(runs) - len(missing)} of {len(runs)} trainings are done", flush=True)
    records.parent.mkdir(parents=True, exist_ok=True)
    # A new process for every training, so that each compiles its programs. Before one imports PyTorch: one thread.
    os.environ["OMP_NUM_THREADS"] = "1"
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(processes, context, max_tasks_per_child=1) as pool:
        futures = {pool.submit(train, run): run for run in missing}
        try:
            for future in concurrent.futures.as_completed(futures):
                run, record = futures[future], future.result()
                done[run] = record
                with records.open("a") as file:
                    file.write(json.dumps(record) + "\n")
                name = f"{run.env_id}, {run.side}, seed {run.seed}"
                print(f"{name}: {record['mean_return']:.2f} in {record['curve'][-1][1]:.1f} s", flush=True)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return [done[run] for run in runs]


def summarize(env_id: str, side: str, records: list[dict[str, Any]], bar: float) -> dict[str, Any]:
    """The row of a table: over the seeds of one side."""
    returns = [record["mean_return"] for record in records]
    low, median, high = np.quantile(returns, [0.25, 0.5, 0.75]).tolist()
    firsts = [first_at(record["curve"], bar) for record in records]
    steps, seconds = (statistics.median(values) for values in zip(*firsts, strict=True))
    return {
        "env": env_id,
        "side": side,
        "seeds": len(records),
        "steps": f"{records[0]['total_timesteps']:,}",
        "median_return": median,
        "interquartile_range": high - low,
        "worst_seed": min(returns),
        "bar": bar,
        "met": median >= bar,
        "steps_to_threshold": None if steps == float("inf") else steps,
        "cpu_seconds_to_threshold": None if seconds == float("inf") else seconds,
        "cpu_seconds": statistics.median(record["curve"][-1][1] for record in records),
    }


def first_at(curve: list[tuple[int, float, float]], threshold: float) -> tuple[float, float]:
    """Timesteps and seconds of the first evaluation that reached it; infinite if none did."""
    reached = ((timesteps, seconds) for timesteps, seconds, value in curve if value >= threshold)
    return next(reached, (float("inf"), float("inf")))


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", nargs="+", choices=list(TASKS), help="default: all; quick: CartPole-v1")
    parser.add_argument("--seeds", type=int, help=f"of {OURS}; default 10; quick: 1")
    parser.add_argument("--stock-seeds", type=int, help=f"of {STOCK}; default 10; quick: 1")
    parser.add_argument("--processes", type=int, default=common.cores(), help="trainings at once; default: the cores")
    parser.add_argument("--fresh", action="store_true", help="forget the trainings that were done before")
    parser.add_argument("--quick", action="store_true", help="a few steps, to see that it works")
    parser.add_argument("--output", type=Path, help="folder of the JSON file; default benchmarks/results; quick: none")
    parser.add_argument("--records", type=Path, help="default runs/learning.jsonl; quick: forgotten afterwards")
    options = parser.parse_args(argv)
    quick = options.quick
    env_ids = options.envs or (["CartPole-v1"] if quick else list(TASKS))
    counts = {OURS: options.seeds, STOCK: options.stock_seeds}
    defaults = {OURS: 1, STOCK: 1} if quick else {OURS: 10, STOCK: 10}
    counts = {side: defaults[side] if count is None else count for side, count in counts.items()}
    output = options.output or (None if quick else common.RESULTS)
    path = options.records or (Path(tempfile.mkdtemp()) / "learning.jsonl" if quick else RECORDS)
    if options.fresh:
        path.unlink(missing_ok=True)

    settings: dict[str, Any] = {"envs": " ".join(env_ids), "processes": options.processes, "quick": quick}
    settings |= {f"seeds of {side}": count for side, count in counts.items()}
    report = common.Report("learning", settings, NOTES)
    # Another number of steps is another run: quick ones do not stand for those of a full one.
    timesteps = {env_id: 1024 if quick else TASKS[env_id][0] for env_id in env_ids}
    runs = [
        Run(env_id, side, seed, timesteps[env_id])
        for seed in range(max(counts.values()))
        for env_id in env_ids
        for side in counts
        if seed < counts[side]
    ]
    records = train_all(runs, path, options.processes)
    rows = []
    for env_id in env_ids:
        bar = TASKS[env_id][1]
        for side in counts:
            mine = [record for run, record in zip(runs, records) if (run.env_id, run.side) == (env_id, side)]
            if mine:
                rows.append(summarize(env_id, side, mine, bar))
            if mine and side == OURS and not quick:
                row = rows[-1]
                what = f"{env_id}, {row['steps']} steps: median return of {len(mine)} seeds of {OURS}"
                report.require(what, row["median_return"], f">= {bar:g}", row["met"])
    report.add("learning", rows)
    report.content["runs"] = records
    report.finish(output)


if __name__ == "__main__":
    main()
