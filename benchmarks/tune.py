"""Tuning: 40 trials beside stock ones of the same budget, and what becomes of trials whose workers are killed.

    python -m benchmarks.tune [--parts trials kills] [--total-timesteps 100000] [--quick]

Workers are processes of `jaxenvs tune`, from their start to their end: imports and compiling are in the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import TrialState

from benchmarks import common
from bridge.app.tuning.spaces import SPACES
from bridge.app.tuning.storage import open_storage
from bridge.app.tuning.study import N_EVAL_EPISODES, N_EVALUATIONS

ALGORITHM, ENV_ID, NUM_ENVS, NUM_SEEDS, NUM_WORKERS = "ppo", "CartPole-v1", 8, 5, 2
NUM_STOCK_TRIALS = 4
AT_LEAST = 5.0
# What is left out of the space: with SB3's network, or with the Zoo's, of which the largest take most of the time.
NETWORKS = {"64-64": {"policy_kwargs.net_arch"}, "all": set()}
STOCK = Path(__file__).parent / "peers" / "tune_trials_sb3.py"
# What a stock algorithm takes of a config.
ARGUMENTS = (
    *("n_steps", "batch_size", "n_epochs", "gamma", "gae_lambda", "learning_rate", "ent_coef", "clip_range"),
    *("max_grad_norm", "policy_kwargs"),
)
# Of the workers that are killed, so that who is dead is known soon.
HEARTBEAT, GRACE = 1, 5
WORKER = f"""
import sys
from bridge.app.tuning import storage
storage.GRACE_PERIOD, storage.open_storage.__defaults__ = {GRACE}, ({HEARTBEAT}, {GRACE})
from jaxenvs.cli import main
main(sys.argv[1:])
"""
TINY = ("--num-envs", "2", "--total-timesteps", "8192", "--seeds", "2", "--evaluations", "2", "--pruner", "none")
TINY_SPACE = {"learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}, "n_epochs": [1, 4]}

NOTES = [
    f"trials: `jaxenvs tune`, {NUM_WORKERS} workers on one SQLite study, nothing compiled before, TPE, no pruner so "
    f"that all trials have the same budget; a trial is {NUM_SEEDS} seeds, each evaluated {N_EVALUATIONS} times by "
    f"{N_EVAL_EPISODES} episodes",
    f"stock: SB3's PPO on Gymnasium's environments with an EvalCallback, a trial one seed, {NUM_WORKERS} processes of "
    f"one thread; the {NUM_STOCK_TRIALS} trials are those of ours whose durations lie at the middles of the quarters; "
    "scaled to all trials, and to as many seeds. Seconds of cores too, which other load changes less",
    "kills: workers on small trials are killed by SIGKILL, each up to 4 s after a trial has ended, and others begun, "
    f"with heartbeats of {HEARTBEAT} s and a grace of {GRACE} s; then one worker ends what is left. Accounted for is a "
    "trial that ended, or failed and was run again with the same hyper-parameters, or failed as often as it may",
]


def trials(report: common.Report, networks: str, num_trials: int, total_timesteps: int) -> None:
    """Ours beside stock ones."""
    with tempfile.TemporaryDirectory() as folder:
        space = Path(folder, "space.json")
        space.write_text(
            json.dumps({name: SPACES[ALGORITHM][name] for name in SPACES[ALGORITHM].keys() - NETWORKS[networks]})
        )
        storage = f"sqlite:///{folder}/study.db"
        asked = ("--trials", num_trials, "--seeds", NUM_SEEDS, "--num-envs", NUM_ENVS, "--pruner", "none")
        asked += ("--total-timesteps", total_timesteps, "--storage", storage, "--study-name", "study")
        asked += ("--space", space)
        clock = Clock()
        workers = [_start(Path(folder, str(number)), folder, *asked) for number in range(NUM_WORKERS)]
        for worker in workers:
            if worker.wait():
                raise RuntimeError(f"A worker ended with {worker.returncode}.")
        ours = clock.read()
        study = optuna.load_study(study_name="study", storage=storage)
        ended = sorted((trial for trial in study.trials if trial.value is not None), key=lambda trial: trial.duration)
        picked = [ended[(2 * k + 1) * len(ended) // (2 * NUM_STOCK_TRIALS)] for k in range(NUM_STOCK_TRIALS)]
        configs = [_config(trial.params, total_timesteps, Path(folder)) for trial in picked]
    stock = _stock(configs, total_timesteps)
    factor = len(ended) / NUM_STOCK_TRIALS
    rows = []
    for side, seeds, times in (
        ("jaxenvs tune", NUM_SEEDS, ours),
        ("stock, scaled", 1, [factor * each for each in stock]),
        ("stock, scaled", NUM_SEEDS, [NUM_SEEDS * factor * each for each in stock]),
    ):
        row = {
            "networks": networks,
            "side": side,
            "seeds": seeds,
            "num_trials": len(ended),
            "timesteps": total_timesteps,
        }
        row |= {"seconds": times[0], "cpu_seconds": times[1]}
        rows.append(row | {"times_ours": times[0] / ours[0], "times_our_cpu_seconds": times[1] / ours[1]})
    report.add("trials", rows)
    what = f"{len(ended)} trials of {NUM_SEEDS} seeds, networks {networks}, {total_timesteps} steps each"
    report.bar(f"{what}: stock / jaxenvs tune", rows[-1]["times_ours"], AT_LEAST)


class Clock:
    """Seconds, and those of the cores that processes took which were begun and waited for since."""

    def __init__(self) -> None:
        self._start = self._now()

    def read(self) -> list[float]:
        """Both since the start."""
        return [now - start for now, start in zip(self._now(), self._start)]

    def _now(self) -> tuple[float, float]:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return time.perf_counter(), usage.ru_utime + usage.ru_stime


def _start(
    out: Path, cache: str, *asked: Any, command: tuple[str, ...] = ("-m", "jaxenvs.cli")
) -> subprocess.Popen[bytes]:
    """A worker, whose programs are kept in `cache`."""
    environment = os.environ | {"JAXENVS_CACHE": f"{cache}/programs"}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    arguments = [sys.executable, *command, "tune", ALGORITHM, ENV_ID, *map(str, asked), "--out", str(out)]
    return subprocess.Popen(arguments, env=environment, cwd=common.CHECKOUT, stdout=subprocess.DEVNULL)


def _config(params: dict[str, Any], total_timesteps: int, folder: Path) -> dict[str, Any]:
    """What stock SB3 is given for the params of a trial."""
    from bridge.app.config import TrainingConfig
    from bridge.app.tuning.spaces import settings

    base = TrainingConfig.resolve(ALGORITHM, ENV_ID, None, NUM_ENVS, total_timesteps)
    found = settings({"policy_kwargs.net_arch": "[64, 64]"} | params, base)
    return {name: found[name] for name in ARGUMENTS}


def _stock(configs: list[dict[str, Any]], total_timesteps: int) -> list[float]:
    """What Clock reads of stock trials, as many at once as there are workers."""
    asked = {"env_id": ENV_ID, "num_envs": NUM_ENVS, "total_timesteps": total_timesteps}
    asked |= {"n_evaluations": N_EVALUATIONS, "n_eval_episodes": N_EVAL_EPISODES}
    clock = Clock()
    processes = []
    for number in range(NUM_WORKERS):
        process = subprocess.Popen([sys.executable, str(STOCK)], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        assert process.stdin is not None
        process.stdin.write(json.dumps(asked | {"trials": configs[number::NUM_WORKERS]}).encode())
        process.stdin.close()
        processes.append(process)
    for process in processes:
        if process.wait():
            raise RuntimeError(f"Stock trials ended with {process.returncode}.")
    return clock.read()


def kills(report: common.Report, num_kills: int, seed: int) -> None:
    """Workers that are killed at random moments."""
    for kind, name in (("SQLite", "sqlite:///{0}/study.db"), ("journal", "{0}/study.log")):
        with tempfile.TemporaryDirectory() as folder:
            storage = name.format(folder)
            row = {"storage": kind, "kills": num_kills} | _kill(storage, folder, num_kills, random.Random(seed))
        report.add("kills", [row])
        lost = row["trials"] - row["accounted_for"]
        report.require(f"{kind}: trials not accounted for after {num_kills} SIGKILLs", lost, "0", lost == 0)


def _kill(storage: str, folder: str, num_kills: int, draw: random.Random) -> dict[str, Any]:
    space = Path(folder, "space.json")
    space.write_text(json.dumps(TINY_SPACE))
    asked = (*TINY, "--storage", storage, "--study-name", "study", "--space", space)

    def start(number: int, num_trials: int) -> subprocess.Popen[bytes]:
        out = Path(folder, str(number))
        return _start(out, folder, *asked, "--trials", num_trials, command=("-c", WORKER))

    workers = [start(number, 10**6) for number in range(NUM_WORKERS)]
    try:
        for count in range(num_kills):
            _wait_for_another_trial(storage)
            time.sleep(draw.uniform(0, 4))
            victim = draw.randrange(NUM_WORKERS)
            workers[victim].kill()
            workers[victim].wait()
            workers[victim] = start(NUM_WORKERS + count, 10**6)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    study = _load(storage)
    ended = sum(trial.state in (TrialState.COMPLETE, TrialState.PRUNED) for trial in study.trials)
    left = sum(trial.state in (TrialState.RUNNING, TrialState.WAITING) for trial in study.trials)
    last = start(NUM_WORKERS + num_kills, ended + left)
    if last.wait():
        raise RuntimeError(f"The last worker ended with {last.returncode}.")
    return _account(_load(storage))


def _wait_for_another_trial(storage: str) -> None:
    """Until one has ended since: some seconds on an idle machine, as others begin."""
    before = _num_complete(storage)
    while _num_complete(storage) <= before:
        time.sleep(0.5)


def _num_complete(storage: str) -> int:
    try:
        return sum(trial.state == TrialState.COMPLETE for trial in _load(storage).trials)
    except KeyError:  # nobody has begun the study yet
        return 0


def _load(storage: str) -> optuna.Study:
    return optuna.load_study(study_name="study", storage=open_storage(storage))


def _account(study: optuna.Study) -> dict[str, Any]:
    """How the trials of a study ended."""
    trials = study.trials
    again = {
        trial.system_attrs["retry_history"][-1]: trial for trial in trials if "retry_history" in trial.system_attrs
    }
    states = {state: [trial for trial in trials if trial.state == state] for state in TrialState}
    failed = states[TrialState.FAIL]
    # A worker may have died before it had drawn all of them.
    run_again = [
        trial
        for trial in failed
        if trial.number in again and trial.params.items() <= again[trial.number].params.items()
    ]
    given_up = [trial for trial in failed if len(trial.system_attrs.get("retry_history", [])) >= 3]
    accounted = len(states[TrialState.COMPLETE]) + len(states[TrialState.PRUNED])
    accounted += len({trial.number for trial in run_again + given_up})
    return {
        "trials": len(trials),
        "complete": len(states[TrialState.COMPLETE]),
        "failed": len(failed),
        "run_again": len(run_again),
        "left_running": len(states[TrialState.RUNNING]),
        "left_waiting": len(states[TrialState.WAITING]),
        "accounted_for": accounted,
    }


def main(argv: list[str] | None = None) -> None:
    parser = common.Command(__doc__, parts=("trials", "kills"))
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--trials", type=int, help="default 40; quick: 4")
    parser.add_argument("--total-timesteps", type=int, help="of each agent; default 100000; quick: 20000")
    parser.add_argument("--kills", type=int, help="default 20; quick: 2")
    parser.add_argument("--seed", type=int, default=0, help="of the moments of the kills")
    options: argparse.Namespace = parser.options(argv)
    num_trials = options.trials or (4 if options.quick else 40)
    total_timesteps = options.total_timesteps or (20_000 if options.quick else 100_000)
    num_kills = options.kills or (2 if options.quick else 20)
    numbers = {
        "networks": options.networks,
        "trials": num_trials,
        "total_timesteps": total_timesteps,
        "kills": num_kills,
    }
    report = common.Report("tune", {"parts": options.parts, **numbers}, NOTES)
    if "trials" in options.parts:
        for networks in options.networks:
            trials(report, networks, num_trials, total_timesteps)
    if "kills" in options.parts:
        kills(report, num_kills, options.seed)
    report.finish(options)


if __name__ == "__main__":
    main()
