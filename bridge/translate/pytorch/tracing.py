"""Tracing of PyTorch modules into Computations, lists of operations that JAX runs.

    module --replicate--> replica --trace--> torch.fx graph --translate--> Computation --called in JAX--> results

The forward of a replica runs once on proxies of torch.fx, which record operations. `torch.fx.Tracer` puts its own
methods into `nn.Module` while it traces, for all threads and all modules of the process. Here only a replica is
changed, so that other threads may run, train and trace the same module meanwhile.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import operator
import types
from collections.abc import Callable, Mapping
from typing import Any

import jax
import torch
from torch import fx, nn
from torch.fx.proxy import GraphAppendingTracer

from bridge.contrib import contrib_class
from bridge.errors import NotCompilable
from bridge.originals import replaced
from bridge.translate.pytorch.operations import FUNCTIONS, MODULES, OPERATIONS, VIEWS, WITHOUT_GRADIENT, drops


@dataclasses.dataclass(frozen=True)
class Value:
    """Argument that is one of the inputs or, counted after these, the result of an earlier operation."""

    index: int


@dataclasses.dataclass(frozen=True)
class Parameter:
    """Argument that is a parameter, by its name."""

    name: str


@dataclasses.dataclass(frozen=True)
class Operation:
    """Call of one of OPERATIONS. Arguments are constants, Values, Parameters, and tuples of these."""

    name: str
    args: tuple[object, ...]
    kwargs: tuple[tuple[str, object], ...] = ()


@dataclasses.dataclass(frozen=True)
class Computation:
    """Pure function of parameters and inputs. Computations of the same operations are equal."""

    num_inputs: int
    operations: tuple[Operation, ...]
    result: object

    def __call__(
        self,
        params: Mapping[str, jax.Array],
        *inputs: object,
        instead: Mapping[str, Callable[..., object]] = types.MappingProxyType({}),
    ) -> object:
        """Return the results for a batch.

        Args:
          params: by name.
          inputs: each an array, or a dict of arrays.
          instead: functions that replace some of OPERATIONS, by name.
        """
        values: list[object] = list(inputs)

        def resolve(argument: object) -> Any:
            if isinstance(argument, Value):
                return values[argument.index]
            if isinstance(argument, Parameter):
                return params[argument.name]
            return tuple(map(resolve, argument)) if isinstance(argument, tuple) else argument

        for operation in self.operations:
            kwargs = {name: resolve(argument) for name, argument in operation.kwargs}
            run = instead.get(operation.name) or OPERATIONS[operation.name]
            values.append(run(*resolve(operation.args), **kwargs))
        return resolve(self.result)

    @property
    def read(self) -> tuple[str, ...]:
        """Names of the parameters that operations take, in the order of the operations."""
        args = [each for operation in self.operations for each in operation.args]
        return tuple(each.name for each in args if isinstance(each, Parameter))

    @property
    def differentiated(self) -> frozenset[str]:
        """Names of the parameters that get a gradient from the results. PyTorch's optimizers skip all others."""
        reached: list[frozenset[str]] = [frozenset()] * self.num_inputs

        def names(argument: object) -> frozenset[str]:
            if isinstance(argument, Value):
                return reached[argument.index]
            if isinstance(argument, tuple):
                return frozenset().union(*map(names, argument))
            return frozenset({argument.name} if isinstance(argument, Parameter) else ())

        for operation in self.operations:
            passes = operation.name not in WITHOUT_GRADIENT
            reached.append(names((operation.args, operation.kwargs)) if passes else frozenset())
        return names(self.result)


def trace(module: nn.Module, *examples: object, training: bool = False) -> fx.Graph:
    """Record what `module(*examples)` calls: functions and modules of PyTorch, and parameters by their names.

    Args:
      examples: of the inputs. Only whether each is a dict, and its keys, matters.
      training: the mode of the module.
    """
    recorder = _Recorder({id(parameter): name for name, parameter in module.named_parameters()})
    inputs = [recorder.input(index, example) for index, example in enumerate(examples)]
    replica = replicate(module).train(training)
    recorder.watch(replica)
    # Gradients are enabled, because the caller may be in no_grad. A forward that enters no_grad itself is respected.
    with torch.enable_grad():
        recorder.graph.output(recorder.create_arg(replica(*inputs)))
    return recorder.graph


def replicate(module: nn.Module, parameter: Callable[[nn.Parameter], nn.Parameter] = lambda each: each) -> nn.Module:
    """Return a module of the same structure in evaluation mode, with separate submodules, attributes and buffers.

    Args:
      parameter: returns each parameter of the new module, from the old one.
    """
    replicas: dict[int, object] = {}

    def replica(value: Any) -> Any:
        if isinstance(value, nn.Parameter):
            if id(value) not in replicas:
                replicas[id(value)] = parameter(value)
            return replicas[id(value)]
        if isinstance(value, nn.Module):
            if id(value) not in replicas:
                replicas[id(value)] = new = object.__new__(type(value))
                vars(new).update((name, replica(part)) for name, part in vars(value).items())
                new._buffers = {name: part if part is None else part.clone() for name, part in value._buffers.items()}
                new._compiled_call_impl = None  # set by `module.compile()`, which computes the same
                new._backward_hooks, new._backward_pre_hooks = collections.OrderedDict(), collections.OrderedDict()
            return replicas[id(value)]
        if type(value) is dict or type(value) is collections.OrderedDict:
            return type(value)((name, replica(part)) for name, part in value.items())
        if isinstance(value, types.MethodType) and isinstance(value.__self__, nn.Module):
            return types.MethodType(value.__func__, replica(value.__self__))
        return type(value)(map(replica, value)) if type(value) in (list, tuple) else value

    new: nn.Module = replica(module)
    return new.eval()


class Interpreter(fx.Interpreter):
    """Interpreter that runs a recorded graph in PyTorch."""

    def results(self, *args: object) -> object:
        """Run the graph, as `run` does, but without its progress bar, for whose lock other threads wait.

        An exception of a signal handler between its two parts leaves the lock taken for ever.
        """
        self.env, self.args_iter = {}, iter(args)
        result: object = None
        for node in self.graph.nodes:  # the last one is the output
            result = self.env[node] = self.run_node(node)
        return result


class _Proxy(fx.Proxy):
    """Proxy that records changes in place, such as `x += y`, which others take for `x = x + y`.

    It refuses to be a key or a part of a string, which no recording would show.
    """

    def __getattr__(self, k: str) -> fx.proxy.Attribute:
        return _Attribute(self, k)

    def _refuse(self, *_: object) -> Any:
        raise NotCompilable("A forward method uses a value of the call as a key or in a string.")

    __hash__ = __str__ = __repr__ = __format__ = _refuse


class _Attribute(fx.proxy.Attribute, _Proxy):
    """Attribute of a proxy: a method that is called, or a value such as `x.shape`."""


def _changing(function: Callable[..., object]) -> Callable[..., fx.Proxy]:
    def change(self: fx.Proxy, other: object) -> fx.Proxy:
        return self.tracer.create_proxy("call_function", function, (self, other), {})

    return change


# Operators that change a tensor in place, and the operations that they are.
IN_PLACE = {getattr(operator, f"i{name}"): name for name in ("add", "sub", "mul", "truediv")}
for _operator in IN_PLACE:
    setattr(_Proxy, f"__{_operator.__name__}__", _changing(_operator))


class _Recorder(GraphAppendingTracer):
    """Tracer that records a graph of what the replicas that it watches call."""

    def __init__(self, names: Mapping[int, str]) -> None:
        super().__init__(fx.Graph())
        self._parameters = {key: self.proxy(self.create_node("get_attr", name, (), {})) for key, name in names.items()}

    def proxy(self, node: fx.Node) -> fx.Proxy:
        """Return what stands for the result of a node."""
        return _Proxy(node, self)

    def input(self, index: int, example: object) -> object:
        proxy: Any = self.proxy(self.create_node("placeholder", f"input_{index}", (), {}))
        return {key: proxy[key] for key in example} if isinstance(example, dict) else proxy

    def watch(self, replica: nn.Module) -> None:
        for path, part in replica.named_modules():
            attributes = vars(part)
            # Python looks here before it calls `nn.Module.__getattr__`, so methods of parameters are recorded too.
            for name, parameter in part._parameters.items():
                if parameter is not None:
                    attributes[name] = self._parameters[id(parameter)]
            attributes["float"] = None  # a module may be what a forward takes for a tensor, and has the same parameters
            attributes["forward"] = functools.partial(self._forward, path, part)

    def _forward(self, path: str, part: nn.Module, *args: object, **kwargs: object) -> object:
        if (known := _operation_of(type(part))) is not None:
            name, *attributes = known
            further = tuple(self._attribute(path, part, attribute) for attribute in attributes)
            node = self.create_node("call_module", path, self.create_arg(args), self.create_arg(kwargs))
            node.meta["operation"] = name, further, getattr(part, "inplace", False)
            return self._differentiable(self.proxy(node))
        if type(part).__module__.startswith(("torch.nn", "torch.ao.nn")) and not isinstance(part, nn.Sequential):
            raise NotCompilable(f"{describe(path, part)} cannot be translated to JAX.")
        try:
            return type(part).forward(part, *args, **kwargs)
        except NotCompilable:
            raise
        except Exception as error:
            where = describe(path, part)
            raise NotCompilable(f"torch.fx cannot trace the forward method of {where}: {first_line(error)}") from error

    def _attribute(self, path: str, part: nn.Module, name: str) -> object:
        if name in part._buffers:  # such as running statistics
            return self.create_node("get_attr", f"{path}.{name}", (), {})
        return self.create_arg(getattr(part, name))

    def create_proxy(self, kind: str, target: Any, args: Any, kwargs: Any, *rest: Any, **options: Any) -> fx.Proxy:
        """Return torch.fx's proxy of a call, without a gradient where PyTorch computes none."""
        return self._differentiable(super().create_proxy(kind, target, args, kwargs, *rest, **options))

    def _differentiable(self, proxy: fx.Proxy) -> fx.Proxy:
        """Return the result of a call, without a gradient where PyTorch computes none."""
        return proxy if torch.is_grad_enabled() else super().create_proxy("call_method", "detach", (proxy,), {})

    def create_arg(self, a: object) -> Any:
        """Return torch.fx's form of an argument. Tensors must be parameters, because no other may be a constant."""
        if isinstance(a, torch.Tensor):
            if id(a) in self._parameters:
                return self._parameters[id(a)].node
            raise NotCompilable(
                f"The networks compute with a {type(a).__name__} that is not a parameter; only numbers may be "
                "constants."
            )
        return super().create_arg(a)


def translate(graph: fx.Graph) -> Computation:
    """Translate a recorded graph to JAX."""
    num_inputs = sum(node.op == "placeholder" for node in graph.nodes)
    operations: list[Operation] = []
    values: dict[fx.Node, object] = {}
    temporary: dict[fx.Node, bool] = {}  # whether only its one user sees the memory of a node's result

    def emit(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        if name == "dropout" and not drops(*args, **kwargs):
            return args[0]
        operations.append(Operation(name, args, tuple(kwargs.items())))
        return Value(num_inputs + len(operations) - 1)

    def argument(value: object) -> Any:
        if isinstance(value, fx.Node):
            return values[value]
        if isinstance(value, list | tuple):
            return tuple(map(argument, value))
        if isinstance(value, slice):  # slices cannot be hashed
            return emit("slice", argument((value.start, value.stop, value.step)), {})
        if value is None or isinstance(value, int | float | str | types.EllipsisType):
            return value
        raise NotCompilable(f"The networks compute with a {type(value).__name__}; only numbers may be constants.")

    placeholders = iter(range(num_inputs))
    for node in graph.nodes:
        if node.op == "placeholder":
            values[node] = Value(next(placeholders))
        elif node.op == "get_attr":
            values[node] = Parameter(str(node.target))
        elif node.op == "output":
            return Computation(num_inputs, tuple(operations), argument(node.args[0]))
        else:
            name, further, overwrites = _operation(node)
            is_exclusive = all(temporary.get(source, False) for source in node.all_input_nodes[:1])
            if overwrites and not is_exclusive:
                raise NotCompilable(f"An in-place {name} overwrites a tensor that may be used elsewhere.")
            is_new = name not in VIEWS and not overwrites
            temporary[node] = len(node.users) == 1 and (is_new or is_exclusive)
            kwargs = {key: argument(value) for key, value in node.kwargs.items() if key != "inplace"}
            values[node] = emit(name, argument((*node.args, *further)), kwargs)
    raise AssertionError("A graph of torch.fx ends with its output.")


def _operation(node: fx.Node) -> tuple[str, tuple[object, ...], bool]:
    """Return what a node calls: one of OPERATIONS, further arguments for it, and whether it overwrites its input."""
    if node.op == "call_module":
        name, further, overwrites = node.meta["operation"]
        return name, further, overwrites
    known = node.target if node.target in OPERATIONS else FUNCTIONS.get(node.target)
    in_place = IN_PLACE.get(node.target)
    if in_place is not None:
        return in_place, (), True
    if known is None:
        function = getattr(node.target, "__name__", node.target)
        raise NotCompilable(f"{function}(), which a forward method calls, cannot be translated to JAX.")
    return str(known), (), bool(node.kwargs.get("inplace"))


# The layer of sb3-contrib's CrossQ. jaxenvs.learn updates its statistics in training; other policies refuse it.
RENORMALIZATION = "common.torch_layers", "BatchRenorm1d"
STATISTICS = ("ra_mean", "ra_var")
BATCH_RENORM = ("batch_renorm", *STATISTICS, "scale", "bias", "momentum", "eps", "warmup_steps", "rmax", "dmax")


def _operation_of(cls: type[nn.Module]) -> tuple[str, ...] | None:
    """Return the operation that a class of modules computes, and the attributes that are its arguments; or None."""
    return BATCH_RENORM if cls is contrib_class(*RENORMALIZATION) else MODULES.get(cls)


def require_unreplaced(cls: type) -> None:
    """Refuse classes into which user code has put a method, because a recording would not show it."""
    if names := replaced(cls):
        raise NotCompilable(f"The method {names[0]} of the class {cls.__name__} was replaced.")


def describe(path: str, module: nn.Module) -> str:
    """Return a module's path and class, for use in a sentence."""
    return f"{path} ({type(module).__name__})" if path else type(module).__name__


def first_line(error: Exception) -> str:
    """Return the part of an error's message that fits in a sentence."""
    return str(error).partition("\n")[0] or type(error).__name__
