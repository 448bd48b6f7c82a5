"""Compare what is jaxenvs' own with the nearest that there is: algorithms, a network, and pretraining.

    python -m benchmarks.extensions [--parts steps pretrain layout] [--rounds 9] [--quick]

steps: PQN beside PPO and MaskableRecurrentPPO beside RecurrentPPO, all of bridge; SAC with SimBa networks beside SBX's.
pretrain: behaviour cloning beside a loop in PyTorch. layout: parameters as arrays beside one vector, for the limits in
bridge/engine/learner.py. benchmarks.learning measures the returns.

A full run installs SBX in a separate virtual environment, .bench/sbx, if it is missing.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import numpy as np
import torch

import bridge
from benchmarks import common
from benchmarks.never_slower import measure_steps
from benchmarks.peers import client
from benchmarks.peers.cell import HOST, JAX, OURS, SBX, Cell
from bridge.engine import learner

# The rollout of `jaxenvs train pqn CartPole-v1`, for both.
ROLLOUT: dict[str, Any] = {"batch_size": 128, "n_epochs": 4}
# What our side trains, the side and the algorithm that it is compared with, and the bar.
PAIRS: tuple[tuple[Cell, str, str, float], ...] = (
    (Cell("PQN", "MlpPolicy 64-64", JAX, 32, 64, settings=ROLLOUT), OURS, "PPO", 1.0),
    (Cell("MaskableRecurrentPPO", "MlpLstmPolicy 64-64, legal actions", JAX, 8, 128), OURS, "RecurrentPPO", 0.95),
    (Cell("SAC", "SimbaPolicy 128, 512-512, Pendulum-v1", HOST, 1, 128), SBX, "SAC", 1.0),
)
ROWS, BATCH, TIMES_FASTER = 100_000, 64, 5.0
# Algorithm, environment, number of environments, hidden layers (None: SB3's) and steps of a run.
LAYOUTS: tuple[tuple[str, str, int, list[int] | None, int], ...] = (
    ("PPO", "CartPole-v1", 8, [128, 128], 4096),
    ("PPO", "CartPole-v1", 8, [256, 256], 4096),
    ("A2C", "CartPole-v1", 8, [128, 128], 4000),
    ("A2C", "CartPole-v1", 8, [256, 256], 4000),
    ("DQN", "CartPole-v1", 1, [256, 256], 1000),
    ("DQN", "CartPole-v1", 1, [400, 300], 1000),
    ("SAC", "Pendulum-v1", 1, None, 300),
    ("TD3", "Pendulum-v1", 1, None, 300),
    ("TQC", "Pendulum-v1", 1, None, 200),
    ("CrossQ", "Pendulum-v1", 1, None, 100),
)

NOTES = [
    "steps: each side is one process from start to end, as in never_slower. Sides take turns, and each continues its "
    "own training. PQN and PPO have the same rollout and passes. The recurrent ones train on four numbers and four "
    "actions, of which another one is illegal in each step. SimBa has the paper's widths, SB3's settings and AdamW, on "
    "Gymnasium's Pendulum.",
    f"pretrain: an epoch over {ROWS:,} rows of four numbers and one of two actions, in batches of {BATCH}, for PPO's "
    "64-64 networks. The loop shuffles, takes rows by index and minimizes the negative log-likelihood with Adam.",
    "layout: one model of bridge for each, in turns in one process, with SB3's settings, PPO with n_steps=256. times: "
    "speed with arrays / speed with a vector.",
]


def measure_pairs(report: common.Report) -> None:
    """Measure the steps per second of each pair in turns."""
    has_sbx = client.interpreter("sbx", install=not report.options.quick) is not None
    for cell, other_side, other_algorithm, at_least in PAIRS:
        if report.has("steps", algorithm=cell.algorithm) or (other_side == SBX and not has_sbx):
            continue
        other = dataclasses.replace(cell, algorithm=other_algorithm)
        sides = {f"{side} {each.algorithm}": (side, each) for side, each in ((OURS, cell), (other_side, other))}
        ours, theirs = measure_steps(report, sides, str(cell)).values()
        report.bar(" / ".join(sides), ours / theirs, at_least)


def measure_pretrain(report: common.Report) -> None:
    """Measure epochs of `pretrain` and of a loop in PyTorch in turns."""
    rng, size = np.random.default_rng(0), ROWS // (100 if report.options.quick else 1)
    data = {"observations": rng.normal(size=(size, 4)).astype(np.float32), "actions": rng.integers(0, 2, size)}
    models = [bridge.PPO("MlpPolicy", bridge.make_vec_env("CartPole-v1", 1), seed=0, device="cpu") for _ in range(2)]
    policy = models[1].policy
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
    observations, actions = (torch.as_tensor(each) for each in data.values())

    def loop(threads: int) -> float:
        torch.set_num_threads(threads)
        losses = []
        for rows in torch.randperm(size).split(BATCH):
            loss = -policy.get_distribution(observations[rows]).log_prob(actions[rows]).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return math.fsum(losses) / len(losses)

    counts = dict.fromkeys((torch.get_num_threads(), 1))
    sides = {"pretrain": common.Side(lambda: bridge.pretrain(models[0], data, n_epochs=1, held_out=0), size)}
    sides |= {f"PyTorch, {count}": common.Side(lambda count=count: loop(count), size) for count in counts}
    timings = common.interleave(sides, report.options.rounds)
    report.add("pretrain", [{"side": name} | timing.row() for name, timing in timings.items()])
    ours, *others = (timing.steps_per_second for timing in timings.values())
    report.bar("pretrain / a loop in PyTorch, rows per second", ours / max(others), TIMES_FASTER)


def measure_layout(report: common.Report) -> None:
    """Measure training with parameters as a vector and as arrays in turns."""
    limits = {"vector": 10**12, "arrays": 0}

    def learn(model: Any, layout: str, steps: int) -> None:
        learner.SPLIT_FROM = learner.SPLIT_ON_POLICY_FROM = limits[layout]
        model.learn(steps, reset_num_timesteps=False)

    usual = learner.SPLIT_FROM, learner.SPLIT_ON_POLICY_FROM
    for name, env_id, n_envs, hidden, steps in LAYOUTS[: 1 if report.options.quick else None]:
        for backend in ("jax", "serial"):
            what = {"algorithm": name, "hidden": str(hidden or "SB3's"), "backend": backend}
            if report.has("layout", **what):
                continue
            sides = {}
            for layout in limits:
                settings = {"n_steps": 256} if name == "PPO" else {"train_freq": 1} if name == "DQN" else {}
                env = bridge.make_vec_env(env_id, n_envs, seed=0, backend=backend)
                network = {"net_arch": hidden} if hidden else None
                model = getattr(bridge, name)("MlpPolicy", env, seed=0, device="cpu", policy_kwargs=network, **settings)
                sides[layout] = common.Side(functools.partial(learn, model, layout, steps), steps)
            speeds = {
                side: each.steps_per_second for side, each in common.interleave(sides, report.options.rounds).items()
            }
            report.add("layout", [what | speeds | {"times": speeds["arrays"] / speeds["vector"]}])
    learner.SPLIT_FROM, learner.SPLIT_ON_POLICY_FROM = usual


def main(argv: list[str] | None = None) -> None:
    options = common.Command(__doc__, parts=("steps", "pretrain", "layout"), rounds=9).options(argv)
    report = common.Report("extensions", NOTES, options)
    if "steps" in options.parts:
        measure_pairs(report)
    if "pretrain" in options.parts and not report.has("pretrain", side="pretrain"):
        measure_pretrain(report)
    if "layout" in options.parts:
        measure_layout(report)
    report.finish()


if __name__ == "__main__":
    main()
