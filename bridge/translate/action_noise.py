"""SB3's action noise as jaxenvs.learn's, and its state back and forth."""

from __future__ import annotations

from typing import Any

import numpy as np
from stable_baselines3.common.noise import (
    ActionNoise,
    NormalActionNoise,
    OrnsteinUhlenbeckActionNoise,
    VectorizedActionNoise,
)

from bridge.errors import NotCompilable
from jaxenvs.learn.off_policy import noise as learn

Exported = learn.NormalActionNoise | learn.OrnsteinUhlenbeckActionNoise


def export_noise(noise: ActionNoise) -> Exported:
    """The noise of every environment, without its state.

    Raises:
      NotCompilable: it is none of SB3's.
    """
    each = _of_each(noise)
    kind = type(each[0])
    if any(type(one) is not kind for one in each):
        raise NotCompilable("The noises of environments are of several kinds.")
    if kind is NormalActionNoise:
        return learn.NormalActionNoise(_common(each, "_mu"), _common(each, "_sigma"))
    if kind is OrnsteinUhlenbeckActionNoise:
        start = [np.zeros_like(one._mu) if one.initial_noise is None else one.initial_noise for one in each]
        mean, sigma, theta, dt = (_common(each, name) for name in ("_mu", "_sigma", "_theta", "_dt"))
        return learn.OrnsteinUhlenbeckActionNoise(mean, sigma, theta, dt, _one_or_all(start))
    raise NotCompilable(f"There is no translation to JAX of a {kind.__name__}.")


def noise_state(noise: ActionNoise | None, num_envs: int) -> Any:
    """What `init` and `step` of the exported one give, (num_envs, n) or None."""
    each = [] if noise is None else _of_each(noise)
    if not each or not isinstance(each[0], OrnsteinUhlenbeckActionNoise):
        return None
    state = np.stack([_array(one.noise_prev) for one in each])
    return np.broadcast_to(state, (num_envs, *state.shape[1:]))


def leave_noise_state(noise: ActionNoise | None, state: Any) -> None:
    """Leave it where SB3 has it."""
    if noise is not None and state is not None:
        for one, row in zip(_of_each(noise), np.asarray(state)):
            one.noise_prev = np.array(row)


def _of_each(noise: ActionNoise) -> list[Any]:
    return list(noise.noises) if isinstance(noise, VectorizedActionNoise) else [noise]


def _common(noises: list[Any], name: str) -> Any:
    return _one_or_all([getattr(one, name) for one in noises])


def _one_or_all(numbers: list[Any]) -> np.ndarray:
    """Those of all environments, if they have the same; else of each, (num_envs, n) or (num_envs, 1)."""
    arrays = [_array(each) for each in numbers]
    if all(np.array_equal(each, arrays[0]) for each in arrays):
        return arrays[0]
    return np.stack([np.atleast_1d(each) for each in arrays])


def _array(numbers: Any) -> np.ndarray:
    return np.asarray(numbers, np.float32)
