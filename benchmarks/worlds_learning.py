"""What is learnt in the suites: PPO on MinAtar's games, FrozenLake and Taxi, and on CartPole from pictures, over seeds.

    python -m benchmarks.worlds_learning [--tasks MinAtar/Breakout-v1 ...] [--seeds 5] [--quick]

What has ended is kept in runs/worlds_learning.jsonl, so that a run that was interrupted goes on where it was, with more
seeds too; --fresh starts anew.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

import jaxenvs
from benchmarks import common
from jaxenvs import learn
from jaxenvs.compilation import compiler_options

PARTS = 20  # of a training, between which it tells how far it is; bit for bit one whole training
RECORDS = Path(__file__).parent.parent / "runs" / "worlds_learning.jsonl"


@dataclasses.dataclass(frozen=True)
class Task:
    """What is trained, and how it is evaluated.

    Attributes:
      num_envs, hidden, ppo: the setting; the learning rate falls linearly to 0.
      timesteps: at least so many; rounded up to PARTS parts.
      episodes: of the evaluation, the first of as many environments; `greedy`: with the likeliest actions.
      cap: an episode of the evaluation that lasts longer counts with what it has brought so far.
      reward_scale: of the rewards that are trained on, so that values, which start at 0, have not far to go.
      optimum: what no agent without a clock exceeds; or None.
      published: by others, in words.
      at_least: the return that the median seed should reach; or None.
      wrap: the environment as it is trained on.
    """

    num_envs: int
    hidden: tuple[int, ...]
    ppo: learn.PPO
    timesteps: int
    episodes: int
    greedy: bool
    cap: int
    reward_scale: float = 1.0
    optimum: float | None = None
    published: str = ""
    at_least: float | None = None
    wrap: Callable[[jaxenvs.Environment[Any]], jaxenvs.Environment[Any]] = lambda env: env


def moving_pictures(env: jaxenvs.Environment[Any]) -> jaxenvs.Environment[Any]:
    """Sees two channels: the grey picture, and how it differs from that of three steps ago."""
    env = jaxenvs.FrameStack(jaxenvs.Pixels(env, 84, grayscale=True), 4, channels_order="last")

    def see(frames: jax.Array) -> jax.Array:
        frames = frames.astype(jnp.float32) / 255
        now, then = frames[..., -1], frames[..., 0]
        # White is 0: weights of what never changes only make noise. A pole moves by less than a pixel in a step.
        return jnp.stack([1 - now, 2 * (now - then)], axis=-1)

    return jaxenvs.TransformObservation(env, see, spaces.Box(-2, 2, (84, 84, 2)))


PUREJAXRL = learn.PPO(n_steps=128, batch_size=1024, n_epochs=4, learning_rate=5e-3, ent_coef=0.01)
TABULAR = learn.PPO(n_steps=128, batch_size=4096, n_epochs=4, learning_rate=0.02, ent_coef=0.01)
minatar = functools.partial(
    Task, 64, (64, 64), ppo=PUREJAXRL, timesteps=10_000_000, episodes=256, greedy=False, cap=10_000
)
tabular = functools.partial(Task, 256, (), episodes=4096, greedy=True, cap=1000)
OF_PIXELS = learn.PPO(n_steps=64, batch_size=256, n_epochs=4, learning_rate=1e-3, gamma=0.98, gae_lambda=0.9)
PIXELS = "CartPole-v1, 84 x 84 pixels"

TASKS = {
    "MinAtar/Breakout-v1": minatar(published="gymnax 28, pgx 50"),
    "MinAtar/Freeway-v1": minatar(published="gymnax 58, pgx 63"),
    "MinAtar/Asterix-v1": minatar(ppo=PUREJAXRL.replace(learning_rate=1e-3), published="gymnax 15, pgx 22 to 25"),
    "MinAtar/SpaceInvaders-v1": minatar(published="gymnax 131, pgx 150"),
    "FrozenLake8x8-v1": tabular(TABULAR.replace(gamma=0.995), 10_000_000, optimum=0.894),
    "Taxi-v4": tabular(TABULAR, 2_000_000, reward_scale=0.05, optimum=7.93),
    PIXELS: Task(
        32, (32, 32), OF_PIXELS, 300_000, episodes=100, greedy=True, cap=501, at_least=400, wrap=moving_pictures
    ),
}

NOTES = [
    "PPO of jaxenvs.learn; the learning rate falls linearly to 0; clip range 0.2, lambda 0.95, gradients no longer "
    "than 0.5, value loss half, Adam; the critic has a network of its own, of the same size as the actor's",
    "MinAtar: PureJaxRL's setting: 64 environments x 128 steps, 4 epochs of 8 minibatches, learning rate 5e-3, gamma "
    "0.99, entropy 0.01, two layers of 64, ReLU; Asterix with a learning rate of 1e-3",
    "FrozenLake8x8-v1 and Taxi-v4: a number for each state, and linear functions of these, which are tables; "
    "256 environments x 128 steps, 4 epochs of 8 minibatches, learning rate 0.02, entropy 0.01; gamma 0.995 on ice; "
    "Taxi's is 0.99, and its rewards are scaled by 0.05",
    "return: of fresh episodes after the training, the mean for each seed, and of it the median over seeds; MinAtar: "
    "256 episodes with sampled actions, 10,000 steps at most (cut off: how many were longer, of all seeds); toy text: "
    "4096 with the likeliest ones; standard error: of one seed's mean",
    "end of training: mean return of the episodes that ended in the last twentieth of the training, with the actions "
    "that it sampled; median over seeds",
    "published: gymnax is PureJaxRL's at 10 M steps, on gymnax's rules, by which episodes but Freeway's end after 1000 "
    "steps and no action is sticky; pgx is its baseline at 20 M; optimum: of agents without a clock "
    "(environments/toy-text.md)",
    f"{PIXELS}: what is seen is the grey picture, white as 0, and how it differs from that of three steps ago; two "
    "layers of 32, ReLU; 32 environments x 64 steps, 4 epochs of 8 minibatches, learning rate 1e-3, gamma 0.98, lambda "
    "0.9, no entropy; 100 episodes with the likeliest actions",
    "CPU seconds: of the training alone, compilation included; median over seeds",
]


def make_training(env_id: str, task: Task, iterations: int) -> learn.Training:
    env = task.wrap(jaxenvs.make(env_id.partition(",")[0]))
    if task.reward_scale != 1:
        env = jaxenvs.TransformReward(env, lambda reward: task.reward_scale * reward)
    network = learn.ActorCritic.of(env, actor=task.hidden, critic=task.hidden, activation=jax.nn.relu)
    rates = task.ppo.learning_rate * np.linspace(1, 0, iterations, endpoint=False, dtype=np.float32)
    settings = task.ppo.replace(learning_rate=jnp.asarray(rates))
    timesteps = iterations * task.ppo.n_steps * task.num_envs
    return learn.Training(jaxenvs.VectorEnv(env, task.num_envs), network, settings, total_timesteps=timesteps)


def train(env_id: str, seed: int, quick: bool = False) -> dict[str, Any]:
    """Train and evaluate: what the record of a training holds."""
    task, key = TASKS[env_id], jax.random.key(seed)
    parts = 1 if quick else PARTS
    each = 1 if quick else -(-task.timesteps // (task.ppo.n_steps * task.num_envs * PARTS))
    training = make_training(env_id, task, each * parts)
    began, wall = time.process_time(), time.perf_counter()
    advance = jax.jit(learn.advance, static_argnums=2, compiler_options=compiler_options())
    state, curve = training.init(key), []
    for _ in range(parts):
        state, metrics = advance(training, state, each)
        count, sums = metrics["episodes"].sum(), (metrics["episodes"] * metrics["episode_return"]).sum()
        mean = float(sums / jnp.maximum(count, 1)) / task.reward_scale
        point = (int(metrics["timesteps"][-1]), mean, int(count))
        curve.append(point)
        so_far = f"{point[0]:,} steps in {time.perf_counter() - wall:.0f} s: {point[1]:.3g}"
        print(f"{env_id}, seed {seed}, {so_far}", flush=True)
    seconds = time.process_time() - began
    evaluation = jax.jit(functools.partial(evaluate, training, task))
    returns, lengths = map(np.asarray, evaluation(state.learner.params, jax.random.fold_in(key, 1)))
    returns = returns / task.reward_scale
    return {
        "task": env_id,
        "seed": seed,
        "timesteps": curve[-1][0],
        "mean_return": float(returns.mean()),
        "standard_error": float(returns.std() / np.sqrt(len(returns))),
        "capped": int((lengths >= task.cap).sum()),
        "end_of_training": curve[-1][1],
        "curve": curve,
        "cpu_seconds": seconds,
    }


def evaluate(training: learn.Training, task: Task, params: Any, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns and lengths of the first episode of each of many environments."""
    env, network = training.venv.env, training.network
    key, reset_key = jax.random.split(key)
    state, timestep = jax.vmap(env.reset)(jax.random.split(reset_key, task.episodes))
    zeros = jnp.zeros(task.episodes)

    def is_going(carry: Any) -> jax.Array:
        *_, is_over, _, length = carry
        going: jax.Array = ~is_over.all() & (length.max() < task.cap)
        return going

    def step(carry: Any) -> Any:
        key, state, observation, is_over, returns, length = carry
        key, noise_key = jax.random.split(key)
        distribution, _ = network.apply(params, observation)
        action = distribution.mode() if task.greedy else distribution.sample(distribution.noise(noise_key, 1)[0])
        state, timestep = jax.vmap(env.step)(state, network.to_env(action))
        returns = returns + jnp.where(is_over, 0, timestep.reward)
        return key, state, timestep.observation, is_over | timestep.done, returns, length + ~is_over

    start = (key, state, timestep.observation, zeros > 0, zeros, zeros.astype(jnp.int32))
    *_, returns, length = jax.lax.while_loop(is_going, step, start)
    return returns, length


def train_all(runs: list[tuple[str, int]], records: Path, quick: bool) -> list[dict[str, Any]]:
    """The results of the trainings, from the file of records or made and put there."""
    done = {}
    if records.exists():
        done = {(r["task"], r["seed"]): r for r in map(json.loads, records.read_text().splitlines())}
    records.parent.mkdir(parents=True, exist_ok=True)
    for run in runs:
        if run not in done:
            done[run] = train(*run, quick)
            with records.open("a") as file:
                file.write(json.dumps(done[run]) + "\n")
    return [done[run] for run in runs]


def summarize(name: str, records: list[dict[str, Any]]) -> dict[str, Any]:
    """The row of a table: over the seeds of a task."""
    returns = [record["mean_return"] for record in records]
    task = TASKS[name]
    return {
        "env": name,
        "seeds": len(records),
        "steps": f"{records[0]['timesteps']:,}",
        "return": statistics.median(returns),
        "worst_seed": min(returns),
        "best_seed": max(returns),
        "standard_error": statistics.median(record["standard_error"] for record in records),
        "cut_off": sum(record["capped"] for record in records),
        "end_of_training": statistics.median(record["end_of_training"] for record in records),
        "optimum": task.optimum,
        "published": task.published,
        "cpu_seconds": statistics.median(record["cpu_seconds"] for record in records),
    }


def main(argv: list[str] | None = None) -> None:
    parser = common.Command(__doc__)
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS), metavar="TASK")
    parser.add_argument("--seeds", type=int, help="default 5; quick: 1")
    parser.add_argument("--done", action="store_true", help="train nothing: the table of what is done")
    parser.add_argument("--fresh", action="store_true", help="forget the trainings that were done before")
    parser.add_argument("--records", type=Path, help="default runs/worlds_learning.jsonl; quick: forgotten afterwards")
    options = parser.options(argv)
    quick, seeds = options.quick, options.seeds or (1 if options.quick else 5)
    path = options.records or (Path(tempfile.mkdtemp()) / RECORDS.name if quick else RECORDS)
    if options.fresh:
        path.unlink(missing_ok=True)

    report = common.Report(
        "worlds_learning", {"tasks": ", ".join(options.tasks), "seeds": seeds, "quick": quick}, NOTES
    )
    runs = [(name, seed) for seed in range(seeds) for name in options.tasks]
    if options.done:
        found = {(r["task"], r["seed"]) for r in map(json.loads, path.read_text().splitlines())}
        runs = [run for run in runs if run in found]
    records = train_all(runs, path, quick)
    rows = []
    for name in options.tasks:
        mine = [record for record in records if record["task"] == name]
        if not mine:
            continue
        rows.append(row := summarize(name, mine))
        what = f"{name}, {row['steps']} steps: median return of {len(mine)} seeds"
        if (at_least := TASKS[name].at_least) is not None and not quick:
            report.bar(what, row["return"], at_least)
        if row["optimum"] is not None and not quick:
            least = row["optimum"] - 3 * row["standard_error"]
            bar = f">= {least:.3g}, three standard errors below the optimum"
            report.require(what, row["return"], bar, row["return"] >= least)
    report.add("worlds_learning", rows)
    report.content["runs"] = records
    report.finish(options)


if __name__ == "__main__":
    main()
