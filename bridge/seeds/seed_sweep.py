"""SeedSweep: models of one kind that train side by side, call by call."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bridge.results.reading import METRICS
from bridge.seeds.larger_store import in_larger_store
from bridge.seeds.model_training import Model, parameters_of, take_over, training_of
from jaxenvs.arrays import from_arrays, to_arrays
from jaxenvs.learn import OffPolicySettings, Training, TrainingState, advance
from jaxenvs.learn.devices import largest
from jaxenvs.learn.sweep import compile_sweep, sweep

# Between two calls of the program whoever calls `advance` shows progress, writes a checkpoint, and hears Ctrl-C.
SECONDS_PER_CALL = 1.0
MOST_ROWS_PER_CALL = 256
# A row of metrics is of one rollout; off-policy, where an iteration may be one step, of some of them.
MOST_ITERATIONS_PER_ROW = 64
# With fewer in a row, for all rows to be alike, a program would run too short; the last row is another program then.
FEWEST_ITERATIONS_PER_ROW = 16
KEPT = ("timesteps", "episodes", "episode_return", "epochs")  # of the metrics

Metrics = dict[str, np.ndarray]
# From states and a number of rows to states and the rows of metrics, (num_seeds, MOST_ROWS_PER_CALL).
Program = Callable[[TrainingState, int], tuple[TrainingState, dict[str, Any]]]


class SeedSweep:
    """A training of many seeds.

    Attributes:
      models: one for each seed, as `finish` leaves them.
      metrics: by name, (num_seeds, num_rows): see KEPT. Empty before the first call.
    """

    def __init__(self, models: Sequence[Model], total_timesteps: int) -> None:
        """
        Args:
          models: which differ in their seeds alone.
          total_timesteps: of each.

        Raises:
          NotCompilable: not everything can be one program.
        """
        self.models, self.metrics = list(models), Metrics()
        self._training, self._total_timesteps = training_of(models[0], total_timesteps), total_timesteps
        keys = jnp.stack([jax.random.key(model.seed) for model in models])  # type: ignore[arg-type]
        params = jax.tree.map(lambda *leaves: jnp.stack(leaves), *map(parameters_of, models))
        self._start = (keys, params)
        self._state: TrainingState | None = None
        self._program: Program | None = None
        self._in_a_row = 1
        self._rows = 1  # of the next call

    @property
    def num_timesteps(self) -> int:
        """Steps of each model so far."""
        return int(self.metrics["timesteps"][0, -1]) if self.metrics else 0

    @property
    def is_done(self) -> bool:
        """Whether the budget is spent."""
        return self._iteration >= self._training.num_iterations

    @property
    def _iteration(self) -> int:
        return 0 if self._state is None else int(self._state.iteration[0])

    def advance(self) -> None:
        """Go on for a second or so, or to the end."""
        state, left = self._begun(), self._training.num_iterations - self._iteration
        if self._program is None or left < self._in_a_row:
            self._in_a_row = iterations_in_a_row(self._training, left)
            self._program = self._compile(state)
        # By clocks that differ between processes, but programs over them must not.
        (most,) = largest(self._rows)
        count = min(most, left // self._in_a_row, MOST_ROWS_PER_CALL)
        start = time.monotonic()
        self._state, new = self._program(state, count)
        rows = {name: np.asarray(row)[:, :count] for name, row in new.items()}
        before = {name: self.metrics.get(name, row[:, :0]) for name, row in rows.items()}
        self.metrics = {name: np.concatenate([before[name], row], 1) for name, row in rows.items()}
        # At most twice as many as before, as the first calls are slower than the rest.
        self._rows = max(1, int(count * min(2, SECONDS_PER_CALL / (time.monotonic() - start))))

    def _compile(self, state: TrainingState) -> Program:
        program, number = compile_rows(self._training, state, self._in_a_row), len(self.models)
        return lambda state, count: program(state, jnp.full(number, count))

    def finish(self) -> None:
        """Leave the models as their own trainings would have, as far as they came."""
        host = jax.device_get(self._begun())
        for i, model in enumerate(self.models):
            state, metrics = jax.tree.map(lambda leaf, i=i: leaf[i], (host, self.metrics))
            take_over(model, state, metrics, self._total_timesteps)

    def to_arrays(self) -> dict[str, np.ndarray]:
        """All that the rest of the training depends on, as `numpy.savez(file, **arrays)` takes it."""
        return to_arrays(self._begun()) | {f"{METRICS}{name}": array for name, array in self.metrics.items()}

    def from_arrays(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Go on where `to_arrays` was called, also of a training with a smaller budget.

        Raises:
          ValueError: they are of another training.
        """
        metrics = {name.removeprefix(METRICS): arrays[name] for name in arrays if name.startswith(METRICS)}
        like = jax.eval_shape(jax.vmap(self._training.init), *self._start)
        state = {name: array for name, array in arrays.items() if not name.startswith(METRICS)}
        self._state, self.metrics, self._program = from_arrays(like, in_larger_store(like, state)), metrics, None

    def _begun(self) -> TrainingState:
        if self._state is None:
            self._state = sweep(lambda key, params: self._training.init(key, params), *self._start)
        return self._state


def iterations_in_a_row(training: Training, left: int) -> int:
    """Of how many iterations a row of metrics is: a number that divides those that are left, if one is large enough."""
    if not isinstance(training.algorithm, OffPolicySettings):
        return 1
    most = min(MOST_ITERATIONS_PER_ROW, left)
    fewest = min(FEWEST_ITERATIONS_PER_ROW, most)
    return next((count for count in range(most, fewest - 1, -1) if left % count == 0), most)


def compile_rows(
    training: Training, state: TrainingState, in_a_row: int
) -> Callable[..., tuple[TrainingState, dict[str, jax.Array]]]:
    """States and a number of rows to states and metrics: as `advance`, whose number is part of the program."""
    run = in_rows(lambda state: advance(training, state, in_a_row))
    return compile_sweep(run, state, jnp.ones(len(state.iteration), int))


def in_rows(advance_some: Callable[[TrainingState], Any]) -> Callable[[TrainingState, Any], Any]:
    """From a function that goes on for some iterations, one that does it so many times, with a row of metrics each."""

    def advance_a_row(state: TrainingState) -> tuple[TrainingState, dict[str, jax.Array]]:
        state, metrics = advance_some(state)
        episodes = metrics["episodes"]
        row = {name: values[-1] if name == "timesteps" else values.sum() for name, values in metrics.items()}
        row["episode_return"] = (metrics["episode_return"] * episodes).sum() / jnp.maximum(episodes.sum(), 1)
        return state, {name: row[name] for name in KEPT if name in row}

    def run(state: TrainingState, num_rows: Any) -> Any:
        def iterate(i: jax.Array, carry: Any) -> Any:
            state, metrics = carry
            state, row = advance_a_row(state)
            return state, jax.tree.map(lambda rows, row: rows.at[i].set(row), metrics, row)

        shapes = jax.eval_shape(lambda state: advance_a_row(state)[1], state)
        metrics = jax.tree.map(lambda leaf: jnp.zeros(MOST_ROWS_PER_CALL, leaf.dtype), shapes)
        return jax.lax.fori_loop(0, num_rows, iterate, (state, metrics))

    return run
