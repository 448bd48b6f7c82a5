"""Compare the returns that bridge and stock SB3 reach, with RL Baselines3 Zoo's hyperparameters and several seeds.

    python -m benchmarks.learning [--tasks "sac Pendulum-v1" ...] [--seeds 10] [--done] [--quick]

learning_tasks.py has the tasks. Each training is a separate process. Trainings that have ended are kept in
results/learning.jsonl, so a run makes only those that are missing. --done makes the table of what is there.

Of the first 320 trainings, only the table was kept: the file has their returns with three digits, seeds in the order of
the returns, and the row's median or null as CPU seconds.
"""

from __future__ import annotations

import collections
import concurrent.futures
import copy
import dataclasses
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import sb3_contrib
import scipy.stats
import stable_baselines3
import torch
from sb3_contrib.common.maskable.evaluation import evaluate_policy as evaluate_masked
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecEnv, VecNormalize, sync_envs_normalization

import bridge
from benchmarks import common
from benchmarks.learning_tasks import GYMNASIUM, OURS, STOCK, TASKS, Task
from bridge.algorithms.specs import ALGORITHMS
from bridge.app.hyperparameters import NOISE, SCHEDULED, to_schedule
from bridge.app.runs import action_noise
from bridge.app.tuned import TUNED

ENVS, EPISODES = 20, 100
QUICK_TIMESTEPS = 1024
RECORDS = common.RESULTS / "learning.jsonl"

NOTES = [
    "All sides have the same hyperparameters, which are RL Baselines3 Zoo's (bridge/app/tuned.toml); "
    "benchmarks/learning_tasks.py has the hyperparameters of MaskablePPO and of hindsight, for which the Zoo has none. "
    "bridge and "
    f"stock SB3 train in JAX environments from bridge.make_vec_env, and {GYMNASIUM} in Gymnasium's. On HalfCheetah and "
    "Hopper, bridge trains in EnvPool's environments (backend='native') and stock SB3 in Gymnasium's.",
    f"return: the mean of {EPISODES} deterministic episodes after the training, in new environments, with the "
    "statistics of the training's VecNormalize and unnormalized rewards. IQM is the interquartile mean over the seeds.",
    "difference: of the IQM from stock SB3's, with its 95 % bootstrap interval (20,000 resamples; Agarwal et al. 2021, "
    "Deep Reinforcement Learning at the Edge of the Statistical Precipice).",
    "verdict: equal if the interval lies within the margin, which is 5 % of the range between random actions and the "
    "best agents that are known; better or worse if it does not and excludes 0; not worse if it only lies above minus "
    "the margin; else undecided. With three seeds or fewer, no interval is made.",
    "seeds needed: an estimate for sides that do not differ. With this many seeds a side, half of all comparisons have "
    "the verdict equal. The returns of both sides are resampled together. Nothing is shown above 5,120 seeds.",
    "CPU seconds: the time that the process computed for the training, with compilation and without imports and "
    "evaluation, on one PyTorch thread; median over the seeds. Other load on the machine changes it little. If the "
    "trainings of a row were made on several machines, the CPU seconds are of the machine that made most of them.",
    "without velocities: both velocities are 0, as in the Zoo's MaskVelocityWrapper. PPO has its settings for "
    "CartPole-v1.",
    "BitFlipping: an action flips one of 15 bits. The return is the share of episodes that succeed within 15 steps.",
    "qrdqn LunarLander-v3: stock SB3's first training had not ended after 106 CPU minutes, and was stopped. bridge's "
    "takes 13 on the same machine.",
]


@dataclasses.dataclass(frozen=True)
class Run:
    """One training."""

    name: str
    side: str
    seed: int
    total_timesteps: int

    @property
    def algorithm(self) -> str:
        return self.name.partition(" ")[0]

    @property
    def env_id(self) -> str:
        return self.name.split(" ")[1]

    @property
    def task(self) -> Task:
        return TASKS[self.name]

    @property
    def settings(self) -> dict[str, Any]:
        """Return a copy of the task's settings, because constructors write into them."""
        found = self.task.settings
        return copy.deepcopy(dict(TUNED[self.algorithm][self.env_id] if found is None else found))


def train(run: Run) -> dict[str, Any]:
    """Train and evaluate. Return the run's fields, the `mean_return`, the training's `cpu_seconds`, and the `cpu`."""
    torch.set_num_threads(1)
    model = make_model(run)
    began = time.process_time()
    model.learn(run.total_timesteps)
    seconds = time.process_time() - began
    result = mean_return(model, make_evaluation(run), EPISODES, run.task.success_above)
    return dataclasses.asdict(run) | {
        "mean_return": result,
        "cpu_seconds": seconds,
        "cpu": common.machine()["cpu"],
        "product": common.product(),
    }


def make_model(run: Run) -> BaseAlgorithm:
    """Create the model of a run with its hyperparameters and environments."""
    settings = run.settings
    n_envs, normalize = settings.pop("n_envs", 1), settings.pop("normalize", False)
    settings.pop("n_timesteps", None)
    settings |= {name: to_schedule(settings[name]) for name in SCHEDULED if name in settings}
    env = run.task.make_env(run.env_id, n_envs, run.seed, run.side)
    if run.algorithm in ("ppo", "recurrent_ppo", "maskable_ppo"):
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
    # "xla" raises if anything is not compiled, such as environments on the host.
    engine = "xla" if run.task.backends[run.side] == "jax" else "auto"
    model: BaseAlgorithm = getattr(bridge, name)(run.task.policy, env, engine=engine, **arguments)
    return model


def make_evaluation(run: Run) -> VecEnv:
    """Create environments that no training has used, the same for all sides."""
    env = run.task.make_env(run.env_id, ENVS, run.seed + 2000)
    if normalize := run.settings.get("normalize"):
        arguments = {"norm_obs": True} if normalize is True else normalize
        env = VecNormalize(env, training=False, norm_reward=False, norm_obs=arguments["norm_obs"])
    return env


def mean_return(model: BaseAlgorithm, env: VecEnv, episodes: int, success_above: float | None = None) -> float:
    """Return the mean return of deterministic episodes, or the share of successes, with the current statistics."""
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
    """Return the trainings that have ended."""
    if not records.exists():
        return {}
    found = (json.loads(line) for line in records.read_text().splitlines())
    return {Run(**{field.name: record[field.name] for field in dataclasses.fields(Run)}): record for record in found}


def train_all(runs: list[Run], records: Path, processes: int) -> list[dict[str, Any]]:
    """Return the results of the runs: read them from the file of records, or train and append them to it."""
    done = read(records)
    missing = [run for run in runs if run not in done]
    print(f"\n{len(runs) - len(missing)} of {len(runs)} trainings are done", flush=True)
    records.parent.mkdir(parents=True, exist_ok=True)
    # A new process for every training, so that each compiles its functions. Before one imports PyTorch: one thread.
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
                print(f"{what}: {record['mean_return']:.2f} in {record['cpu_seconds']:.1f} s", flush=True)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return [done[run] for run in runs]


def iqm(returns: Any, axis: int = -1) -> Any:
    """Return the interquartile mean: the mean without the lowest and the highest quarter."""
    return scipy.stats.trim_mean(returns, 0.25, axis=axis)


def interval(ours: Sequence[float], stock: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the difference between two interquartile means."""
    draws = np.random.default_rng(0)
    means = [iqm(draws.choice(np.asarray(side), (20_000, len(side)))) for side in (ours, stock)]
    low, high = np.quantile(means[0] - means[1], [0.025, 0.975]).tolist()
    return low, high


def verdict(low: float, high: float, margin: float) -> str:
    """Say what an interval of differences shows; NOTES has the rules."""
    if -margin <= low and high <= margin:
        return "equal"
    if low > 0:
        return "better"
    if high < 0:
        return "worse"
    return "not worse" if low >= -margin else "undecided"


def seeds_needed(returns: Sequence[float], margin: float) -> int | None:
    """Estimate how many seeds a side give the verdict "equal" in half of all comparisons, if both have these returns.

    It tries 5, 10, 20 and so on, up to 5,120, and returns None if none of them is enough.
    """
    draws = np.random.default_rng(0)
    for seeds in 5 * 2 ** np.arange(11):
        ours, stock = iqm(draws.choice(np.asarray(returns), (2, 2_000, seeds)))
        half_width = 1.96 * (ours - stock).std()
        if (np.abs(ours - stock) + half_width <= margin).mean() >= 0.5:
            return int(seeds)
    return None


def short(value: float) -> str:
    """Return a number with three digits, and without an exponent."""
    return f"{float(f'{value:.3g}'):,g}"


def summarize(name: str, side: str, ours: list[dict[str, Any]], stock: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the table row of a side, beside stock SB3's trainings."""
    mine, theirs = ([record["mean_return"] for record in records] for records in (ours, stock))
    row: dict[str, Any] = {"task": name, "side": side, "steps": f"{ours[0]['total_timesteps']:,}", "seeds": len(mine)}
    row["stock's_seeds"] = len(theirs)
    row |= {"IQM": float(iqm(mine)), "stock's_IQM": float(iqm(theirs)) if theirs else None}
    row |= {"difference": None, "margin": TASKS[name].margin, "verdict": None, "seeds_needed": None}
    if min(len(mine), len(theirs)) > 3:
        low, high = interval(mine, theirs)
        row["difference"] = f"{short(iqm(mine) - iqm(theirs))} ({short(low)} to {short(high)})"
        row["verdict"] = verdict(low, high, TASKS[name].margin)
        if row["verdict"] != "equal":
            row["seeds_needed"] = seeds_needed(mine + theirs, TASKS[name].margin)
    ((cpu, _),) = collections.Counter(record["cpu"] for record in [*ours, *stock]).most_common(1)
    for column, records in (("CPU_seconds", ours), ("stock's_CPU_seconds", stock)):
        known = (record["cpu_seconds"] for record in records if record["cpu"] == cpu)
        seconds = [each for each in known if each is not None]
        row[column] = statistics.median(seconds) if seconds else None
    for column, returns in (("returns", mine), ("stock's_returns", theirs)):
        row[column] = " ".join(map(short, sorted(returns)))
    return row


def main(argv: list[str] | None = None) -> None:
    parser = common.Command(__doc__)
    parser.add_argument("--tasks", nargs="+", metavar="TASK", help="default: all; quick: the first")
    parser.add_argument("--sides", nargs="+", choices=(OURS, GYMNASIUM, STOCK), default=[OURS, GYMNASIUM, STOCK])
    parser.add_argument("--seeds", type=int, help="at most so many a side; default: each task's; quick: 1")
    parser.add_argument("--processes", type=int, default=common.cores(), help="trainings at once; default: the cores")
    parser.add_argument("--done", action="store_true", help="train nothing: the table of what is done")
    options = parser.options(argv)
    quick = options.quick
    names = options.tasks or list(TASKS)[: 1 if quick else None]
    if not set(names) <= set(TASKS):
        parser.error(f"--tasks must be of {', '.join(TASKS)}, got {', '.join(names)}.")
    most = options.seeds or (1 if quick else max(task.seeds for task in TASKS.values()))
    path = Path(tempfile.mkdtemp()) / "learning.jsonl" if quick else RECORDS

    # A run with another number of steps is another run, so a full run does not reuse quick trainings.
    runs = [
        Run(name, side, seed, QUICK_TIMESTEPS if quick else TASKS[name].timesteps)
        for seed in range(most)
        for name in names
        for side in TASKS[name].backends
        if side in options.sides and seed < TASKS[name].seeds
    ]
    if options.done:
        found = (run for run in read(path) if run.name in names and run.side in options.sides)
        runs = [run for run in found if run.total_timesteps == run.task.timesteps]
    records = train_all(runs, path, options.processes)
    report = common.Report("learning", NOTES, options)
    report.content |= {"tables": {}, "bars": []}  # made anew from the trainings
    products = [record.get("product") for record in records]
    if any(product != products[0] for product in products):
        report.content["product"] = {"of the trainings": f"{len({json.dumps(product) for product in products})} states"}
    report.content["settings"]["machines"] = ", ".join(sorted({record["cpu"] for record in records}))

    def of(name: str, side: str) -> list[dict[str, Any]]:
        return [record for run, record in zip(runs, records) if (run.name, run.side) == (name, side)]

    rows = [
        summarize(name, side, mine, of(name, STOCK))
        for name in names
        for side in (OURS, GYMNASIUM)
        if (mine := of(name, side))
    ]
    report.add("learning", rows)
    for row in rows:
        if row["verdict"] and not quick:
            what = f"{row['task']}, {row['side']}: the difference from stock SB3's return is {row['difference']}"
            report.require(what, row["IQM"], "not worse", row["verdict"] in ("equal", "better", "not worse"))
    report.finish()


if __name__ == "__main__":
    main()
