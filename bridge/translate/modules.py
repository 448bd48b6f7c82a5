"""PyTorch modules as programs that JAX runs.

A module is traced once, by `torch.fx`, into a list of PyTorch's operations, which `operations.py` has in JAX.
"""

from __future__ import annotations

import contextlib
import dataclasses
import operator
from collections.abc import Callable, Iterator, Mapping
from types import EllipsisType
from typing import Any

import jax
from torch import fx, nn

from bridge.translate.operations import FUNCTIONS, MODULES, OPERATIONS, VIEWS, NotCompilable, drops


@dataclasses.dataclass(frozen=True)
class Value:
    """An argument: the result of an earlier operation, counted from 1; 0 is the input of the program."""

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
class Program:
    """A pure function of parameters and an input. Programs of the same operations are equal."""

    operations: tuple[Operation, ...]
    result: Any

    def __call__(self, params: Mapping[str, jax.Array], x: Any) -> Any:
        """
        Args:
          params: by name.
          x: an array, or a dict of arrays.
        """
        values = [x]

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
    def parameter_names(self) -> set[str]:
        """The parameters that it reads."""

        def names(argument: Any) -> set[str]:
            if isinstance(argument, tuple):
                return set().union(*map(names, argument))
            return {argument.name} if isinstance(argument, Parameter) else set()

        return names(tuple((operation.args, operation.kwargs) for operation in self.operations))


def trace(module: nn.Module, names: Mapping[int, str]) -> Program:
    """The program of what `module(x)` computes.

    Args:
      module: a module around those to translate; messages leave it out of their paths.
      names: of the parameters that may be read, by their `id`.

    Raises:
      NotCompilable: it cannot be traced, or there is no translation for something it does.
    """
    with _unchanged(module):
        graph = _Tracer().trace(module)
    operations: list[Operation] = []
    values: dict[fx.Node, Any] = {}
    temporary: dict[fx.Node, bool] = {}  # whether only its one user sees the memory of a node's result

    def emit(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if name == "dropout" and not drops(*args, **kwargs):
            return args[0]
        operations.append(Operation(name, args, tuple(kwargs.items())))
        return Value(len(operations))

    def argument(value: Any) -> Any:
        if isinstance(value, fx.Node):
            return values[value]
        if isinstance(value, nn.Parameter) and id(value) in names:
            return Parameter(names[id(value)])
        if isinstance(value, list | tuple):
            return tuple(map(argument, value))
        if isinstance(value, slice):  # which cannot be hashed
            return emit("slice", argument((value.start, value.stop, value.step)), {})
        if value is None or isinstance(value, int | float | str | EllipsisType):
            return value
        raise NotCompilable(
            f"The networks compute with a {type(value).__name__} that is no parameter; only numbers may be constants."
        )

    for node in graph.nodes:
        if node.op == "placeholder":
            values[node] = Value(0)
        elif node.op == "get_attr":
            values[node] = argument(operator.attrgetter(str(node.target))(module))
        elif node.op == "output":
            return Program(tuple(operations), argument(node.args[0]))
        else:
            name, options, overwrites = _operation(module, node)
            is_exclusive = all(temporary.get(source, False) for source in node.all_input_nodes)
            if overwrites and not is_exclusive:
                raise NotCompilable(f"An in-place {name} overwrites a tensor that may be used elsewhere.")
            is_new = name not in VIEWS and not overwrites
            temporary[node] = len(node.users) == 1 and (is_new or is_exclusive)
            kwargs = {key: argument(value) for key, value in node.kwargs.items() if key != "inplace"}
            values[node] = emit(name, argument((*node.args, *options)), kwargs)
    raise AssertionError("A graph of torch.fx ends with its output.")


class _Tracer(fx.Tracer):
    """Says which module could not be traced."""

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        try:
            return super().call_module(m, forward, args, kwargs)
        except NotCompilable:
            raise
        except Exception as error:
            where = _describe(self.path_of_module(m), m)
            raise NotCompilable(f"torch.fx cannot trace the forward of {where}: {first_line(error)}") from error


@contextlib.contextmanager
def _unchanged(module: nn.Module) -> Iterator[None]:
    """Undoes what tracing does to the attributes of modules.

    Raises:
      NotCompilable: it did something to them.
    """
    parts = [(path, part, dict(vars(part))) for path, part in module.named_modules() if path]
    try:
        yield
        for path, part, attributes in parts:
            for name, value in vars(part).items():
                if name not in attributes or value is not attributes[name]:
                    raise NotCompilable(f"The forward of {_describe(path, part)} sets its attribute {name!r}.")
    finally:
        for _, part, attributes in parts:
            vars(part).clear()
            vars(part).update(attributes)


def _operation(module: nn.Module, node: fx.Node) -> tuple[str, tuple[Any, ...], bool]:
    """What a node calls: one of OPERATIONS, further arguments for it, and whether it overwrites its input."""
    if node.op == "call_module":
        part = module.get_submodule(str(node.target))
        if type(part) not in MODULES:
            raise NotCompilable(f"There is no translation to JAX of {_describe(str(node.target), part)}.")
        name, *attributes = MODULES[type(part)]
        return name, tuple(getattr(part, attribute) for attribute in attributes), bool(getattr(part, "inplace", False))
    known = node.target if node.target in OPERATIONS else FUNCTIONS.get(node.target)
    if known is None:
        function = getattr(node.target, "__name__", node.target)
        raise NotCompilable(f"There is no translation to JAX of {function}(), which a forward calls.")
    return str(known), (), bool(node.kwargs.get("inplace"))


def _describe(path: str, module: nn.Module) -> str:
    return f"{path.partition('.')[2] or path} ({type(module).__name__})"


def first_line(error: Exception) -> str:
    """The part of an error's message that fits in a sentence."""
    return str(error).partition("\n")[0] or type(error).__name__
