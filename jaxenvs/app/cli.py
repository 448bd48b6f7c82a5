"""The `jaxenvs` command: train, list, bench."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import gymnasium
import numpy as np
import tyro

import jaxenvs
from jaxenvs.app.config import ALGORITHMS, TrainingConfig, UserError, load_config, versions
from jaxenvs.app.hyperparameters import parse_assignments

CHECKOUT = Path(__file__).parent.parent.parent


def _shown_as(metavar: str, help: str | None = None) -> Any:
    return tyro.conf.arg(metavar=metavar, help=help, help_behavior_hint="")


# What is optional on the command line shows no "(default: None)": its help says what None means.
Algorithm = Annotated[str | None, tyro.conf.Positional, _shown_as("[ALGORITHM", f"One of {', '.join(ALGORITHMS)}.")]
EnvId = Annotated[str | None, tyro.conf.Positional, _shown_as("ENV_ID]")]
Engine = Annotated[str | None, _shown_as("NAME")]
Number = Annotated[int | None, _shown_as("N")]
File = Annotated[Path | None, _shown_as("PATH")]
Assignments = Annotated[tuple[str, ...], _shown_as("NAME=VALUE ...")]
Names = Annotated[tuple[str, ...], tyro.conf.Positional, _shown_as("[NAME ...]")]


def main(argv: list[str] | None = None) -> None:
    """Run the `jaxenvs` command.

    Exits with 2 and one line on stderr for a mistake of the user's, with 130 after Ctrl-C.
    """
    commands = {"train": train, "list": list_environments, "bench": bench}
    try:
        tyro.extras.subcommand_cli_from_dict(
            commands, prog="jaxenvs", description="Reinforcement learning on JAX environments.", args=argv
        )
    except UserError as error:
        print(f"jaxenvs: error: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


def train(
    algorithm: Algorithm = None,
    env_id: EnvId = None,
    num_envs: Number = None,
    total_timesteps: Number = None,
    seed: Number = None,
    seeds: Number = None,
    engine: Engine = None,
    env_kwargs: Assignments = (),
    hyperparameters: Assignments = (),
    config: File = None,
    out: File = None,
) -> None:
    """Train a Stable-Baselines3 agent, evaluate it, and save it with its learning curve.

    For example: jaxenvs train ppo CartPole-v1 --num-envs 64 --total-timesteps 500000 --out runs/cartpole

    Args:
      algorithm: A key of ALGORITHMS.
      env_id: An id of `jaxenvs list`.
      num_envs: Environments side by side. If not given, what is tuned for the environment, or 8.
      total_timesteps: Steps of all of them together. If not given, what is tuned for it, or 100000.
      seed: Of the environments and the weights. If not given, 0.
      seeds: Train so many agents in one program, of seed, seed + 1, ...; their zips are in seed-0, seed-1, ...
      engine: auto compiles what it can, xla refuses to do without, torch trains with PyTorch. If not given, auto.
      env_kwargs: Parameters of the environment: gravity=5.0 max_episode_steps=200
      hyperparameters: Of the algorithm, as Python literals: n_steps=32 learning_rate=lin_0.001. lin_ falls to 0;
        normalize=True adds a VecNormalize. The others are those tuned for the environment, or SB3's.
      config: The config.json of a run: do the same again. Other arguments change what they name.
      out: Where to write. If not given, runs/ENV_ID-ALGORITHM-SEED.
    """
    if seeds is not None or config is not None:
        from jaxenvs.app.seeds import train_seeds  # before JAX runs anything, as jaxenvs.learn.sweep asks for
    from jaxenvs.app.training import EVALUATION_EPISODES, Interrupted
    from jaxenvs.app.training import train as run

    try:
        changes = {"env_kwargs": parse_assignments(env_kwargs), "hyperparameters": parse_assignments(hyperparameters)}
    except ValueError as error:
        raise UserError(str(error)) from error
    given = {
        "num_envs": num_envs,
        "total_timesteps": total_timesteps,
        "seed": seed,
        "num_seeds": seeds,
        "engine": engine,
    }
    if config is not None:
        if algorithm is not None:
            raise UserError(f"Give either an algorithm and an environment or --config, not both, got {algorithm}.")
        saved, then = load_config(config)
        _tell_of_other_versions(config, then)
    elif algorithm is None or env_id is None:
        raise UserError("Say what to train on what, as: jaxenvs train ppo CartPole-v1. Or give --config.")
    else:
        saved = {"algorithm": algorithm, "env_id": env_id, "env_kwargs": {}, "hyperparameters": {}}
    arguments = saved | {name: value for name, value in given.items() if value is not None}
    arguments |= {name: saved[name] | change for name, change in changes.items()}
    resolved = TrainingConfig.resolve(**arguments)

    out = out or Path("runs") / f"{resolved.env_id}-{resolved.algorithm}-{resolved.seed}"
    if (out / "model.zip").exists() or any(out.glob("seed-*/model.zip")):
        raise UserError(f"{out} holds a trained model already: give another --out, or remove it.")
    if resolved.num_seeds > 1:
        means = train_seeds(resolved, out)
        low, median, high = np.percentile(means, [25, 50, 75])
        print(
            f"Mean return of {EVALUATION_EPISODES} episodes each: median {median:.2f}, quartiles {low:.2f}, {high:.2f}"
        )
        return
    try:
        mean, std = run(resolved, out)
    except Interrupted as interrupted:
        print(interrupted)
        sys.exit(130)
    print(f"Return of {EVALUATION_EPISODES} episodes: {mean:.2f} ± {std:.2f}")


def list_environments() -> None:
    """Print the registered environments."""
    rows: list[tuple[str, ...]] = [("id", "observation space", "action space", "time limit", "threshold")]
    for env_id in jaxenvs.registered():
        env, spec = jaxenvs.make(env_id), jaxenvs.spec(env_id)
        limits = ("-" if limit is None else f"{limit:g}" for limit in (spec.max_episode_steps, spec.reward_threshold))
        rows.append((env_id, _describe(env.observation_space), _describe(env.action_space), *limits))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def bench(names: Names = ()) -> None:
    """Run benchmarks, side by side with other libraries. From a source checkout only.

    Args:
      names: Scripts of the folder benchmarks/, as raw_stepping. All of them if not given.
    """
    paths = sorted((CHECKOUT / "benchmarks").glob("*.py"))
    scripts = [path.stem for path in paths if "\ndef main(" in path.read_text(encoding="utf-8")]
    if not scripts:
        raise UserError("The benchmarks are not part of the installed package: run this from a source checkout.")
    for name in names:
        if name not in scripts:
            raise UserError(f"No benchmark {name!r}. There are: {', '.join(scripts)}.")
    for name in names or scripts:
        # In a process of its own, so that no setting of this one, nor of the benchmark before, is measured.
        done = subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], cwd=CHECKOUT, check=False)
        if done.returncode:
            sys.exit(done.returncode)


def _describe(space: gymnasium.Space[Any]) -> str:
    """The space in one short line: bounds only if they are the same everywhere."""
    if isinstance(space, gymnasium.spaces.Box) and (np.ptp(space.low) != 0 or np.ptp(space.high) != 0):
        return f"Box({space.shape}, {space.dtype})"
    return " ".join(str(space).split())


def _tell_of_other_versions(config: Path, then: dict[str, str]) -> None:
    now = versions()
    other = [
        f"{package} {then.get(package)} (now {now[package]})" for package in now if then.get(package) != now[package]
    ]
    if other:
        print(f"{config} was written with {', '.join(other)}: the weights may differ.", file=sys.stderr)


if __name__ == "__main__":
    main()
