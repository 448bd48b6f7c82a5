"""Computations: what a PyTorch module computes, as a list of operations that JAX runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax

from bridge.translate.operations import OPERATIONS, WITHOUT_GRADIENT


@dataclasses.dataclass(frozen=True)
class Value:
    """An argument: one of the inputs, or after these the result of an earlier operation, counted from 0."""

    index: int


@dataclasses.dataclass(frozen=True)
class Parameter:
    """An argument: a parameter, by its name."""

    name: str


@dataclasses.dataclass(frozen=True)
class Operation:
    """A call of one of OPERATIONS. Arguments are constants, Values, Parameters, and tuples of these."""

    name: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...] = ()


@dataclasses.dataclass(frozen=True)
class Computation:
    """A pure function of parameters and inputs. Computations of the same operations are equal."""

    num_inputs: int
    operations: tuple[Operation, ...]
    result: Any

    def __call__(self, params: Mapping[str, jax.Array], *inputs: Any) -> Any:
        """The results for a batch.

        Args:
          params: by name.
          inputs: each an array, or a dict of arrays.
        """
        values = list(inputs)

        def resolve(argument: Any) -> Any:
            if isinstance(argument, Value):
                return values[argument.index]
            if isinstance(argument, Parameter):
                return params[argument.name]
            return tuple(map(resolve, argument)) if isinstance(argument, tuple) else argument

        for operation in self.operations:
            kwargs = {name: resolve(argument) for name, argument in operation.kwargs}
            values.append(OPERATIONS[operation.name](*resolve(operation.args), **kwargs))
        return resolve(self.result)

    @property
    def differentiated(self) -> frozenset[str]:
        """The parameters that get a gradient from the results, by name: PyTorch's optimisers skip all others."""
        reached: list[frozenset[str]] = [frozenset()] * self.num_inputs

        def names(argument: Any) -> frozenset[str]:
            if isinstance(argument, Value):
                return reached[argument.index]
            if isinstance(argument, tuple):
                return frozenset().union(*map(names, argument))
            return frozenset({argument.name} if isinstance(argument, Parameter) else ())

        for operation in self.operations:
            passes = operation.name not in WITHOUT_GRADIENT
            reached.append(names((operation.args, operation.kwargs)) if passes else frozenset())
        return names(self.result)
