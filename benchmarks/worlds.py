"""Suites of ours, adapters of other libraries, pictures: each beside the peer that it is held against.

    python -m benchmarks.worlds [--parts minatar toy_text adapters draw pixels box2d] [--only REGEX] [--quick]

minatar: compiled rollouts beside gymnax's and pgx's. toy_text: beside gymnax's FrozenLake, and Gymnasium's vector loop.
adapters: a step of ours beside the library's own without a reset, and a rollout beside one with the library's own.
draw: pictures of 1024 lanes at 84 x 84 on one core beside Gymnasium's, of the size that it has. pixels: PPO with a
CnnPolicy on pictures of CartPole. box2d: rollouts beside SB3's VecEnv of Gymnasium's environments and EnvPool, and PPO
with RL-Zoo's settings beside stock SB3's.

The first three run in an environment with all the libraries, .bench/worlds, which a full run installs if it is missing.
"""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

import jaxenvs
from benchmarks import common
from benchmarks.common import Side, Timing
from benchmarks.peers import client, own_stepping

PARTS = ("minatar", "toy_text", "adapters", "draw", "pixels", "box2d")
WITH_LIBRARIES = ("minatar", "toy_text", "adapters")

GAMES = {  # as we, gymnax and pgx name them
    "Asterix": "asterix",
    "Breakout": "breakout",
    "Freeway": "freeway",
    "Seaquest": "seaquest",
    "SpaceInvaders": "space_invaders",
}
TOY_TEXT = ("FrozenLake-v1", "FrozenLake8x8-v1", "CliffWalking-v1", "Taxi-v4", "Blackjack-v1")
ADAPTERS = (
    "craftax/Craftax-Classic-Symbolic-v1",
    "brax/ant",
    "brax/inverted_pendulum",
    "playground/CartpoleBalance",
    "jumanji/Snake-v1",
    "gymnax/Asterix-MinAtar",
    "navix/Navix-Empty-8x8-v0",
    "pgx/2048",
    "xminigrid/MiniGrid-Empty-8x8",
)
FIRST = "rollout: jaxenvs, resets='first'"
CLASSIC = ("CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1", "Acrobot-v1")

BOX2D = ("LunarLander-v3", "BipedalWalker-v3")

GYMNAX, PGX, FROZEN_LAKE, VECTOR_LOOP, ADAPTER, AUTO_RESET, PICTURES, PIXELS = 3, 2, 3, 50, 1.05, 1, 20, 3
BOX2D_ROLLOUT, BOX2D_PPO = 3, 6
LANES = 1024
HEAVY_LANES = 64  # of physics, whose steps take a millisecond a lane
PIXELS_LANES, PIXELS_STEPS = 8, 128
BOX2D_LANES = 16
BOX2D_FEW = (1, 2, 4, 8, 16, 32)

NOTES = [
    "rollouts: one program scans over actions drawn beforehand, resets what ends, and returns observation, reward and "
    "done of every step; the sides take turns, after two runs to warm up, and figures are of the median run",
    "minatar: the minimal actions; gymnax's Freeway and time limits differ from MinAtar's rules, and so does the "
    "number of episodes that end; what its own rollout shows for an episode's last observation is the next one's first",
    "adapters, step: no side resets, and episodes that are over are stepped on; the same actions",
    "adapters, rollout: brax's and playground's own resets go back to the first state of each environment; ours are "
    "fresh, which costs as much as many steps, or, with brax's resets='first', one of 256 that were made once",
    "draw: the sides have one core; Gymnasium draws one environment after the other, in the one size that it has, "
    "after a step of it each",
    "pixels: 84 x 84, grey, 4 frames, 8 environments, PPO's defaults but for rollouts of 128 steps; stock SB3 on "
    "Gymnasium's pictures, by Gymnasium's wrappers",
    "box2d, rollouts: random actions; SB3's own make_vec_env, Monitors in a DummyVecEnv, with 16 environments; EnvPool "
    "resets in the step after the end; seconds to compile are not in the rollout's figures but in a row of their own",
    "box2d, few: VecEnv.step in a loop of one's own, by the number of environments: where Gymnasium's is faster, "
    "make_vec_env takes it",
    "box2d, PPO: RL-Zoo's settings, an iteration a run, compiled before; each on its own make_vec_env",
]

Start, Step = Callable[[], Any], Callable[[Any, Any], tuple[Any, Any]]


# --- Rollouts as programs -------------------------------------------------------------------------------------------


def program(start: Start, step: Step, actions: np.ndarray) -> Side:
    """One program that takes all the steps. Each run goes on where the one before stopped."""
    scan = jax.jit(lambda carry, actions: jax.lax.scan(step, carry, actions))
    carry, on_device = start(), jnp.asarray(actions)

    def run() -> Any:
        nonlocal carry
        carry, outputs = scan(carry, on_device)
        return outputs

    return Side(run, actions.shape[0] * actions.shape[1], lambda outputs: int(np.sum(outputs[-1])))


def ours(env: jaxenvs.Environment[Any], actions: np.ndarray) -> Side:
    """A VectorEnv."""
    venv = jaxenvs.VectorEnv(env, actions.shape[1])

    def step(state: Any, action: Any) -> Any:
        state, timestep = venv.step(state, action)
        return state, (timestep.observation, timestep.reward, timestep.done)

    return program(jax.jit(lambda: venv.reset(jax.random.key(0))[0]), step, actions)


def stepped(env: jaxenvs.Environment[Any], actions: np.ndarray) -> Side:
    """Steps of an environment of ours that nobody resets."""
    num_envs = actions.shape[1]

    def start() -> Any:
        return jax.vmap(env.reset)(jax.random.split(jax.random.key(0), num_envs))[0]

    def step(state: Any, action: Any) -> Any:
        state, timestep = jax.vmap(env.step)(state, action)
        return state, (timestep.observation, timestep.reward, timestep.done)

    return program(jax.jit(start), step, actions)


def theirs(own: own_stepping.Own, actions: np.ndarray, resetting: bool) -> Side:
    """The library's own steps."""
    return program(*own_stepping.lanes(own, actions.shape[1], resetting), actions)


def draw_actions(space: Any, num_steps: int, num_envs: int) -> np.ndarray:
    """Random actions, (num_steps, num_envs, *shape of an action)."""
    random = np.random.default_rng(0)
    shape = (num_steps, num_envs, *space.shape)
    if isinstance(space, gymnasium.spaces.Box):
        return random.uniform(np.maximum(space.low, -1), np.minimum(space.high, 1), shape).astype(np.float32)
    return random.integers(0, space.nvec if hasattr(space, "nvec") else space.n, shape, np.int32)


# --- Parts ----------------------------------------------------------------------------------------------------------


class Worlds:
    """The parts, which write into a report."""

    def __init__(self, report: common.Report, rounds: int, only: str, quick: bool) -> None:
        self._report, self._rounds, self._only, self._quick = report, rounds, re.compile(only), quick
        self._lanes = 16 if quick else LANES

    def _wanted(self, names: Any) -> list[str]:
        found = [name for name in names if self._only.search(name)]
        return found[:1] if self._quick else found

    def _measure(self, table: str, name: str, sides: dict[str, Side]) -> dict[str, float]:
        """Environment steps (or pictures) a second of each side."""
        timings = common.interleave(sides, self._rounds)
        rows = [{"environment": name, "side": side} | timing.row() for side, timing in timings.items()]
        self._report.add(table, rows)
        return {side: timing.steps_per_second for side, timing in timings.items()}

    def minatar(self) -> None:
        has_pgx = common.peer("pgx") is not None
        for game in self._wanted(GAMES):
            env = jaxenvs.make(f"MinAtar/{game}-v1")
            actions = draw_actions(env.action_space, 50 if self._quick else 500, self._lanes)
            sides = {"jaxenvs": ours(env, actions)}
            if common.peer("gymnax") is not None:
                sides["gymnax"] = theirs(own_stepping.gymnax(f"{game}-MinAtar"), actions, True)
            if has_pgx:
                sides["pgx"] = theirs(own_stepping.pgx(f"minatar-{GAMES[game]}"), actions, True)
            speeds = self._measure("minatar", game, sides)
            for peer, at_least in (("gymnax", GYMNAX), ("pgx", PGX)):
                if peer in speeds and not self._quick:
                    self._report.bar(f"MinAtar {game}: jaxenvs / {peer}", speeds["jaxenvs"] / speeds[peer], at_least)

    def toy_text(self) -> None:
        for env_id in self._wanted(TOY_TEXT):
            env = jaxenvs.make(env_id)
            actions = draw_actions(env.action_space, 50 if self._quick else 1000, self._lanes)
            few = actions[:20]
            vector = gymnasium.make_vec(env_id, self._lanes, vectorization_mode="sync")
            vector.reset(seed=0)
            loop = Side(
                functools.partial(_vector_loop, vector, few),
                few.size,
                lambda outputs: sum(int((terminated | truncated).sum()) for _, _, terminated, truncated in outputs),
            )
            sides = {"jaxenvs": ours(env, actions), "Gymnasium's SyncVectorEnv": loop}
            if env_id == "FrozenLake-v1" and common.peer("gymnax") is not None:
                sides["gymnax"] = theirs(own_stepping.gymnax("FrozenLake-misc"), actions, True)
            speeds = self._measure("toy_text", env_id, sides)
            vector.close()
            for peer, at_least in (("gymnax", FROZEN_LAKE), ("Gymnasium's SyncVectorEnv", VECTOR_LOOP)):
                if peer in speeds and not self._quick:
                    self._report.bar(f"{env_id}: jaxenvs / {peer}", speeds["jaxenvs"] / speeds[peer], at_least)

    def adapters(self) -> None:
        for env_id in self._wanted(ADAPTERS):
            library, _, name = env_id.partition("/")
            if common.peer("mujoco_playground" if library == "playground" else library) is None:
                continue
            heavy = library in ("brax", "craftax", "playground")
            env = jaxenvs.make(env_id)
            own = own_stepping.LIBRARIES[library](name)
            num_steps, num_envs = (10, 8) if self._quick else (50, HEAVY_LANES) if heavy else (200, LANES)
            actions = draw_actions(env.action_space, num_steps, num_envs)
            bare = env.env if isinstance(env, jaxenvs.TimeLimit) else env
            sides = {
                "step: jaxenvs": stepped(bare, actions),
                f"step: {library}": theirs(own, actions, False),
                "rollout: jaxenvs": ours(env, actions),
            }
            if library == "brax":
                sides[FIRST] = ours(jaxenvs.make(env_id, resets="first"), actions)
            if own.step_and_reset is not None:
                sides[f"rollout: {library}"] = theirs(own, actions, True)
            speeds = self._measure("adapters", env_id, sides)
            if self._quick:
                continue
            cost = speeds[f"step: {library}"] / speeds["step: jaxenvs"]
            self._report.require(
                f"{env_id}: a step by the adapter / the library's own, time", cost, f"<= {ADAPTER}", cost <= ADAPTER
            )
            if own.step_and_reset is not None:
                # What begins an episode in a state that it has, as brax's own does, is held against the same.
                alike = FIRST if FIRST in speeds else "rollout: jaxenvs"
                ratio = speeds[alike] / speeds[f"rollout: {library}"]
                self._report.bar(f"{env_id}: {alike} / {library}'s own resets", ratio, AUTO_RESET)

    def draw(self) -> None:
        for env_id in self._wanted((*CLASSIC, *BOX2D)):
            context = multiprocessing.get_context("spawn")
            with context.Pool(1, initializer=_on_one_core) as pool:  # before JAX counts the cores
                timings = pool.apply(_time_pictures, (env_id, self._lanes, self._rounds))
            rows = [{"environment": env_id, "side": side} | timing.row() for side, timing in timings.items()]
            self._report.add("draw", rows)
            ratio = timings["jaxenvs"].steps_per_second / timings["Gymnasium"].steps_per_second
            if not self._quick and env_id in CLASSIC:
                self._report.bar(f"{env_id}: pictures a second, jaxenvs / Gymnasium", ratio, PICTURES)

    def pixels(self) -> None:
        if common.peer("cv2") is None:  # with which Gymnasium shrinks its pictures
            return
        iterations = 1 if self._quick else 2
        sides = {
            name: Side(functools.partial(_learn, model, iterations), iterations * PIXELS_LANES * PIXELS_STEPS, _no_ends)
            for name, model in (("bridge.PPO", _compiled_pixels()), ("stock SB3", _stock_pixels()))
        }
        timings = common.interleave(sides, self._rounds, warm_up=1)
        self._report.add("pixels", [{"side": side} | timing.row() for side, timing in timings.items()])
        ratio = timings["bridge.PPO"].steps_per_second / timings["stock SB3"].steps_per_second
        if not self._quick:
            self._report.bar("CartPole from pixels, CnnPolicy: bridge.PPO / stock SB3", ratio, PIXELS)

    def box2d(self) -> None:
        import stable_baselines3
        from stable_baselines3.common.env_util import make_vec_env

        import bridge

        for env_id in self._wanted(BOX2D):
            env = jaxenvs.make(env_id)
            actions = draw_actions(env.action_space, 10 if self._quick else 500, self._lanes)
            start = time.perf_counter()
            sides = {"jaxenvs": ours(env, actions)}
            sides["jaxenvs"].run()
            seconds = time.perf_counter() - start
            few = actions[: 10 if self._quick else 100, :BOX2D_LANES]
            sides["DummyVecEnv with Monitor"] = _vec_env_steps(make_vec_env(env_id, BOX2D_LANES, seed=0), few)
            pool = common.peer("envpool")
            if pool is not None and env_id in pool.list_all_envs():
                sides["EnvPool"] = _pool_steps(pool, env_id, actions)
            speeds = self._measure("box2d_rollouts", env_id, sides)
            self._report.add("box2d_compilation", [{"environment": env_id, "seconds": seconds}])
            for lanes in BOX2D_FEW[:1] if self._quick else BOX2D_FEW:
                few = actions[: 10 if self._quick else 200, :lanes]
                makers = {"JaxVecEnv": _jax_vec_env, "DummyVecEnv with Monitor": make_vec_env}
                steps = {name: _vec_env_steps(make(env_id, lanes, seed=0), few) for name, make in makers.items()}
                self._measure("box2d_few", f"{env_id}, {lanes}", steps)
            iterations = {
                "bridge.PPO": _zoo_ppo(bridge.PPO, _jax_vec_env, env_id, self._quick),
                "stock SB3": _zoo_ppo(stable_baselines3.PPO, make_vec_env, env_id, self._quick),
            }
            timings = common.interleave(iterations, self._rounds, warm_up=1)
            rows = [{"environment": env_id, "side": side} | timing.row() for side, timing in timings.items()]
            self._report.add("box2d_ppo", rows)
            if self._quick:
                continue
            ratio = speeds["jaxenvs"] / speeds["DummyVecEnv with Monitor"]
            self._report.bar(f"{env_id}: rollouts, jaxenvs / DummyVecEnv with Monitor", ratio, BOX2D_ROLLOUT)
            ratio = timings["bridge.PPO"].steps_per_second / timings["stock SB3"].steps_per_second
            self._report.bar(f"{env_id}: PPO with RL-Zoo's settings, bridge / stock SB3", ratio, BOX2D_PPO)


def _jax_vec_env(env_id: str, lanes: int, seed: int) -> Any:
    import bridge

    return bridge.make_vec_env(env_id, lanes, seed=seed, backend="jax")


def _vec_env_steps(venv: Any, actions: np.ndarray) -> Side:
    venv.reset()
    steps = actions.shape[0] * actions.shape[1]
    return Side(lambda: [venv.step(action)[2] for action in actions], steps, lambda done: int(np.sum(done)))


def _pool_steps(pool: Any, env_id: str, actions: np.ndarray) -> Side:
    lanes = actions.shape[1]
    venv = pool.make(env_id, env_type="gymnasium", num_envs=lanes, num_threads=min(common.cores(), lanes), seed=0)
    venv.reset()
    actions = actions[:50]
    return Side(
        lambda: [venv.step(action)[2:4] for action in actions],
        actions.shape[0] * lanes,
        lambda ends: sum(int((terminated | truncated).sum()) for terminated, truncated in ends),
    )


def _zoo_ppo(algorithm: Any, make_vec_env: Any, env_id: str, quick: bool) -> Side:
    """An iteration with RL-Zoo's settings."""
    from stable_baselines3.common.vec_env import VecNormalize

    from bridge.app.hyperparameters import TUNED

    settings = dict(TUNED["ppo"][env_id])
    lanes, _ = settings.pop("n_envs"), settings.pop("n_timesteps")
    if quick:
        lanes, settings["n_steps"] = 2, 32
    venv = make_vec_env(env_id, lanes, seed=0)
    if settings.pop("normalize", False):
        venv = VecNormalize(venv, gamma=settings["gamma"])
    model = algorithm("MlpPolicy", venv, seed=0, **settings)
    steps = lanes * settings["n_steps"]
    return Side(lambda: model.learn(steps, reset_num_timesteps=False) and None, steps, _no_ends)


def _vector_loop(vector: Any, actions: np.ndarray) -> Any:
    return [vector.step(action)[:4] for action in actions]


def _on_one_core() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def _time_pictures(env_id: str, lanes: int, rounds: int) -> dict[str, Timing]:
    """Of states that random actions lead to."""
    env = jaxenvs.make(env_id)
    actions = draw_actions(env.action_space, 20, lanes)
    venv = jaxenvs.VectorEnv(env, lanes)
    state = venv.reset(jax.random.key(0))[0]
    state = jax.lax.scan(lambda state, action: (venv.step(state, action)[0], None), state, jnp.asarray(actions))[0]
    draw = jax.jit(jax.vmap(lambda state: env.draw(state, 84, 84)))
    reference = gymnasium.make(env_id, render_mode="rgb_array")
    reference.reset(seed=0)

    def render() -> list[Any]:
        pictures = []
        for _ in range(20):
            if any(reference.step(reference.action_space.sample())[2:4]):
                reference.reset()
            pictures.append(reference.render())
        return pictures

    sides = {
        "jaxenvs": Side(lambda: draw(state.lanes), lanes, _no_ends),
        "Gymnasium": Side(render, 20, _no_ends),
    }
    return common.interleave(sides, rounds)


def _no_ends(_: Any) -> int:
    return 0


def _learn(model: Any, iterations: int) -> None:
    model.learn(iterations * PIXELS_LANES * PIXELS_STEPS, reset_num_timesteps=False)


def _compiled_pixels() -> Any:
    import bridge

    env = bridge.JaxVecEnv(_frames_last(jaxenvs.make("CartPole-v1")), PIXELS_LANES, seed=0)
    return bridge.PPO("CnnPolicy", env, n_steps=PIXELS_STEPS, seed=0)


def _frames_last(env: jaxenvs.Environment[Any]) -> jaxenvs.Environment[Any]:
    return jaxenvs.FrameStack(jaxenvs.Pixels(env, 84, grayscale=True), 4, channels_order="last")


def _stock_pixels() -> Any:
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    def wrap(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
        env = gymnasium.wrappers.AddRenderObservation(env, render_only=True)
        env = gymnasium.wrappers.ResizeObservation(env, (84, 84))
        return gymnasium.wrappers.FrameStackObservation(gymnasium.wrappers.GrayscaleObservation(env), 4)

    env = make_vec_env("CartPole-v1", PIXELS_LANES, seed=0, wrapper_class=wrap, env_kwargs={"render_mode": "rgb_array"})
    return PPO("CnnPolicy", env, n_steps=PIXELS_STEPS, seed=0)


# --- The command ----------------------------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> None:
    parser = common.Command(__doc__, parts=PARTS, rounds=5)
    parser.add_argument("--only", default="", help="environments whose names this is found in; default all")
    options = parser.options(argv)
    rounds = options.rounds
    settings = {"parts": " ".join(options.parts), "only": options.only, "rounds": rounds, "quick": options.quick}
    report = common.Report("worlds", settings, NOTES)
    elsewhere = [] if options.quick else [part for part in options.parts if part in WITH_LIBRARIES]
    python = client.interpreter("worlds", install=True) if elsewhere else None
    if python is None or _runs_in(python):
        elsewhere = []
    if elsewhere:
        with tempfile.TemporaryDirectory() as folder:
            given = ["--parts", *elsewhere, "--only", options.only, "--rounds", str(rounds), "--output", folder]
            subprocess.run([python, "-m", "benchmarks.worlds", *given], check=True)
            found = json.loads((Path(folder) / "worlds.json").read_text())
        report.content["versions"] = found["versions"] | report.content["versions"]
        for key in ("tables", "bars"):
            report.content[key] = found[key]
    worlds = Worlds(report, rounds, options.only, options.quick)
    for part in options.parts:
        if part not in elsewhere:
            getattr(worlds, part)()
    report.finish(options)


def _runs_in(python: Path) -> bool:
    return Path(sys.prefix).resolve() == python.parent.parent.resolve()


if __name__ == "__main__":
    main()
