"""A training that is one compiled function: many agents with --seeds, or one over devices and processes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, cast

import numpy as np

from bridge.app.config import TrainingConfig
from bridge.app.runs import CONFIG, folders_of_models, make_agent, writing
from bridge.app.training.callbacks import Interrupt, Timer, move, progress_bar
from bridge.errors import NotCompilable
from bridge.results.reading import SEEDS_CHECKPOINT
from bridge.seeds import SeedSweep
from jaxenvs import learn
from jaxenvs.cli.user_errors import user_errors
from jaxenvs.files import replacing
from jaxenvs.jax_names import config as jax_config
from jaxenvs.jax_names import has_run
from jaxenvs.learn.devices import is_first_process, largest


def offer_cores(number: int) -> None:
    """Let JAX have this many devices on a CPU, about a core each. Call it before JAX runs anything."""
    flag = "--xla_force_host_platform_device_count"
    if number > 0 and has_run() is False and flag not in os.environ.get("XLA_FLAGS", ""):
        jax_config.update("jax_num_cpu_devices", number)


class AgentsInOneFunction:
    """The training of `config.num_seeds` agents, or of one over `config.devices` devices, by all processes together.

    If it is resumed, it continues from checkpoint.npz, which the first process reads.

    Attributes:
      agents: the agents, with their folders; after `learn` without those whose parameters became NaN.
    """

    def __init__(self, config: TrainingConfig, out: Path, resume: bool) -> None:
        self._config, self._path = config, out / SEEDS_CHECKPOINT
        self.agents = [make_agent(folder, each) for folder, each in folders_of_models(out, config)]
        flag = "--seeds" if config.devices is None else f"--devices {config.devices}"
        with user_errors(NotCompilable, f"{flag} cannot compile this training: "), user_errors(ValueError, f"{flag}: "):
            mesh = None if config.devices is None else learn.make_mesh(config.devices)
            models = cast(Any, [agent.model for agent in self.agents])
            self._sweep = SeedSweep(models, config.total_timesteps, mesh)
        (is_resumed,) = largest(is_first_process() and resume and self._path.exists())
        if is_resumed:
            self._continue()

    @property
    def num_timesteps(self) -> int:
        """The number of steps of each agent so far."""
        return self._sweep.num_timesteps

    def learn(self, interrupt: Interrupt) -> None:
        """Train until the budget is spent or Ctrl-C comes, write checkpoints meanwhile, and write into the models.

        If there are several processes, all of them stop and write as soon as one needs to.
        """
        timer, stops = Timer(), False
        with progress_bar(total=self._config.total_timesteps, initial=self.num_timesteps) as bar:
            while not self._sweep.is_done and not stops:
                self._sweep.advance()
                move(bar, self.num_timesteps)
                stops, is_due = map(bool, largest(interrupt.came, timer.is_due))
                interrupt.came = stops
                if is_due:
                    with timer.writing():
                        self._write_arrays()
        self._write_arrays()
        failed = self._sweep.finish()
        self.agents = [agent for i, agent in enumerate(self.agents) if i not in failed]

    def _write_arrays(self) -> None:
        """Write the checkpoint. If there are several processes, all take part, and the first one writes."""
        arrays = self._sweep.to_arrays() | {CONFIG: np.array(json.dumps(self._config.as_json()))}
        if is_first_process():
            with writing(self._path.parent), replacing(self._path) as unfinished:
                np.savez(unfinished, **arrays)  # type: ignore[arg-type]

    def _continue(self) -> None:
        """Continue from the checkpoint.

        Raises:
          UserError: it cannot be read, or is one of another config.
        """
        arrays = None
        with user_errors(Exception, f"Cannot resume from {self._path}: "):  # reading a damaged file may raise anything
            if is_first_process():
                with np.load(self._path) as file:
                    arrays = dict(file)
                begun = json.loads(str(arrays.pop(CONFIG)))
                self._config.require_begun_as(begun, self._path.with_name(CONFIG))
            self._sweep.from_arrays(arrays)
