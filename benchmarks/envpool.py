"""EnvPool's worlds: training on them beside stock SB3 on Gymnasium's, and what a GymVecEnv adds to their steps.

    python -m benchmarks.envpool [--parts training seams] [--only REGEX] [--rounds 5] [--quick]

training: PPO and SAC on HalfCheetah-v5, PPO on LunarLander-v3 and Pong; stock SB3 in a DummyVecEnv and in a
SubprocVecEnv. seams: `VecEnv.step` beside EnvPool's own, of worlds in which nothing ends, and in which lanes do.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import re
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import stable_baselines3
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecFrameStack

import bridge
from benchmarks import common
from benchmarks.common import Side

PARTS = ("training", "seams")
DUMMY, SUBPROC, NATIVE = "stock SB3, DummyVecEnv", "stock SB3, SubprocVecEnv", "bridge, backend='native'"


@dataclasses.dataclass(frozen=True)
class Task:
    """What is trained, and how many times as fast as stock SB3 it must be.

    Attributes:
      rollout: steps of all environments in a rollout of PPO; of SAC, in a run.
      at_least: None where there is no bar.
    """

    algorithm: str
    env_id: str
    policy: str
    settings: dict[str, Any]
    rollout: int
    at_least: float | None


ZOOS_ATARI = {"n_epochs": 4, "batch_size": 256, "clip_range": 0.1, "ent_coef": 0.01, "learning_rate": 2.5e-4}
TASKS = (
    Task("PPO", "HalfCheetah-v5", "MlpPolicy", {}, 2048, 2),
    Task("PPO", "LunarLander-v3", "MlpPolicy", {}, 2048, 5),
    Task("PPO", "PongNoFrameskip-v4", "CnnPolicy", ZOOS_ATARI, 1024, 1.3),
    Task("SAC", "HalfCheetah-v5", "MlpPolicy", {"gradient_steps": -1, "learning_starts": 100}, 1024, None),
)
LANES = (8, 32)

# With the greatest share of its own time that a step may take longer, and the options of the pool.
ENDLESS, ENDING = 1.1, 1.2
SEAMS: tuple[tuple[str, dict[str, Any], float], ...] = (
    ("HalfCheetah-v5", {"max_episode_steps": 10**6}, ENDLESS),
    ("Pendulum-v1", {"max_episode_steps": 10**6}, ENDLESS),
    ("LunarLander-v3", {}, ENDING),
    ("CartPole-v1", {}, ENDING),
)
SEAM_LANES = (8, 64, 1024)

NOTES = [
    "training: the same arguments on all sides, SB3's defaults but for rollouts of 2048 steps of all environments "
    "together, and RL-Zoo's settings for Pong with rollouts of 1024; SAC learns once for each step. A run is two "
    "rollouts with their updates, or 1024 steps; the sides take turns. The bar is against the faster of stock SB3's",
    "seams: random actions; one step of EnvPool's own begins an episode in the place of a step where one ended, and "
    "one of GymVecEnv begins it besides",
]


def measure_training(report: common.Report, rounds: int, only: str, quick: bool) -> None:
    for task in TASKS:
        for lanes in (2,) if quick else LANES:
            if re.search(only, f"{task.algorithm} {task.env_id} {lanes}"):
                _train(report, task, lanes, rounds, 64 if quick else task.rollout)


def _train(report: common.Report, task: Task, lanes: int, rounds: int, rollout: int) -> None:
    settings, steps = dict(task.settings), rollout
    if task.algorithm == "PPO":
        settings["n_steps"], steps = rollout // lanes, 2 * rollout
    makers: dict[str, tuple[Any, Callable[[], VecEnv]]] = {
        DUMMY: (stable_baselines3, functools.partial(_stock, task.env_id, lanes, DummyVecEnv)),
        SUBPROC: (stable_baselines3, functools.partial(_stock, task.env_id, lanes, SubprocVecEnv)),
        NATIVE: (bridge, functools.partial(_native, task.env_id, lanes)),
    }
    with contextlib.ExitStack() as closing:
        sides = {}
        for name, (package, make) in makers.items():
            env = make()
            closing.callback(env.close)
            model = getattr(package, task.algorithm)(task.policy, env, seed=0, device="cpu", **settings)
            sides[name] = Side(functools.partial(_learn, model, steps), steps, lambda _: 0)
        timings = common.interleave(sides, rounds)
    what = f"{task.algorithm} on {task.env_id}, {lanes} environments"
    report.add("training", [{"what": what, "side": name} | timing.row() for name, timing in timings.items()])
    speeds = {name: timing.steps_per_second for name, timing in timings.items()}
    if task.at_least is not None:
        ratio = speeds[NATIVE] / max(speeds[DUMMY], speeds[SUBPROC])
        report.bar(f"{what}: {NATIVE} / the faster of stock SB3's", ratio, task.at_least)


def _learn(model: Any, steps: int) -> None:
    model.learn(steps, reset_num_timesteps=False)


def _is_game(env_id: str) -> bool:
    return "NoFrameskip" in env_id


def _stock(env_id: str, lanes: int, vec_env_cls: Any) -> VecEnv:
    if not _is_game(env_id):
        return make_vec_env(env_id, lanes, seed=0, vec_env_cls=vec_env_cls)
    gymnasium.register_envs(importlib.import_module("ale_py"))
    return VecFrameStack(make_atari_env(_imported(env_id), lanes, seed=0, vec_env_cls=vec_env_cls), 4)


def _imported(env_id: str) -> Callable[..., gymnasium.Env[Any, Any]]:
    """What makes a game, also in a process that does not know its id yet."""

    def make(**kwargs: Any) -> gymnasium.Env[Any, Any]:
        gymnasium.register_envs(importlib.import_module("ale_py"))
        return gymnasium.make(env_id, **kwargs)

    return make


def _native(env_id: str, lanes: int) -> VecEnv:
    if _is_game(env_id):
        return VecFrameStack(bridge.make_atari_env(env_id, lanes, seed=0, backend="native"), 4)
    return bridge.make_vec_env(env_id, lanes, seed=0, backend="native")


def measure_seams(report: common.Report, rounds: int, only: str, quick: bool) -> None:
    envpool = importlib.import_module("envpool")
    for env_id, options, most in SEAMS:
        for lanes in (8,) if quick else SEAM_LANES:
            if re.search(only, f"{env_id} {lanes}"):
                make = functools.partial(envpool.make, env_id, env_type="gymnasium", num_envs=lanes, seed=0, **options)
                pool, venv = make(), bridge.GymVecEnv(make())
                _seam(report, f"{env_id}, {lanes} lanes", pool, venv, rounds, most)


def _seam(report: common.Report, what: str, pool: Any, venv: bridge.GymVecEnv, rounds: int, most: float) -> None:
    count = max(20, 20_000 // venv.num_envs)
    space, random = venv.action_space, np.random.default_rng(0)
    shape = (count, venv.num_envs, *(space.shape or ()))
    if isinstance(space, gymnasium.spaces.Box):
        actions = random.uniform(space.low, space.high, shape).astype(np.float32)
    else:
        actions = random.integers(space.n, size=shape)
    pool.reset()
    venv.reset()

    def side(step: Callable[[np.ndarray], Any], actions: np.ndarray) -> Side:
        def run() -> None:
            for action in actions:
                step(action)

        return Side(run, actions.shape[0] * actions.shape[1], lambda _: 0)

    sides = {
        "EnvPool's own step": side(pool.step, actions.astype(pool.action_space.dtype)),
        "VecEnv.step of GymVecEnv": side(venv.step, actions),
    }
    timings = common.interleave(sides, rounds)
    report.add("seams", [{"what": what, "side": name} | timing.row() for name, timing in timings.items()])
    own, ours = (timing.steps_per_second for timing in timings.values())
    report.require(f"{what}: GymVecEnv / EnvPool, time", own / ours, f"<= {most}", own / ours <= most)


def main(argv: list[str] | None = None) -> None:
    parser = common.Command(__doc__, parts=PARTS, rounds=5)
    parser.add_argument("--only", default="", help="what of it, as 'PPO Half.* 8' or 'CartPole-v1 64'; default all")
    options = parser.options(argv)
    if common.peer("envpool") is None:
        return
    rounds = options.rounds
    settings = {"parts": " ".join(options.parts), "only": options.only, "rounds": rounds, "quick": options.quick}
    report = common.Report("envpool", settings, NOTES)
    for part in options.parts:
        measure = {"training": measure_training, "seams": measure_seams}[part]
        measure(report, rounds, options.only, options.quick)
    report.finish(options)


if __name__ == "__main__":
    main()
