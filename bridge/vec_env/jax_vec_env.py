"""JaxVecEnv: a VectorEnv presented as a Stable-Baselines3 VecEnv."""

from __future__ import annotations

import inspect
import time
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvObs, VecEnvStepReturn

from bridge.dlpack import to_jax, to_torch
from bridge.vec_env.actions import ActionChecker
from bridge.vec_env.packing import Packed
from bridge.vec_env.parameters import with_parameter
from bridge.vec_env.programs import Outputs, programs_for
from bridge.vec_env.state import state_from_arrays, state_to_arrays
from jaxenvs import AutoresetMode, Environment, VectorEnv

# More pictures than this would make a frame nobody can see anything in, and a video of gigabytes.
MAX_IMAGES = 16


class JaxVecEnv(VecEnv):
    """`num_envs` JAX environments, stepped by one compiled program, where Stable-Baselines3 expects a VecEnv.

    Every array that `reset` and `step` return is a NumPy array of its own, writable, never written to again.
    Each lane's info is a dict of its own, with `TimeLimit.truncated` and the environment's own info, and where an
    episode ended `terminal_observation` and `episode` (as Monitor's: `r`, `l`, `t`). If environments have no info of
    their own, a lane whose episode goes on may get the very dict of the step before, unless somebody wrote into one:
    copy what you keep and mean to write into later.
    """

    def __init__(self, env: Environment[Any] | VectorEnv, num_envs: int | None = None, seed: int | None = None) -> None:
        """
        Args:
          env: an environment; or a VectorEnv, with auto-reset SAME_STEP.
          num_envs: how many of them. 1 if not given; a VectorEnv knows its own.
          seed: lane i starts from `jax.random.key(seed + i)`, modulo 2^32, so that it replays lane 0 of seed
            `seed + i`. Not given: drawn from NumPy's global generator at the first reset, as in SB3.

        Raises:
          ValueError, TypeError: an argument, or a space of the environment, is not what it must be.
        """
        self._use(_vector_env(env, num_envs))
        lane = self.venv.lane_env(0)
        observation_space, action_space = lane.observation_space, lane.action_space
        self._check_action = ActionChecker(action_space, self.venv.num_envs)
        self._observation_dtypes = _observation_dtypes(observation_space, self.programs.observation)
        self._observation_is_array = isinstance(self.programs.observation, jax.ShapeDtypeStruct)
        self._state: Any = None
        self._stepping: Any = None
        self._start_time = time.time()
        self._quiet_infos: list[dict[str, Any]] = []
        super().__init__(self.venv.num_envs, observation_space, action_space)
        self.metadata = {"render_modes": self.metadata["render_modes"], "render_fps": lane.render_fps}  # type: ignore[dict-item]
        if seed is not None:
            self.seed(seed)

    # --- Stepping -----------------------------------------------------------------------------------------------

    def reset(self) -> VecEnvObs:
        """Start an episode in every lane: the first of the seeds if `seed` was called, else the next one."""
        if self._state is None and self._seeds[0] is None:
            self.seed()
        if self._seeds[0] is not None:
            seeds = np.array([seed % 2**32 for seed in self._seeds if seed is not None], np.uint32)
            episodes = self.programs.first_episodes(seeds)
        else:
            episodes = self.programs.next_episodes(self._state)
        self._state, observation, info = self.programs.reset(self._parameters, episodes)
        self._stepping = None
        self._reset_seeds()
        self.reset_infos = self._rows(jax.tree.leaves(info), self.num_envs)
        first: VecEnvObs = self.observation_of([np.array(leaf) for leaf in jax.tree.leaves(observation)])
        return first

    def step_async(self, actions: Any) -> None:
        """
        Args:
          actions: (num_envs, *shape of an action); lists too.

        Raises:
          ValueError, TypeError: an action has the wrong shape, dtype or range, or is NaN. Nothing was stepped.
        """
        actions = self._check_action(actions)
        self._state, self._stepping = self.programs.step(self._parameters, self._started(), actions)

    def step_wait(self) -> VecEnvStepReturn:
        """Observations, rewards float32 (num_envs,), dones bool (num_envs,), and infos of the step."""
        if self._stepping is None:
            raise RuntimeError("step_wait was called without step_async.")
        outputs = self.programs.outputs_on_host(self._stepping)
        self._stepping = None
        (reward,), (done,) = outputs.reward, outputs.done
        infos = self.infos_of_step(done.nonzero()[0], outputs)
        return self.observation_of(outputs.observation), reward.astype(np.float32, copy=False), done, infos

    def step_torch(self, actions: torch.Tensor) -> tuple[Any, torch.Tensor, torch.Tensor, torch.Tensor, Any]:
        """A step that never leaves the device: tensors in and out through DLPack, no infos.

        Args:
          actions: (num_envs, *shape of an action). On a CPU they are checked as in `step_async`; elsewhere only
            their shape is, because reading them would wait for the device.

        Returns:
          observation, reward float32, terminated bool, truncated bool, final_observation: with the leading axis
          `num_envs`, on the device where JAX runs. `final_observation` is the one before any reset. Do not write
          into them (see `to_torch`).
        """
        if actions.device.type == "cpu":
            action = jnp.asarray(self._check_action(actions.detach().numpy()))
        else:
            self._check_action.check_shape(actions.shape)
            action = to_jax(actions).astype(self._check_action.dtype)
        self._state, outputs = self.programs.step_on_device(self._parameters, self._started(), action)
        observation, reward, terminated, truncated, final_observation = to_torch(outputs)
        return observation, reward, terminated, truncated, final_observation

    def close(self) -> None:
        """Let go of the state. A `reset` opens the environments again."""
        self._state = self._stepping = None

    def set_options(self, options: list[dict[str, Any]] | dict[str, Any] | None = None) -> None:
        """Takes none: JAX environments have parameters instead, which `set_attr` changes."""
        if options and any(options if isinstance(options, list) else [options]):
            raise ValueError(f"A JaxVecEnv takes no reset options, got {options}. Change parameters with set_attr.")

    # --- Attributes ---------------------------------------------------------------------------------------------

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """A parameter, property or method of the environment of each lane, wrappers included.

        Besides: `env`, the environment itself; `state`, that of the lane; `render_mode`.

        Raises:
          AttributeError: there is no such attribute.
        """
        lanes = self._lanes(indices)
        if attr_name == "state":
            return self._lane_states(lanes)
        if attr_name == "render_mode":
            return ["rgb_array" if self.venv.env.can_render else None for _ in lanes]
        envs = [self.venv.lane_env(lane) for lane in lanes]
        return envs if attr_name == "env" else [env.parameter(attr_name) for env in envs]

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """Change a numeric parameter of the environments, at once and without compiling again.

        The first change that gives lanes different values compiles once more, for parameters of their own.

        Raises:
          AttributeError: there is no such parameter.
          ValueError: it is static, or the value is not a number of its shape.
        """
        self._use(with_parameter(self.venv, attr_name, value, None if indices is None else self._lanes(indices)))

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Call a method of the environment of each lane. One whose first argument is `state` gets the lane's."""
        lanes = self._lanes(indices)
        methods = self.get_attr(method_name, lanes)
        if next(iter(inspect.signature(methods[0]).parameters), None) != "state":
            return [method(*method_args, **method_kwargs) for method in methods]
        return [
            method(state, *method_args, **method_kwargs)
            for method, state in zip(methods, self._lane_states(lanes), strict=True)
        ]

    def env_is_wrapped(
        self, wrapper_class: type[gymnasium.Wrapper[Any, Any, Any, Any]], indices: VecEnvIndices = None
    ) -> list[bool]:
        """True for Monitor alone, whose `episode` every info of an ended episode has."""
        return [issubclass(wrapper_class, Monitor) for _ in self._lanes(indices)]

    def get_images(self) -> Sequence[np.ndarray | None]:
        """A picture of each of the first lanes, uint8 (height, width, 3); of at most MAX_IMAGES."""
        return self.env_method("render", indices=range(min(self.num_envs, MAX_IMAGES)))

    def render(self, mode: str | None = None) -> np.ndarray | None:
        """The pictures of the first lanes, tiled into one.

        Raises:
          NotImplementedError: the environment has no picture yet.
        """
        if self.render_mode is None:
            self.venv.env.render(None)  # raises, and says what is missing
        return super().render(mode)

    # --- State in, state out ------------------------------------------------------------------------------------

    def get_state(self) -> dict[str, np.ndarray]:
        """Everything the next steps depend on: a flat dict of arrays, as `numpy.savez(file, **state)` takes it."""
        return state_to_arrays(self.venv, self.programs.state.unpack(self._started()))

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from what `get_state` returned, here or in another process. `numpy.load` gives it back.

        Raises:
          ValueError: it is the state of other environments; the message says how they differ. Nothing changed.
        """
        venv, vector_state = state_from_arrays(self.venv, state)
        self._use(venv)
        self._state = self.programs.pack_state(vector_state)
        self._stepping = None
        self._reset_seeds()

    def __getstate__(self) -> dict[str, Any]:
        if self._stepping is not None:
            raise RuntimeError("A JaxVecEnv cannot be pickled between step_async and step_wait.")
        state = None if self._state is None else self.get_state()
        return {**self.__dict__, "programs": None, "_parameters": None, "_state": state}

    def __setstate__(self, attributes: dict[str, Any]) -> None:
        self.__dict__.update(attributes)
        self._use(self.venv)
        seeds = self._seeds
        if attributes["_state"] is not None:
            self.set_state(attributes["_state"])
        self._seeds = seeds

    # --- For compiled rollouts, which step the environments without this class -----------------------------------

    @property
    def packed_state(self) -> Packed:
        """The state, as `programs.state` packs it. Whoever donates it owes another to `go_on_from`."""
        return self._started()

    def go_on_from(self, packed_state: Packed) -> None:
        """Take over the state that a program made of `packed_state`."""
        self._state, self._stepping = packed_state, None

    def observation_of(self, leaves: list[Any]) -> Any:
        """The leaves in the dtypes of the space, put together. A single array is an observation already."""
        cast = [leaf.astype(dtype, copy=False) for leaf, dtype in zip(leaves, self._observation_dtypes)]
        return cast[0] if self._observation_is_array else jax.tree.unflatten(self.programs.observation_structure, cast)

    def infos_of_step(self, ended: np.ndarray, outputs: Outputs) -> list[dict[str, Any]]:
        """The info of every lane, from the parts of a step's outputs: lists of leaves on the host.

        Args:
          ended: the numbers of the lanes whose episode ended.
        """
        infos = self._step_infos(outputs.final_info)
        if ended.size:
            self._describe_ends(ended, outputs, infos)
        return infos

    # --- Inside -------------------------------------------------------------------------------------------------

    def _use(self, venv: VectorEnv) -> None:
        """Go on with other parameters; compile, or find compiled, what they need."""
        self.venv = venv
        self.programs = programs_for(venv)
        self._parameters = self.programs.parameters(venv)

    def _started(self) -> Packed:
        if self._state is None:
            raise RuntimeError("Call reset() first: the environments have no state yet.")
        state: Packed = self._state
        return state

    def _lanes(self, indices: VecEnvIndices) -> list[int]:
        lanes = range(self.num_envs)
        if indices is None:
            return list(lanes)
        return [lanes[index] for index in ([indices] if isinstance(indices, int) else indices)]

    def _rows(self, info_leaves: list[Any], count: int) -> list[dict[str, Any]]:
        """Arrays with the leading axis `count` as so many info dicts, of host numbers and arrays."""
        if not info_leaves:
            return [{} for _ in range(count)]
        arrays = [np.array(leaf) for leaf in info_leaves]
        columns = [array.tolist() if array.ndim == 1 else list(array) for array in arrays]
        return [jax.tree.unflatten(self.programs.info_structure, row) for row in zip(*columns, strict=True)]

    def _step_infos(self, info_leaves: list[Any]) -> list[dict[str, Any]]:
        if not info_leaves:
            # Thousands of new dicts a step cost more than the step does. So lanes whose episode goes on get the dict
            # they had, as long as nobody wrote into any: then it is as good as a new one.
            if sum(map(len, self._quiet_infos)) != self.num_envs:
                self._quiet_infos = [{"TimeLimit.truncated": False} for _ in range(self.num_envs)]
            return self._quiet_infos.copy()
        infos = self._rows(info_leaves, self.num_envs)
        for info in infos:
            info["TimeLimit.truncated"] = False
        return infos

    def _describe_ends(self, ended: np.ndarray, outputs: Outputs, infos: list[dict[str, Any]]) -> None:
        terminated, returns, lengths = (
            part[0][ended].tolist() for part in (outputs.terminated, outputs.episode_return, outputs.episode_length)
        )
        observations = self._unbatch([leaf[ended] for leaf in outputs.final_observation])
        first_infos = self._rows([leaf[ended] for leaf in outputs.info], len(ended))
        seconds = round(time.time() - self._start_time, 6)
        for row, lane in enumerate(ended.tolist()):
            infos[lane] = {
                **infos[lane],
                "TimeLimit.truncated": not terminated[row],  # truncated and not terminated, as SB3 means it
                "episode": {"r": returns[row], "l": lengths[row], "t": seconds},
                "terminal_observation": observations[row],
            }
            self.reset_infos[lane] = first_infos[row]

    def _unbatch(self, leaves: list[np.ndarray]) -> list[Any]:
        """Observations one by one, each in memory of its own."""
        cast = [leaf.astype(dtype, copy=False) for leaf, dtype in zip(leaves, self._observation_dtypes)]
        if self._observation_is_array:
            return [row.copy() for row in cast[0]]
        structure = self.programs.observation_structure
        return [jax.tree.unflatten(structure, [row.copy() for row in rows]) for rows in zip(*cast)]

    def _lane_states(self, lanes: list[int]) -> list[Any]:
        states = self.programs.state.unpack(self._started()).lanes
        return [jax.tree.map(lambda leaf, lane=lane: leaf[lane], states) for lane in lanes]


def _vector_env(env: Environment[Any] | VectorEnv, num_envs: int | None) -> VectorEnv:
    if isinstance(env, Environment):
        return VectorEnv(env, 1 if num_envs is None else num_envs)
    if not isinstance(env, VectorEnv):
        raise TypeError(
            f"env must be a jaxenvs Environment or VectorEnv, got {type(env).__name__}. "
            "For an id, use bridge.make_vec_env; for Gymnasium environments, SB3's own make_vec_env."
        )
    if num_envs not in (None, env.num_envs):
        raise ValueError(f"num_envs is {num_envs!r}, but the VectorEnv has {env.num_envs}.")
    if env.autoreset is not AutoresetMode.SAME_STEP:
        raise ValueError(f"Stable-Baselines3 expects auto-reset SAME_STEP, got a VectorEnv with {env.autoreset}.")
    return env


def _observation_dtypes(space: spaces.Space[Any], batch: Any) -> list[np.dtype[Any]]:
    """The dtypes of the space, in the order of the leaves of the observation that the environment gives.

    Raises:
      ValueError: that observation is not of the space's structure or shapes.
    """
    leaf_spaces = _leaf_spaces(space)
    expected = jax.tree.map(lambda leaf: leaf.shape, leaf_spaces)
    got = jax.tree.map(lambda leaf: leaf.shape[1:], batch)
    if got != expected:
        raise ValueError(f"The observation must be of observation_space = {space}, got the shapes {got}.")
    return [leaf.dtype for leaf in jax.tree.leaves(leaf_spaces)]


def _leaf_spaces(space: spaces.Space[Any]) -> Any:
    if isinstance(space, spaces.Dict):
        return {name: _leaf_spaces(part) for name, part in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_leaf_spaces(part) for part in space)
    return space
