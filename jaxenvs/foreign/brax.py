"""brax (google/brax): rigid bodies on its own four physics backends."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxenvs.environment import TimeStep, environment
from jaxenvs.foreign.base import ForeignEnvironment, adapt, box, require_library, unbounded, unknown_id


@environment
class BraxEnvironment(ForeignEnvironment):
    """An environment of brax. It has no time limit: `make` puts 1000 steps on it, as brax's own training does."""

    def _reset(self, key: jax.Array) -> tuple[Any, Any]:
        inner = self.foreign.env.reset(key)
        return inner, inner.obs

    def _step(self, inner: Any, action: Any, key: jax.Array | None) -> tuple[Any, TimeStep]:
        # brax writes into the dicts of the state that it is given.
        inner = self.foreign.env.step(inner.replace(metrics=dict(inner.metrics), info=dict(inner.info)), action)
        info = {**inner.info, "metrics": inner.metrics}
        return inner, TimeStep(inner.obs, inner.reward, inner.done, jnp.zeros((), bool), info)


def make(name: str, **arguments: Any) -> BraxEnvironment:
    """The environment of brax's name.

    Args:
      arguments: of its class, as `backend="spring"`.

    Raises:
      UnknownEnvironment, ImportError: brax has no such environment; or is not installed.
    """
    envs = require_library("brax.envs", "brax")
    if name not in envs._envs:
        raise unknown_id("brax", name, envs._envs)
    return from_brax(envs.get_environment(name, **arguments))


def from_brax(env: Any) -> BraxEnvironment:
    """An adapter of an environment of brax, which must not reset itself: `brax.envs.get_environment`, not `create`."""
    started = jax.eval_shape(env.reset, jax.eval_shape(lambda: jax.random.key(0)))
    low, high = -np.ones(env.action_size, np.float32), np.ones(env.action_size, np.float32)
    if hasattr(env, "sys"):
        low, high = np.asarray(env.sys.actuator.ctrl_range, np.float32).T
    return adapt(
        BraxEnvironment,
        env,
        observation_space=unbounded(started.obs.shape, np.float32),
        action_space=box(low, high, low.shape, np.float32),
    )
