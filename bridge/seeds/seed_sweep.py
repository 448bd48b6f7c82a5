"""SeedSweep: models of one class that train side by side, or one model on many devices, call by call."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from bridge.results.reading import METRICS
from bridge.seeds.model_training import Model, parameters_of, take_over, training_of
from jaxenvs.arrays import from_arrays, to_arrays
from jaxenvs.compilation import compiler_options
from jaxenvs.jax_names import block_until_ready
from jaxenvs.learn import OffPolicySettings, Training, TrainingState, advance, gather, place
from jaxenvs.learn.devices import is_first_process, largest
from jaxenvs.learn.interfaces import Array
from jaxenvs.learn.loop import run
from jaxenvs.learn.sweep import compile_sweep, sweep
from jaxenvs.learn.training_state import mean_of

# Between two calls the caller can show progress, write a checkpoint, and handle Ctrl-C.
SECONDS_PER_CALL = 1.0
MOST_ROWS_PER_CALL = 256
# A row of metrics covers one rollout. Off-policy, where an iteration may be one step, it covers several.
MOST_ITERATIONS_PER_ROW = 64
# Fewer iterations per row, so that all rows are equal, would make compiled functions too short. The last row is then
# compiled separately.
FEWEST_ITERATIONS_PER_ROW = 16
REPLAY = ".replay"  # prefix of the names of a store's arrays
KEPT = ("timesteps", "episodes", "episode_return", "iteration_episode_return", "epochs")  # of the metrics

Metrics = dict[str, np.ndarray]
RowsOf = tuple[TrainingState, dict[str, jax.Array]]
# Maps states and a number of rows to states and the rows of metrics, (num_seeds, MOST_ROWS_PER_CALL).
RowsFunction = Callable[[TrainingState, int], tuple[TrainingState, Mapping[str, Array]]]


class SeedSweep:
    """Training of many seeds; or of one model whose environments, minibatches and replay store a mesh divides.

    Use it instead of `train_seeds` to control the loop: to show progress, to write checkpoints, or to resume. With
    several processes, all call each method, and the first process's arrays count.

    Attributes:
      models: one for each seed; `finish` writes the results into them.
      metrics: by name, (num_seeds, num_rows): see KEPT. Empty before the first call.
    """

    def __init__(self, models: Sequence[Model], total_timesteps: int, mesh: Mesh | None = None) -> None:
        """Prepare the training. Nothing is compiled yet.

        Args:
          models: they differ only in their seeds; with a mesh, one.
          total_timesteps: of each model.
          mesh: the devices over which the training is divided.

        Raises:
          NotCompilable: not everything can be compiled into one function.
          ValueError: the devices cannot share it equally.
        """
        self.models, self.metrics = list(models), Metrics()
        self._training, self._total_timesteps = training_of(models[0], total_timesteps), total_timesteps
        self._training.check_devices(mesh)
        keys = jnp.stack([jax.random.key(model.seed) for model in models])  # type: ignore[arg-type]
        params = jax.tree.map(lambda *leaves: jnp.stack(leaves), *map(parameters_of, models))
        self._start, self._mesh = (keys, params), mesh
        self._state: TrainingState | None = None
        self._compiled_rows: RowsFunction | None = None
        self._in_a_row = 1
        self._rows = 1  # of the next call

    @property
    def iteration(self) -> int:
        """The number of iterations so far."""
        return 0 if self._state is None else int(np.ravel(self._state.iteration)[0])

    @property
    def num_timesteps(self) -> int:
        """The number of steps of each model so far."""
        return self.iteration * self._training.algorithm.steps_per_iteration * self._training.venv.num_envs

    @property
    def is_done(self) -> bool:
        """True if the budget is spent."""
        return self.iteration >= self._training.num_iterations

    def advance(self) -> None:
        """Continue for about a second, or to the end."""
        state, left = self._begun(), self._training.num_iterations - self.iteration
        if self._compiled_rows is None or left < self._in_a_row:
            self._in_a_row = iterations_in_a_row(self._training, left)
            self._compiled_rows = self._compile(state)
        # The clocks of processes differ, but the compiled functions that run on all of them must be the same.
        (most,) = largest(self._rows)
        count = min(most, left // self._in_a_row, MOST_ROWS_PER_CALL)
        start = time.monotonic()
        self._state, new = self._compiled_rows(state, count)
        rows = {name: np.asarray(row)[:, :count] for name, row in new.items()}
        block_until_ready(self._state)
        before = {name: self.metrics.get(name, row[:, :0]) for name, row in rows.items()}
        self.metrics = {name: np.concatenate([before[name], row], 1) for name, row in rows.items()}
        # At most twice as many as before, because the first calls are slower than the others.
        self._rows = max(1, int(count * min(2, SECONDS_PER_CALL / (time.monotonic() - start))))

    def finish(self) -> list[int]:
        """Write the results so far into the models, as their own trainings would have.

        Returns:
          The indices of the models whose parameters became NaN, which are left as they were.
        """
        host, failed = jax.device_get(self._with_axis()), []
        for i, model in enumerate(self.models):
            state, metrics = jax.tree.map(lambda leaf, i=i: leaf[i], (host, self.metrics))
            if any(np.isnan(leaf).any() for leaf in jax.tree.leaves(state.learner.params)):
                failed.append(i)
            else:
                take_over(model, state, metrics, self._total_timesteps)
        return failed

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return everything that the rest of the training depends on, as arrays for `numpy.savez(file, **arrays)`.

        They do not depend on the number of devices.
        """
        return to_arrays(self._with_axis()) | {f"{METRICS}{name}": array for name, array in self.metrics.items()}

    def from_arrays(self, arrays: Mapping[str, np.ndarray] | None) -> None:
        """Continue where `to_arrays` was called, also from a training with a smaller budget.

        Args:
          arrays: with several processes, only the first one needs them.

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
        self._state, self._compiled_rows = state, None

    def _begun(self) -> TrainingState:
        if self._state is None and self._mesh is not None:
            key, params = jax.tree.map(lambda leaf: leaf[0], self._start)
            self._state = self._training.init(key, params, mesh=self._mesh)
        elif self._state is None:
            self._state = sweep(self._training.init, *self._start)
        assert self._state is not None
        return self._state

    def _with_axis(self) -> TrainingState:
        """Return the states, with a leading axis of seeds."""
        state = self._begun()
        return state if self._mesh is None else jax.tree.map(lambda leaf: leaf[None], gather(state))

    def _compile(self, state: TrainingState) -> RowsFunction:
        # Compiled functions are kept for long, and must not keep the models and their stores alive.
        training, number = self._training, len(self.models)
        run_rows = rows_of(self._in_a_row, self._mesh)
        if self._mesh is None:

            def run_seed(state: TrainingState, count: jax.Array) -> RowsOf:
                return run_rows(training, state, count)

            run_all = compile_sweep(run_seed, state, jnp.ones(number, int))
            return lambda state, count: run_all(state, jnp.full(number, count))
        run_one = jax.jit(run_rows, donate_argnums=1, compiler_options=compiler_options())

        def with_axis(state: TrainingState, count: int) -> tuple[TrainingState, Metrics]:
            state, rows = run_one(training, state, count)
            return state, {name: np.asarray(row)[None] for name, row in rows.items()}

        return with_axis


def rows_of(in_a_row: int, mesh: Mesh | None) -> Callable[..., RowsOf]:
    """Return a function that maps a training, its state and a number of rows to the next state and the rows.

    A row covers `in_a_row` iterations. At most MOST_ROWS_PER_CALL rows are returned.
    """

    def run_rows(training: Training, state: TrainingState, count: jax.Array) -> RowsOf:
        def advance_a_row(state: TrainingState, number: jax.Array, drawn: None) -> RowsOf:
            state, metrics = advance(training, state, in_a_row, mesh)
            return state, _row_of(metrics)

        return run(advance_a_row, state, count, MOST_ROWS_PER_CALL)

    return run_rows


def _row_of(metrics: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Return one row of metrics for some iterations."""
    episodes = metrics["episodes"]
    returns = jnp.where(episodes > 0, metrics["iteration_episode_return"], 0)  # of the others the return is NaN
    row = {name: values.sum() for name, values in metrics.items()}
    row |= {name: metrics[name][-1] for name in ("timesteps", "episode_return")}
    row["iteration_episode_return"] = mean_of((returns * episodes).sum(), episodes.sum())
    return {name: row[name] for name in KEPT if name in row}


def iterations_in_a_row(training: Training, left: int) -> int:
    """Return how many iterations make a row of metrics: a number that divides `left`, if one is large enough."""
    if not isinstance(training.algorithm, OffPolicySettings):
        return 1
    most = min(MOST_ITERATIONS_PER_ROW, left)
    fewest = min(FEWEST_ITERATIONS_PER_ROW, most)
    return next((count for count in range(most, fewest - 1, -1) if left % count == 0), most)


def in_larger_store(like: object, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays of a training state with replay stores as large as in `like`, for each seed.

    So a training can resume with a larger budget.

        rows:  [r0 r1 r2 r3]   ->   [r0 r1 r2 r3 .  .  .  .]      position: behind r3

    Args:
      like: the state's shapes. An on-policy training has no store, so its arrays are returned unchanged.
      arrays: by name, of the checkpoint.
    """
    replay, grown = getattr(like, "replay", None), dict(arrays)
    if replay is None or (rows := grown[f"{REPLAY}.reward"].shape[1]) == replay.reward.shape[1]:
        return grown
    # The store was large enough for the budget, so if it was full, it had just become full.
    was_full = (grown[f"{REPLAY}.position"] == 0) & (grown[".iteration"] > 0)
    grown[f"{REPLAY}.position"] = np.where(was_full, np.int32(rows), grown[f"{REPLAY}.position"])
    if (begin := grown.get(f"{REPLAY}.episodes.begin")) is not None:
        grown[f"{REPLAY}.episodes.begin"] = np.where(was_full[:, None] & (begin == 0), np.int32(rows), begin)
    for path, leaf in jax.tree_util.tree_leaves_with_path(replay):
        name = f"{REPLAY}{jax.tree_util.keystr(path)}"
        grown[name] = np.pad(grown[name], [(0, new - each) for new, each in zip(leaf.shape, grown[name].shape)])
    return grown
