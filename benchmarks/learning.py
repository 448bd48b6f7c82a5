"""What training reaches: bridge beside stock SB3, with RL Baselines3 Zoo's hyper-parameters, over seeds.

    python -m benchmarks.learning [--envs CartPole-v1 ...] [--seeds 10] [--stock-seeds 10] [--quick]
    python -m benchmarks.learning --off-policy [--envs "sac Pendulum-v1" ...] ...

PPO; or off-policy algorithms, whose results are a file of their own, learning_off_policy.json. Each training is a
process of its own. What has ended is kept in runs/learning.jsonl, so that a run that was interrupted goes on where it
was; --fresh starts anew.
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
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback, EveryNTimesteps
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecEnv, VecNormalize, sync_envs_normalization

import bridge
from benchmarks import common
from bridge.app.hyperparameters import ALGORITHMS, NOISE, OFF_POLICY, SCHEDULED, TUNED, to_schedule
from bridge.app.runs import action_noise

# Environment -> environment steps of a training, and the return that the median seed should reach.
TASKS = {
    "CartPole-v1": (100_000, 500.0),
    "Acrobot-v1": (1_000_000, -80.0),
    "MountainCar-v0": (1_000_000, -115.0),
    "Pendulum-v1": (100_000, -180.0),
    # The Zoo's budget is a fifth of it.
    "MountainCarContinuous-v0": (100_000, 90.0),
    "LunarLander-v3": (1_000_000, 230.0),
    "BipedalWalker-v3": (5_000_000, 270.0),
}
# The same of algorithm and environment; the returns are those that the Zoo tells of one training each.
OFF_POLICY_TASKS = {
    "dqn CartPole-v1": (50_000, 500.0),
    "dqn Acrobot-v1": (100_000, -76.6),
    "dqn MountainCar-v0": (120_000, -100.8),
    "sac Pendulum-v1": (20_000, -157.0),
    "sac MountainCarContinuous-v0": (50_000, 94.7),
    "td3 Pendulum-v1": (20_000, -152.0),
    "td3 MountainCarContinuous-v0": (300_000, 93.5),
    "qrdqn CartPole-v1": (50_000, 500.0),
    "qrdqn Acrobot-v1": (100_000, -69.1),
    "tqc Pendulum-v1": (20_000, -151.0),
    # The Zoo tells of no training of it: what TQC reaches.
    "crossq Pendulum-v1": (20_000, -151.0),
}
OURS, STOCK = "bridge.PPO", "stock SB3"
OURS_OFF_POLICY = "bridge"
EVALUATIONS = 20  # in the course of a training
LANES = 20
EPISODES = {"during": 20, "after": 100}
QUICK_TIMESTEPS = 1024
RECORDS = Path(__file__).parent.parent / "runs" / "learning.jsonl"

NOTES = [
    "hyper-parameters: RL Baselines3 Zoo's (bridge/app/hyperparameters.py), the same for both sides, and so are the "
    "environments: bridge.make_vec_env, backend='jax'",
    "return: the mean of 100 deterministic episodes after the training, on fresh environments, with the statistics of "
    "the training's VecNormalize and rewards as they are; of it the median over seeds and the quartiles",
    f"threshold: first of {EVALUATIONS} evaluations (20 deterministic episodes each) that reaches the bar; its steps "
    "and CPU seconds are medians over seeds, empty if half of them never reached it",
    "CPU seconds: those that the process computed, so that what else the machine does changes them little; of the "
    "training alone, compilation included, imports and evaluations not; with one of PyTorch's threads",
]
OFF_POLICY_NOTE = (
    "bar: of the Zoo's one training each; what ours must reach is the first quartile of stock SB3's seeds, and both "
    "medians stand beside the bar"
)


@dataclasses.dataclass(frozen=True)
class Run:
    """One training."""

    env_id: str
    side: str
    seed: int
    total_timesteps: int
    algorithm: str = "ppo"

    @property
    def task(self) -> str:
        """Its key in TASKS or OFF_POLICY_TASKS."""
        return self.env_id if self.algorithm == "ppo" else f"{self.algorithm} {self.env_id}"


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
    is_off_policy, every = run.algorithm in OFF_POLICY, max(1, run.total_timesteps // EVALUATIONS)
    kind = EvaluationsAtSteps if is_off_policy else Evaluations
    evaluations = kind(lambda: mean_return(model, during, EPISODES["during"]), every)
    model.learn(run.total_timesteps, callback=EveryNTimesteps(every, evaluations) if is_off_policy else evaluations)
    evaluations.measure()
    result = mean_return(model, after, EPISODES["after"])
    return dataclasses.asdict(run) | {"curve": evaluations.curve, "mean_return": result}


def make_model(run: Run) -> BaseAlgorithm:
    """The model with the Zoo's hyper-parameters and environments."""
    settings = copy.deepcopy(TUNED[run.algorithm][run.env_id])  # constructors write into them
    n_envs, normalize = settings.pop("n_envs", 1), settings.pop("normalize", False)
    del settings["n_timesteps"]
    settings |= {name: to_schedule(settings[name]) for name in SCHEDULED if name in settings}
    env: VecEnv = bridge.make_vec_env(run.env_id, n_envs, seed=run.seed, backend="jax")
    if run.algorithm not in OFF_POLICY:
        # As SB3 cuts it, with a warning.
        settings["batch_size"] = min(settings.get("batch_size", 64), n_envs * settings["n_steps"])
    if "noise_type" in settings:
        settings["action_noise"] = action_noise(settings, env)
        settings = {name: value for name, value in settings.items() if name not in NOISE}
    if normalize:
        env = VecNormalize(env, gamma=settings["gamma"])
    arguments = {**settings, "seed": run.seed, "device": "cpu"}
    name = ALGORITHMS[run.algorithm]
    if run.side == STOCK:
        package = stable_baselines3 if hasattr(stable_baselines3, name) else sb3_contrib
        stock: BaseAlgorithm = getattr(package, name)("MlpPolicy", env, **arguments)
        return stock
    model: BaseAlgorithm = getattr(bridge, name)("MlpPolicy", env, engine="xla", **arguments)
    return model


def make_evaluation(run: Run, offset: int) -> VecEnv:
    """Environments that no training has seen."""
    env: VecEnv = bridge.make_vec_env(run.env_id, LANES, seed=run.seed + offset, backend="jax")
    if TUNED[run.algorithm][run.env_id].get("normalize"):
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
            # Of PPO's there are some that do not name it.
            fields = {field.name: record.get(field.name, field.default) for field in dataclasses.fields(Run)}
            done[Run(**fields)] = record
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
                name = f"{run.task}, {run.side}, seed {run.seed}"
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
    parser = common.Command(__doc__)
    parser.add_argument("--off-policy", action="store_true", help="DQN, SAC and TD3 in the place of PPO")
    tasks_help = "default: all; quick: the first. Off-policy, with the algorithm before it"
    parser.add_argument("--envs", nargs="+", choices=[*TASKS, *OFF_POLICY_TASKS], metavar="ENV", help=tasks_help)
    parser.add_argument("--seeds", type=int, help="of bridge; default 10; quick: 1")
    parser.add_argument("--stock-seeds", type=int, help=f"of {STOCK}; default 10; quick: 1")
    parser.add_argument("--processes", type=int, default=common.cores(), help="trainings at once; default: the cores")
    parser.add_argument("--fresh", action="store_true", help="forget the trainings that were done before")
    parser.add_argument("--records", type=Path, help="default runs/learning.jsonl; quick: forgotten afterwards")
    options = parser.options(argv)
    quick = options.quick
    tasks, ours = (OFF_POLICY_TASKS, OURS_OFF_POLICY) if options.off_policy else (TASKS, OURS)
    names = options.envs or (list(tasks)[:1] if quick else list(tasks))
    if not set(names) <= set(tasks):
        parser.error(f"--envs must be of {', '.join(tasks)}, got {', '.join(names)}.")
    counts = {ours: options.seeds, STOCK: options.stock_seeds}
    counts = {side: (1 if quick else 10) if count is None else count for side, count in counts.items()}
    path = options.records or (Path(tempfile.mkdtemp()) / "learning.jsonl" if quick else RECORDS)
    if options.fresh:
        path.unlink(missing_ok=True)

    settings: dict[str, Any] = {"envs": ", ".join(names), "processes": options.processes, "quick": quick}
    settings |= {f"seeds of {side}": count for side, count in counts.items()}
    notes = [*NOTES, OFF_POLICY_NOTE] if options.off_policy else NOTES
    report = common.Report("learning_off_policy" if options.off_policy else "learning", settings, notes)
    # Another number of steps is another run: quick ones do not stand for those of a full one.
    runs = []
    for seed in range(max(counts.values())):
        for name in names:
            algorithm, _, env_id = name.rpartition(" ")
            timesteps = (QUICK_TIMESTEPS if quick else tasks[name][0], algorithm or "ppo")
            runs += [Run(env_id, side, seed, *timesteps) for side in counts if seed < counts[side]]
    records = train_all(runs, path, options.processes)
    rows = []
    for name in names:
        bar, of_side = tasks[name][1], {}
        for side in counts:
            mine = [record for run, record in zip(runs, records) if (run.task, run.side) == (name, side)]
            if mine:
                rows.append(summarize(name, side, mine, bar))
                of_side[side] = (rows[-1], [record["mean_return"] for record in mine])
        if quick or ours not in of_side:
            continue
        row, returns = of_side[ours]
        what = f"{name}, {row['steps']} steps: median return of {len(returns)} seeds of {ours}"
        if not options.off_policy:
            report.require(what, row["median_return"], f">= {bar:g}", row["met"])
        elif STOCK in of_side:
            quartile = float(np.quantile(of_side[STOCK][1], 0.25))
            median = row["median_return"]
            report.require(what, median, f">= {quartile:.1f}, stock's first quartile", median >= quartile)
    report.add("learning", rows)
    report.content["runs"] = records
    report.finish(options)


if __name__ == "__main__":
    main()
