"""Translation of PyTorch modules to pure functions of their parameters, and of parameters to and from one vector."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import torch
from torch import fx, nn
from torch.nn.modules import module as torch_module

from bridge.errors import NotCompilable
from bridge.originals import routines
from bridge.translate.pytorch.tracing import (
    Computation,
    Interpreter,
    describe,
    first_line,
    replicate,
    require_unreplaced,
    trace,
    translate,
)
from bridge.translate.user_modules.purity import Purity
from jaxenvs.learn.optimization import split

# JAX shares memory with PyTorch only at multiples of 64 bytes, that is of this many float32.
ALIGNMENT = 16

# A vector, or its parts.
Parameters = jax.Array | tuple[jax.Array, ...]
# Parameters by name, or as `unravel` takes them.
Params = Mapping[str, jax.Array] | Parameters

FORWARD_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
# Others may have a `__torch_function__` of the user's.
PARAMETERS: set[type] = {nn.Parameter}
# Methods that no training calls.
BESIDE = {"predict", "save", "load"}
BACKWARD_HOOKS = ("_backward_hooks", "_backward_pre_hooks")


@dataclasses.dataclass(frozen=True)
class ExportedModule:
    """Module without its weights, in evaluation mode. Modules of equal architecture are equal, and share compiled
    functions.

    Attributes:
      parameters: names and shapes, in the order of `module.named_parameters()`.
      computation: what it computes.
      depends_on_training: whether PyTorch computes something else in training mode, as with dropout.
      statistics: names and shapes of the buffers that it reads, in the order of `module.named_buffers()`.
    """

    parameters: tuple[tuple[str, tuple[int, ...]], ...]
    computation: Computation
    depends_on_training: bool
    statistics: tuple[tuple[str, tuple[int, ...]], ...] = ()

    @property
    def inputs(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Names and shapes of parameters and statistics: everything that it reads except for its arguments."""
        return *self.parameters, *self.statistics

    def named(self, params: Params) -> Mapping[str, jax.Array]:
        """Return all parameters by name, in PyTorch's layout."""
        return params if isinstance(params, Mapping) else unravel(self.parameters, params)

    def read(self, tensors: Iterable[torch.Tensor]) -> dict[str, np.ndarray]:
        """Return copies of all `inputs` by name, from tensors in their order."""
        ends = np.cumsum([math.prod(shape) for _, shape in self.inputs])
        parts = np.split(read_parameters(tensors), ends[:-1])
        return {name: part.reshape(shape) for (name, shape), part in zip(self.inputs, parts, strict=True)}

    def __call__(self, params: Params, *inputs: object, **options: Any) -> object:
        """Return what `module(*inputs)` returns for a batch: an array, or a tuple of arrays.

        Args:
          params: of the module.
          inputs: as the examples of `export_module`, in the dtype of the parameters.
          options: `instead`, as for a Computation: functions that replace some operations.
        """
        return self.computation(self.named(params), *inputs, **options)


def unravel(shapes: Sequence[tuple[str, tuple[int, ...]]], vector: Parameters) -> dict[str, jax.Array]:
    """Return arrays by name, from a vector in which arrays of these names and shapes are end to end, or aligned.

    A large vector comes as its parts.
    """
    if isinstance(vector, tuple):
        parts = vector
    else:
        sizes = tuple(math.prod(shape) for _, shape in shapes)
        parts = split(vector, sizes, None if vector.shape[0] == sum(sizes) else aligned(sizes))
    return {name: part.reshape(shape) for (name, shape), part in zip(shapes, parts)}


def aligned(sizes: Sequence[int]) -> tuple[int, ...]:
    """Return where parts of these sizes begin in a vector of float32 in which each is aligned as XLA requires."""
    padded = (-(-size // ALIGNMENT) * ALIGNMENT for size in sizes)
    return tuple(itertools.accumulate(padded, initial=0))[:-1]


def export_module(module: nn.Module, *examples: object, has_statistics: bool = False) -> ExportedModule:
    """Translate a module to a pure function.

    Nothing changes in it, nor elsewhere in PyTorch; other threads may run it meanwhile.

    Args:
      module: it must treat the rows of a batch one by one.
      examples: of its inputs, each a batch of any size: a tensor, or a dict of tensors.
      has_statistics: whether the caller handles running statistics, which differ in training mode.
    """
    require_no_forward_hooks(module)
    if (impure := Purity(modules=module.modules()).reason) is not None:
        raise NotCompilable(impure)
    parameters = dict(module.named_parameters())
    if others := {type(each) for each in parameters.values()} - PARAMETERS:
        raise NotCompilable(f"The parameters must be of the class nn.Parameter, got a {others.pop().__name__}.")
    _require_one_dtype(parameters.values())
    try:
        graph = trace(module, *examples)
        computation = translate(graph)
        read = set(computation.read)
        statistics = {name: buffer for name, buffer in module.named_buffers() if name in read}
        if statistics and not has_statistics:
            raise NotCompilable(
                f"The networks have running statistics, which are not compiled: {next(iter(statistics))}."
            )
        exported = ExportedModule(
            tuple((name, tuple(parameter.shape)) for name, parameter in parameters.items()),
            computation,
            depends_on_training=computation != _in_training(module, examples),
            statistics=tuple((name, tuple(buffer.shape)) for name, buffer in statistics.items()),
        )
        _require_same_results(module, graph, exported, examples)
    except NotCompilable:
        raise
    except Exception as error:
        raise NotCompilable(f"The networks cannot be translated to JAX: {first_line(error)}") from error
    return exported


def require_no_forward_hooks(module: nn.Module) -> None:
    """Refuse hooks and replaced methods, which a call of the module would run and its translation would not."""
    if any(getattr(torch_module, f"_global{hooks}") for hooks in FORWARD_HOOKS):
        raise NotCompilable("Forward hooks are registered for all of PyTorch's modules.")
    for path, part in module.named_modules():
        require_unreplaced(type(part))
        cls: Any = type(part)
        if any(getattr(part, hooks) for hooks in FORWARD_HOOKS) or routines(cls) & vars(part).keys() - BESIDE:
            raise NotCompilable(f"{describe(path, part)} has forward hooks or a replaced method.")


def require_same_gradients(
    module: nn.Module,
    exported: Sequence[ExportedModule],
    optimizer: torch.optim.Optimizer,
    elsewhere: Collection[str] = (),
    shared: Collection[str] = (),
) -> None:
    """Refuse modules whose parameters PyTorch's gradient steps would change differently than steps in JAX.

    Args:
      module: has the parameters.
      exported: the computations through which they get a gradient.
      optimizer: it must train all of these parameters, in their order.
      elsewhere: names of parameters that get a gradient in another way.
      shared: names of parameters that get none here, because another module trains them. The optimizer may hold them or
        not.
    """
    parameters = dict(module.named_parameters())
    differentiated = frozenset(elsewhere).union(*(each.computation.differentiated for each in exported))
    if any(getattr(torch_module, f"_global{hooks}") for hooks in BACKWARD_HOOKS):
        raise NotCompilable("Backward hooks are registered for all of PyTorch's modules.")
    for path, part in module.named_modules():
        if any(getattr(part, hooks) for hooks in BACKWARD_HOOKS):
            raise NotCompilable(f"{describe(path, part)} has backward hooks.")
    for name, parameter in parameters.items():
        if not parameter.requires_grad or parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
            raise NotCompilable(f"The parameter {name} is frozen or has hooks.")
        if name not in differentiated and name not in shared:
            raise NotCompilable(f"The outputs of the networks do not depend on the parameter {name}.")
    untouched = {id(parameter) for name, parameter in parameters.items() if name in shared}
    trained = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
    if [each for each in trained if each not in untouched] != [
        id(parameter) for parameter in parameters.values() if id(parameter) not in untouched
    ]:
        raise NotCompilable("The optimizer must train all parameters of the networks, in the order of parameters().")
    if any(each.depends_on_training for each in exported):
        raise NotCompilable("The networks compute something else in training mode, as Dropout does.")


def read_parameters(parameters: Iterable[torch.Tensor]) -> np.ndarray:
    """Return a copy of parameters, end to end, (size,)."""
    with torch.no_grad():
        vector: np.ndarray = torch.cat([parameter.flatten() for parameter in parameters]).cpu().numpy()
    return vector


def _in_training(module: nn.Module, examples: tuple[object, ...]) -> Computation | None:
    try:
        return translate(trace(module, *examples, training=True))
    except NotCompilable:  # such as a network with noise in training only
        return None


def _require_one_dtype(parameters: Collection[nn.Parameter]) -> None:
    dtypes = sorted({str(parameter.dtype) for parameter in parameters})
    widest = f"torch.{jax.dtypes.canonicalize_dtype(float)}"
    if dtypes not in ([], ["torch.float32"], [widest]):
        raise NotCompilable(f"The parameters must be float32, or all float64 under jax_enable_x64, got {dtypes}.")


def _require_same_results(module: nn.Module, graph: fx.Graph, exported: ExportedModule, examples: object) -> None:
    """Compare the results of the module, its recording and its translation on two rows."""
    dtype = next((parameter.dtype for parameter in module.parameters()), torch.get_default_dtype())
    generator = torch.Generator().manual_seed(0)  # a separate one, so that no other random numbers change

    def noise(like: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape).uniform_(-1, 1, generator=generator).to(like.device, dtype)

    def disturb(parameter: nn.Parameter) -> nn.Parameter:
        # Zeros, which new networks have, hide what they are multiplied with.
        disturbed = parameter.detach() + 0.2 * noise(parameter, parameter.shape, parameter.dtype)
        return nn.Parameter(disturbed, requires_grad=False)

    def two_rows(example: torch.Tensor) -> torch.Tensor:
        return noise(example, (2, *example.shape[1:]), dtype if example.is_floating_point() else example.dtype)

    rows = jax.tree.map(two_rows, examples)
    leaves, structure = jax.tree.flatten(rows)
    inputs = tuple((tuple(leaf.shape), _name(leaf.dtype)) for leaf in leaves)
    shapes = _result_shapes(exported, _name(dtype), inputs, structure)
    replica, disturbed = replicate(module), replicate(module, disturb)
    with torch.no_grad():
        results, recorded = (
            jax.tree.leaves(run(*rows)) for run in (replica, Interpreter(replica, graph=graph).results)
        )
        together, first, second = (
            jax.tree.leaves(disturbed(*jax.tree.map(lambda leaf, part=part: leaf[part], rows)))
            for part in (slice(0, 2), slice(0, 1), slice(1, 2))
        )
    given = [tuple(result.shape) for result in results]
    if given != shapes or any(shape[:1] != (2,) for shape in shapes):
        raise NotCompilable(
            f"For a batch of two, the networks return the shapes {given} in PyTorch and {shapes} in JAX."
        )
    if not _all_close(recorded, results):  # such as a forward that asks whether it got a tensor
        raise NotCompilable(
            "The networks compute something else when they are traced than when they are called with tensors."
        )
    if not _all_close([torch.cat(parts) for parts in zip(first, second)], together):
        # Compiled functions use other batches than Stable-Baselines3.
        raise NotCompilable("The networks return other results for two rows in one batch than for each row alone.")


@functools.lru_cache(maxsize=64)
def _result_shapes(
    exported: ExportedModule, dtype: str, inputs: tuple[Any, ...], structure: jax.tree_util.PyTreeDef
) -> list[tuple[int, ...]]:
    """Return the shapes of a translation's results, which tries out every operation."""
    arrays = jax.tree.unflatten(structure, [np.zeros(*leaf) for leaf in inputs])
    results = jax.eval_shape(exported, {name: np.zeros(shape, dtype) for name, shape in exported.inputs}, *arrays)
    return [result.shape for result in jax.tree.leaves(results)]


def _all_close(got: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    for ours, theirs in zip(got, expected, strict=True):
        # Products on a GPU may be rounded to ten bits.
        tolerance = 1e-4 if theirs.device.type == "cpu" else 1e-2
        scale = float(theirs.nan_to_num().abs().max())
        if not torch.allclose(ours, theirs, rtol=tolerance, atol=tolerance * scale, equal_nan=True):
            return False
    return True


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
