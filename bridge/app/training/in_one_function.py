"""A training that is one compiled function: many agents with --seeds, or one over devices and processes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np

from bridge.app.config import TrainingConfig
from bridge.app.evaluation import describe, describe_seeds, evaluate_model
from bridge.app.files import CannotWrite, make_folder, replacing
from bridge.app.runs import CONFIG, folders_of_models, make_env, make_model, refuse_used, save_model
from bridge.app.training.callbacks import Interrupt, Timer, move, progress_bar
from bridge.app.training.learning_curve import draw_learning_curve
from bridge.app.training.one_agent import Interrupted, announce
from bridge.errors import NotCompilable
from bridge.results.reading import SEEDS_CHECKPOINT
from bridge.seeds import SeedSweep
from jaxenvs import learn
from jaxenvs.cli.user_errors import UserError
from jaxenvs.jax_names import has_run
from jaxenvs.learn.devices import is_first_process, largest


def offer_cores(number: int) -> None:
    """Let JAX have this many devices on a CPU, about a core each. Call it before JAX runs anything."""
    flag = "--xla_force_host_platform_device_count"
    if number > 0 and has_run() is False and flag not in os.environ.get("XLA_FLAGS", ""):
        jax.config.update("jax_num_cpu_devices", number)  # type: ignore[no-untyped-call]


def train_in_one_function(config: TrainingConfig, out: Path, resume: bool = False) -> str:
    """Train `config.num_seeds` agents, or one over `config.devices` devices, and save them.

    It writes `files_of(config)`. If there are several processes, all call it, and the first writes and evaluates.

    Args:
      config: of the run.
      out: the folder to write to.
      resume: continue from the checkpoint in `out`; if there is none, begin anew.

    Returns:
      The results of the evaluations, as a line of text; an empty text in processes other than the first.

    Raises:
      UserError: the config is not accepted, cannot be compiled or divided, or nothing can be written.
      Interrupted: by Ctrl-C during training, after everything was written.
    """
    folders = folders_of_models(out, config)
    envs = [make_env(each) for _, each in folders]
    models = [make_model(each, env) for (_, each), env in zip(folders, envs)]
    flag = "--seeds" if config.devices is None else f"--devices {config.devices}"
    try:
        mesh = None if config.devices is None else learn.make_mesh(config.devices)
        sweep = SeedSweep(cast(Any, models), config.total_timesteps, mesh)
    except NotCompilable as reason:
        raise UserError(f"{flag} cannot compile this training: {reason}") from reason
    except ValueError as error:
        raise UserError(f"{flag}: {error}") from error
    path, is_first = out / SEEDS_CHECKPOINT, is_first_process()
    if is_first:
        if not resume:
            refuse_used(out)
        make_folder(out)
        config.save(out / CONFIG)
    (is_resumed,) = largest(is_first and resume and path.exists())
    if is_resumed:
        _go_on(sweep, config, path)
    announce(config, out, sweep.num_timesteps)
    try:
        with Interrupt() as interrupt:
            _train_in_calls(sweep, config, path, interrupt)
            _write_arrays(sweep, config, path)
            sweep.finish()
            if is_first:
                for model, (folder, _) in zip(models, folders):
                    make_folder(folder)
                    save_model(model, folder)
                if sweep.metrics:
                    draw_learning_curve(config, out)
    except CannotWrite as error:
        raise UserError(f"{error} The last checkpoint is intact. To resume: jaxenvs train --resume {out}") from error
    if interrupt.came:
        raise Interrupted(sweep.num_timesteps, out)
    if not is_first:
        return ""
    evaluations = [evaluate_model(each, model, env) for model, env, (_, each) in zip(models, envs, folders)]
    return describe_seeds(evaluations) if config.num_seeds > 1 else describe(evaluations[0])


def _train_in_calls(sweep: SeedSweep, config: TrainingConfig, path: Path, interrupt: Interrupt) -> None:
    """Train until the budget is spent or Ctrl-C comes, and write checkpoints meanwhile.

    If there are several processes, all of them stop and write as soon as one needs to.
    """
    if sweep.is_done:
        return
    timer = Timer()
    with progress_bar(total=config.total_timesteps, initial=sweep.num_timesteps) as bar:
        stops = False
        while not sweep.is_done and not stops:
            sweep.advance()
            move(bar, sweep.num_timesteps)
            stops, is_due = map(bool, largest(interrupt.came, timer.is_due))
            interrupt.came = stops
            if is_due:
                with timer.writing():
                    _write_arrays(sweep, config, path)


def _write_arrays(sweep: SeedSweep, config: TrainingConfig, path: Path) -> None:
    """Write the checkpoint. If there are several processes, all take part, and the first one writes."""
    arrays = sweep.to_arrays() | {CONFIG: np.array(json.dumps(config.as_json()))}
    if is_first_process():
        with replacing(path) as unfinished:
            np.savez(unfinished, **arrays)  # type: ignore[arg-type]


def _go_on(sweep: SeedSweep, config: TrainingConfig, path: Path) -> None:
    """Continue from a checkpoint, which the first process reads.

    Raises:
      UserError: it cannot be read, or is one of another config.
    """
    if not is_first_process():
        sweep.from_arrays(None)
        return
    try:
        with np.load(path) as file:
            arrays = dict(file)
        config.require_begun_as(json.loads(str(arrays.pop(CONFIG))), path.parent / CONFIG)
        sweep.from_arrays(arrays)
    except UserError:
        raise
    except Exception as error:  # reading a damaged file may raise anything
        raise UserError(f"Cannot resume from {path}: {type(error).__name__}: {error}") from error
