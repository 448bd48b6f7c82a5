"""SeedSweep: models of one kind that train side by side, or one over many devices, call by call."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from bridge.results.reading import METRICS
from bridge.seeds.larger_store import in_larger_store
from bridge.seeds.model_training import Model, parameters_of, take_over, training_of
from jaxenvs.arrays import from_arrays, to_arrays
from jaxenvs.compilation import compiler_options
from jaxenvs.learn import OffPolicySettings, Training, TrainingState, advance, gather, place
from jaxenvs.learn.devices import is_first_process, largest
from jaxenvs.learn.loop import Limits, Loop, run
from jaxenvs.learn.sweep import compile_sweep

# Between two calls the caller shows progress, writes a checkpoint, and hears Ctrl-C.
SECONDS_PER_CALL = 1.0
MOST_ROWS_PER_CALL = 256
# A row of metrics is of one rollout; off-policy, where an iteration may be one step, of some of them.
MOST_ITERATIONS_PER_ROW = 64
# With fewer in a row, for all rows to be alike, a program would run too short; the last row is another program then.
FEWEST_ITERATIONS_PER_ROW = 16
KEPT = ("timesteps", "episodes", "episode_return", "epochs")  # of the metrics

Metrics = dict[str, np.ndarray]
# From numbers, states and a number of rows to states and the rows of metrics, (num_seeds, MOST_ROWS_PER_CALL).
Program = Callable[[Any, TrainingState, int], tuple[TrainingState, dict[str, Any]]]


class SeedSweep:
    """A training of many seeds; or of one model whose environments, minibatches and replay store a mesh divides.

    Of several processes all call each method; the first one's arrays are those that count.

    Attributes:
      models: one for each seed, as `finish` leaves them.
      metrics: by name, (num_seeds, num_rows): see KEPT. Empty before the first call.
    """

    def __init__(
        self, models: Sequence[Model], total_timesteps: int, mesh: Mesh | None = None, shares_programs: bool = False
    ) -> None:
        """
        Args:
          models: which differ in their seeds alone; with a mesh, one.
          total_timesteps: of each.
          mesh: the devices over which the training is divided.
          shares_programs: whether `begin` starts anew with other numbers among the settings, which are arguments of the
            programs then. What is learnt is the same up to rounding, as XLA folds constants. There are no metrics.

        Raises:
          NotCompilable: not everything can be one program.
          ValueError: the devices cannot share it equally.
        """
        self.models, self.metrics = list(models), Metrics()
        self._training, self._total_timesteps = training_of(models[0], total_timesteps), total_timesteps
        self._training.check_devices(mesh)
        keys = jnp.stack([jax.random.key(model.seed) for model in models])  # type: ignore[arg-type]
        params = jax.tree.map(lambda *leaves: jnp.stack(leaves), *map(parameters_of, models))
        self._start, self._mesh, self._shares = (keys, params), mesh, shares_programs
        self._numbers: list[np.ndarray] | None = None
        self._state: TrainingState | None = None
        self._init: Callable[..., TrainingState] | None = None
        self._program: Program | None = None
        self._in_a_row = 1
        self._rows = 1  # of the next call

    @property
    def num_iterations(self) -> int:
        """Of a whole training."""
        return self._training.num_iterations

    @property
    def iteration(self) -> int:
        """Iterations so far."""
        return 0 if self._state is None else int(np.ravel(self._state.iteration)[0])

    @property
    def num_timesteps(self) -> int:
        """Steps of each model so far."""
        return self.iteration * self._training.algorithm.steps_per_iteration * self._training.venv.num_envs

    @property
    def is_done(self) -> bool:
        """Whether the budget is spent."""
        return self.iteration >= self.num_iterations

    def begin(self, training: Training) -> None:
        """Start anew, with the numbers of a training.

        Raises:
          ValueError: its `structure_of` is another.
        """
        if structure_of(training) != structure_of(self._training):
            raise ValueError("training must have the same structure as the first one: make another SeedSweep for it.")
        leaves = numbers_of(training)
        self._numbers = [np.broadcast_to(leaf, (len(self.models), *leaf.shape)) for leaf in leaves]
        self._state = None
        self._begun()

    def advance(self, until: int | None = None) -> None:
        """Go on for a second or so, but to no more than so many iterations; None: to the end."""
        state, left = self._begun(), (self.num_iterations if until is None else until) - self.iteration
        if self._program is None or left < self._in_a_row:
            self._in_a_row = 1 if self._shares else iterations_in_a_row(self._training, left)
            self._program = self._compile(state)
        # By clocks that differ between processes, but programs over them must not.
        (most,) = largest(self._rows)
        count = min(most, left // self._in_a_row, left if self._shares else MOST_ROWS_PER_CALL)
        start = time.monotonic()
        self._state, new = self._program(self._numbers, state, count)
        rows = {name: np.asarray(row)[:, :count] for name, row in new.items()}
        jax.block_until_ready(self._state)  # type: ignore[no-untyped-call]
        before = {name: self.metrics.get(name, row[:, :0]) for name, row in rows.items()}
        self.metrics = {name: np.concatenate([before[name], row], 1) for name, row in rows.items()}
        # At most twice as many as before, as the first calls are slower than the rest.
        self._rows = max(1, int(count * min(2, SECONDS_PER_CALL / (time.monotonic() - start))))

    def release(self) -> None:
        """Let go of the training, whose replay stores may be large; `begin` comes next."""
        self._state = None

    def finish(self, skips_nan: bool = False) -> list[bool]:
        """Leave the models as their own trainings would have, as far as they came.

        Args:
          skips_nan: whether models whose weights are no numbers are left as they were.

        Returns:
          Of each whether its weights are numbers.
        """
        host, sound = jax.device_get(self._with_axis()), []
        for i, model in enumerate(self.models):
            state, metrics = jax.tree.map(lambda leaf, i=i: leaf[i], (host, self.metrics))
            sound.append(all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.learner.params)))
            if sound[-1] or not skips_nan:
                take_over(model, state, metrics, self._total_timesteps)
        return sound

    def to_arrays(self) -> dict[str, np.ndarray]:
        """All that the rest of the training depends on, on however many devices, as `numpy.savez(file, **arrays)` takes
        it."""
        return to_arrays(self._with_axis()) | {f"{METRICS}{name}": array for name, array in self.metrics.items()}

    def from_arrays(self, arrays: Mapping[str, np.ndarray] | None) -> None:
        """Go on where `to_arrays` was called, also of a training with a smaller budget. Of several processes the first
        has the arrays, the others need none.

        Raises:
          ValueError: they are of another training.
        """
        like = jax.eval_shape(jax.vmap(self._training.init), *self._start)
        if is_first_process():
            assert arrays is not None
            self.metrics = {name.removeprefix(METRICS): arrays[name] for name in arrays if name.startswith(METRICS)}
            own = {name: array for name, array in arrays.items() if not name.startswith(METRICS)}
            state = from_arrays(like, in_larger_store(like, own))
        else:
            state = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like)
        if self._mesh is not None:
            state = place(jax.tree.map(lambda leaf: leaf[0], state), self._mesh)
        self._state, self._program = state, None

    def _begun(self) -> TrainingState:
        if self._state is None and self._mesh is not None:
            key, params = jax.tree.map(lambda leaf: leaf[0], self._start)
            self._state = self._training.init(key, params, mesh=self._mesh)
        elif self._state is None:
            if self._init is None:
                training = self._training

                def init(numbers: Any, key: jax.Array, params: Any) -> TrainingState:
                    return with_numbers(training, numbers).init(key, params)

                self._init = compile_sweep(init, self._numbers, *self._start)
            self._state = self._init(self._numbers, *self._start)
        return self._state

    def _with_axis(self) -> TrainingState:
        """The states, with a leading axis of seeds."""
        state = self._begun()
        return state if self._mesh is None else jax.tree.map(lambda leaf: leaf[None], gather(state))

    def _compile(self, state: TrainingState) -> Program:
        # What is compiled is kept for long, and must not hold on to the models and their stores.
        training, number = self._training, len(self.models)
        run_rows = rows_of(self._in_a_row, None if self._shares else MOST_ROWS_PER_CALL, self._mesh)
        if self._mesh is None:

            def run_seed(numbers: Any, state: TrainingState, count: jax.Array) -> Any:
                return run_rows(with_numbers(training, numbers), state, count)

            run_all = compile_sweep(run_seed, self._numbers, state, jnp.ones(number, int))
            return lambda numbers, state, count: run_all(numbers, state, jnp.full(number, count))
        run_one = jax.jit(run_rows, donate_argnums=1, compiler_options=compiler_options())

        def with_axis(_: Any, state: TrainingState, count: int) -> tuple[TrainingState, dict[str, Any]]:
            state, rows = run_one(training, state, count)
            return state, {name: np.asarray(row)[None] for name, row in rows.items()}

        return with_axis


def rows_of(in_a_row: int, keep: int | None, mesh: Mesh | None) -> Callable[..., Any]:
    """Return a function from a training, its state and a number of rows to the next state and the rows.

    Args:
      in_a_row: so many iterations are a row of metrics.
      keep: for how many rows there is room; None: they are not kept.
    """

    def run_rows(training: Training, state: TrainingState, count: jax.Array) -> tuple[TrainingState, dict[str, Any]]:
        def advance_a_row(state: TrainingState, number: jax.Array, drawn: None) -> tuple[TrainingState, Any]:
            state, metrics = advance(training, state, in_a_row, mesh)
            episodes = metrics["episodes"]
            row = {name: values[-1] if name == "timesteps" else values.sum() for name, values in metrics.items()}
            row["episode_return"] = (metrics["episode_return"] * episodes).sum() / jnp.maximum(episodes.sum(), 1)
            return state, {name: row[name] for name in KEPT if name in row}

        state, rows = run(Loop(advance_a_row), state, Limits(count), keep)
        return state, rows or {}

    return run_rows


def with_numbers(training: Training, numbers: list[Any] | None) -> Training:
    """The training with other numbers among its settings; as it is, without any."""
    if numbers is None:
        return training
    return training.replace(algorithm=jax.tree.unflatten(jax.tree.structure(training.algorithm), numbers))


def iterations_in_a_row(training: Training, left: int) -> int:
    """Of how many iterations a row of metrics is: a number that divides those that are left, if one is large enough."""
    if not isinstance(training.algorithm, OffPolicySettings):
        return 1
    most = min(MOST_ITERATIONS_PER_ROW, left)
    fewest = min(FEWEST_ITERATIONS_PER_ROW, most)
    return next((count for count in range(most, fewest - 1, -1) if left % count == 0), most)


def numbers_of(training: Training) -> list[np.ndarray]:
    """The numbers among the settings, as a program takes them: float32 and int32."""
    kinds = {np.dtype(np.float64): np.float32, np.dtype(np.int64): np.int32}
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(training.algorithm)]
    return [leaf.astype(kinds.get(leaf.dtype, leaf.dtype)) for leaf in leaves]


def structure_of(training: Training) -> Any:
    """What of the settings is compiled into a program: trainings that are equal in it differ in numbers alone."""
    shapes = tuple((leaf.shape, leaf.dtype) for leaf in numbers_of(training))
    return jax.tree.structure(training.algorithm), shapes
