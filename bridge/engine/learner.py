"""Parameters, targets and moments of optimizers as vectors, which compiled updates read and write."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
import torch

from bridge.engine.runtime import MOST_FROM_HEAP, keep_freed_memory, to_host
from bridge.errors import NotCompilable
from bridge.translate.pytorch.optimizers import (
    ExportedOptimizer,
    create_state,
    export_optimizer,
    one_count,
    state_layout,
)
from bridge.translate.pytorch.vectors import Vector
from jaxenvs.compilation.default_device import accelerator
from jaxenvs.learn.learner_state import POLICY, Optimizers
from jaxenvs.learn.optimization import LARGE

Tensors = Mapping[str, Sequence[torch.Tensor]]
Vectors = dict[str, jax.Array | tuple[jax.Array, ...]]
# The numbers of optimizers, such as momenta: by the name of the optimizer, then by the name of the number.
Numbers = Mapping[str, Mapping[str, jax.typing.ArrayLike]]
# Optimizers without their settings, with the names of what they train, in the order of these.
ExportedOptimizers = tuple[tuple[str, ExportedOptimizer], ...]

# From this many rows of a minibatch times parameters, an update takes up to a fifth less time if XLA runs kernels side
# by side; below it takes up to a fifth more (multilayer perceptrons from 64 to 400 wide, on two cores).
LARGE_UPDATE = 8_000_000
# Of a vector, XLA copies each array before it multiplies it. From this many parameters on, that takes longer than
# passing them apart, which costs most in an update of one gradient step. Apart, PPO is faster by 1.4 (256-256 units)
# and SAC by 1.1; DQN is slower by 1.1 (400-300). `python -m benchmarks.extensions --parts layout` measures it.
SPLIT_FROM, SPLIT_ON_POLICY_FROM = 150_000, LARGE
# From this many parameters, updates take a fifth less time if the memory that one frees is kept for the next, and from
# two million on, if more of it is kept (CrossQ: 46 instead of 57 ms).
LARGE_NETWORKS, LARGEST_NETWORKS, KEPT_FOR_LARGEST = 500_000, 2_000_000, 8 * MOST_FROM_HEAP


class Learner:
    """Parameters, targets and moments: PyTorch's tensors, each list of which is also a vector.

    A vector is the memory of its tensors wherever possible: an update reads it as it is, and ends with one copy. Of
    large networks, compiled functions take and return the vectors in their parts, a tuple for each.

    Attributes:
      optimizers: PyTorch's, by name. The first one trains the network that acts.
      exported: the optimizers as JAX functions.
      num_params: how many numbers are trained.
    """

    def __init__(self, params: Tensors, targets: Tensors, optimizers: Mapping[str, torch.optim.Optimizer]) -> None:
        """Find the tensors, and translate the optimizers.

        Args:
          params: lists of the tensors that are trained, by the names of their vectors.
          targets: lists of further tensors.
          optimizers: the optimizers of the params, by the same names.

        Raises:
          NotCompilable: an optimizer has no translation, or its parameters took different numbers of steps. Or two
            tensors share memory.
        """
        self.optimizers = dict(optimizers)
        self._params = {name: Vector(tensors) for name, tensors in params.items()}
        # Buffers, such as running statistics, keep their memory.
        self._targets = {
            name: Vector(tensors, moves=all(isinstance(each, torch.nn.Parameter) for each in tensors))
            for name, tensors in targets.items()
        }
        if self.shares_memory():
            raise NotCompilable("Two parameters share memory, which an update in PyTorch changes twice.")
        for vector in (*self._params.values(), *self._targets.values()):
            vector.move()
        self.num_params = sum(sum(vector.sizes) for vector in self._params.values())
        self._moments = {name: _Moments(each, self._params[name]) for name, each in self.optimizers.items()}
        if self.num_params >= LARGE_NETWORKS:
            keep_freed_memory(KEPT_FOR_LARGEST if self.num_params >= LARGEST_NETWORKS else MOST_FROM_HEAP)
        self.vectors()  # raises if something has no translation
        self.exported = {name: export_optimizer(each) for name, each in self.optimizers.items()}

    def vectors(self, split: bool | None = None) -> tuple[Vectors, Vectors, Vectors]:
        """Return the params, the targets and the states of the optimizers, by name.

        The vectors, and what a compiled function returns of them unchanged, are valid until the next call. They must
        not be donated. They are NumPy arrays, because JAX arrays in this memory would be committed to a device, for
        which functions are compiled once more.

        Args:
          split: whether vectors come in their parts; None: if the networks are large.

        Raises:
          NotCompilable: parameters of one optimizer differ in the number of steps that they took.
        """
        split = self._is_split() if split is None else split
        params, targets = (
            {name: each.read(split) for name, each in group.items()} for group in (self._params, self._targets)
        )
        return params, targets, {name: each.read(split) for name, each in self._moments.items()}

    def acting(self) -> Vectors:
        """Return the params of the network that acts, and its running statistics, by name."""
        name = next(iter(self._params))
        statistics = self._targets.get(f"{name}_statistics")
        return {name: self._params[name].read(self._is_split())} | (
            {} if statistics is None else {f"{name}_statistics": statistics.read()}
        )

    def _is_split(self) -> bool:
        # An accelerator begins each kernel anew: there, one vector is better.
        fewest = SPLIT_ON_POLICY_FROM if POLICY in self._params else SPLIT_FROM
        return self.num_params >= fewest and accelerator() is None

    def write_back(self, params: Vectors, targets: Vectors, states: Vectors) -> None:
        """Write the vectors that a compiled function returned of the last `vectors` back to PyTorch.

        Raises:
          ValueError: parameters became NaN, or a vector has another length. The previous parameters are kept.
        """
        params, targets, states = to_host((params, targets, states))
        for name, vector in self._params.items():
            vector.require_length(params[name])
            if count := vector.num_nan(params[name]):
                raise ValueError(
                    f"The update made {count} of {sum(vector.sizes)} parameters of {name} NaN, so the parameters from "
                    "before the update were kept. Try a lower learning_rate, and check that observations and rewards "
                    "are finite."
                )
        for group, vectors in ((self._params, params), (self._targets, targets)):
            for name, each in group.items():
                each.write(vectors[name])
        for name, moments in self._moments.items():
            moments.write(states[name])

    def is_current(self) -> bool:
        """Return whether a learner made now would be this one: user code may have changed tensors and optimizers."""
        # A gradient step on a part of a network, or two parameters that were put into one memory.
        if not all(each.steps_agree() for each in self._moments.values()) or self.shares_memory():
            return False
        try:
            return {name: export_optimizer(each) for name, each in self.optimizers.items()} == self.exported
        except NotCompilable:
            return False

    def shares_memory(self) -> bool:
        """Return whether two of the tensors share memory, which an update in PyTorch changes twice."""
        vectors = [*self._params.values(), *self._targets.values()]
        if all(vector.is_in_place() for vector in vectors):
            return False
        tensors = sorted((each for vector in vectors for each in vector.tensors), key=lambda each: each.data_ptr())
        return any(_end(each) > after.data_ptr() for each, after in itertools.pairwise(tensors))

    # --- Settings ---------------------------------------------------------------------------------------------------

    def settings(self) -> dict[str, dict[str, float]]:
        """Return the present numbers of the optimizers, except for the learning rates."""
        return {name: each.settings(self.optimizers[name]) for name, each in self.exported.items()}

    def learning_rates(self) -> dict[str, float]:
        """Return the present learning rates of the optimizers, which need not be equal."""
        return {name: float(each.param_groups[0]["lr"]) for name, each in self.optimizers.items()}

    def is_large(self, batch_size: int) -> bool:
        """Return whether the kernels of an update are large enough to run side by side."""
        return batch_size * self.num_params >= LARGE_UPDATE


def _end(tensor: torch.Tensor) -> int:
    """Return the address behind a tensor's last number."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    return tensor.data_ptr() + (last + 1) * tensor.element_size() * bool(tensor.numel())


class _Moments:
    """The state of one of PyTorch's optimizers: what it keeps of each of the `params`, as vectors."""

    def __init__(self, optimizer: torch.optim.Optimizer, params: Vector) -> None:
        self._optimizer, self._params = optimizer, params
        exported = export_optimizer(optimizer)
        self._names, self._initial, self._structure = state_layout(exported, params.length, params.read().dtype)
        # The state when its vectors were made: which objects it had.
        self._found: list[int] | None = None
        self._entries: list[dict[str, Any]] = []
        self._is_whole = False  # whether PyTorch has all of it
        self._vectors: dict[str, Vector] = {}

    def read(self, split: bool) -> Any:
        """Return the state as the optimizer's translation has it: initial values where PyTorch has none yet."""
        self._find()
        leaves = [
            np.int32(one_count(self._counts())) if name == "step" else self._read(name, initial, split)
            for name, initial in zip(self._names, self._initial)
        ]
        return self._structure.unflatten(leaves)

    def _read(self, name: str, initial: np.ndarray, split: bool) -> object:
        if name in self._vectors:
            return self._vectors[name].read(split)
        vector = initial.copy()
        for entry, part in zip(self._entries, self._params.parts(vector)):
            if entry.get(name) is not None:
                part[:] = entry[name].detach().reshape(-1).cpu().numpy()
        return self._params.as_parts(vector, split)

    def write(self, state: object) -> None:
        """Write a state, and create what the optimizer lacks, as PyTorch would."""
        leaves = dict(zip(self._names, self._structure.flatten_up_to(state), strict=True))
        if is_new := not self._is_whole:
            create_state(self._optimizer, self._params.tensors, self._names)
            self._find()
        for name, leaf in leaves.items():
            if name != "step":
                self._vectors[name].write(leaf, as_read=not is_new)
        if "step" in leaves:
            self._write_count(np.asarray(leaves["step"]).item())

    def steps_agree(self) -> bool:
        """Return whether all parameters have taken equally many steps."""
        self._find()
        return "step" not in self._names or len(set(self._counts())) == 1

    def _find(self) -> None:
        """Make the vectors of what the optimizer holds now, unless it holds the same objects as before."""
        if self._ids() == self._found:
            return
        state = self._optimizer.state
        self._entries = [state.get(parameter, {}) for parameter in self._params.tensors]
        self._is_whole = all(each.get(name) is not None for each in self._entries for name in self._names)
        self._vectors = {}
        for name in self._names:
            kept = [each for entry in self._entries if isinstance(each := entry.get(name), torch.Tensor)]
            if len(kept) == len(self._entries):
                self._vectors[name] = Vector(kept)
                self._vectors[name].move()
        self._found = self._ids()

    def _ids(self) -> list[int]:
        # In C, because it precedes each update.
        entries = [*self._optimizer.state.values()]
        return [*map(id, entries), *map(id, itertools.chain.from_iterable(map(dict.values, entries)))]

    def _counts(self) -> list[int]:
        if "step" in self._vectors:
            vector = self._vectors["step"]
            return [int(each) for each in {*vector.first_of_each(vector.read())}]
        return [int(entry.get("step", 0)) for entry in self._entries]

    def _write_count(self, count: int) -> None:
        if "step" in self._vectors:
            vector = self._vectors["step"]
            vector.write(np.full(vector.length, count, np.float32), as_read=True)
            return
        for entry in self._entries:  # of RMSpropTFLike, which counts with a number
            entry["step"] = count
        self._found = self._ids()


def transformations(exported: ExportedOptimizers, settings: Numbers) -> Optimizers:
    """Return the optimizers as optax transformations, by name, inside a compiled function."""
    return {name: each.transformation(settings[name]) for name, each in exported}
