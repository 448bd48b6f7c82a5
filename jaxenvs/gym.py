"""An Environment seen as gymnasium.Env, and a VectorEnv as gymnasium.vector.VectorEnv."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_differing_spaces, batch_space

from jaxenvs import registry
from jaxenvs.environment import Environment
from jaxenvs.gym_conversion import checked_action, info_to_numpy, object_array, to_numpy, vector_info
from jaxenvs.vector import VectorEnv, VectorState, VectorTimeStep

# The compiled programs. Environments are their data, so that all objects of one structure share them.


@jax.jit
def _reset(env: Environment[Any], seed: jax.Array, episode: jax.Array) -> Any:
    return env.reset(jax.random.fold_in(jax.random.key(seed), episode))


@jax.jit
def _step(env: Environment[Any], state: Any, action: Any) -> Any:
    return env.step(state, action)


@jax.jit
def _reset_lanes(venv: VectorEnv, seeds: jax.Array) -> tuple[VectorState, VectorTimeStep]:
    return venv.reset(jax.vmap(jax.random.key)(seeds))


@jax.jit
def _restart_lanes(
    venv: VectorEnv, state: VectorState, timestep: VectorTimeStep, mask: jax.Array, seeded: jax.Array, seeds: jax.Array
) -> tuple[VectorState, VectorTimeStep]:
    """Start the next episode of the lanes in `mask`, and the first of their seed in those that are also `seeded`."""
    keys = jax.vmap(jax.random.key)(seeds)
    seeded = seeded & mask
    before_the_first = jnp.uint32(2**32 - 1)  # counting on from here wraps to 0
    state = state.replace(
        lane_key=jnp.where(seeded, keys, state.lane_key), episode=jnp.where(seeded, before_the_first, state.episode)
    )
    return venv.restart(state, timestep, mask)


@jax.jit
def _step_lanes(venv: VectorEnv, state: VectorState, action: Any) -> tuple[VectorState, VectorTimeStep]:
    return venv.step(state, action)


class GymnasiumEnv(gymnasium.Env[Any, Any]):
    """An Environment as a `gymnasium.Env`.

    Observations are arrays of their own in the dtypes of the space; reward and flags are Python's float and bool;
    the info holds NumPy values.

    Episode k after `reset(seed=s)`, counted from 0, starts from `fold_in(key(s), k)`, as in a lane of a VectorEnv
    whose key is `key(s)`. Seeds count modulo 2^32.

    Attributes:
      env: the Environment.
      state: the state it is in; None before the first `reset`.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, env: Environment[Any], render_mode: str | None = None) -> None:
        """
        Args:
          render_mode: "rgb_array" if `render` is to draw pictures.

        Raises:
          TypeError: `env` is no Environment.
          ValueError: there is no such render mode, or the environment has no picture.
        """
        if not isinstance(env, Environment):
            raise TypeError(f"env must be a jaxenvs.Environment, got {type(env).__name__}.")
        self.env = env
        self.render_mode = render_mode
        self.metadata = _metadata(env, render_mode)
        self.observation_space = env.observation_space
        self.action_space = env.action_space
        self.state: Any = None
        self._parameters = jax.device_put(env)  # once, not in every step
        self._seed: np.uint32 | None = None
        self._episode = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start the first episode of a seed or, without one, the next. There are no options."""
        super().reset(seed=seed)
        if seed is not None:
            self._seed, self._episode = np.uint32(seed % 2**32), 0
        elif self._seed is None:
            self._seed, self._episode = self.np_random.integers(2**32, dtype=np.uint32), 0
        else:
            self._episode += 1
        self.state, timestep = _reset(self._parameters, self._seed, np.uint32(self._episode % 2**32))
        observation, info = jax.device_get((timestep.observation, timestep.info))
        return to_numpy(self.observation_space, observation), info_to_numpy(info)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One step.

        Raises:
          gymnasium.error.ResetNeeded: nothing was reset yet.
          ValueError: the action is invalid; see `checked_action`. The environment is where it was.
        """
        if self.state is None:
            raise gymnasium.error.ResetNeeded("step was called before reset.")
        action = checked_action(self.action_space, action)
        self.state, timestep = _step(self._parameters, self.state, action)
        host = jax.device_get(timestep)
        observation = to_numpy(self.observation_space, host.observation)
        return observation, float(host.reward), bool(host.terminated), bool(host.truncated), info_to_numpy(host.info)

    def render(self) -> np.ndarray | None:
        """The picture of the state, uint8 (height, width, 3), with render mode "rgb_array"; else None.

        Raises:
          gymnasium.error.ResetNeeded: nothing was reset yet.
        """
        if self.render_mode is None:
            _warn_of_no_render_mode()
            return None
        if self.state is None:
            raise gymnasium.error.ResetNeeded("render was called before reset.")
        return self.env.render(self.state)


class GymnasiumVectorEnv(gymnasium.vector.VectorEnv[Any, Any, np.ndarray]):
    """A VectorEnv as a `gymnasium.vector.VectorEnv`, with the seeding, auto-reset and infos of a SyncVectorEnv.

    What a SyncVectorEnv of as many GymnasiumEnvs returns, this returns, up to rounding: XLA compiles the two
    differently.

    Attributes:
      venv: the VectorEnv.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, venv: VectorEnv, render_mode: str | None = None) -> None:
        """
        Args:
          render_mode: "rgb_array" if `render` is to draw pictures.

        Raises:
          TypeError: `venv` is no VectorEnv.
          ValueError: there is no such render mode, or the environment has no picture.
        """
        if not isinstance(venv, VectorEnv):
            raise TypeError(f"venv must be a jaxenvs.VectorEnv, got {type(venv).__name__}.")
        self.venv = venv
        self.num_envs = venv.num_envs
        self.render_mode = render_mode
        env = venv.lane_env(0)
        self.metadata = {**_metadata(env, render_mode), "autoreset_mode": venv.autoreset}
        self.single_observation_space, self.single_action_space = env.observation_space, env.action_space
        if venv.env_axis is None:
            self.observation_space = batch_space(env.observation_space, venv.num_envs)
            self.action_space = batch_space(env.action_space, venv.num_envs)
        else:
            envs = [venv.lane_env(lane) for lane in range(venv.num_envs)]
            self.observation_space = batch_differing_spaces([env.observation_space for env in envs])
            self.action_space = batch_differing_spaces([env.action_space for env in envs])
        self._parameters = jax.device_put(venv)  # once, not in every step
        self._state: VectorState | None = None
        self._timestep: VectorTimeStep | None = None
        self._done = np.zeros(self.num_envs, bool)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode in every lane: the first of its seed or, without one, the next.

        Args:
          seed: lane i gets `seed + i`; or the seeds of the lanes.
          options: `{"reset_mask": mask}`, bool (num_envs,), leaves the lanes outside of it as they are.

        Raises:
          ValueError, TypeError: a seed or the mask is not what it must be. No lane was reset.
          gymnasium.error.ResetNeeded: the first reset has a mask.
        """
        mask = self._reset_mask(options)
        seeds = self._seeds(seed)
        super().reset(seed=seed if isinstance(seed, int) else None)
        seeded = np.array([seed is not None for seed in seeds])
        values = np.array([0 if seed is None else seed % 2**32 for seed in seeds], np.uint32)
        if self._state is None or self._timestep is None:
            if not mask.all():
                raise gymnasium.error.ResetNeeded(
                    "reset was called with a reset_mask before all lanes were reset once."
                )
            values = np.where(seeded, values, self.np_random.integers(2**32, size=self.num_envs, dtype=np.uint32))
            self._state, self._timestep = _reset_lanes(self._parameters, values)
        else:
            self._state, self._timestep = _restart_lanes(
                self._parameters, self._state, self._timestep, mask, seeded, values
            )
        self._done = self._done & ~mask
        observation, info = jax.device_get((self._timestep.observation, self._timestep.info))
        return to_numpy(self.observation_space, observation), vector_info(info, mask)

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """One step of every lane.

        Returns:
          observation: a batch, in the dtypes of the space.
          reward, terminated, truncated: float64 and bool, shape (num_envs,).
          infos: those of the environments, each `key` with the mask `_key`; with auto-reset SAME_STEP, where an
            episode ended, `final_obs` (an object array) and `final_info`.

        Raises:
          gymnasium.error.ResetNeeded: nothing was reset yet; or, with auto-reset DISABLED, a lane that ended was not.
          ValueError: the actions are invalid; see `checked_action`. No lane was stepped.
        """
        if self._state is None:
            raise gymnasium.error.ResetNeeded("step was called before reset.")
        if self.venv.autoreset is AutoresetMode.DISABLED and self._done.any():
            lanes = self._done.nonzero()[0].tolist()
            raise gymnasium.error.ResetNeeded(
                f"The episodes of the lanes {lanes} ended. Reset them, with a reset_mask."
            )
        actions = checked_action(self.action_space, actions, "actions")
        self._state, self._timestep = _step_lanes(self._parameters, self._state, actions)
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
        """The pictures of all lanes, each uint8 (height, width, 3), with render mode "rgb_array"; else None.

        Raises:
          gymnasium.error.ResetNeeded: nothing was reset yet.
        """
        if self.render_mode is None:
            _warn_of_no_render_mode()
            return None
        if self._state is None:
            raise gymnasium.error.ResetNeeded("render was called before reset.")
        lanes = self._state.lanes
        return tuple(
            self.venv.lane_env(lane).render(jax.tree.map(lambda leaf, lane=lane: leaf[lane], lanes))
            for lane in range(self.num_envs)
        )

    def _seeds(self, seed: int | Sequence[int | None] | None) -> list[int | None]:
        if seed is None:
            return [None] * self.num_envs
        seeds: list[int | None] = list(range(seed, seed + self.num_envs) if isinstance(seed, int) else seed)
        if len(seeds) != self.num_envs:
            raise ValueError(f"seed must be an int or num_envs = {self.num_envs} of them, got {len(seeds)}.")
        for one in seeds:
            if one is not None and (not isinstance(one, int | np.integer) or one < 0):
                raise ValueError(f"seed must not be negative, and ints or None, got {one!r}.")
        return seeds

    def _reset_mask(self, options: dict[str, Any] | None) -> np.ndarray:
        if options is None or "reset_mask" not in options:
            return np.ones(self.num_envs, bool)
        mask = options["reset_mask"]
        if not isinstance(mask, np.ndarray) or mask.dtype != bool:
            got = mask.dtype if isinstance(mask, np.ndarray) else type(mask).__name__
            raise TypeError(f"options['reset_mask'] must be a NumPy array of bool, got {got}.")
        if mask.shape != (self.num_envs,) or not mask.any():
            raise ValueError(
                f"options['reset_mask'] must have shape ({self.num_envs},) and be somewhere True, got {mask}."
            )
        return mask.copy()


def _metadata(env: Environment[Any], render_mode: str | None) -> dict[str, Any]:
    """
    Raises:
      ValueError: the environment has no such render mode.
    """
    modes = ["rgb_array"] if env.can_render else []
    if render_mode is not None and render_mode not in modes:
        known = 'None or "rgb_array"' if modes else f"None, because {type(env.unwrapped).__name__} has no picture"
        raise ValueError(f"render_mode must be {known}, got {render_mode!r}.")
    return {"render_modes": modes, "render_fps": env.render_fps}


def _warn_of_no_render_mode() -> None:
    gymnasium.logger.warn('render was called without a render mode: make the environment with "rgb_array".')


# --- gymnasium.make --------------------------------------------------------------------------------------------------


class RegisteredEnv(GymnasiumEnv):
    """The environment of an id, as `gymnasium.make` wants it: the time limit is left to Gymnasium's wrapper."""

    def __init__(self, env_id: str, render_mode: str | None = None, **parameters: Any) -> None:
        super().__init__(registry.make(env_id, max_episode_steps=-1, **parameters), render_mode)


class RegisteredVectorEnv(GymnasiumVectorEnv):
    """The environments of an id, as `gymnasium.make_vec` wants them: it passes the time limit, if there is one."""

    def __init__(
        self,
        env_id: str,
        num_envs: int,
        max_episode_steps: int | None = -1,
        render_mode: str | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        **parameters: Any,
    ) -> None:
        env = registry.make(env_id, max_episode_steps=max_episode_steps, **parameters)
        super().__init__(VectorEnv(env, num_envs, AutoresetMode(autoreset_mode)), render_mode)


def register_in_gymnasium(spec: registry.Spec) -> None:
    """Make an environment known to `gymnasium.make` and `make_vec`, as "jaxenvs/<id>"; an id with a "/", as it is.

    Raises:
      gymnasium.error.Error: Gymnasium does not take the id; its message says why.
    """
    gymnasium_id = spec.id if "/" in spec.id else f"jaxenvs/{spec.id}"
    entry_point = f"{__name__}:{RegisteredEnv.__name__}"
    known = gymnasium.registry.get(gymnasium_id)
    if known is not None and known.entry_point == entry_point:
        del gymnasium.registry[gymnasium_id]  # or Gymnasium would warn of a cell that was run twice
    gymnasium.register(
        gymnasium_id,
        entry_point=entry_point,
        vector_entry_point=f"{__name__}:{RegisteredVectorEnv.__name__}",
        max_episode_steps=spec.max_episode_steps,
        reward_threshold=spec.reward_threshold,
        kwargs={"env_id": spec.id},  # the rest the registry knows
    )
