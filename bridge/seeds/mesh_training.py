"""MeshTraining: one model whose training is divided over devices, call by call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from bridge.results.reading import METRICS
from bridge.seeds.larger_store import in_larger_store
from bridge.seeds.model_training import Model, take_over
from bridge.seeds.seed_sweep import Program, SeedSweep, in_rows
from jaxenvs.arrays import from_arrays, to_arrays
from jaxenvs.compilation import compiler_options
from jaxenvs.learn import Training, TrainingState, advance, gather, place
from jaxenvs.learn.devices import is_first_process


class MeshTraining(SeedSweep):
    """A SeedSweep of one model, whose environments, minibatches and replay store are divided over a mesh.

    Of several processes all call each method; the first one's arrays are those that count.
    """

    def __init__(self, model: Model, total_timesteps: int, mesh: Mesh) -> None:
        """
        Raises:
          NotCompilable: not everything can be one program.
          ValueError: the devices cannot share it equally.
        """
        super().__init__([model], total_timesteps)
        self._mesh = mesh
        self._training.check_devices(mesh)

    @property
    def num_timesteps(self) -> int:
        """See SeedSweep."""
        return self._iteration * self._training.algorithm.steps_per_iteration * self._training.venv.num_envs

    @property
    def _iteration(self) -> int:
        return 0 if self._state is None else int(self._state.iteration)

    def finish(self) -> None:
        """See SeedSweep."""
        metrics = {name: rows[0] for name, rows in self.metrics.items()}
        take_over(self.models[0], gather(self._begun()), metrics, self._total_timesteps)

    def to_arrays(self) -> dict[str, np.ndarray]:
        """See SeedSweep. They do not depend on the number of devices."""
        return to_arrays(gather(self._begun())) | {f"{METRICS}{name}": rows for name, rows in self.metrics.items()}

    def from_arrays(self, arrays: Mapping[str, np.ndarray] | None) -> None:
        """See SeedSweep. Of several processes the first has them, the others need none."""
        like = jax.eval_shape(self._training.init, *self._key_and_params)
        if is_first_process():
            assert arrays is not None
            self.metrics = {name.removeprefix(METRICS): arrays[name] for name in arrays if name.startswith(METRICS)}
            with_axis = {name: array[None] for name, array in arrays.items() if not name.startswith(METRICS)}
            likes = jax.eval_shape(lambda state: jax.tree.map(lambda leaf: leaf[None], state), like)
            state = {name: array[0] for name, array in in_larger_store(likes, with_axis).items()}
        else:
            state = to_arrays(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like))
        self._state, self._program = place(from_arrays(like, state), self._mesh), None

    @property
    def _key_and_params(self) -> tuple[jax.Array, Any]:
        start: tuple[jax.Array, Any] = jax.tree.map(lambda leaf: leaf[0], self._start)
        return start

    def _begun(self) -> TrainingState:
        if self._state is None:
            self._state = self._training.init(*self._key_and_params, mesh=self._mesh)
        return self._state

    def _compile(self, state: TrainingState) -> Program:
        training, in_a_row, mesh = self._training, self._in_a_row, self._mesh

        def in_some_rows(training: Training, state: TrainingState, count: int) -> Any:
            return in_rows(lambda state: advance(training, state, in_a_row, mesh))(state, count)

        run = jax.jit(in_some_rows, donate_argnums=1, compiler_options=compiler_options())

        def with_axis(state: TrainingState, count: int) -> tuple[TrainingState, dict[str, Any]]:
            state, rows = run(training, state, count)
            return state, {name: np.asarray(row)[None] for name, row in rows.items()}

        return with_axis
