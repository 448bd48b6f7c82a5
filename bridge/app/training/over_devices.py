"""A training run with --devices or --distributed: one agent, whose training is divided over devices."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

import jax

from bridge.app.config import TrainingConfig
from bridge.app.evaluation import describe, evaluate_model
from bridge.app.files import CannotWrite, make_folder
from bridge.app.runs import CONFIG, make_env, make_model, refuse_used, save_model
from bridge.app.training.callbacks import Interrupt
from bridge.app.training.learning_curve import draw_learning_curve
from bridge.app.training.many_seeds import read_arrays, train_in_calls, write_arrays
from bridge.app.training.one_agent import Interrupted, announce
from bridge.errors import NotCompilable
from bridge.results.reading import SEEDS_CHECKPOINT
from bridge.seeds import SeedSweep
from jaxenvs import learn
from jaxenvs.cli import UserError
from jaxenvs.jax_names import has_run
from jaxenvs.learn.devices import is_first_process, largest


def offer_cores(number: int) -> None:
    """Let JAX have this many devices on a CPU, about a core each. Call it before JAX runs anything."""
    flag = "--xla_force_host_platform_device_count"
    if number > 0 and has_run() is False and flag not in os.environ.get("XLA_FLAGS", ""):
        jax.config.update("jax_num_cpu_devices", number)  # type: ignore[no-untyped-call]


def train_on_devices(config: TrainingConfig, out: Path, resume: bool = False) -> str:
    """Train one agent over `config.devices` devices, and save it.

    It writes model.zip, config.json, learning_curve.png and, periodically, checkpoint.npz. If there are several
    processes, all call it, and the first one writes and evaluates.

    Args:
      config: of the run.
      out: the folder to write to.
      resume: continue from the checkpoint in `out`; if there is none, begin anew.

    Returns:
      The result of the agent's evaluation, as a line of text; an empty text in processes other than the first.

    Raises:
      UserError: the config is not accepted, cannot be divided, or nothing can be written.
      Interrupted: by Ctrl-C during training, after everything was written.
    """
    env = make_env(config)
    model = make_model(config, env)
    try:
        training = SeedSweep([cast(Any, model)], config.total_timesteps, learn.make_mesh(config.devices))
    except NotCompilable as reason:
        raise UserError(f"--devices cannot compile this training: {reason}") from reason
    except ValueError as error:
        raise UserError(f"--devices {config.devices}: {error}") from error
    path, is_first = out / SEEDS_CHECKPOINT, is_first_process()
    if is_first:
        if not resume:
            refuse_used(out)
        make_folder(out)
        config.save(out / CONFIG)
    (goes_on,) = largest(is_first and resume and path.exists())
    if goes_on and is_first:
        read_arrays(training, config, path)
    elif goes_on:
        training.from_arrays(None)
    announce(config, out, training.num_timesteps)
    try:
        with Interrupt() as interrupt:
            train_in_calls(training, config, path, interrupt)
            write_arrays(training, config, path)
            training.finish()
            if is_first:
                save_model(model, out)
                if training.metrics:
                    draw_learning_curve(config, out)
    except CannotWrite as error:
        raise UserError(f"{error} The last checkpoint is intact. To resume: jaxenvs train --resume {out}") from error
    if interrupt.came:
        raise Interrupted(training.num_timesteps, out)
    return describe(evaluate_model(config, model, env)) if is_first else ""
