"""SharedSweep: one program for trainings that differ in numbers, each of many seeds, one training after the other."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from bridge.seeds.model_training import Model, parameters_of, take_over, training_of
from jaxenvs.learn import Training, TrainingState, advance
from jaxenvs.learn.sweep import compile_sweep

# Between two calls of the program whoever calls `advance` hears Ctrl-C.
SECONDS_PER_CALL = 1.0


class SharedSweep:
    """Models of many seeds that are trained again and again from the start, with other numbers among their settings.

    Numbers are arguments of its two programs, that begin and that go on; the rest is compiled into them. What is learnt
    is that of a SeedSweep up to rounding, as XLA folds constants.

    Attributes:
      models: one for each seed, as `finish` leaves them.
    """

    def __init__(self, models: Sequence[Model], total_timesteps: int) -> None:
        """
        Args:
          models: which differ in their seeds alone.
          total_timesteps: of each.

        Raises:
          NotCompilable: not everything can be one program.
        """
        self.models, self._total_timesteps = list(models), total_timesteps
        self._training = training_of(models[0], total_timesteps)
        keys = jax.numpy.stack([jax.random.key(model.seed) for model in models])  # type: ignore[arg-type]
        params = jax.tree.map(lambda *leaves: np.stack(leaves), *map(parameters_of, models))
        self._start, self._structure = (keys, params), structure_of(self._training)
        self._state: TrainingState | None = None
        self._numbers: list[np.ndarray] = []
        self._count = 1  # iterations of the next call

    @property
    def num_iterations(self) -> int:
        """Of a whole training."""
        return self._training.num_iterations

    @property
    def iteration(self) -> int:
        """Iterations since `begin`."""
        return 0 if self._state is None else int(self._state.iteration[0])

    def begin(self, training: Training) -> None:
        """Start anew, with the numbers of a training.

        Raises:
          ValueError: its `structure_of` is another.
        """
        if structure_of(training) != self._structure:
            raise ValueError("training must have the structure of the first one, or be in a SharedSweep of its own.")
        leaves = numbers_of(training)
        self._numbers = [np.broadcast_to(leaf, (len(self.models), *leaf.shape)) for leaf in leaves]
        self._state = compile_sweep(self._init, self._numbers, *self._start)(self._numbers, *self._start)

    def advance(self, until: int) -> None:
        """Go on for a second or so, but to no more than so many iterations since `begin`."""
        assert self._state is not None, "begin comes first"
        count = min(self._count, until - self.iteration)
        counts = np.full(len(self.models), count, np.int32)
        program = compile_sweep(self._run, self._numbers, self._state, counts)
        start = time.monotonic()
        self._state = program(self._numbers, self._state, counts)
        jax.block_until_ready(self._state)  # type: ignore[no-untyped-call]
        # At most twice as many as before, as the first calls are slower than the rest.
        self._count = max(1, int(count * min(2, SECONDS_PER_CALL / (time.monotonic() - start))))

    def release(self) -> None:
        """Let go of the training, whose replay stores may be large; `begin` comes next."""
        self._state = None

    def finish(self) -> list[bool]:
        """Leave the models as their own trainings would have, as far as they came.

        Returns:
          Of each whether its weights are numbers; the others are left as they were.
        """
        host, sound = jax.device_get(self._state), []
        for i, model in enumerate(self.models):
            state = jax.tree.map(lambda leaf, i=i: leaf[i], host)
            sound.append(all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.learner.params)))
            if sound[-1]:
                take_over(model, state, {}, self._total_timesteps)
        return sound

    def _with(self, numbers: Any) -> Training:
        return self._training.replace(algorithm=jax.tree.unflatten(self._structure[0], numbers))

    def _init(self, numbers: Any, key: jax.Array, params: Any) -> TrainingState:
        return self._with(numbers).init(key, params)

    def _run(self, numbers: Any, state: TrainingState, count: jax.Array) -> Any:
        training = self._with(numbers)
        return jax.lax.fori_loop(0, count, lambda _, state: advance(training, state, 1)[0], state)


def numbers_of(training: Training) -> list[np.ndarray]:
    """The numbers among the settings, as a program takes them: float32 and int32."""
    kinds = {np.dtype(np.float64): np.float32, np.dtype(np.int64): np.int32}
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(training.algorithm)]
    return [leaf.astype(kinds.get(leaf.dtype, leaf.dtype)) for leaf in leaves]


def structure_of(training: Training) -> Any:
    """What of the settings is compiled into a program: trainings that are equal in it differ in numbers alone."""
    shapes = tuple((leaf.shape, leaf.dtype) for leaf in numbers_of(training))
    return jax.tree.structure(training.algorithm), shapes
