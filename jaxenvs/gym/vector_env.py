"""GymnasiumVectorEnv: a VectorEnv as a gymnasium.vector.VectorEnv."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from types import NoneType
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_differing_spaces, batch_space

from jaxenvs import arguments
from jaxenvs.compilation import guarded_jit, require_usable
from jaxenvs.environment import Environment
from jaxenvs.gym.conversion import checked_action, object_array, to_numpy, vector_info
from jaxenvs.gym.env import metadata_of, require_same_actions, warn_of_no_render_mode
from jaxenvs.gym.parameter_access import ParameterAttributes
from jaxenvs.parameters import with_parameter
from jaxenvs.vector import VectorEnv, VectorState, VectorTimeStep

# The compiled functions, shared between objects of one structure as in GymnasiumEnv.


@guarded_jit
def _reset(venv: VectorEnv, seeds: jax.Array) -> tuple[VectorState, VectorTimeStep]:
    return venv.reset(jax.vmap(jax.random.key)(seeds))


@guarded_jit
def _restart(
    venv: VectorEnv, state: VectorState, timestep: VectorTimeStep, mask: jax.Array, seeded: jax.Array, seeds: jax.Array
) -> tuple[VectorState, VectorTimeStep]:
    """Start the next episode of the environments in `mask`, or the first of their new seed where `seeded` too."""
    keys = jax.vmap(jax.random.key)(seeds)
    seeded = seeded & mask
    before_the_first = jnp.uint32(2**32 - 1)  # the next number wraps to 0
    state = state.replace(
        env_keys=jnp.where(seeded, keys, state.env_keys), episode=jnp.where(seeded, before_the_first, state.episode)
    )
    return venv.restart(state, timestep, mask)


@guarded_jit
def _step(venv: VectorEnv, state: VectorState, action: object) -> tuple[VectorState, VectorTimeStep]:
    return venv.step(state, action)


class GymnasiumVectorEnv(ParameterAttributes, gymnasium.vector.VectorEnv[Any, Any, np.ndarray]):
    """VectorEnv as a `gymnasium.vector.VectorEnv`, with the seeding, auto-reset and infos of a SyncVectorEnv.

    It returns what a SyncVectorEnv of as many GymnasiumEnvs returns, up to rounding: XLA compiles the two differently.
    Parameters of the environments are attributes, as in a GymnasiumEnv; setting one sets it in all environments.
    """

    metadata: dict[str, object] = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, venv: VectorEnv, render_mode: str | None = None) -> None:
        """Wrap a VectorEnv.

        Args:
          venv: the VectorEnv.
          render_mode: "rgb_array" if `render` is to draw pictures.

        Raises:
          TypeError: `venv` is not a VectorEnv.
          ValueError: there is no such render mode, or the environment has no picture.
        """
        if not isinstance(venv, VectorEnv):
            raise TypeError(f"venv must be a jaxenvs.VectorEnv, got {type(venv).__name__}.")
        self.num_envs = venv.num_envs
        self._state: VectorState | None = None
        self._timestep: VectorTimeStep | None = None
        self._done = np.zeros(self.num_envs, bool)
        self._use(venv)
        self.render_mode = render_mode
        self.metadata = {**metadata_of(venv.env_at(0), render_mode), "autoreset_mode": venv.autoreset}

    @property
    def venv(self) -> VectorEnv:
        """The VectorEnv. Replace it by one with the same actions; if its structure differs, reset before stepping.

        Raises:
          TypeError: the new value is not a VectorEnv.
          ValueError: it has another action space, number of environments or auto-reset.
        """
        return self._venv

    @venv.setter
    def venv(self, venv: VectorEnv) -> None:
        arguments.instance("venv", venv, VectorEnv, "a jaxenvs.VectorEnv")
        present = self._venv
        if (venv.num_envs, venv.autoreset) != (present.num_envs, present.autoreset):
            raise ValueError(
                f"venv must have num_envs = {present.num_envs} and auto-reset {present.autoreset}, got "
                f"{venv.num_envs} and {venv.autoreset}."
            )
        require_same_actions("venv", _spaces(venv)[1], self.action_space)
        structure: object = jax.tree.structure(venv.env)
        if structure != jax.tree.structure(present.env):
            self._state = None
        self._use(venv)

    def _use(self, venv: VectorEnv) -> None:
        self._venv, self._parameters = venv, None
        env = venv.env_at(0)
        self.single_observation_space, self.single_action_space = env.observation_space, env.action_space
        self.observation_space, self.action_space = _spaces(venv)

    def _environment(self) -> Environment[Any] | None:
        venv: VectorEnv | None = self.__dict__.get("_venv")
        return None if venv is None else venv.env

    def _set_parameter(self, name: str, value: object) -> None:
        self.venv = with_parameter(self._venv, name, value, list(range(self.num_envs)))

    def _on_device(self) -> Any:
        """Return the environments as the compiled functions take them; copied once, as in GymnasiumEnv."""
        if self._parameters is None:
            self._parameters = jax.device_put(self._venv)
        return self._parameters

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode in every environment: the first of its seed or, without a seed, the next.

        Args:
          seed: environment i gets `seed + i`; or a seed for each environment.
          options: `{"reset_mask": mask}`, bool (num_envs,), leaves the environments outside of the mask unchanged.

        Raises:
          ValueError, TypeError: a seed or an option has the wrong type or value. No environment was reset.
          RuntimeError: JAX cannot run in this process; see `require_usable`.
          gymnasium.error.ResetNeeded: the first reset has a mask.
        """
        require_usable()
        mask = self._reset_mask(options)
        seeds = self._seeds(seed)
        super().reset(seed=operator.index(seed) if isinstance(seed, int | np.integer) else None)
        seeded = np.array([seed is not None for seed in seeds])
        values = np.array([0 if seed is None else seed % 2**32 for seed in seeds], np.uint32)
        if self._state is None or self._timestep is None:
            if not mask.all():
                raise gymnasium.error.ResetNeeded(
                    "reset was called with a reset_mask before all sub-environments were reset once."
                )
            values = np.where(seeded, values, self.np_random.integers(2**32, size=self.num_envs, dtype=np.uint32))
            self._state, self._timestep = _reset(self._on_device(), values)
        else:
            self._state, self._timestep = _restart(self._on_device(), self._state, self._timestep, mask, seeded, values)
        self._done = self._done & ~mask
        observation, info = jax.device_get((self._timestep.observation, self._timestep.info))
        return to_numpy(self.observation_space, observation), vector_info(info, mask)

    def step(self, actions: object) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Take one step in every environment.

        Args:
          actions: a batch of members of the action space; real numbers may lie outside of its bounds.

        Returns:
          observation: a batch, in the dtypes of the space.
          reward, terminated, truncated: float64 and bool, shape (num_envs,).
          infos: the infos of the environments, each `key` with the mask `_key`; with auto-reset SAME_STEP, where an
            episode ended, `final_obs` (an object array) and `final_info`.

        Raises:
          gymnasium.error.ResetNeeded: `reset` was not called yet; or, with auto-reset DISABLED, an environment that
            ended was not reset.
          ValueError: the actions are invalid; see `checked_action`. No environment was stepped.
          RuntimeError: JAX cannot run in this process; see `require_usable`.
        """
        require_usable()
        if self._state is None:
            raise gymnasium.error.ResetNeeded("step was called before reset.")
        if self.venv.autoreset is AutoresetMode.DISABLED and self._done.any():
            ended = self._done.nonzero()[0].tolist()
            raise gymnasium.error.ResetNeeded(
                f"The episodes of the sub-environments {ended} have ended: reset them with a reset_mask."
            )
        actions = checked_action(self.action_space, actions, "actions")
        self._state, self._timestep = _step(self._on_device(), self._state, actions)
        now = self._timestep
        observation, reward, terminated, truncated, info = jax.device_get(
            (now.observation, now.reward, now.terminated, now.truncated, now.info)
        )
        self._done = terminated | truncated
        infos = {}
        if self.venv.autoreset is AutoresetMode.SAME_STEP and self._done.any():
            final_observation, final_info = jax.device_get((now.final_observation, now.final_info))
            final = to_numpy(self.observation_space, final_observation)
            infos = {
                "final_obs": object_array(final, self._done),
                "_final_obs": self._done.copy(),
                "final_info": vector_info(final_info, self._done),
                "_final_info": self._done.copy(),
            }
        infos |= vector_info(info, np.ones(self.num_envs, bool))
        observation = to_numpy(self.observation_space, observation)
        return observation, reward.astype(np.float64), np.array(terminated), np.array(truncated), infos

    def render(self) -> tuple[np.ndarray, ...] | None:
        """Return the pictures of all environments, uint8 (height, width, 3), with render mode "rgb_array"; else None.

        Raises:
          gymnasium.error.ResetNeeded: `reset` was not called yet.
        """
        if self.render_mode is None:
            warn_of_no_render_mode()
            return None
        if self._state is None:
            raise gymnasium.error.ResetNeeded("render was called before reset.")
        env_states = self._state.env_states
        return tuple(
            self.venv.env_at(index).render(jax.tree.map(lambda leaf, index=index: leaf[index], env_states))
            for index in range(self.num_envs)
        )

    def _seeds(self, seed: int | Sequence[int | None] | None) -> list[int | None]:
        if seed is None:
            return [None] * self.num_envs
        if isinstance(seed, np.ndarray) and seed.ndim:
            seed = list(seed)
        if isinstance(seed, Sequence) and not isinstance(seed, str | bytes):
            seeds = list(seed)
            if len(seeds) != self.num_envs:
                raise ValueError(
                    f"seed must be an int or a sequence of num_envs = {self.num_envs} seeds, got {len(seeds)}."
                )
            return [None if one is None else arguments.seed(f"seed[{i}]", one) for i, one in enumerate(seeds)]
        first = arguments.seed("seed", seed)
        return list(range(first, first + self.num_envs))

    def _reset_mask(self, options: dict[str, Any] | None) -> np.ndarray:
        arguments.instance("options", options, (Mapping, NoneType), "a dict")
        if not options:
            return np.ones(self.num_envs, bool)
        if options.keys() != {"reset_mask"}:
            raise ValueError(f"options must contain only reset_mask, got {list(options)}.")
        mask = options["reset_mask"]
        if not isinstance(mask, np.ndarray) or mask.dtype != bool:
            got = mask.dtype if isinstance(mask, np.ndarray) else type(mask).__name__
            raise TypeError(f"options['reset_mask'] must be a NumPy array of bool, got {got}.")
        if mask.shape != (self.num_envs,) or not mask.any():
            raise ValueError(
                f"options['reset_mask'] must have shape ({self.num_envs},) and at least one True, got {mask}."
            )
        return mask.copy()


def _spaces(venv: VectorEnv) -> tuple[gymnasium.Space[object], gymnasium.Space[object]]:
    """Return the spaces of the observations and the actions of all environments."""
    if venv.env_axis is None:
        env = venv.env
        return batch_space(env.observation_space, venv.num_envs), batch_space(env.action_space, venv.num_envs)
    envs = [venv.env_at(index) for index in range(venv.num_envs)]
    observation_space = batch_differing_spaces([env.observation_space for env in envs])
    return observation_space, batch_differing_spaces([env.action_space for env in envs])
