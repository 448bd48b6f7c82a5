"""A training run with --seeds: many agents in one compiled function."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import numpy as np

from bridge.app.config import TrainingConfig
from bridge.app.evaluation import describe_seeds, evaluate_model
from bridge.app.files import CannotWrite, make_folder, replacing
from bridge.app.runs import CONFIG, folders_of_models, make_env, make_model, save_model
from bridge.app.training.callbacks import Interrupt, Timer, progress_bar
from bridge.app.training.learning_curve import draw_learning_curve
from bridge.app.training.one_agent import Interrupted, announce
from bridge.errors import NotCompilable
from bridge.results.reading import SEEDS_CHECKPOINT
from bridge.seeds import SeedSweep
from jaxenvs.cli import UserError
from jaxenvs.learn.devices import is_first_process, largest


def train_seeds(config: TrainingConfig, out: Path, resume: bool = False) -> str:
    """Train `config.num_seeds` agents at once, and save them.

    It writes a folder seed-N for each agent, with a model.zip that SB3 can load, and for all of them config.json,
    learning_curve.png and, periodically, checkpoint.npz.

    Args:
      config: of the run.
      out: the folder to write to.
      resume: continue from the checkpoint in `out`; if there is none, begin anew.

    Returns:
      The results of the agents' evaluations, as a line of text.

    Raises:
      UserError: the config is not accepted, cannot be compiled, or nothing can be written.
      Interrupted: by Ctrl-C during training, after everything was written.
    """
    folders = folders_of_models(out, config)
    envs = [make_env(each) for _, each in folders]
    models = [make_model(each, env) for (_, each), env in zip(folders, envs)]
    try:
        sweep = SeedSweep(cast(Any, models), config.total_timesteps)
    except NotCompilable as reason:
        raise UserError(f"--seeds cannot compile this training: {reason}") from reason
    make_folder(out)
    config.save(out / CONFIG)
    path = out / SEEDS_CHECKPOINT
    if resume and path.exists():
        read_arrays(sweep, config, path)
    announce(config, out, sweep.num_timesteps)
    try:
        with Interrupt() as interrupt:
            train_in_calls(sweep, config, path, interrupt)
            write_arrays(sweep, config, path)
            sweep.finish()
            for model, (folder, _) in zip(models, folders):
                make_folder(folder)
                save_model(model, folder)
            if sweep.metrics:
                draw_learning_curve(config, out)
    except CannotWrite as error:
        raise UserError(f"{error} The last checkpoint is intact. To resume: jaxenvs train --resume {out}") from error
    if interrupt.came:
        raise Interrupted(sweep.num_timesteps, out)
    evaluations = [evaluate_model(each, model, env) for model, env, (_, each) in zip(models, envs, folders)]
    return describe_seeds(evaluations)


def train_in_calls(sweep: SeedSweep, config: TrainingConfig, path: Path, interrupt: Interrupt) -> None:
    """Train until the budget is spent or Ctrl-C comes, and write checkpoints meanwhile.

    If there are several processes, all of them stop and write as soon as one needs to.
    """
    if sweep.is_done:
        return
    timer = Timer()
    with progress_bar(config.total_timesteps, sweep.num_timesteps) as bar:
        stops = False
        while not sweep.is_done and not stops:
            sweep.advance()
            bar.update(sweep.num_timesteps - bar.n)
            stops, is_due = map(bool, largest(interrupt.came, timer.is_due))
            interrupt.came = stops
            if is_due:
                with timer.writing():
                    write_arrays(sweep, config, path)


def write_arrays(sweep: SeedSweep, config: TrainingConfig, path: Path) -> None:
    """Write the checkpoint. If there are several processes, all take part, and the first one writes."""
    arrays = sweep.to_arrays() | {CONFIG: np.array(json.dumps(config.as_json()))}
    if is_first_process():
        with replacing(path) as unfinished:
            np.savez(unfinished, **arrays)  # type: ignore[arg-type]


def read_arrays(sweep: SeedSweep, config: TrainingConfig, path: Path) -> None:
    """Continue from a checkpoint.

    Raises:
      UserError: it cannot be read, or is one of another config.
    """
    try:
        with np.load(path) as file:
            arrays = dict(file)
        begun = arrays.pop(CONFIG, None)  # earlier versions did not write it
        config.require_begun_as(None if begun is None else json.loads(str(begun)), path.parent / CONFIG)
        sweep.from_arrays(arrays)
    except UserError:
        raise
    except Exception as error:  # reading a damaged file may raise anything
        raise UserError(f"Cannot resume from {path}: {type(error).__name__}: {error}") from error
