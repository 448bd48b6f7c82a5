"""The learner of a model: weights, targets and moments, as PyTorch's tensors and as vectors for compiled functions."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import torch

from bridge.engine.runtime import MOST_FROM_HEAP, keep_freed_memory, to_host
from bridge.translate.pytorch.modules import read_parameters, write_parameters
from bridge.translate.pytorch.optimizers import (
    ExportedOptimizer,
    export_optimizer,
    one_count,
    read_optimizer,
    state_layout,
    write_count,
    write_optimizer,
)
from jaxenvs.learn.learner_state import Optimizers

Tensors = Mapping[str, Sequence[torch.Tensor]]
Vectors = dict[str, Any]
# The numbers of optimizers, such as momenta: by the name of the optimizer, then by the name of the number.
Numbers = Mapping[str, Mapping[str, jax.typing.ArrayLike]]
# Optimizers without their settings, with the names of what they train, in the order of these.
ExportedOptimizers = tuple[tuple[str, ExportedOptimizer], ...]
NOTHING: dict[str, Any] = {}

# From this many rows of a minibatch times parameters, an update takes up to a fifth less time if XLA runs kernels side
# by side; below it takes up to a fifth more (multilayer perceptrons from 64 to 400 wide, on two cores).
LARGE_UPDATE = 8_000_000
# From this many parameters, updates take a fifth less time if the memory that one frees is kept for the next (CrossQ
# with two million: 46 instead of 57 ms).
LARGE_NETWORKS, KEPT_FOR_LARGE = 2_000_000, 8 * MOST_FROM_HEAP


class Learner:
    """Parameters, targets and moments: PyTorch's tensors, each list of which is also a vector, by the names of
    networks.

        user code may run:     PyTorch --vectors()--> update --write_back()--> PyTorch --vectors()--> update ---> ...
        no user code can run:  PyTorch --vectors()--> update ------> update ------> ... --sync()--> PyTorch

    While user code may run, PyTorch's tensors are current, and each update reads all of them and writes all of them.
    While no user code can run (`Session.on_device`), the vectors are kept from one update to the next, and PyTorch gets
    only the weights with which the policy acts. `sync` ends that: it writes everything to PyTorch, and the next update
    reads it.

    NumPy copies the tensors on the host, because each call of PyTorch takes longer than what it copies.

    Attributes:
      optimizers: PyTorch's, by name. The first one trains the network that acts.
      exported: the optimizers as JAX functions.
      num_params: how many numbers are trained.
    """

    def __init__(self, params: Tensors, targets: Tensors, optimizers: Mapping[str, torch.optim.Optimizer]) -> None:
        """Find the tensors, and translate the optimizers.

        Args:
          params: lists of the tensors that are trained, by the names of their vectors.
          targets: lists of further tensors. If there is a list "NAME_statistics", the network NAME that acts uses it
            too.
          optimizers: the optimizers of the params, by the same names.

        Raises:
          NotCompilable: an optimizer has no translation.
        """
        self.optimizers = dict(optimizers)
        self._params, self._targets = list(params), list(targets)
        self._lists = {name: list(tensors) for name, tensors in (*params.items(), *targets.items())}
        self._layouts = {name: state_layout(optimizers[name], self._lists[name]) for name in params}
        # What each optimizer keeps for each parameter, vector by vector.
        self._moments_of = [
            (optimizers[name], leaf, self._lists[name])
            for name, (leaves, _) in self._layouts.items()
            for leaf in leaves
            if leaf != "step"
        ]
        lists = [*self._lists.values(), *(tensors for _, _, tensors in self._moments_of)]
        sizes = [[tensor.numel() for tensor in tensors] for tensors in lists]
        self._lengths = [sum(each) for each in sizes]
        self._slices = [
            [slice(end - size, end) for size, end in zip(each, itertools.accumulate(each))] for each in sizes
        ]
        self._vectors = [torch.empty(sum(each), dtype=list_[0].dtype) for each, list_ in zip(sizes, lists)]
        self._memory = [vector.numpy() for vector in self._vectors]
        self.num_params = sum(self._lengths[: len(self._params)])
        if self.num_params >= LARGE_NETWORKS:
            keep_freed_memory(KEPT_FOR_LARGE)
        self._kept: tuple[Vectors, Vectors, Vectors] | None = None
        acting = next(iter(optimizers))
        self._acting = {name: at for at, name in enumerate(self._lists) if name in (acting, f"{acting}_statistics")}
        self._find()
        self.vectors()  # raises if something has no translation
        self.exported = {name: export_optimizer(each) for name, each in self.optimizers.items()}

    # --- As vectors -------------------------------------------------------------------------------------------------

    def vectors(self) -> tuple[Vectors, Vectors, Vectors]:
        """Return the params, the targets and the states of the optimizers, by name.

        The vectors, and what a compiled function returns of them unchanged, are valid until the next call. They must
        not be donated.

        Raises:
          NotCompilable: parameters of one optimizer differ in the number of steps that they took.
        """
        if self._kept is not None:
            return self._kept
        if not self._is_at_hand():
            return self._read_by_torch()
        for views, memory in zip(self._views, self._memory):
            np.concatenate(views, out=memory)
        # NumPy arrays, because JAX arrays in this memory would be bound to a device, for which functions are compiled
        # once more.
        given = iter(self._memory)
        params, targets = ({name: next(given) for name in names} for names in (self._params, self._targets))
        states = {}
        for name, (leaves, structure) in self._layouts.items():
            count = one_count([int(entry["step"]) for entry in self._entries[name]]) if "step" in leaves else 0
            states[name] = structure.unflatten([np.int32(count) if leaf == "step" else next(given) for leaf in leaves])
        return params, targets, states

    def write_back(self, params: Vectors, targets: Vectors, states: Vectors, keep: bool = False) -> None:
        """Write the vectors that a compiled function returned back to PyTorch, or keep them.

        Args:
          keep: keep them as vectors, because no user code can run before the next `sync`.

        Raises:
          ValueError: parameters of the network that acts, or with `keep` False any parameters, became NaN; or a vector
            has another length. The previous parameters are kept.
        """
        if not keep:
            params, targets, states = to_host((params, targets, states))
            require_numbers(params)
            self._write(params, targets, states)
            self._kept = None
            return
        acting = next(iter(self._acting))
        require_numbers({acting: np.asarray(params[acting])})
        self._kept = params, targets, states
        is_at_hand = self._are_where_found(self._acting.values()) or self._is_at_hand()
        for name, at in self._acting.items():
            vector = np.asarray(params[name] if name in params else targets[name])
            if not is_at_hand:
                write_parameters(self._lists[name], vector)
                continue
            for part, view in zip(self._slices[at], self._views[at]):
                view[...] = vector[part]

    @property
    def keeps_vectors(self) -> bool:
        """True if the results of the last update are not all in PyTorch yet."""
        return self._kept is not None

    def sync(self) -> None:
        """Write what the last update kept in vectors to PyTorch. The next update reads everything from there."""
        if self._kept is not None:
            self._write(*to_host(self._kept))
            self._kept = None  # only after everything has been written

    def _write(self, params: Vectors, targets: Vectors, states: Vectors) -> None:
        leaves = {name: jax.tree.leaves(states[name]) for name in self._params}
        vectors = [params[name] for name in self._params] + [targets[name] for name in self._targets]
        for name, (names, _) in self._layouts.items():
            vectors += [leaf for each, leaf in zip(names, leaves[name], strict=True) if each != "step"]
        arrays = [np.asarray(vector) for vector in vectors]
        for array, length in zip(arrays, self._lengths, strict=True):
            if array.shape != (length,):
                raise ValueError(f"The vector must have {length} numbers, got the shape {array.shape}.")
        if not self._is_at_hand():
            return self._write_by_torch(params, targets, states)
        for array, slices, views in zip(arrays, self._slices, self._views):
            for at, view in zip(slices, views):
                view[...] = array[at]
        for name, (names, _) in self._layouts.items():
            if "step" in names:
                write_count(self._entries[name], np.asarray(leaves[name][names.index("step")]).item())

    # --- In PyTorch's tensors ---------------------------------------------------------------------------------------

    def _moments(self) -> list[list[Any]]:
        """Return what the optimizers hold, vector by vector; None where PyTorch has not created it yet."""
        return [
            [optimizer.state.get(parameter, NOTHING).get(leaf) for parameter in parameters]
            for optimizer, leaf, parameters in self._moments_of
        ]

    def _is_at_hand(self) -> bool:
        """Return whether NumPy can view all tensors. User code may have replaced some since the last call."""
        moments = [*map(id, itertools.chain.from_iterable(self._moments()))]
        if moments != self._ids or not self._are_where_found(range(len(self._tensors))):
            self._find()
        return bool(self._views)

    def _are_where_found(self, lists: Iterable[int]) -> bool:
        """Return whether NumPy can view the tensors of some lists, which have the memory that `_find` found."""
        return bool(self._views) and all(
            [tensor.data_ptr() for tensor in self._tensors[at]] == self._addresses[at] for at in lists
        )

    def _find(self) -> None:
        """Find the memory of all tensors."""
        self._tensors = [*self._lists.values(), *self._moments()]
        self._ids = [id(moment) for moments in self._tensors[len(self._lists) :] for moment in moments]
        self._views: list[list[np.ndarray]] = []
        tensors = itertools.chain.from_iterable(self._tensors)
        if any(each is None or each.device.type != "cpu" or not each.is_contiguous() for each in tensors):
            return
        self._addresses = [[tensor.data_ptr() for tensor in tensors] for tensors in self._tensors]
        self._views = [[tensor.detach().view(-1).numpy() for tensor in tensors] for tensors in self._tensors]
        self._entries = {
            name: [optimizer.state[parameter] for parameter in self._lists[name]]
            for name, optimizer in self.optimizers.items()
            if self._layouts[name][0]  # looking up a state creates it, and an optimizer that keeps nothing has none
        }

    def _read_by_torch(self) -> tuple[Vectors, Vectors, Vectors]:
        params, targets = (
            {name: read_parameters(self._lists[name]) for name in names} for names in (self._params, self._targets)
        )
        states = {name: read_optimizer(each, self._lists[name]) for name, each in self.optimizers.items()}
        return params, targets, states

    def _write_by_torch(self, params: Vectors, targets: Vectors, states: Vectors) -> None:
        for name, vector in {**params, **targets}.items():
            write_parameters(self._lists[name], np.asarray(vector))
        for name, optimizer in self.optimizers.items():
            write_optimizer(optimizer, jax.tree.map(np.asarray, states[name]), self._lists[name])

    def steps_agree(self) -> bool:
        """Return whether all parameters of each optimizer have taken equally many steps, as compiled updates assume."""
        for name, (leaves, _) in self._layouts.items():
            state, parameters = self.optimizers[name].state, self._lists[name]
            if "step" in leaves and len({int(state.get(each, NOTHING).get("step", 0)) for each in parameters}) > 1:
                return False
        return True

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


def require_numbers(params: Vectors) -> None:
    """Check that no parameter is NaN.

    Raises:
      ValueError: some are NaN.
    """
    for name, vector in params.items():
        # The sum is NaN if any number is, and computing it takes a third of the time.
        if np.isnan(vector.sum()) and (count := int(np.isnan(vector).sum())):
            raise ValueError(
                f"The update made {count} of {vector.size} parameters of {name} NaN, so the parameters from before "
                "the update were kept. Try a lower learning_rate, and check that observations and rewards are finite."
            )


def committed(tree: Any) -> Any:
    """Return arrays bound to the CPU, as arrays that share memory with PyTorch are. On a GPU none are bound.

    JAX compiles a function anew for each combination of bound and free arguments. If one is bound, so are the results.
    """
    first = jax.tree.leaves(tree)[0]
    if jax.default_backend() != "cpu" or getattr(first, "committed", False):
        return tree
    device = jax.devices()[0]

    def bind(leaf: jax.Array | np.ndarray) -> jax.Array | np.ndarray:
        # Free JAX arrays are bound without a copy. Converting a NumPy number would copy it every time.
        return jax.device_put(leaf, device) if isinstance(leaf, jax.Array) or leaf.ndim else leaf

    return jax.tree.map(bind, tree)


def transformations(exported: ExportedOptimizers, settings: Numbers) -> Optimizers:
    """Return the optimizers as optax transformations, by name, inside a compiled function."""
    return {name: each.transformation(settings[name]) for name, each in exported}
