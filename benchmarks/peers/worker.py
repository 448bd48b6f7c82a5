"""A process that trains when it is told to: the side of the peer. Imports nothing but what every environment has.

It reads commands from its standard input and answers each on its standard output, a line of JSON for a line of JSON:

    {"do": "prepare", "setting": {...}, "iterations": 20}  ->  {"compile_seconds": 1.5, "versions": {...}}
    {"do": "run"}                                          ->  {"seconds": 0.5}
"""

from __future__ import annotations

import dataclasses
import gc
import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass(frozen=True)
class Setting:
    """What all sides of a comparison have in common: the hyper-parameters of PPO, by SB3's names and defaults."""

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

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """The arguments of an algorithm with SB3's constructor."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name != "n_envs"}

    def __str__(self) -> str:
        return f"{self.n_envs} envs x {self.n_steps} steps, batch {self.batch_size}, {self.n_epochs} epochs"


@dataclasses.dataclass
class Training:
    """A training that goes on, a few iterations at a time.

    Attributes:
      run: trains for some more iterations, and returns when that is done.
      iterations: how many.
      compile_seconds: what was spent before the first; None if nothing is compiled.
    """

    run: Callable[[], Any]
    iterations: int
    compile_seconds: float | None = None


Prepare = Callable[[Setting, int], Training]


def sb3_training(model: Any, setting: Setting, iterations: int, compiles: bool) -> Training:
    """Of a model with SB3's `learn`. What the first iteration takes longer than the second is compilation."""

    def learn(count: int) -> float:
        start = time.perf_counter()
        model.learn(count * setting.rollout, reset_num_timesteps=False)
        return time.perf_counter() - start

    first, second = learn(1), learn(1)
    return Training(lambda: learn(iterations), iterations, first - second if compiles else None)


def program_training(
    init: Callable[[Any], Any], train: Callable[[Any], tuple[Any, Any]], key: Any, iterations: int
) -> Training:
    """Of two pure functions, key to state and state to state and metrics, compiled with JAX's defaults."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    start = time.perf_counter()
    state = jax.jit(init)(key)
    seconds = time.perf_counter() - start
    # The first state has weak types, the later ones have not: to be the same program's, it takes on theirs.
    later, _ = jax.eval_shape(train, state)
    state = jax.tree.map(lambda leaf, like: jnp.asarray(np.asarray(leaf), like.dtype), state, later)
    start = time.perf_counter()
    program = jax.jit(train).lower(state).compile()
    seconds += time.perf_counter() - start

    def run() -> Any:
        nonlocal state
        state, metrics = jax.block_until_ready(program(state))
        return metrics

    return Training(run, iterations, seconds)


def serve(prepare: Prepare, packages: list[str]) -> None:
    """Answer commands until there are no more.

    Args:
      prepare: makes the training for a setting.
      packages: whose versions to tell.
    """
    # What libraries print goes where errors go.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    training: Training | None = None
    for line in sys.stdin:
        command = json.loads(line)
        answer: dict[str, Any]
        if command["do"] == "prepare":
            training = None
            training = prepare(Setting(**command["setting"]), command["iterations"])
            versions = {package: importlib.metadata.version(package) for package in packages}
            answer = {"compile_seconds": training.compile_seconds, "versions": versions}
        elif command["do"] == "run" and training is not None:
            start = time.perf_counter()
            training.run()
            answer = {"seconds": time.perf_counter() - start}
        else:
            raise ValueError(f"expected the command prepare, then run, got {command}")
        print(json.dumps(answer), file=answers, flush=True)
        # After the answer, so that no run pays for what another left.
        gc.collect()
