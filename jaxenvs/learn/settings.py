"""Base class of the settings of all algorithms."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from jaxenvs import arguments
from jaxenvs.environment import static, struct
from jaxenvs.jax_names import is_traced
from jaxenvs.learn.devices import require_divisible
from jaxenvs.learn.interfaces import Real
from jaxenvs.learn.learner_state import LearnerState, Optimizers
from jaxenvs.learn.optimization import apply_gradients


@struct
class Settings:
    """Base class of an algorithm's settings, with SB3's names.

    Numbers are traced, so that `vmap` sweeps them; the other settings are part of the compiled function.

    Attributes:
      learning_rate: a float; or, for a Training, an array with one for each iteration.
      gamma: the discount of one step.
      axis_name: of the axis of `jax.shard_map` or `jax.vmap` over which a training is divided: updates average
        gradients and statistics over it. `advance` with a mesh sets it.
    """

    # Settings that may be arrays with one value for each iteration.
    SCHEDULED: ClassVar[tuple[str, ...]] = ("learning_rate",)
    # The least and the greatest value of each numeric setting.
    RANGES: ClassVar[dict[str, tuple[float, float]]] = {"learning_rate": (0, math.inf), "gamma": (0, 1)}
    # Settings that are positive integers.
    COUNTS: ClassVar[tuple[str, ...]] = ()
    # The trained networks, and the optimizer of each, without a learning rate: `apply_gradients` multiplies by it.
    NETWORKS: ClassVar[tuple[str, ...]] = ()
    OPTIMIZER: ClassVar[optax.GradientTransformation]

    # All algorithms have these settings, and may change the defaults.
    learning_rate: Real | dict[str, Real] = 3e-4
    gamma: Real = 0.99
    axis_name: str | None = static(default=None)

    @property
    def steps_per_iteration(self) -> int:
        """Steps of each environment in one iteration of a training."""
        raise NotImplementedError(f"{type(self).__name__} does not define steps_per_iteration.")

    def check_network(self, network: object) -> None:
        """Raise if the algorithm cannot train the network.

        Raises:
          TypeError: it is not such a network.
        """
        if not callable(getattr(network, "apply", None)):
            raise TypeError(f"network must be a Network, such as learn.ActorCritic, got a {type(network).__name__}.")

    def optimizers(self, optimizer: optax.GradientTransformation | None = None) -> Optimizers:
        """Return an optimizer for each name of `params`: the given one, or the one that SB3 uses."""
        return {name: self.OPTIMIZER if optimizer is None else optimizer for name in self.NETWORKS}

    def create(self, params: Mapping[str, Any], optimizers: Optimizers) -> LearnerState:
        """Return the state before the first update, from the parameters of each network, by its name."""
        return LearnerState.create(params, optimizers)

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some settings changed."""
        return dataclasses.replace(self, **changes)

    def at(self, iteration: jax.Array, params: Any) -> Self:
        """Return the settings of one iteration.

        Args:
          params: the trained parameters. Arrays among the settings get their dtype; otherwise, with 64 bits enabled,
            float64 settings would turn float32 parameters into float64.
        """
        values = {name: getattr(self, name) for name in self.RANGES}
        schedules = {name: values[name] for name in self.SCHEDULED if values[name] is not None}
        values |= {name: jnp.asarray(each)[iteration] for name, each in schedules.items() if jnp.ndim(each) == 1}
        dtype = jax.tree.leaves(params)[0].dtype
        arrays = {name: value for name, value in values.items() if isinstance(value, jax.Array | np.ndarray)}
        floats = {name: value for name, value in arrays.items() if jnp.issubdtype(value.dtype, jnp.floating)}
        return self.replace(**{name: value.astype(dtype) for name, value in floats.items()})

    def check(self) -> None:
        """Raise if a setting is invalid. Traced values are not checked.

        Raises:
          ValueError, TypeError: a setting is not a number, or out of its range; the message names it.
        """
        for name in self.COUNTS:
            arguments.positive_int(name, getattr(self, name))
        for field in dataclasses.fields(self):
            if field.type in ("bool", bool):
                arguments.boolean(field.name, getattr(self, field.name))
        arguments.instance("axis_name", self.axis_name, (str, type(None)), "None or a str")
        for name, (low, high) in self.RANGES.items():
            value = getattr(self, name)
            if value is None and type(self).__dataclass_fields__[name].default is None:
                continue
            if not arguments.is_real(value):
                raise TypeError(f"{name} must be a number or an array of numbers, got {arguments.shown(value)}.")
            if jnp.ndim(value) and name not in self.SCHEDULED:
                raise ValueError(f"{name} must be a number, got {arguments.shown(value)}.")
            if not is_traced(value):
                numbers = np.asarray(value)
                if not ((numbers >= low) & (numbers <= high)).all():  # NaN fails both comparisons
                    raise ValueError(f"{name} must lie in [{low:g}, {high:g}], got {arguments.shown(value)}.")

    def check_devices(self, num_devices: int, num_envs: int) -> None:
        """Raise where several devices cannot share the training equally.

        Raises:
          ValueError: a number has a remainder; the message names it.
        """
        require_divisible("num_envs", num_envs, num_devices)

    def of_one_device(self, mesh: Mesh) -> Self:
        """Return the settings with the axis of the mesh, over which updates take means."""
        return self.replace(axis_name=mesh.axis_names[0])

    def check_schedules(self, num_iterations: int) -> None:
        """Raise if a schedule does not have one value for each iteration.

        Raises:
          ValueError: a schedule has another length.
        """
        for name in self.SCHEDULED:
            value = getattr(self, name)
            shape = () if value is None else jnp.shape(value)
            if shape not in ((), (num_iterations,)):
                raise ValueError(
                    f"{name} must be a number or an array with one value for each of the {num_iterations} iterations, "
                    f"got an array of shape {shape}."
                )

    def _apply_gradients(
        self,
        optimizers: Optimizers,
        state: LearnerState,
        name: str,
        gradient: jax.Array,
        max_grad_norm: Real | None = None,
    ) -> LearnerState:
        """Return the state after one step of one network."""
        rate = self.learning_rate[name] if isinstance(self.learning_rate, dict) else self.learning_rate
        params, optimizer_state = apply_gradients(
            optimizers[name],
            rate,
            max_grad_norm,
            state.params[name],
            state.optimizer_states[name],
            gradient,
            self.axis_name,
        )
        return dataclasses.replace(
            state,
            params=state.params | {name: params},
            optimizer_states=state.optimizer_states | {name: optimizer_state},
        )
