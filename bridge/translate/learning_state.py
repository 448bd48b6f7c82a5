"""What learning changes, between PyTorch's tensors and JAX's vectors: parameters, targets and moments."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
import torch

from bridge.translate.modules import read_parameters, write_parameters
from bridge.translate.optimizers import one_count, read_optimizer, state_layout, write_count, write_optimizer

Tensors = Mapping[str, Sequence[torch.Tensor]]
Vectors = dict[str, Any]
NOTHING: dict[str, Any] = {}


class LearningState:
    """What learning changes, where PyTorch has it: whoever changes it there in between is followed.

    Tensors on the host are copied by NumPy, because each call of PyTorch takes longer than what it copies.

    Args:
      params: lists of the tensors that are trained, by the names of their vectors.
      targets: lists of further tensors.
      optimizers: those of the params, by the same names.

    Raises:
      NotCompilable: an optimiser has no translation.
    """

    def __init__(self, params: Tensors, targets: Tensors, optimizers: Mapping[str, torch.optim.Optimizer]) -> None:
        self.optimizers = dict(optimizers)
        self._params, self._targets = list(params), list(targets)
        self._lists = {name: list(tensors) for name, tensors in (*params.items(), *targets.items())}
        self._layouts = {name: state_layout(optimizers[name], self._lists[name]) for name in params}
        # What each optimiser keeps for each parameter, vector by vector.
        self._kept = [
            (optimizers[name], leaf, self._lists[name])
            for name, (leaves, _) in self._layouts.items()
            for leaf in leaves
            if leaf != "step"
        ]
        lists = [*self._lists.values(), *(tensors for _, _, tensors in self._kept)]
        sizes = [[tensor.numel() for tensor in tensors] for tensors in lists]
        self._lengths = [sum(each) for each in sizes]
        self._slices = [
            [slice(end - size, end) for size, end in zip(each, itertools.accumulate(each))] for each in sizes
        ]
        self._vectors = [torch.empty(sum(each), dtype=list_[0].dtype) for each, list_ in zip(sizes, lists)]
        self._memory = [vector.numpy() for vector in self._vectors]
        self._find()

    @property
    def num_params(self) -> int:
        """How many numbers are trained."""
        return sum(self._lengths[: len(self._params)])

    def read(self) -> tuple[Vectors, Vectors, Vectors]:
        """The params, the targets and the states of optimisers, by name.

        Vectors, and what a program gives back of them unchanged, are valid until the next `read`; they are not for
        donation.

        Raises:
          NotCompilable: parameters of one optimiser differ in the number of steps that they took.
        """
        if self._has_moved():
            self._find()
        if not self._views:
            return self._read_by_torch()
        for views, memory in zip(self._views, self._memory):
            np.concatenate(views, out=memory)
        # NumPy's: of arrays of JAX in this memory, which are bound to a device, programs would be compiled once more.
        given = iter(self._memory)
        params, targets = ({name: next(given) for name in names} for names in (self._params, self._targets))
        states = {}
        for name, (leaves, structure) in self._layouts.items():
            count = one_count([int(entry["step"]) for entry in self._entries[name]]) if "step" in leaves else 0
            states[name] = structure.unflatten([np.int32(count) if leaf == "step" else next(given) for leaf in leaves])
        return params, targets, states

    def write(self, params: Vectors, targets: Vectors, states: Vectors) -> None:
        """Leave there what a program made of what was read.

        Raises:
          ValueError: a vector has another length. Nothing changed.
        """
        leaves = {name: jax.tree.leaves(states[name]) for name in self._params}
        vectors = [params[name] for name in self._params] + [targets[name] for name in self._targets]
        for name, (names, _) in self._layouts.items():
            vectors += [leaf for each, leaf in zip(names, leaves[name], strict=True) if each != "step"]
        arrays = [np.asarray(vector) for vector in vectors]
        for array, length in zip(arrays, self._lengths, strict=True):
            if array.shape != (length,):
                raise ValueError(f"The vector must have {length} numbers, got the shape {array.shape}.")
        if self._has_moved():
            self._find()
        if not self._views:
            return self._write_by_torch(params, targets, states)
        for array, slices, views in zip(arrays, self._slices, self._views):
            for at, view in zip(slices, views):
                view[...] = array[at]
        for name, (names, _) in self._layouts.items():
            if "step" in names:
                write_count(self._entries[name], np.asarray(leaves[name][names.index("step")]).item())

    def write_params(self, name: str, vector: Any) -> None:
        """Leave the params of one network there, and nothing else."""
        if self._has_moved():
            self._find()
        array, index = np.asarray(vector), self._params.index(name)
        if not self._views:
            return write_parameters(self._lists[name], array)
        for at, view in zip(self._slices[index], self._views[index]):
            view[...] = array[at]

    def _moments(self) -> list[list[Any]]:
        """What the optimisers have, vector by vector; None where PyTorch has not made it yet."""
        return [
            [optimizer.state.get(parameter, NOTHING).get(leaf) for parameter in parameters]
            for optimizer, leaf, parameters in self._kept
        ]

    def _has_moved(self) -> bool:
        """Whether tensors are elsewhere than before: somebody loaded others."""
        if not self._views:
            return True
        moments = [moment for each in self._moments() for moment in each]
        if [*map(id, moments)] != self._ids:
            return True
        return [tensor.data_ptr() for tensor in self._tensors] != self._addresses

    def _find(self) -> None:
        """Look where everything is."""
        lists = [*self._lists.values(), *self._moments()]
        self._tensors = [tensor for tensors in lists for tensor in tensors]
        self._ids = [id(moment) for moments in lists[len(self._lists) :] for moment in moments]
        self._views: list[list[np.ndarray]] = []
        if any(each is None or each.device.type != "cpu" or not each.is_contiguous() for each in self._tensors):
            return
        self._addresses = [tensor.data_ptr() for tensor in self._tensors]
        self._views = [[tensor.detach().view(-1).numpy() for tensor in tensors] for tensors in lists]
        self._entries = {
            name: [optimizer.state[parameter] for parameter in self._lists[name]]
            for name, optimizer in self.optimizers.items()
            if self._layouts[name][0]  # looking one up makes it, and an optimiser that keeps nothing has none
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
