"""Self-play on pgx's connect four: speed beside PettingZoo's through sb3-contrib, what it learns, and a tournament.

    python -m benchmarks.self_play --parts learning --timesteps 10000000 --seeds 3

Trainings that have ended are kept in runs/self_play, and are not run again.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import sb3_contrib
from stable_baselines3.common.vec_env import DummyVecEnv

import bridge
from benchmarks.common import CHECKOUT, Command, Report, Side, interleave, peer
from bridge.self_play.self_play_callback import score

PARTS = ("steps", "learning", "tournament")
GAME = "pgx/connect_four"
NUM_ENVS = 64
SETTINGS = {"n_steps": 64, "batch_size": 512, "n_epochs": 4, "learning_rate": 1e-3, "ent_coef": 0.03}
RUNS = CHECKOUT / "runs" / "self_play"
GAMES = 2000


class StockOpponent(gymnasium.Env[Any, Any]):
    """PettingZoo's connect four for SB3, as PettingZoo's tutorial wraps it, with a copy of the learner as opponent."""

    observation_space = gymnasium.spaces.Box(0, 1, (6, 7, 2), np.int8)
    action_space = gymnasium.spaces.Discrete(7)

    def __init__(self) -> None:
        from pettingzoo.classic import connect_four_v3

        self.game = connect_four_v3.env()
        self.opponent: Any = None

    def action_masks(self) -> np.ndarray:
        """Return which columns are not full."""
        return np.asarray(self.game.observe(self.game.agent_selection)["action_mask"], bool)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.game.reset(seed=seed)
        self.seat = self.game.possible_agents[int(self.np_random.integers(2))]
        self._opponent_moves()
        return self._observation(), {}

    def step(self, action: Any) -> Any:
        self.game.step(int(action))
        self._opponent_moves()
        return self._observation(), self.game.rewards[self.seat], any(self.game.terminations.values()), False, {}

    def _opponent_moves(self) -> None:
        if self.game.agent_selection == self.seat or any(self.game.terminations.values()):
            return
        masks = self.action_masks()
        if self.opponent is None:
            self.game.step(int(self.np_random.choice(np.flatnonzero(masks))))
        else:
            self.game.step(int(self.opponent.predict(self._observation(), action_masks=masks)[0]))

    def _observation(self) -> np.ndarray:
        return np.asarray(self.game.observe(self.game.agent_selection)["observation"])


def stock_model() -> Any:
    """Make sb3-contrib's MaskablePPO on PettingZoo's game, with a copy of itself as the opponent."""
    env = DummyVecEnv([StockOpponent] * NUM_ENVS)
    model = sb3_contrib.MaskablePPO("MlpPolicy", env, seed=0, device="cpu", **SETTINGS)
    opponent = sb3_contrib.MaskablePPO("MlpPolicy", DummyVecEnv([StockOpponent]), device="cpu")
    env.set_attr("opponent", opponent)
    return model


def our_model(opponent: Any, seed: int = 0) -> Any:
    """Make bridge's MaskablePPO on pgx's game."""
    env = bridge.make_vec_env(GAME, NUM_ENVS, seed=seed, opponent=opponent)
    return bridge.MaskablePPO("MlpPolicy", env, seed=seed, device="cpu", **SETTINGS)


def bench_steps(report: Report, options: Any) -> None:
    """Time MaskablePPO's steps with 64 games: self-play here, and sb3-contrib on PettingZoo's game."""
    ours, steps = our_model("self"), 8192 if options.quick else 262_144
    few = 2 * NUM_ENVS * SETTINGS["n_steps"]  # type: ignore[operator]
    sides = {"bridge, self-play": Side(lambda: ours.learn(steps, reset_num_timesteps=False).num_timesteps, steps)}
    if peer("pettingzoo") is not None:
        stock = stock_model()
        sides["sb3-contrib, PettingZoo"] = Side(lambda: stock.learn(few).num_timesteps, int(few))
    cpu = {name: _cpu_seconds(side) / side.steps for name, side in sides.items()}
    timings = interleave(sides, options.rounds)
    rows = [{"what": name, **each.row(), "steps_per_cpu_second": 1 / cpu[name]} for name, each in timings.items()]
    report.add("steps", rows)
    report.bar("steps/s of self-play with 64 games", rows[0]["steps_per_second"], 60_000)
    if len(rows) > 1:
        report.bar("times PettingZoo's", rows[0]["steps_per_second"] / rows[1]["steps_per_second"], 10)


def _cpu_seconds(side: Side) -> float:
    """Return the CPU time of all threads in a run, which other processes hardly change; after a run that compiles."""
    side.run()
    start = time.process_time()
    side.run()
    return time.process_time() - start


def trained(opponent: str, seed: int, num_timesteps: int, milestones: list[int]) -> list[Path]:
    """Train a model, or find it in RUNS; return the zips at some numbers of steps."""
    paths = [RUNS / f"{opponent}-{seed}-{milestone}.zip" for milestone in milestones]
    if all(path.exists() for path in paths):
        return paths
    model, start = our_model(opponent, seed), time.process_time()
    for milestone, path in zip(milestones, paths):
        model.learn(milestone - model.num_timesteps, reset_num_timesteps=False)
        model.save(path)
        cpu = time.process_time() - start
        print(f"{opponent} {seed}: {model.num_timesteps:,} of {num_timesteps:,} steps, {cpu:.0f} CPU s", flush=True)
    return paths


def win_rate(player: Path, opponent: Any) -> float:
    """Return the share of games that a saved model wins, where a draw counts as half a win."""
    env = bridge.make_vec_env(GAME, 1, opponent=opponent)
    model = sb3_contrib.MaskablePPO.load(player, device="cpu")
    games = bridge.evaluate(model, env, GAMES, deterministic=False, max_steps=100)
    return score(games.returns)


def bench_learning(report: Report, options: Any) -> None:
    """Train by self-play and against chance for as many steps, and let them play each other at several milestones."""
    total = options.timesteps
    milestones = sorted({total // 10, total // 5, total // 2, total})
    rows: list[dict[str, Any]] = []
    for seed in range(options.seeds):
        selves = trained("self", seed, total, milestones)
        (against_chance,) = trained("random", seed, total, [total])
        for steps, path in zip(milestones, selves):
            row = {"seed": seed, "steps": f"{steps:,}", "against chance": win_rate(path, "random")}
            row["against the agent of chance"] = win_rate(path, str(against_chance))
            row["against its first milestone"] = win_rate(path, str(selves[0]))
            rows.append(row)
    report.add("learning", rows)
    last = [row for row in rows if row["steps"] == f"{total:,}"]
    for what, bar in (("against chance", 0.97), ("against the agent of chance", 0.65)):
        report.bar(f"win rate {what}, median", statistics.median(row[what] for row in last), bar)


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
    options = command.options(argv)
    if options.quick:
        options.timesteps, options.seeds = 81_920, 1
    if peer("pgx") is None:
        return
    notes = [
        "MaskablePPO with two hidden layers of 64 and 64 games of connect four; a draw counts as half a win",
        "sb3-contrib's opponent is a copy of the learner in a Gymnasium wrapper around PettingZoo's game",
    ]
    report = Report("self_play", {"games": NUM_ENVS, **SETTINGS, "timesteps": options.timesteps}, notes)
    benches = {"steps": bench_steps, "learning": bench_learning, "tournament": bench_tournament}
    for part in options.parts:
        benches[part](report, options)
    report.finish(options)


if __name__ == "__main__":
    main(sys.argv[1:])
