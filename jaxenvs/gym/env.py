"""GymnasiumEnv: an Environment as a gymnasium.Env."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import jax
import numpy as np

from jaxenvs import arguments
from jaxenvs.checks import require_contract
from jaxenvs.compilation import guarded_jit, require_usable
from jaxenvs.environment import Environment, require_environment
from jaxenvs.gym.conversion import checked_action, info_to_numpy, to_numpy
from jaxenvs.gym.parameter_access import ParameterAttributes
from jaxenvs.parameters import with_value
from jaxenvs.wrappers.action_masker import action_masks_of, has_action_masks

# The compiled functions. Environments are arguments, so that all objects of one structure share the functions.


@guarded_jit
def _reset(env: Environment[Any], seed: jax.Array, episode: jax.Array) -> Any:
    return env.reset(jax.random.fold_in(jax.random.key(seed), episode))


@guarded_jit
def _step(env: Environment[Any], state: object, action: object) -> Any:
    return env.step(state, action)


class GymnasiumEnv(ParameterAttributes, gymnasium.Env[Any, Any]):
    """Environment as a `gymnasium.Env`, for libraries that expect Gymnasium's interface.

    Observations are new arrays in the dtypes of the space; reward and flags are Python's float and bool; the info holds
    NumPy values.

    Episode k after `reset(seed=s)`, counted from 0, starts from `fold_in(key(s), k)`, as in an environment of a
    VectorEnv whose key is `key(s)`. Seeds count modulo 2^32.

    Parameters of the environment are attributes, and setting a numeric one takes effect with the next step:
    `env.unwrapped.gravity = 5.0`. Setting a static one raises a ValueError.

    Attributes:
      state: the current state; None before the first `reset`.
    """

    metadata: dict[str, object] = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, env: Environment[Any], render_mode: str | None = None) -> None:
        """Wrap an environment.

        Args:
          env: the Environment.
          render_mode: "rgb_array" if `render` is to draw pictures.

        Raises:
          TypeError: `env` is not an Environment, or breaks the contract; see `require_contract`.
          ValueError: there is no such render mode, or the environment has no picture.
        """
        self.state: Any = None
        self._seed: np.uint32 | None = None
        self._episode = 0
        self._use(env)
        self.render_mode = render_mode
        self.metadata = metadata_of(env, render_mode)

    @property
    def env(self) -> Environment[Any]:
        """The Environment. Replace it by one with the same actions; if its structure differs, reset before stepping.

        Raises:
          TypeError: the new value is not an Environment, or breaks the contract.
          ValueError: it has another action space, of which other code keeps copies.
        """
        return self._env

    @env.setter
    def env(self, env: Environment[Any]) -> None:
        require_environment("env", env)
        require_same_actions("env", env.action_space, self.action_space)
        structure: object = jax.tree.structure(env)
        if structure != jax.tree.structure(self._env):
            self.state = None
        self._use(env)

    def _use(self, env: Environment[Any]) -> None:
        require_contract(env)
        self._env, self._parameters = env, None
        self.observation_space, self.action_space = env.observation_space, env.action_space

    def _environment(self) -> Environment[Any] | None:
        return self.__dict__.get("_env")

    def _set_parameter(self, name: str, value: object) -> None:
        self.env = with_value(self._env, name, value)

    def _on_device(self) -> Any:
        """Return the environment as the compiled functions take it."""
        if self._parameters is None:
            # Copy it once, not in every step, and not earlier: JAX must not run in a process that only looks at the
            # spaces of environments, and then forks others that step them.
            self._parameters = jax.device_put(self._env)
        return self._parameters

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start the first episode of a seed or, without a seed, the next episode.

        Args:
          seed: an int of at least 0, or None.
          options: None or empty, as there are none.

        Raises:
          ValueError: the seed is not such an int, or there are options.
          RuntimeError: JAX cannot run in this process; see `require_usable`.
        """
        require_usable()
        if options:
            raise ValueError(f"options must be None or empty, because reset has no options, got {options!r}.")
        if seed is not None:
            seed = arguments.seed("seed", seed)
        super().reset(seed=seed)
        if seed is not None:
            self._seed, self._episode = np.uint32(seed % 2**32), 0
        elif self._seed is None:
            self._seed, self._episode = self.np_random.integers(2**32, dtype=np.uint32), 0
        else:
            self._episode += 1
        self.state, timestep = _reset(self._on_device(), self._seed, np.uint32(self._episode % 2**32))
        observation, info = jax.device_get((timestep.observation, timestep.info))
        return to_numpy(self.observation_space, observation), info_to_numpy(info)

    def step(self, action: object) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take one step.

        Args:
          action: a member of the action space; real numbers may lie outside of its bounds.

        Raises:
          gymnasium.error.ResetNeeded: `reset` was not called yet.
          ValueError: the action is invalid; see `checked_action`. The state is unchanged.
          RuntimeError: JAX cannot run in this process; see `require_usable`.
        """
        require_usable()
        if self.state is None:
            raise gymnasium.error.ResetNeeded("step was called before reset.")
        action = checked_action(self.action_space, action)
        self.state, timestep = _step(self._on_device(), self.state, action)
        host = jax.device_get(timestep)
        observation = to_numpy(self.observation_space, host.observation)
        return observation, float(host.reward), bool(host.terminated), bool(host.truncated), info_to_numpy(host.info)

    @property
    def action_masks(self) -> Callable[[], np.ndarray]:
        """Function that returns the mask of legal actions, (n,), 0 for illegal ones, for sb3-contrib's MaskablePPO.

        Raises:
          AttributeError: the environment has no action masks.
        """
        if not has_action_masks(self._env):
            raise AttributeError(f"{type(self._env.unwrapped).__name__} has no action_masks.")
        return lambda: np.asarray(action_masks_of(self._env, self.state))

    def render(self) -> np.ndarray | None:
        """Return the picture of the state, uint8 (height, width, 3), with render mode "rgb_array"; else None.

        Raises:
          gymnasium.error.ResetNeeded: `reset` was not called yet.
        """
        if self.render_mode is None:
            warn_of_no_render_mode()
            return None
        if self.state is None:
            raise gymnasium.error.ResetNeeded("render was called before reset.")
        return self.env.render(self.state)


def require_same_actions(name: str, space: gymnasium.Space[object], present: gymnasium.Space[object]) -> None:
    """Raise unless an action space equals the present one."""
    if space != present:
        raise ValueError(
            f"{name} must have the action space {present}, because others may hold copies of it, got {space}: "
            "make a new environment."
        )


def metadata_of(env: Environment[Any], render_mode: str | None) -> dict[str, object]:
    """Return Gymnasium's `metadata` of an environment, if it has the render mode."""
    modes = ["rgb_array"] if env.can_render else []
    if render_mode is not None and render_mode not in modes:
        known = 'None or "rgb_array"' if modes else f"None, because {type(env.unwrapped).__name__} cannot be drawn"
        raise ValueError(f"render_mode must be {known}, got {render_mode!r}.")
    return {"render_modes": modes, "render_fps": env.render_fps}


def warn_of_no_render_mode() -> None:
    gymnasium.logger.warn('render was called without a render mode: make the environment with "rgb_array".')
