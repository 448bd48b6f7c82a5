"""Translation of SB3's action noise to jaxenvs.learn's, and of its state in both directions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from stable_baselines3.common.noise import (
    ActionNoise,
    NormalActionNoise,
    OrnsteinUhlenbeckActionNoise,
    VectorizedActionNoise,
)

from bridge.errors import NotCompilable
from jaxenvs.learn.off_policy import noise as learn

Known = NormalActionNoise | OrnsteinUhlenbeckActionNoise
Exported = learn.NormalActionNoise | learn.OrnsteinUhlenbeckActionNoise


def export_noise(noise: ActionNoise, shape: tuple[int, ...]) -> Exported:
    """Return the noise of all environments, without its state. Actions are vectors, whatever their shape is.

    Args:
      noise: SB3's.
      shape: of an action of one environment.
    """
    each = _noises_of(noise)
    kind = type(each[0])
    if any(type(one) is not kind for one in each):
        raise NotCompilable("action_noise must be of one class for all environments, got several.")
    if kind not in (NormalActionNoise, OrnsteinUhlenbeckActionNoise):
        raise NotCompilable(f"The action noise {kind.__name__} cannot be translated to JAX.")
    for one in each:
        _require_shape(one, shape, has_one_for_each=type(noise) is VectorizedActionNoise)
    if kind is NormalActionNoise:
        return learn.NormalActionNoise(*(_numbers(each, name) for name in ("_mu", "_sigma")))
    names = ("_mu", "_sigma", "_theta", "_dt", "initial_noise")
    return learn.OrnsteinUhlenbeckActionNoise(*(_numbers(each, name) for name in names))


def export_noise_if_known(noise: ActionNoise | None, shape: tuple[int, ...]) -> Exported | None:
    """Return the noise as `export_noise`; None without one, or if SB3's own object must act, on the host."""
    try:
        return None if noise is None else export_noise(noise, shape)
    except NotCompilable:
        return None


def noise_state(noise: ActionNoise | None, num_envs: int) -> np.ndarray | None:
    """Return the noise's state as `init` and `step` of the exported noise do, (num_envs, n); None without one."""
    each = [] if noise is None else _noises_of(noise)
    if not each or not isinstance(each[0], OrnsteinUhlenbeckActionNoise):
        return None
    state = np.stack([_vector(one.noise_prev, one) for one in each])
    return np.broadcast_to(state, (num_envs, *state.shape[1:]))


def write_noise_state(noise: ActionNoise | None, state: npt.ArrayLike | None) -> None:
    """Write the state back to where SB3 keeps it."""
    if noise is not None and state is not None:
        for one, row in zip(_noises_of(noise), np.asarray(state)):
            one.noise_prev = np.array(row).reshape(one._mu.shape)


def _noises_of(noise: ActionNoise) -> list[Any]:
    """Return the noises of the environments, if there is one for each. A subclass may do anything with them."""
    return list(noise.noises) if type(noise) is VectorizedActionNoise else [noise]


def _shape_of(noise: Known) -> tuple[int, ...]:
    """Return the shape of what a noise draws.

    It is the shape of the mean. SB3's NormalActionNoise broadcasts it with the shape of sigma.
    """
    if isinstance(noise, NormalActionNoise):
        return np.broadcast_shapes(np.shape(noise._mu), np.shape(noise._sigma))
    return np.shape(noise._mu)


def _require_shape(noise: Known, shape: tuple[int, ...], has_one_for_each: bool) -> None:
    """Refuse noise that NumPy would not broadcast to one draw for each number of an action.

    One draw for several numbers, such as SB3's for a row of a matrix, is another distribution.
    """
    numbers: list[npt.ArrayLike] = [noise._mu, noise._sigma]
    if isinstance(noise, OrnsteinUhlenbeckActionNoise):
        numbers += [noise._theta, noise._dt, np.zeros(()) if noise.initial_noise is None else noise.initial_noise]
    try:
        drawn = _shape_of(noise)
        fits = np.broadcast_shapes(drawn, *map(np.shape, numbers)) == drawn
        # SB3 adds the noise of a single environment to a batch of one action, and stacks the noises of several
        # environments.
        same = drawn == shape if has_one_for_each else np.broadcast_shapes(drawn, (1, *shape)) == (1, *shape)
        fits = fits and same and math.prod(drawn) == math.prod(shape)
    except ValueError:
        fits = False
    if not fits:
        raise NotCompilable(f"The action noise must draw numbers with the shape {shape} of the actions, got {noise!r}.")


def _numbers(noises: list[Known], name: str) -> np.ndarray:
    """Return the numbers of all environments: (n,) if they are equal, else (num_envs, n). Those not given are 0."""
    given = [getattr(one, name) for one in noises]
    arrays = [_vector(0.0 if numbers is None else numbers, one) for numbers, one in zip(given, noises, strict=True)]
    return arrays[0] if all(np.array_equal(each, arrays[0]) for each in arrays) else np.stack(arrays)


def _vector(numbers: npt.ArrayLike, noise: Known) -> np.ndarray:
    """Return one number for each number of an action, (n,)."""
    return np.broadcast_to(np.asarray(numbers, np.float32), _shape_of(noise)).reshape(-1)
