"""Self-play on connect four and several agents with one policy: speed, what is learned, and a tournament.

    python -m benchmarks.self_play [--parts steps ippo learning tournament] [--timesteps 10000000] [--seeds 3] [--quick]

steps: MaskablePPO's self-play on pgx's connect four, beside sb3-contrib's on PettingZoo's; and PPO on JaxMARL's
simple_spread, beside SB3's with SuperSuit. ippo: what PPO earns on simple_spread, beside JaxMARL's IPPO. learning:
trainings by self-play and against chance, which play each other. tournament: its seconds.

A full run installs the peers in separate virtual environments, .bench/several_agents and .bench/jaxmarl. Trainings of
connect four that have ended are kept in runs/self_play, and are not run again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.utils import LinearSchedule

import bridge
from benchmarks.common import CHECKOUT, Command, Report, Side, interleave, peer
from benchmarks.peers import client
from jaxenvs import TimeStep, environment, make
from jaxenvs.wrappers.bases import StatelessWrapper

PARTS = ("steps", "ippo", "learning", "tournament")
GAME, SPREAD = "pgx/connect_four", "jaxmarl/MPE_simple_spread_v3"
NUM_ENVS = 64
SETTINGS: dict[str, Any] = {
    "n_steps": 64,
    "batch_size": 512,
    "n_epochs": 4,
    "learning_rate": 1e-3,
    "ent_coef": 0.05,
}
# JaxMARL's, in baselines/IPPO/config/ippo_ff_mpe.yaml: 16 environments of 3 agents, 4 minibatches, 10 million steps.
SPREAD_ENVS, AGENTS = 16, 3
SPREAD_STEPS = 100  # more than its episodes have
IPPO = {"n_steps": 128, "batch_size": 1536, "n_epochs": 4, "learning_rate": 2.5e-4, "ent_coef": 0.01}
IPPO_ITERATIONS = 10_000_000 // (SPREAD_ENVS * 128)
EPISODES = 1000
RUNS, PICTURES = CHECKOUT / "runs" / "self_play", CHECKOUT / "docs" / "self-play"
GAMES = 2000
# The standard error of a score of 2,000 games is 0.004 where it is 0.97.
FORGOTTEN = 0.01

NOTES = [
    "MaskablePPO with two hidden layers of 64 and 64 games of connect four. A draw counts as half a win. All players "
    "draw their actions.",
    "sb3-contrib's opponent is a policy of the same architecture in a Gymnasium wrapper around PettingZoo's game.",
    "simple_spread: steps of all agents, with JaxMARL's settings of IPPO. JaxMARL's own script is in no package: "
    "its side is benchmarks/peers/ippo_style.py, the same algorithm on JaxMARL's environment. At the limit of steps, "
    "episodes are truncated, so that bridge bootstraps. In IPPO, and in 'bridge, terminations', they are terminated.",
    "Sides take turns. Stock SB3 runs with PyTorch's default number of threads and with one. Targets are compared with "
    "the faster run.",
]


@dataclasses.dataclass
class Trainer:
    """A side of a comparison of speed.

    Attributes:
      learn: trains for as many steps, and returns the CPU seconds of all threads, which other processes hardly change.
      steps: in one run.
    """

    learn: Callable[[], float]
    steps: int


class Milestones(BaseCallback):
    """Saves the model at some numbers of steps, the last of which is the end of the training."""

    def __init__(self, paths: dict[int, Path]) -> None:
        super().__init__()
        self.paths, self.start = paths, time.process_time()

    def _on_rollout_start(self) -> None:
        for steps, path in self.paths.items():
            if self.num_timesteps >= steps and not path.exists():
                self.save(path)

    def _on_step(self) -> bool:
        return True

    def save(self, path: Path) -> None:
        """Save the model, and print how much CPU time its training took."""
        self.model.save(path)
        print(f"{path.stem}: {self.num_timesteps:,} steps, {time.process_time() - self.start:.0f} CPU s", flush=True)


def our_model(opponent: Any, seed: int = 0) -> Any:
    """Make bridge's MaskablePPO on pgx's game, with a learning rate that falls to 0."""
    env = bridge.make_vec_env(GAME, NUM_ENVS, seed=seed, opponent=opponent)
    settings = SETTINGS | {"learning_rate": LinearSchedule(SETTINGS["learning_rate"], 0.0, 1.0)}
    return bridge.MaskablePPO("MlpPolicy", env, seed=seed, device="cpu", **settings)


@environment
class Terminations(StatelessWrapper):
    """Wrapper whose truncations are terminations, so that agents do not bootstrap from them."""

    env: Any

    def step(self, state: Any, action: Any) -> tuple[Any, TimeStep]:
        state, timestep = self.env.step(state, action)
        is_over = timestep.terminated | timestep.truncated
        return state, timestep.replace(terminated=is_over, truncated=jnp.zeros_like(is_over))


def our_ippo(seed: int = 0, env: Any = SPREAD) -> Any:
    """Make bridge's PPO on JaxMARL's environments, with JaxMARL's settings: its learning rate falls to 0."""
    env = bridge.make_vec_env(env, SPREAD_ENVS, seed=seed)
    further = {"learning_rate": LinearSchedule(IPPO["learning_rate"], 0.0, 1.0), "clip_range_vf": 0.2}
    return bridge.PPO("MlpPolicy", env, seed=seed, device="cpu", **{**IPPO, **further})


def of_model(model: Any, steps: int) -> Trainer:
    """Return our side, in this process."""

    def learn() -> float:
        start = time.process_time()
        model.learn(steps, reset_num_timesteps=False)
        return time.process_time() - start

    return Trainer(learn, steps)


def bench_steps(report: Report, options: Any) -> None:
    """Time training steps of both kinds, here and with PettingZoo."""
    python = client.interpreter("several_agents", install=not options.quick)
    scale = 16 if options.quick else 1
    rollout = NUM_ENVS * SETTINGS["n_steps"]
    ours = of_model(our_model("self"), 524_288 // scale)
    with _stock(python, "connect_four", NUM_ENVS, SETTINGS, rollout) as stock:
        times, speed = _compare(report, options, "connect four", {"bridge, self-play": ours, **stock})
    report.bar("steps/s of self-play with 64 games", speed, 60_000)
    if times:
        report.bar("connect four: times sb3-contrib's on PettingZoo's", times, 10)
    if peer("jaxmarl") is None:
        return
    rollout = SPREAD_ENVS * AGENTS * IPPO["n_steps"]
    ours = of_model(our_ippo(), 64 * rollout // scale)
    settings = {**IPPO, "clip_range_vf": 0.2}
    with _stock(python, "simple_spread", SPREAD_ENVS, settings, rollout) as stock:
        times, _ = _compare(report, options, "simple_spread", {"bridge, JaxMARL": ours, **stock})
    if times:
        report.bar("simple_spread: times SB3's with SuperSuit", times, 10)


@contextlib.contextmanager
def _stock(
    python: Path | None, what: str, num_envs: int, settings: dict[str, Any], steps: int
) -> Iterator[dict[str, Trainer]]:
    """Return SB3's sides by name, in another process; none if the peers are not installed."""
    if python is None:
        yield {}
        return
    with client.Worker("benchmarks.peers.several_agents_worker", python) as worker:
        worker.ask(do="begin", what=what, num_envs=num_envs, settings=settings)

        def trainer(threads: int) -> Trainer:
            return Trainer(lambda: worker.ask(do="run", steps=steps, threads=threads)["cpu_seconds"], steps)

        counts = sorted({1, torch.get_num_threads()})
        yield {f"SB3, PettingZoo, {threads} threads": trainer(threads) for threads in counts}


def _compare(report: Report, options: Any, what: str, trainers: dict[str, Trainer]) -> tuple[float | None, float]:
    """Report the speed of each side. Return how many times the fastest other's speed ours is, and ours."""
    cpu: dict[str, float] = {}

    def run(name: str, trainer: Trainer) -> None:
        cpu[name] = trainer.learn()

    sides = {
        name: Side(lambda name=name, each=each: run(name, each), each.steps)  # type: ignore[misc]
        for name, each in trainers.items()
    }
    timings = interleave(sides, options.rounds)
    rows = [
        {"what": what, "side": name, **each.row(), "steps_per_cpu_second": each.steps / cpu[name]}
        for name, each in timings.items()
    ]
    report.add("steps", rows)
    ours, *others = (each.steps_per_second for each in timings.values())
    return (ours / max(others) if others else None), ours


def bench_ippo(report: Report, options: Any) -> None:
    """Train on simple_spread with JaxMARL's settings, here and as JaxMARL does, and compare what agents earn."""
    if peer("jaxmarl") is None:
        return
    python = client.interpreter("jaxmarl", install=not options.quick)
    num_envs, iterations = SPREAD_ENVS * AGENTS, 2 if options.quick else options.iterations
    envs = {"bridge": make(SPREAD), "bridge, terminations": Terminations(make(SPREAD))}
    found: dict[str, list[float]] = {**{side: [] for side in envs}, "JaxMARL's IPPO": []}
    for seed in range(options.seeds):
        for side, env in envs.items():
            model = our_ippo(seed, env)
            model.learn(iterations * num_envs * IPPO["n_steps"])
            result = bridge.evaluate(
                model, env, AGENTS * EPISODES, deterministic=False, seed=1000 + seed, max_steps=SPREAD_STEPS
            )
            found[side].append(result.mean)
        if python is not None:
            with client.Worker("benchmarks.peers.ippo_style", python) as worker:
                setting = {"n_envs": num_envs, **IPPO}
                answer = worker.ask(do="train", setting=setting, iterations=iterations, seed=seed, episodes=EPISODES)
            found["JaxMARL's IPPO"].append(answer["mean_return"])
    steps = f"{iterations * SPREAD_ENVS * IPPO['n_steps']:,}"
    rows = [
        {"side": side, "steps": steps, "median": statistics.median(each), "lowest": min(each), "highest": max(each)}
        for side, each in found.items()
        if each
    ]
    report.add("ippo", rows)
    if len(rows) == len(found):  # the last two end episodes alike
        *_, ours, ippo = rows
        what = "simple_spread: median return of bridge, terminations, and the lowest of JaxMARL's IPPO"
        report.require(what, ours["median"], f">= {ippo['lowest']:.2f}", ours["median"] >= ippo["lowest"])


def trained(opponent: str, seed: int, milestones: list[int]) -> list[Path]:
    """Train a model to the last milestone, or find it in RUNS; return its zips at all of them."""
    paths = {steps: RUNS / f"{opponent}-{seed}-{steps}.zip" for steps in milestones}
    if not all(path.exists() for path in paths.values()):
        RUNS.mkdir(parents=True, exist_ok=True)
        for path in paths.values():
            path.unlink(missing_ok=True)
        callback = Milestones(paths)
        our_model(opponent, seed).learn(milestones[-1], callback)
        callback.save(paths[milestones[-1]])
    return list(paths.values())


def show(result: bridge.Tournament, agent: Path, earlier: Path) -> None:
    """Draw a tournament, and record three games of an agent against an earlier one, for docs/self-play.md."""
    PICTURES.mkdir(exist_ok=True)
    bridge.plot_tournament(result).figure.savefig(PICTURES / "tournament.svg")
    env = bridge.make_vec_env(GAME, 1, seed=1, opponent=earlier)
    model = bridge.MaskablePPO.load(agent)
    bridge.record(model, PICTURES / "game.gif", env=env, n_episodes=3, deterministic=False)


def bench_learning(report: Report, options: Any) -> None:
    """Train by self-play and against chance for as many steps, and let all milestones play each other."""
    total = options.timesteps
    milestones = sorted({total // 10, total // 5, total // 2, total})
    names = ("against chance", "against the agent trained against chance", "against its first milestone")
    last: list[dict[str, float]] = []
    for seed in range(options.seeds):
        selves = trained("self", seed, milestones)
        (against_chance,) = trained("random", seed, [total])
        players = {"chance": "random", "trained against chance": against_chance}
        players |= {f"{steps:,} steps": path for steps, path in zip(milestones, selves)}
        result = bridge.tournament(players, GAME, GAMES, seed=seed)
        print(f"\nseed {seed}\n{result}")
        scores = result.scores[2:]
        table = [
            {"seed": seed, "steps": f"{steps:,}", **dict(zip(names, map(float, row[:3])))}
            for steps, row in zip(milestones, scores)
        ]
        report.add("learning", [{**row, names[2]: None} if row is table[0] else row for row in table])
        if seed == 0 and not options.quick:
            show(result, selves[-1], selves[0])
        gained, least = scores[-1, 0] - scores[0, 0], min(scores[-1, 2:-1])
        last.append({**table[-1], "gained": float(gained), "least": float(least)})  # type: ignore[dict-item]
    bars = (
        ("win rate against chance, median", names[0], 0.97),
        ("win rate against the agent trained against chance, median", names[1], 0.65),
        ("win rate against the earlier milestone that it beats least, median", "least", 0.5),
        ("win rate against chance, less that of the first milestone, median", "gained", -FORGOTTEN),
    )
    for what, name, bar in bars:
        report.bar(what, statistics.median(row[name] for row in last), bar)


def bench_tournament(report: Report, options: Any) -> None:
    """Time a tournament of 8 networks, after compilation."""
    players = {f"seed {seed}": our_model("random", seed) for seed in range(8)}
    n_games = 10 if options.quick else 1000
    bridge.tournament(players, GAME, n_games)
    start, cpu = time.perf_counter(), time.process_time()
    result = bridge.tournament(players, GAME, n_games, seed=1)
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    report.add("tournament", [{"players": 8, "games a pair": n_games, "seconds": seconds, "cpu_seconds": cpu}])
    report.require("seconds of a tournament of 8 players", seconds, "<= 20", seconds <= 20)
    print(f"\n{result}")


def main(argv: list[str] | None = None) -> None:
    command = Command(__doc__, parts=PARTS, rounds=3)
    command.add_argument("--timesteps", type=int, default=10_000_000, help="of each training; default 10,000,000")
    command.add_argument("--seeds", type=int, default=3, help="trainings of each kind; default 3")
    text = f"of IPPO; default {IPPO_ITERATIONS:,}, for 10,000,000 steps"
    command.add_argument("--iterations", type=int, default=IPPO_ITERATIONS, help=text)
    options = command.options(argv)
    if options.quick:
        options.timesteps, options.seeds = 81_920, 1
    if peer("pgx") is None:
        return
    settings = {"parts": " ".join(options.parts), "games": NUM_ENVS, **SETTINGS, "timesteps": options.timesteps}
    settings |= {"seeds": options.seeds, "IPPO's iterations": options.iterations}
    report = Report("self_play", settings, NOTES)
    benches = {"steps": bench_steps, "ippo": bench_ippo, "learning": bench_learning, "tournament": bench_tournament}
    for part in options.parts:
        benches[part](report, options)
    report.finish(options)


if __name__ == "__main__":
    main(sys.argv[1:])
