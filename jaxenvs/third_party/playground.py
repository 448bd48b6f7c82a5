"""Adapter of playground (google-deepmind/mujoco_playground): robots and the DeepMind control suite on MuJoCo's MJX."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxenvs.environment import TimeStep, environment
from jaxenvs.third_party.adapter import ThirdPartyEnvironment, ThirdPartyState, adapt, box, on_host, unbounded_of
from jaxenvs.third_party.library import entry_points, refuse_wrappers, require_library, shared


@environment
class PlaygroundEnvironment(ThirdPartyEnvironment):
    """Environment of MuJoCo Playground. It has no time limit: `make` adds the limit of its configuration."""

    can_render = True
    render_size = 240, 320

    def _reset(self, key: jax.Array) -> tuple[Any, object]:
        inner = self.source.env.reset(key)
        return inner, _observation(inner)

    def _step(self, inner: Any, action: object, key: jax.Array | None) -> tuple[Any, TimeStep]:
        # Playground writes into the dicts of the state that it receives.
        inner = jax.tree.map(lambda leaf: leaf, inner)
        inner = self.source.env.step(inner, jnp.asarray(action, inner.data.ctrl.dtype))
        info = {**inner.info, "metrics": inner.metrics}
        return inner, TimeStep(_observation(inner), inner.reward, inner.done, jnp.zeros((), bool), info)

    @property
    def default_max_episode_steps(self) -> int:
        """Length of an episode in its configuration, the limit that `jaxenvs.make` adds."""
        return int(self.source.env._config.episode_length)

    @property
    def render_fps(self) -> int:
        return round(1 / float(self.source.env.dt))

    def render(self, state: ThirdPartyState) -> np.ndarray:
        """Draw MuJoCo's picture on the host, with OpenGL: set `MUJOCO_GL=egl` where there is no display."""
        height, width = self.render_size
        return np.asarray(self.source.env.render(on_host(state.inner), height, width))


def _observation(inner: Any) -> Any:
    return dict(inner.obs) if isinstance(inner.obs, Mapping) else inner.obs


def _registry() -> Any:
    with contextlib.redirect_stdout(io.StringIO()):  # MJX prints what it did not find
        return require_library("mujoco_playground", "playground").registry


@shared
def _build(name: str, config_overrides: Mapping[str, Any] | None = None, **arguments: object) -> PlaygroundEnvironment:
    """Create Playground's environment of a name, on MJX's own implementation, which runs everywhere.

    The robots' models are not part of Playground: it clones the models for locomotion and manipulation with git when
    the first such environment is created.

    Args:
      config_overrides, arguments: of `mujoco_playground.registry.load`, as `config_overrides={"ctrl_dt": 0.02}`.
    """
    registry = _registry()
    implementation = {"impl": "jax"} if "impl" in registry.get_default_config(name) else {}
    overrides = {**implementation, **(config_overrides or {})}
    return from_playground(registry.load(name, config_overrides=overrides, **arguments))


make, ids = entry_points("playground", lambda: _registry().ALL_ENVS, _build)


def from_playground(env: Any) -> PlaygroundEnvironment:
    """Create an adapter of an environment of MuJoCo Playground.

    Args:
      env: as `mujoco_playground.registry.load` returns it.

    Raises:
      ValueError: the environment is in a wrapper; or it is not on MJX's own implementation.
    """
    refuse_wrappers(env, "playground")
    if env.mjx_model.impl.value != "jax":
        raise ValueError(
            f"env must use MJX's JAX implementation, got {env.mjx_model.impl.value!r}: load it with "
            f"config_overrides={{'impl': 'jax'}}."
        )
    observation = jax.eval_shape(env.reset, jax.eval_shape(lambda: jax.random.key(0))).obs
    return adapt(
        PlaygroundEnvironment,
        env,
        observation_space=unbounded_of(observation),
        action_space=box(-1, 1, (env.action_size,), np.float32),
    )
