"""Videos of a trained agent, as GIF or MP4."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bridge import record
from bridge.app.config import TrainingConfig
from bridge.app.evaluation import first_seed
from bridge.app.runs import folders_of_models, load_agent, make_env, read_run
from jaxenvs.cli.user_errors import UserError, user_errors

MOST_STEPS = 2000  # of all episodes together
NATIVE_FPS = 50  # of EnvPool, which does not report how long a step is


def record_run(folder: Path, n_episodes: int, seed: int | None, out: Path, best: bool = False) -> str:
    """Film deterministic episodes of a run's agent, the same with which `jaxenvs evaluate` begins.

    If the run has several agents, it films the first one.

    Args:
      n_episodes: the number of episodes.
      seed: of the first episode; None for the first seed of an evaluation.
      out: a file that ends with .gif or .mp4.
      best: as in `load_agent`.

    Returns:
      The episodes' returns, as a line of text.

    Raises:
      UserError: the run cannot be read, the environment has no picture, or the file cannot be written.
    """
    if out.suffix not in (".gif", ".mp4"):
        raise UserError(f"--out must end with .gif or .mp4, got {out}.")
    folder, config = folders_of_models(folder, read_run(folder))[0]
    *_, model, env = load_agent(folder, config, best)
    if config.backend != "jax":
        _require_pictures(config)
        env = make_env(config, 1, like=env, render_mode="rgb_array")
    seed, fps = first_seed(config) if seed is None else seed, NATIVE_FPS if config.backend == "native" else None
    with user_errors((ImportError, ValueError)), user_errors(OSError, f"Cannot write {out}: "):
        out.parent.mkdir(parents=True, exist_ok=True)
        episodes = record(model, out, env, n_episodes, seed=seed, fps=fps, max_steps=MOST_STEPS + 1)
    returns = ", ".join(f"{gained:.2f}" for gained in episodes.returns)
    steps = episodes.lengths.sum()
    is_cut = steps > MOST_STEPS and episodes.truncated[-1]  # else the environment's limit may have ended it
    return f"Wrote {out}: return {returns}" + (f", cut after {steps} steps" if is_cut else "")


def _require_pictures(config: TrainingConfig) -> None:
    """Try to draw in a separate process first, because MuJoCo ends the process if there is no OpenGL.

    Raises:
      UserError: the environment cannot be drawn here.
    """
    code = f"""
from bridge.app.environments import find
env = find({config.backend!r}, {config.env_id!r}, {config.env_kwargs!r}).make(1, 0, render_mode="rgb_array")
env.reset()
assert env.get_images()[0] is not None, "it has no picture"
"""
    tried = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if tried.returncode:
        said = (tried.stderr or tried.stdout).strip().rpartition("\n")[2]
        raise UserError(f"{config.env_id} cannot be drawn here (MuJoCo needs OpenGL, libEGL, to draw): {said}")
