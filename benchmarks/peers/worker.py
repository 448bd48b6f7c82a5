"""The other library's side: a process that trains on command. It only imports what every environment has.

It reads commands from its standard input and answers each on its standard output, a line of JSON for a line of JSON:

    {"do": "prepare", "setting": {...}, "iterations": 20, "compiler_options": {}}
        ->  {"steps": 40960, "compile_seconds": 1.5}
    {"do": "run"}  ->  {}
"""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


@dataclasses.dataclass(frozen=True)
class Setting:
    """The hyperparameters of PPO that all sides of a comparison share, with SB3's names and defaults."""

    n_envs: int
    n_steps: int
    batch_size: int
    n_epochs: int
    learning_rate: float = 3e-4
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip_range: float = 0.2
    ent_coef: float = 0.0
    vf_coef: float = 0.5
    max_grad_norm: float = 0.5

    @property
    def rollout(self) -> int:
        """Environment steps in one iteration."""
        return self.n_envs * self.n_steps

    def __str__(self) -> str:
        return f"{self.n_envs} envs x {self.n_steps} steps, batch {self.batch_size}, {self.n_epochs} epochs"


@dataclasses.dataclass
class Side:
    """One side of a comparison.

    Attributes:
      run: does the work once; what it returns is waited for and kept until the clock has stopped.
      steps: environment steps in one run, of all environments together.
      compile_seconds: what was spent before the first run; None if nothing is compiled.
    """

    run: Callable[[], Any]
    steps: int
    compile_seconds: float | None = None


Prepare = Callable[[Setting, int, Mapping[str, str]], Side]


def compiled_training(
    init: Callable[[Any], Any],
    train: Callable[[Any], tuple[Any, Any]],
    steps: int,
    compiler_options: Mapping[str, str],
) -> Side:
    """Return a training of two pure functions: key to state, and state to state and metrics."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    start = time.perf_counter()
    state = jax.jit(init)(jax.random.PRNGKey(0))
    seconds = time.perf_counter() - start
    # The first state has weak types, the later ones have not: so that one compiled function takes both, it gets theirs.
    later, _ = jax.eval_shape(train, state)
    state = jax.tree.map(lambda leaf, like: jnp.asarray(np.asarray(leaf), like.dtype), state, later)
    start = time.perf_counter()
    compiled = jax.jit(train, compiler_options=dict(compiler_options)).lower(state).compile()
    seconds += time.perf_counter() - start

    def run() -> Any:
        nonlocal state
        state, metrics = jax.block_until_ready(compiled(state))
        return metrics

    return Side(run, steps, seconds)


def serve(prepare: Prepare) -> None:
    """Answer the commands `prepare` and `run` until there are no more.

    Args:
      prepare: creates a training from a setting, a number of iterations and compiler options.
    """
    prepared: list[Side] = []

    def prepare_anew(setting: dict[str, Any], iterations: int, compiler_options: dict[str, str]) -> dict[str, Any]:
        prepared.clear()  # before another takes memory
        side = prepare(Setting(**setting), iterations, compiler_options)
        prepared.append(side)
        return {"steps": side.steps, "compile_seconds": side.compile_seconds}

    def run() -> dict[str, Any]:
        prepared[0].run()
        return {}

    answer({"prepare": prepare_anew, "run": run})


def answer(handlers: Mapping[str, Callable[..., dict[str, Any]]]) -> None:
    """Answer commands until there are no more.

    Args:
      handlers: by the `do` of a command, a function from the rest of it to the answer.
    """
    # What libraries print goes where errors go.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    for line in sys.stdin:
        command = json.loads(line)
        print(json.dumps(handlers[command.pop("do")](**command)), file=answers, flush=True)
        # After the answer, so that no run pays for what another left.
        gc.collect()


def megabytes(field: str) -> float:
    """Return the memory of this process, without imports that would take some.

    Args:
      field: of Linux's /proc: "VmRSS" for the resident size, "VmHWM" for its peak. Other systems only have the peak.
    """
    # First, because what getrusage reports may be of the process that started this one: Linux keeps it over an exec.
    status = Path("/proc/self/status")
    if status.exists():
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return int(lines[field].split()[0]) * 1024 / 1e6
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak / 1e3
