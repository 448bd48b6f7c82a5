"""The device for which JAX compiles: JAX's default device, which `on` changes for a block of code.

Where JAX has only a CPU, nothing here has an effect.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax

from jaxenvs.jax_names import config

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def device_in_use() -> jax.Device:
    """Return the device on which JAX runs functions now."""
    return _device(config.jax_default_device)


@functools.cache
def _device(default: jax.Device | str | None) -> jax.Device:
    return jax.local_devices(backend=default)[0] if default is None or isinstance(default, str) else default


def platform() -> str:
    """Return the platform for which JAX compiles now, such as "cpu" or "gpu"."""
    return str(device_in_use().platform)


def is_accelerator(device: jax.Device) -> bool:
    """Return whether a device has other memory than the host."""
    return bool(device.platform != "cpu")


def accelerator() -> jax.Device | None:
    """Return JAX's default device if it is an accelerator, else None."""
    device = device_in_use()
    return device if is_accelerator(device) else None


@functools.cache
def host() -> jax.Device | None:
    """Return JAX's CPU; None if JAX has none, as with JAX_PLATFORMS=cuda."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        return None


def on(device: jax.Device | None) -> contextlib.AbstractContextManager[object]:
    """Return a context in which JAX runs functions on a device; None: where it runs them anyway."""
    return contextlib.nullcontext() if device is None else jax.default_device(device)


def beside(array: jax.Array) -> contextlib.AbstractContextManager[object]:
    """Return a context in which JAX runs functions where an array is, if that is one device."""
    devices = array.devices()
    return on(None if len(devices) > 1 or devices == {device_in_use()} else next(iter(devices)))


def on_device_of(name: str) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """Let JAX run what a function calls on the `device` of its argument `name`, which is positional. A decorator."""

    def decorate(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        index = [*inspect.signature(function).parameters].index(name)

        @functools.wraps(function)
        def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
            owner: Any = args[index]
            device = owner.device
            if device is None:
                return function(*args, **kwargs)
            with jax.default_device(device):
                return function(*args, **kwargs)

        return call

    return decorate


def here(tree: Any) -> Any:
    """Move arrays that are bound to one other device to the device in use. JAX itself moves those that are not."""
    default = config.jax_default_device
    if default is None and not is_accelerator(_device(default)):
        return tree
    device = _device(default)

    def move(leaf: Any) -> Any:
        is_elsewhere = isinstance(leaf, jax.Array) and leaf.committed and leaf.devices() != {device}
        return jax.device_put(leaf, device) if is_elsewhere and len(leaf.devices()) == 1 else leaf

    return jax.tree.map(move, tree)


def bound(function: Callable[..., Result]) -> Callable[..., Result]:
    """Return a jitted function that always runs on the device in use now: itself, where JAX has only a CPU."""
    default = config.jax_default_device
    if default is None and not is_accelerator(_device(default)):
        return function
    return _Bound(function, _device(default))


class _Bound:
    """Jitted function that runs on one device."""

    def __init__(self, function: Any, device: jax.Device) -> None:
        self._function, self._device = function, device

    def __call__(self, *arguments: object) -> Any:
        with jax.default_device(self._device):
            return self._function(*here(arguments))

    def lower(self, *arguments: object) -> Any:
        """Return `function.lower(*arguments)` for the device."""
        with jax.default_device(self._device):
            return self._function.lower(*here(arguments))


def cached_by_device(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """`functools.lru_cache` for makers of compiled functions, which differ from device to device. A decorator."""
    cached = functools.lru_cache(maxsize=64)(lambda device, *args, **kwargs: function(*args, **kwargs))
    lookup: Callable[..., Result] = cached

    @functools.wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        return lookup(device_in_use(), *args, **kwargs)

    vars(call)["cache_clear"] = cached.cache_clear
    return call
