"""GymVecEnv: a gymnasium.vector.VectorEnv presented as a Stable-Baselines3 VecEnv."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from stable_baselines3.common.env_util import is_wrapped
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvStepReturn

from bridge.host_env import envpool
from bridge.host_env.batches import as_array, device_of, is_unshared, new_batch, rows, stack, take, write_rows
from bridge.host_env.host_vec_env import HostVecEnv
from bridge.host_env.partial_resets import PartialReset, autoreset_mode_of, partial_reset_of, require_vector_env
from bridge.host_env.step_infos import StepInfos
from bridge.host_env.vector_envs.ray_vector_env import RayVectorEnv
from bridge.host_env.vector_infos import info_dicts, kept
from bridge.observations import map_parts, parts_of
from bridge.sb3 import AnyEnv, AnyVectorEnv, Infos, WrapperClass
from bridge.vec_env.argument_checks import env_indices_of
from bridge.vec_env.base import MAX_IMAGES
from jaxenvs.arguments import instance


class GymVecEnv(HostVecEnv):
    """Stable-Baselines3 VecEnv around a `gymnasium.vector.VectorEnv` with any auto-reset mode.

    Use it for environments that are vectorized already, such as the results of `gymnasium.make_vec`, or EnvPools.

    When an episode ends, its environment is reset in the same step, and every transition is a real step of the
    environment. With auto-reset SAME_STEP the vector environment does that itself. With NEXT_STEP and DISABLED,
    environments whose episode ended are reset by `reset(options={"reset_mask": mask})`, which also cancels the reset
    that NEXT_STEP would bring.

    Observations are never overwritten: an array is returned without a copy only if no other reference to it exists.
    Infos are as in JaxVecEnv: `TimeLimit.truncated`, the environment's own info, and at an episode's end
    `terminal_observation` and `episode`. If all environments are wrapped in a Monitor, `episode` is Monitor's. For
    Atari games in EnvPool with lives as episodes or clipped rewards, `episode` covers the whole game, unclipped.

    A reset after `seed` makes an EnvPool anew, because EnvPool accepts seeds only when it is made.

    A vector environment may take and return tensors instead of arrays, on any device. The GymVecEnv presents NumPy
    arrays all the same. PPO and A2C train on tensors of a GPU without that detour, with `step_tensors`.

    Attributes:
      vector_env: the vector environment.
      tensor_device: where its tensors are, known from the first reset on; None if it returns arrays.
    """

    def __init__(self, vector_env: AnyVectorEnv) -> None:
        """Wrap a vector environment.

        Args:
          vector_env: a SyncVectorEnv, an AsyncVectorEnv, a RayVectorEnv, a result of `gymnasium.make_vec`, an EnvPool
            with Gymnasium's interface, or a custom one with `metadata["autoreset_mode"]`. The GymVecEnv owns it from
            now on. A custom one with NEXT_STEP or DISABLED is reset here, to check whether it reads `reset_mask`.

        Raises:
          ValueError, TypeError: it is not a vector environment; SB3 has no policies for its spaces; it cannot reset
            single environments; or it steps only some of them at a time.
        """
        require_vector_env(vector_env)
        # Wrappers around the vector environment have their own attributes; the sub-environments belong to the innermost
        # one.
        core = vector_env.unwrapped
        observation_space, action_space = vector_env.single_observation_space, vector_env.single_action_space
        # EnvPool returns memory that C++ allocates for each step, and that EnvPool never writes to again.
        self._is_pool = envpool.is_pool(vector_env)
        self._counts_games = self._is_pool and envpool.counts_games(vector_env)
        if self._is_pool:
            observation_space, action_space = envpool.aligned(observation_space, action_space)
        self._dtypes = new_batch(observation_space, lambda shape, dtype: dtype)
        self.tensor_device: torch.device | None = None
        self._step_by(vector_env)
        self._resets_have_infos = False  # while False, reset_infos stay empty and need not be cleared
        super().__init__(core, vector_env.num_envs, observation_space, action_space, self._are_monitored())
        fps = vector_env.metadata.get("render_fps")
        self.metadata = {**self.metadata, **({} if fps is None else {"render_fps": fps})}

    # --- Stepping -----------------------------------------------------------------------------------------------

    def _step_by(self, vector_env: AnyVectorEnv) -> None:
        """Use this vector environment's functions from now on.

        Raises:
          ValueError: it cannot reset single environments.
        """
        self.vector_env = vector_env
        self._send: Callable[[Any], object]
        self._receive: Callable[[], tuple[Any, ...]]
        self._partial_reset: PartialReset | None = None
        calls = envpool.PoolCalls.of(vector_env) if self._is_pool else None
        if calls is not None:
            self._send, self._receive, self._partial_reset = calls.send, calls.receive, calls.reset
            return
        self._send, self._receive = _halves_of_a_step(vector_env)
        if autoreset_mode_of(vector_env) is not AutoresetMode.SAME_STEP:
            self._partial_reset = partial_reset_of(vector_env)

    def set_options(self, options: list[dict[str, Any]] | dict[str, Any] | None = None) -> None:
        """Set options for the next reset, the same for all environments.

        Raises:
          ValueError: they differ between environments, which Gymnasium's vector environments do not support.
        """
        if isinstance(options, list) and any(part != options[0] for part in options):
            raise ValueError(f"options must be the same for all environments of a GymVecEnv, got {options}.")
        super().set_options(options)

    def _reset_all(self) -> tuple[object, Infos]:
        seed = self._seeds[0]
        options = dict(self._options[0]) if self._options[0] else None
        if seed is not None and self._is_pool:
            self._source, seed = envpool.with_seed(self.vector_env, int(seed)), None
            self._step_by(self._source)
        # The first environment's seed is enough: SB3 and Gymnasium both count up from it, and native environments
        # accept no list.
        observation, info = self.vector_env.reset(seed=None if seed is None else int(seed), options=options)
        self.tensor_device = device_of(observation)
        observation = self._owned(observation) if self.tensor_device is None else self.as_arrays(observation)
        for array in parts_of(observation):
            if array.shape[:1] != (self.num_envs,):
                raise ValueError(
                    f"vector_env must return observations with the leading axis num_envs = {self.num_envs}, got shape "
                    f"{array.shape}."
                )
        self._resets_have_infos = bool(info)
        return observation, info_dicts(info, np.arange(self.num_envs), self.num_envs)

    def _begin_step(self, actions: np.ndarray) -> None:
        self._send(actions if self.tensor_device is None else torch.tensor(actions, device=self.tensor_device))

    def _finish_step(self) -> VecEnvStepReturn:
        observation, *results = self._finish()
        return (observation if self.tensor_device is None else self.as_arrays(observation)), *results

    def step_tensors(self, actions: torch.Tensor) -> tuple[Any, np.ndarray, np.ndarray, StepInfos]:
        """Step a vector environment of tensors without arrays of observations and actions.

        Args:
          actions: (num_envs, *shape of an action), members of the action space in its dtype, on `tensor_device`. The
            vector environment may overwrite them.

        Returns:
          The observations as the vector environment returns them, which it may overwrite in its next step; and the
            rewards, dones and infos of `step`.
        """
        self._require_reset()
        self._is_reset = False
        self._send(actions)
        result = self._finish()
        self._is_reset = True
        return result

    def as_arrays(self, observation: object) -> Any:
        """Return observations that are tensors as new arrays, in the space's dtypes."""
        return map_parts(lambda dtype, part: np.array(as_array(part), dtype), self._dtypes, observation)

    def _finish(self) -> tuple[Any, np.ndarray, np.ndarray, StepInfos]:
        """Wait for the step; return what `step` does, with observations of the vector environment's kind."""
        observation, rewards, terminated, truncated, info = self._receive()
        observation = self._owned(observation)
        rewards, terminated, truncated = map(as_array, (rewards, terminated, truncated))  # they may be JAX arrays
        terminated, truncated = np.asarray(terminated, bool), np.asarray(truncated, bool)
        dones, ended = self._episodes.count(info["reward"] if self._counts_games else rewards, terminated, truncated)
        rewards = (np.asarray if self._is_pool else np.array)(rewards, np.float32)  # copied, as SB3 writes into them
        kept_info = info if self._is_pool else kept(info)  # EnvPool does not write into it again
        continuing = (~dones).nonzero()[0] if kept_info else ended
        if ended.size:
            # Before the rest, because EnvPool resets environments in its own threads meanwhile.
            first = None if self._partial_reset is None else self._partial_reset(ended)
            whole = (info["terminated"][ended] != 0) | truncated[ended] if self._counts_games else None
            last = take(observation, ended) if first is not None else self._final_observations(info, ended, observation)
            mark = self._episodes.ended(ended, dones if last is None else terminated, whole)
            final_info = self._begin_episodes(ended, first, observation, info, kept_info)

        def of_ends() -> Infos:
            final = info_dicts(final_info, ended, len(dones))
            mark(final, [] if last is None else rows(last if self.tensor_device is None else self.as_arrays(last)))
            return final

        def write(infos: Infos) -> None:
            for index, row in zip(continuing.tolist(), info_dicts(kept_info, continuing, len(infos))):
                infos[index] = row | {"TimeLimit.truncated": False}

        infos = StepInfos(self._episodes.quiet_infos, write if kept_info else None, ended.tolist(), of_ends)
        return observation, rewards, dones, infos

    def _begin_episodes(
        self,
        ended: np.ndarray,
        first: envpool.Begun | None,
        observation: object,
        info: Mapping[str, Any],
        kept_info: dict[str, object],
    ) -> dict[str, object]:
        """Begin the next episodes of the ended environments; return the infos of all from before.

        The first observations of the next episodes are written into `observation`, the batch of all environments.
        """
        if first is None:
            self._update_reset_infos(ended, kept_info, ended, self.num_envs)
            return kept(info.get("final_info", {}))
        begun, first_info = first()
        num_rows = len(parts_of(begun)[0])
        # EnvPool returns the reset environments only, and Gymnasium's own classes all of them.
        at = ended if num_rows == self.num_envs else np.arange(len(ended))
        write_rows(observation, ended, begun, at)
        self._update_reset_infos(ended, first_info, at, num_rows)
        return kept_info

    def _final_observations(self, info: Mapping[str, Any], ended: np.ndarray, observation: Any) -> Any:
        """Return the last observations of the `ended` environments with auto-reset SAME_STEP, as a batch.

        Simulators on GPUs may have none; then the result is None.
        """
        final = info.get("final_obs", info.get("final_observation"))
        if final is not None:
            is_objects = isinstance(final, np.ndarray) and final.dtype == object
            return stack(observation, final[ended]) if is_objects else take(final, ended)
        if self.tensor_device is None:
            raise ValueError(
                "vector_env declares auto-reset SAME_STEP, so its infos must hold final_obs, the last observation, "
                f"when an episode ends. The infos of environments {ended.tolist()} hold {sorted(info)}."
            )
        warnings.warn(
            "The infos of vector_env hold no final_obs, the last observation, when an episode ends. Episodes that it "
            "truncates therefore count as terminated: without the observation, no value of what follows can be added.",
            stacklevel=2,
        )
        return None

    def _owned(self, observation: object) -> object:
        """Return writable observations in the space's dtypes; a copy, if other code may write into their memory again.

        Such code must hold a reference to it. Call this with the observations in a single local variable.
        """
        if self.tensor_device is not None:  # they are copied where they are stored; `_begin_episodes` writes into them
            return observation if self._partial_reset is None else map_parts(torch.clone, observation)
        # A separate statement, because an expression that contains the observations would hold a reference too.
        is_ours = self._is_pool or (isinstance(observation, np.ndarray) and is_unshared(observation))
        convert = functools.partial(np.require, requirements="W") if is_ours else np.array
        return map_parts(lambda dtype, part: convert(part, dtype), self._dtypes, observation)

    def _update_reset_infos(
        self, env_indices: np.ndarray, info: Mapping[str, object], rows: np.ndarray, num_rows: int
    ) -> None:
        if info or self._resets_have_infos:
            self._resets_have_infos = True
            for index, reset_info in zip(env_indices.tolist(), info_dicts(info, rows, num_rows)):
                self.reset_infos[index] = reset_info

    def close(self) -> None:
        """Close the vector environment."""
        self.vector_env.close()

    # --- Attributes ---------------------------------------------------------------------------------------------

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """Return an attribute of each environment, or of the vector environment if there are no separate ones.

        Raises:
          AttributeError: there is no such attribute.
          TypeError: `attr_name` is not a str.
          ValueError: an index is out of range.
        """
        if attr_name == "render_mode":
            return [self.vector_env.render_mode for _ in env_indices_of(indices, self.vector_env.num_envs)]
        if hasattr(self._source, "envs"):
            return [env.get_wrapper_attr(attr_name) for env in self._selected_envs(attr_name, indices)]
        if hasattr(self._source, "get_attr"):
            values = self._source.get_attr(attr_name)
            return [values[index] for index in env_indices_of(indices, self.num_envs)]
        return super().get_attr(attr_name, indices)

    def set_attr(self, attr_name: str, value: object, indices: VecEnvIndices = None) -> None:
        """Set an attribute of each environment, or of the vector environment if there are no separate ones.

        Raises:
          AttributeError: a vector environment without separate environments has no such attribute.
          TypeError: `attr_name` is not a str.
          ValueError: an index is out of range; or not all environments are selected, and they share one value.
        """
        if hasattr(self._source, "envs"):
            for env in self._selected_envs(attr_name, indices):
                env.set_wrapper_attr(attr_name, value)
        elif hasattr(self._source, "set_attr"):
            env_indices, values = set(env_indices_of(indices, self.num_envs)), [value] * self.num_envs
            if len(env_indices) < self.num_envs:
                present = self._source.get_attr(attr_name)
                values = [value if index in env_indices else present[index] for index in range(self.num_envs)]
            self._source.set_attr(attr_name, values)
        else:
            super().set_attr(attr_name, value, indices)

    def env_method(
        self, method_name: str, *method_args: object, indices: VecEnvIndices = None, **method_kwargs: object
    ) -> list[Any]:
        """Call a method of each environment.

        Raises:
          AttributeError: there is no such method, or there are no separate environments.
          TypeError: `method_name` is not a str.
          ValueError: an index is out of range; or not all environments are selected, and the vector environment calls
            all or none.
        """
        if hasattr(self._source, "envs"):
            methods = [env.get_wrapper_attr(method_name) for env in self._selected_envs(method_name, indices)]
            return [method(*method_args, **method_kwargs) for method in methods]
        if not hasattr(self._source, "call"):
            return super().env_method(method_name, *method_args, indices=indices, **method_kwargs)
        env_indices = self._require_all(indices, "calls a method")
        results = self._source.call(method_name, *method_args, **method_kwargs)
        return [results[index] for index in env_indices]

    def env_is_wrapped(self, wrapper_class: WrapperClass, indices: VecEnvIndices = None) -> list[bool]:
        """Return whether environments are wrapped, as far as they are in this process; always True for Monitor."""
        wrapped = super().env_is_wrapped(wrapper_class, indices)
        if not hasattr(self._source, "envs"):
            return wrapped
        envs = [self._source.envs[index] for index in env_indices_of(indices, self.num_envs)]
        return [known or is_wrapped(env, wrapper_class) for env, known in zip(envs, wrapped)]

    def get_images(self) -> Sequence[np.ndarray | None]:
        """Return pictures of the first environments, at most MAX_IMAGES (16), each uint8 (height, width, 3)."""
        if hasattr(self._source, "envs"):
            return [env.render() for env in self._source.envs[:MAX_IMAGES]]
        return super().get_images()

    # --- Inside -------------------------------------------------------------------------------------------------

    def _selected_envs(self, name: str, indices: VecEnvIndices) -> list[AnyEnv]:
        instance("attr_name", name, str, "a str")
        return [self._source.envs[index] for index in env_indices_of(indices, self.num_envs)]

    def _are_monitored(self) -> bool:
        """Return whether all environments are in Monitors, whose `episode` may count other rewards."""
        core: object = self.vector_env.unwrapped
        if hasattr(core, "envs"):
            return all(is_wrapped(env, Monitor) for env in core.envs)
        # In other processes, a method of Monitor reveals it.
        return isinstance(core, gymnasium.vector.AsyncVectorEnv | RayVectorEnv) and all(
            core.call("has_wrapper_attr", "get_episode_rewards")
        )


def _halves_of_a_step(vector_env: AnyVectorEnv) -> tuple[Callable[[Any], object], Callable[[], tuple[object, ...]]]:
    """Return the functions that start a step and wait for it, as AsyncVectorEnv and EnvPool have them."""
    for send, receive in (("step_async", "step_wait"), ("send", "recv")):
        if hasattr(vector_env, send) and hasattr(vector_env, receive):
            return getattr(vector_env, send), getattr(vector_env, receive)
    actions: list[np.ndarray] = []
    return actions.append, lambda: vector_env.step(actions.pop())
