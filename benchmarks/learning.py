"""What training reaches: bridge beside stock SB3, with RL Baselines3 Zoo's hyper-parameters, over seeds.

    python -m benchmarks.learning [--table learning_contrib] [--tasks CartPole-v1 ...] [--seeds 10] [--quick]

PPO; with --table the off-policy algorithms and sb3-contrib's, of which each table is a file of its own. Tasks:
learning_tasks.py. Each training is a process of its own. What has ended is kept in runs/learning.jsonl, so that a run
that was interrupted goes on where it was; without that file it starts anew. --done makes the table of what there is.
"""

from __future__ import annotations

import concurrent.futures
import copy
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
import sb3_contrib
import stable_baselines3
import torch
from sb3_contrib.common.maskable.evaluation import evaluate_policy as evaluate_masked
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback, EveryNTimesteps
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecEnv, VecNormalize, sync_envs_normalization

import bridge
from benchmarks import common
from benchmarks.learning_tasks import PPO, STOCK, TABLES, Table, Task
from bridge.algorithms.specs import ALGORITHMS
from bridge.app.hyperparameters import NOISE, SCHEDULED, to_schedule
from bridge.app.runs import action_noise
from bridge.app.tuned import TUNED

EVALUATIONS = 20  # in the course of a training
LANES = 20
EPISODES = {"during": 20, "after": 100}
QUICK_TIMESTEPS = 1024
RECORDS = Path(__file__).parent.parent / "runs" / "learning.jsonl"

NOTES = [
    "return: the mean of 100 deterministic episodes after the training, on new environments, with the statistics of "
    "the training's VecNormalize and unnormalized rewards. The table has the median over the seeds, and the "
    "interquartile range.",
    f"threshold: the first of {EVALUATIONS} evaluations (20 deterministic episodes each) that reaches the target. Its "
    "steps and CPU seconds are medians over the seeds, and empty if half of the seeds never reached it.",
    "CPU seconds: the time that the process computed, which other load on the machine changes little. They cover the "
    "training only, with compilation and without imports and evaluations, on one PyTorch thread.",
]


@dataclasses.dataclass(frozen=True)
class Run:
    """One training."""

    env_id: str
    side: str
    seed: int
    total_timesteps: int
    algorithm: str = "ppo"

    @property
    def name(self) -> str:
        """Of its task."""
        return self.env_id if self.algorithm == "ppo" and self.env_id in PPO else f"{self.algorithm} {self.env_id}"

    @property
    def task(self) -> Task:
        return next(table.tasks[self.name] for table in TABLES.values() if self.name in table.tasks)

    @property
    def settings(self) -> dict[str, Any]:
        """A copy, because constructors write into them."""
        found = self.task.settings
        return copy.deepcopy(dict(TUNED[self.algorithm][self.env_id] if found is None else found))


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


class EvaluationsAtSteps(Evaluations):
    """For an EveryNTimesteps, which says beforehand at which steps it acts: between them programs run on."""

    def _on_rollout_start(self) -> None:
        pass

    def _on_step(self) -> bool:
        self.measure()
        return True


def train(run: Run) -> dict[str, Any]:
    """Train and evaluate: the run's fields, the `curve` of Evaluations and the `mean_return` after the training."""
    torch.set_num_threads(1)
    model = make_model(run)
    during, after = (make_evaluation(run, offset) for offset in (1000, 2000))
    above = run.task.success_above
    is_off_policy, every = ALGORITHMS[run.algorithm].is_off_policy, max(1, run.total_timesteps // EVALUATIONS)
    kind = EvaluationsAtSteps if is_off_policy else Evaluations
    evaluations = kind(lambda: mean_return(model, during, EPISODES["during"], above), every)
    model.learn(run.total_timesteps, callback=EveryNTimesteps(every, evaluations) if is_off_policy else evaluations)
    evaluations.measure()
    result = mean_return(model, after, EPISODES["after"], above)
    return dataclasses.asdict(run) | {"curve": evaluations.curve, "mean_return": result}


def make_model(run: Run) -> BaseAlgorithm:
    """The model with the Zoo's hyper-parameters and environments."""
    settings = run.settings
    n_envs, normalize = settings.pop("n_envs", 1), settings.pop("normalize", False)
    settings.pop("n_timesteps", None)
    settings |= {name: to_schedule(settings[name]) for name in SCHEDULED if name in settings}
    env = run.task.make_env(run.env_id, n_envs, run.seed)
    if not ALGORITHMS[run.algorithm].is_off_policy:
        # As SB3 cuts it, with a warning.
        settings["batch_size"] = min(settings.get("batch_size", 64), n_envs * settings["n_steps"])
    if "noise_type" in settings:
        settings["action_noise"] = action_noise(settings, env)
        settings = {name: value for name, value in settings.items() if name not in NOISE}
    if normalize:
        arguments = normalize if isinstance(normalize, dict) else {}
        env = VecNormalize(env, gamma=settings.get("gamma", 0.99), **arguments)
    arguments = {**settings, "seed": run.seed, "device": "cpu"}
    name = ALGORITHMS[run.algorithm].name
    if run.side == STOCK:
        package = stable_baselines3 if hasattr(stable_baselines3, name) else sb3_contrib
        stock: BaseAlgorithm = getattr(package, name)(run.task.policy, env, **arguments)
        return stock
    model: BaseAlgorithm = getattr(bridge, name)(run.task.policy, env, engine="xla", **arguments)
    return model


def make_evaluation(run: Run, offset: int) -> VecEnv:
    """Environments that no training has seen."""
    env = run.task.make_env(run.env_id, LANES, run.seed + offset)
    if normalize := run.settings.get("normalize"):
        arguments = {"norm_obs": True} if normalize is True else normalize
        env = VecNormalize(env, training=False, norm_reward=False, norm_obs=arguments["norm_obs"])
    return env


def mean_return(model: BaseAlgorithm, env: VecEnv, episodes: int, success_above: float | None = None) -> float:
    """Of deterministic episodes, with the present statistics of the training; or the share of those that succeed."""
    if isinstance(env, VecNormalize):
        training_env = model.get_env()
        assert training_env is not None
        sync_envs_normalization(training_env, env)
    if isinstance(model, sb3_contrib.MaskablePPO):  # whose function knows of legal actions
        returns, _ = evaluate_masked(model, env, episodes, return_episode_rewards=True)
    else:
        returns, _ = evaluate_policy(model, env, episodes, return_episode_rewards=True)
    return float(np.mean(returns if success_above is None else np.asarray(returns) > success_above))


def read(records: Path) -> dict[Run, dict[str, Any]]:
    """What is done."""
    if not records.exists():
        return {}
    found = map(json.loads, records.read_text().splitlines())
    return {Run(**{field.name: record[field.name] for field in dataclasses.fields(Run)}): record for record in found}


def train_all(runs: list[Run], records: Path, processes: int) -> list[dict[str, Any]]:
    """The results of the runs, from the file of records or made and put there."""
    done = read(records)
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
                what = f"{run.name}, {run.side}, seed {run.seed}"
                print(f"{what}: {record['mean_return']:.2f} in {record['curve'][-1][1]:.1f} s", flush=True)
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
        "all_seeds": " ".join(f"{value:.3g}" for value in sorted(returns)),
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
    parser = common.Command(__doc__)
    parser.add_argument("--table", choices=TABLES, default="learning", help="which; default: PPO's")
    tasks_help = "default: all of the table; quick: its first"
    parser.add_argument("--tasks", nargs="+", metavar="TASK", help=tasks_help)
    parser.add_argument("--seeds", type=int, help="of bridge; default 10; quick: 1")
    parser.add_argument("--stock-seeds", type=int, help=f"of {STOCK}; default 10; quick: 1")
    parser.add_argument("--processes", type=int, default=common.cores(), help="trainings at once; default: the cores")
    parser.add_argument("--done", action="store_true", help="train nothing: the table of what is done")
    parser.add_argument("--records", type=Path, help="default runs/learning.jsonl; quick: forgotten afterwards")
    options = parser.options(argv)
    quick = options.quick
    table: Table = TABLES[options.table]
    ours, names = table.ours, options.tasks or list(table.tasks)[: 1 if quick else None]
    if not set(names) <= set(table.tasks):
        parser.error(f"--tasks must be of {', '.join(table.tasks)}, got {', '.join(names)}.")
    counts = {ours: options.seeds, STOCK: options.stock_seeds}
    counts = {side: (1 if quick else 10) if count is None else count for side, count in counts.items()}
    path = options.records or (Path(tempfile.mkdtemp()) / "learning.jsonl" if quick else RECORDS)

    # Another number of steps is another run: quick ones do not stand for those of a full one.
    runs = []
    for seed in range(max(counts.values())):
        for name in names:
            algorithm, _, env_id = name.partition(" ") if " " in name else ("ppo", "", name)
            timesteps = QUICK_TIMESTEPS if quick else table.tasks[name].timesteps
            runs += [Run(env_id, side, seed, timesteps, algorithm) for side in counts if seed < counts[side]]
    if options.done:
        found = read(path)
        runs = [run for run in runs if run in found]

    settings: dict[str, Any] = {"tasks": ", ".join(names), "processes": options.processes, "quick": quick}
    settings |= {f"seeds of {side}": count for side, count in counts.items()}
    report = common.Report(options.table, settings, [*table.notes, *NOTES])
    records = train_all(runs, path, options.processes)
    rows = []
    for name in names:
        of_side = {}
        for side in counts:
            mine = [record for run, record in zip(runs, records) if (run.name, run.side) == (name, side)]
            if mine:
                rows.append(summarize(name, side, mine, table.tasks[name].bar))
                of_side[side] = [record["mean_return"] for record in mine]
        if not quick and ours in of_side:
            hold(report, table, name, of_side[ours], of_side.get(STOCK))
    report.add("learning", rows)
    report.finish(options)


def hold(report: common.Report, table: Table, name: str, ours: list[float], stock: list[float] | None) -> None:
    """The median of ours against the bar of a task: its own, or stock's, if there is one."""
    task, median = table.tasks[name], statistics.median(ours)
    what = f"{name}, {task.timesteps:,} steps: median return of {len(ours)} seeds of {table.ours}"
    if task.cannot:
        report.require(what, median, f"< {task.bar:g}", median < task.bar)
    elif task.absolute:
        report.require(what, median, f">= {task.bar:g}", median >= task.bar)
    elif stock:
        least, which = float(np.quantile(stock, table.quantile)), "first quartile" if table.quantile else "worst seed"
        report.require(what, median, f">= {least:.1f}, stock's {which}", median >= least)


if __name__ == "__main__":
    main()
