"""PyTorch's operations implemented in JAX."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable

import jax
import jax.numpy as jnp
import torch
from torch import nn

from bridge.errors import NotCompilable
from bridge.translate.pytorch.convolution import conv, of_each_axis
from jaxenvs.learn.networks.actor_critic import times_transposed
from jaxenvs.learn.off_policy.contrib.batch_renorm import renormalize

Pair = int | tuple[int, int]


def _unsupported(**options: object) -> None:
    for name, value in options.items():
        if value:
            raise NotCompilable(f"{name}={value!r} cannot be translated to JAX.")


def _getattr(x: jax.Array, name: str) -> tuple[int, ...]:
    _unsupported(attribute=name != "shape" and name)
    return x.shape


def _shape(x: jax.Array, *shape: object) -> jax.Array:
    return x.reshape(shape[0] if isinstance(shape[0], tuple) else shape)


def _flatten(x: jax.Array, start_dim: int = 0, end_dim: int = -1) -> jax.Array:
    start, stop = start_dim % x.ndim, end_dim % x.ndim + 1
    return x.reshape(*x.shape[:start], math.prod(x.shape[start:stop]), *x.shape[stop:])


def _permute(x: jax.Array, *dims: object) -> jax.Array:
    return x.transpose(dims[0] if isinstance(dims[0], tuple) else dims)


def _linear(x: jax.Array, weight: jax.Array, bias: jax.Array | None = None) -> jax.Array:
    product = times_transposed(x, weight)
    return product if bias is None else product + bias


def _abs(x: jax.Array) -> jax.Array:
    return x * jnp.sign(x)  # whose gradient at 0 is PyTorch's, 0


def _layer_norm(
    x: jax.Array,
    shape: tuple[int, ...],
    weight: jax.Array | None = None,
    bias: jax.Array | None = None,
    eps: float = 1e-5,
) -> jax.Array:
    axes = tuple(range(-len(shape), 0))
    centred = x - jnp.mean(x, axes, keepdims=True)
    normal = centred * jax.lax.rsqrt(jnp.mean(centred**2, axes, keepdims=True) + eps)
    scaled = normal if weight is None else normal * weight
    return scaled if bias is None else scaled + bias


def _max_pool2d(
    x: jax.Array,
    kernel_size: Pair,
    stride: Pair | None = None,
    padding: Pair = 0,
    dilation: Pair = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> jax.Array:
    dilated = of_each_axis(dilation, 2) != (1, 1) and dilation  # JAX has no gradient of it
    _unsupported(ceil_mode=ceil_mode, return_indices=return_indices, dilation=dilated)
    window, pads = (1, 1, *of_each_axis(kernel_size, 2)), [(pad, pad) for pad in (0, 0, *of_each_axis(padding, 2))]
    strides = (1, 1, *of_each_axis(stride or kernel_size, 2))
    pooled: jax.Array = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, strides, pads)
    return pooled


def _avg_pool2d(
    x: jax.Array,
    kernel_size: Pair,
    stride: Pair | None = None,
    padding: Pair = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> jax.Array:
    _unsupported(padding=padding, ceil_mode=ceil_mode, divisor_override=divisor_override)
    window, strides = (1, 1, *of_each_axis(kernel_size, 2)), (1, 1, *of_each_axis(stride or kernel_size, 2))
    total: jax.Array = jax.lax.reduce_window(x, 0.0, jax.lax.add, window, strides, "VALID")
    return total / math.prod(window)


def _adaptive_avg_pool2d(x: jax.Array, output_size: Pair) -> jax.Array:
    _unsupported(output_size=of_each_axis(output_size, 2) != (1, 1) and output_size)
    return jnp.mean(x, (-2, -1), keepdims=True)


# At their corners, these functions have the derivatives that PyTorch chose: activations are exactly zero more often
# than one would think, for example for black pixels.


def _leaky_relu(x: jax.Array, negative_slope: float = 0.01) -> jax.Array:
    return jnp.where(x > 0, x, negative_slope * x)


def _hardtanh(x: jax.Array, min_val: float = -1.0, max_val: float = 1.0) -> jax.Array:
    return jnp.where(x <= min_val, min_val, jnp.where(x >= max_val, max_val, x))


def _clamp(x: jax.Array, min: float | None = None, max: float | None = None) -> jax.Array:
    x = x if min is None else jnp.where(x < min, min, x)
    return x if max is None else jnp.where(x > max, max, x)


def _prelu(x: jax.Array, weight: jax.Array) -> jax.Array:
    return jnp.where(x > 0, x, weight.reshape(-1, *[1] * (x.ndim - 2)) * x)


def _softplus(x: jax.Array, beta: float = 1.0, threshold: float = 20.0) -> jax.Array:
    return jnp.where(beta * x > threshold, x, jax.nn.softplus(beta * x) / beta)


def _softmax(x: jax.Array, dim: int, _stacklevel: int = 3, dtype: None = None) -> jax.Array:
    _unsupported(dtype=dtype, dim=dim is None and "None")
    return jax.nn.softmax(x, operator.index(dim))


def _log_softmax(x: jax.Array, dim: int, _stacklevel: int = 3, dtype: None = None) -> jax.Array:
    _unsupported(dtype=dtype, dim=dim is None and "None")
    return jax.nn.log_softmax(x, operator.index(dim))


def drops(x: object, p: float = 0.5, training: bool = True) -> bool:
    """Return whether a dropout with these arguments does anything."""
    return training and p > 0


def _dropout(x: jax.Array, p: float = 0.5, training: bool = True) -> jax.Array:
    raise NotCompilable("A forward method applies dropout even in evaluation mode.")


# By their names as methods of tensors, in torch, in torch.nn.functional, or as operators. They accept PyTorch's
# arguments under PyTorch's names as far as these are translated, and fail on others.
OPERATIONS: dict[str, Callable[..., object]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "truediv": operator.truediv,
    "matmul": operator.matmul,
    "neg": operator.neg,
    "pow": operator.pow,
    "abs": _abs,
    "exp": jnp.exp,
    "log": jnp.log,
    "sqrt": jnp.sqrt,
    "square": jnp.square,
    "sin": jnp.sin,
    "cos": jnp.cos,
    "clamp": _clamp,
    "mean": lambda x, dim=None, keepdim=False: jnp.mean(x, dim, keepdims=keepdim),
    "sum": lambda x, dim=None, keepdim=False: jnp.sum(x, dim, keepdims=keepdim),
    # Shapes.
    "getattr": _getattr,
    "getitem": operator.getitem,
    "slice": slice,
    "size": lambda x, dim=None: x.shape if dim is None else x.shape[dim],
    "view": _shape,
    "reshape": _shape,
    "flatten": _flatten,
    "transpose": lambda x, dim0, dim1: jnp.swapaxes(x, dim0, dim1),
    "permute": _permute,
    "unsqueeze": lambda x, dim: jnp.expand_dims(x, dim),
    "squeeze": lambda x, dim: jnp.squeeze(x, dim) if x.shape[dim] == 1 else x,
    "cat": lambda tensors, dim=0: jnp.concatenate(tensors, dim),
    "concat": lambda tensors, dim=0: jnp.concatenate(tensors, dim),
    "stack": lambda tensors, dim=0: jnp.stack(tensors, dim),
    # Everything has the dtype of the parameters, and JAX arrays are immutable and have no strides.
    "float": lambda x: x,
    "clone": lambda x: x,
    "contiguous": lambda x: x,
    "identity": lambda x: x,
    "detach": jax.lax.stop_gradient,
    # Activations.
    "relu": jax.nn.relu,
    "relu6": lambda x: _hardtanh(x, 0.0, 6.0),
    "leaky_relu": _leaky_relu,
    "prelu": _prelu,
    "elu": lambda x, alpha=1.0: jax.nn.elu(x, alpha),
    "celu": lambda x, alpha=1.0: jax.nn.celu(x, alpha),
    "selu": jax.nn.selu,
    "gelu": lambda x, approximate="none": jax.nn.gelu(x, approximate == "tanh"),
    "silu": jax.nn.silu,
    "mish": jax.nn.mish,
    "tanh": jnp.tanh,
    "hardtanh": _hardtanh,
    "tanhshrink": lambda x: x - jnp.tanh(x),
    "sigmoid": jax.nn.sigmoid,
    "logsigmoid": jax.nn.log_sigmoid,
    "hardsigmoid": lambda x: _hardtanh(x + 3, 0.0, 6.0) / 6,
    "softplus": _softplus,
    "softsign": jax.nn.soft_sign,
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    # Layers.
    "linear": _linear,
    "conv1d": conv,
    "conv2d": conv,
    "layer_norm": _layer_norm,
    "max_pool2d": _max_pool2d,
    "avg_pool2d": _avg_pool2d,
    "adaptive_avg_pool2d": _adaptive_avg_pool2d,
    "dropout": _dropout,
    # In training, CrossQ replaces this operation.
    "batch_renorm": renormalize,
}

# Operations whose results may share memory with their input.
VIEWS = {"getitem", "view", "reshape", "flatten", "transpose", "permute", "unsqueeze", "squeeze"}
VIEWS |= {"float", "contiguous", "identity", "dropout", "detach"}

# Operations whose results do not depend on the input's numbers, or whose gradients PyTorch does not compute.
WITHOUT_GRADIENT = {"detach", "getattr", "size"}

FUNCTIONS: dict[object, str] = {getattr: "getattr"} | {
    getattr(namespace, name): name
    for namespace in (operator, torch, nn.functional)
    for name in OPERATIONS
    if hasattr(namespace, name)
}

CONVOLUTION = ("weight", "bias", "stride", "padding", "dilation", "groups", "padding_mode")
POOLING = ("kernel_size", "stride", "padding")

# The operation that each module computes, and the attributes that are further arguments.
MODULES: dict[type[nn.Module], tuple[str, ...]] = {
    nn.Flatten: ("flatten", "start_dim", "end_dim"),
    nn.Linear: ("linear", "weight", "bias"),
    nn.Conv1d: ("conv1d", *CONVOLUTION),
    nn.Conv2d: ("conv2d", *CONVOLUTION),
    nn.LayerNorm: ("layer_norm", "normalized_shape", "weight", "bias", "eps"),
    nn.MaxPool2d: ("max_pool2d", *POOLING, "dilation", "ceil_mode", "return_indices"),
    nn.AvgPool2d: ("avg_pool2d", *POOLING, "ceil_mode", "count_include_pad", "divisor_override"),
    nn.AdaptiveAvgPool2d: ("adaptive_avg_pool2d", "output_size"),
    nn.LeakyReLU: ("leaky_relu", "negative_slope"),
    nn.PReLU: ("prelu", "weight"),
    nn.ELU: ("elu", "alpha"),
    nn.CELU: ("celu", "alpha"),
    nn.GELU: ("gelu", "approximate"),
    nn.Hardtanh: ("hardtanh", "min_val", "max_val"),
    nn.Softplus: ("softplus", "beta", "threshold"),
    nn.Softmax: ("softmax", "dim"),
    nn.LogSoftmax: ("log_softmax", "dim"),
}
MODULES |= dict.fromkeys((nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.AlphaDropout), ("dropout", "p", "training"))
# Modules without arguments, which have the names of their operations.
MODULES |= {
    cls: (cls.__name__.lower(),)
    for cls in (
        *(nn.Identity, nn.ReLU, nn.ReLU6, nn.SELU, nn.SiLU, nn.Mish, nn.Tanh, nn.Tanhshrink, nn.Sigmoid, nn.LogSigmoid),
        *(nn.Hardsigmoid, nn.Softsign),
    )
}
