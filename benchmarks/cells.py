"""The scripts ("cells") that `benchmarks.never_slower` measures."""

from __future__ import annotations

import dataclasses
from typing import Any

from benchmarks.peers import callbacks
from benchmarks.peers.cell import FULL_BUFFER, GYMNASIUM, HINDSIGHT, JAX, OFF_POLICY, Cell

FLAT = ("MlpPolicy 64-64", "MlpPolicy 256-256")
PICTURES = ("CnnPolicy 4x84x84", "CnnPolicy 84x84x3", "MultiInputPolicy")
ON_POLICY = {name: (*FLAT, *PICTURES) for name in ("A2C", "PPO")}
# sb3-contrib's of the same kind, of which a wide network is no other case.
ON_POLICY_CONTRIB = {"MaskablePPO": ("MlpPolicy 64-64, legal actions",), "RecurrentPPO": ("MlpLstmPolicy 64-64",)}
OFF_POLICY_FLAT = {
    "DQN": (*FLAT, "MlpPolicy 1200-1200"),
    "SAC": ("MlpPolicy 256-256, Pendulum-v1",),
    "TD3": ("MlpPolicy 400-300, Pendulum-v1",),
    "DDPG": ("MlpPolicy 400-300, Pendulum-v1",),
    "QRDQN": ("MlpPolicy 64-64",),
    "TQC": ("MlpPolicy 256-256, Pendulum-v1",),
    "CrossQ": ("MlpPolicy 256-256, 1024-1024, Pendulum-v1",),
}
OFF_POLICY_PICTURES = {
    "DQN": PICTURES,  # the others' are no larger than these
    **dict.fromkeys(("SAC", "TD3", "DDPG"), ("CnnPolicy 4x84x84, Box actions", "MultiInputPolicy, Box actions")),
}
FIRST_NETWORK = {name: networks[0] for name, networks in (ON_POLICY | ON_POLICY_CONTRIB | OFF_POLICY_FLAT).items()}

# Algorithms with their networks, environments, and whether these are normalized.
FAMILIES: tuple[tuple[dict[str, tuple[str, ...]], tuple[tuple[str, int], ...], bool], ...] = (
    (ON_POLICY, ((GYMNASIUM, 1), (GYMNASIUM, 8), (JAX, 8), (JAX, 256)), False),
    (dict.fromkeys(ON_POLICY, FLAT), ((GYMNASIUM, 8), (JAX, 8)), True),
    (ON_POLICY_CONTRIB, ((GYMNASIUM, 1), (GYMNASIUM, 8), (JAX, 8)), False),  # 256 with memories take minutes each
    (OFF_POLICY_FLAT, ((GYMNASIUM, 1), (GYMNASIUM, 8), (JAX, 1), (JAX, 8)), False),
    (OFF_POLICY_PICTURES, ((GYMNASIUM, 1), (JAX, 1)), False),
)

A2C_STEPS, PPO_STEPS, RECURRENT_STEPS = 5, 2048, 128
# Of one iteration of PPO over all environments, where SB3's default for each of them would take minutes.
PPO_ROLLOUT, PPO_IMAGES_ROLLOUT = 2048, 128
NAMED_SETTINGS = {"batch_size": 256, "n_epochs": 4}
# Of what counts as one iteration off-policy, over all environments: more than there are before learning starts. Of
# pictures, batches of 256 would take seconds each, and a million of them 56 GB.
OFF_POLICY_ITERATION, OFF_POLICY_IMAGES_ITERATION = 128, 32
PICTURES_SETTINGS = {"buffer_size": 2000, "batch_size": 32, "learning_starts": 16}

CALLBACKS = (callbacks.NO_OP, callbacks.SCHEDULED, callbacks.EVALUATION, callbacks.BELOW_ROLLOUT)
# Off-policy, SB3's rollouts of 1 or 4 steps are too short for evaluations in them. These have an update for each step.
LONG_ROLLOUTS = {"train_freq": 64, "gradient_steps": -1}
# Each learn(1) is one rollout: of one step and an update, or short.
SHORT_ROLLOUTS = {"DQN": {"train_freq": 1}, "PPO": {"batch_size": 16}}
SHORT_STEPS = {"DQN": 64, "PPO": 16}
DICTS = "MlpPolicy 64-64, 100,000 dicts"

# Arguments of `jaxenvs train`, which is compared with `peers.stock_script`.
COMMANDS = ("sac Pendulum-v1 --total-timesteps 2000", "ppo CartPole-v1 --total-timesteps 50000 --eval-freq 10000")
QUICK_COMMANDS = ("ppo CartPole-v1 --total-timesteps 1000 --eval-freq 500",)


def make_cell(algorithm: str, network: str, environments: str, n_envs: int, normalize: bool = False) -> Cell:
    """Return a cell with SB3's defaults, and the rollouts that the notes describe."""
    if algorithm in OFF_POLICY:
        is_flat = network.startswith("MlpPolicy")
        steps = (OFF_POLICY_ITERATION if is_flat else OFF_POLICY_IMAGES_ITERATION) // n_envs
        return Cell(algorithm, network, environments, n_envs, steps, settings={} if is_flat else PICTURES_SETTINGS)
    short = {"A2C": A2C_STEPS, "RecurrentPPO": RECURRENT_STEPS}
    if algorithm in short:
        return Cell(algorithm, network, environments, n_envs, short[algorithm], normalize)
    rollout = PPO_ROLLOUT if network.startswith("MlpPolicy") else PPO_IMAGES_ROLLOUT
    return Cell(algorithm, network, environments, n_envs, max(2, rollout // n_envs), normalize)


def named_cells() -> list[Cell]:
    """Return the cells with special targets."""
    return [Cell("PPO", "CnnPolicy 4x84x84", kind, 8, 128, settings=NAMED_SETTINGS) for kind in (JAX, GYMNASIUM)]


def callback_cell(algorithm: str, environments: str, callback: str, **settings: Any) -> Cell:
    """Return a cell with a callback: 8 environments on-policy, 1 off-policy and where memories take long."""
    n_envs = 1 if algorithm in (*OFF_POLICY, "RecurrentPPO") else 8
    if algorithm in OFF_POLICY and callback == callbacks.BELOW_ROLLOUT:
        settings = LONG_ROLLOUTS | settings
    cell = make_cell(algorithm, FIRST_NETWORK[algorithm], environments, n_envs)
    return dataclasses.replace(cell, settings=cell.settings | settings, callback=callback)


def short_cell(algorithm: str, network: str, environments: str) -> Cell:
    """Return a cell that calls `learn(1)` in a loop."""
    settings, steps = SHORT_ROLLOUTS[algorithm], SHORT_STEPS[algorithm]
    return Cell(algorithm, network, environments, 1, steps, settings=settings, one_by_one=True)


def hindsight_cell(environments: str) -> Cell:
    """Return a cell with a HerReplayBuffer."""
    network = "MultiInputPolicy 256-256, BitFlipping(15)"
    return Cell("SAC", network, environments, 1, OFF_POLICY_ITERATION, settings=HINDSIGHT)


def further_cells() -> list[Cell]:
    """Return the cells with callbacks, short calls of `learn`, an environment with many objects, and HER."""
    algorithms = ("PPO", "A2C", *ON_POLICY_CONTRIB, *OFF_POLICY)
    kinds = (GYMNASIUM, JAX)
    cells = [callback_cell(name, kind, callback) for callback in CALLBACKS for name in algorithms for kind in kinds]
    cells += [callback_cell(name, kind, callbacks.NO_OP, **FULL_BUFFER) for name in ("DQN", "SAC") for kind in kinds]
    cells += [short_cell(name, FLAT[0], kind) for name in SHORT_STEPS for kind in kinds]
    for name in SHORT_STEPS:
        cells += [make_cell(name, DICTS, GYMNASIUM, 1), short_cell(name, DICTS, GYMNASIUM)]
    return cells + [hindsight_cell(kind) for kind in kinds]


def all_cells() -> list[Cell]:
    """Return the cells of the table, in the order in which they are measured."""
    cells = [
        make_cell(algorithm, network, kind, n_envs, normalize)
        for family, environments, normalize in FAMILIES
        for algorithm, networks in family.items()
        for network in networks
        for kind, n_envs in environments
    ]
    # Images and the environments of the host leave the least to be gained, and the fewest of them the most to be lost.
    cells.sort(key=lambda cell: (not cell.has_images, cell.environments == JAX, cell.n_envs))
    return named_cells() + further_cells() + cells


def quick_cells() -> list[Cell]:
    """Return small cells, of both kinds of environments and of each sort, without those with dicts, which take long."""
    cells = [make_cell("A2C", FLAT[0], kind, 8) for kind in (GYMNASIUM, JAX)]
    cells += [callback_cell("A2C", GYMNASIUM, callback) for callback in (callbacks.NO_OP, callbacks.BELOW_ROLLOUT)]
    cells += [callback_cell("DQN", GYMNASIUM, callback) for callback in (callbacks.SCHEDULED, callbacks.EVALUATION)]
    return [*cells, short_cell("DQN", FLAT[0], GYMNASIUM), hindsight_cell(GYMNASIUM)]
