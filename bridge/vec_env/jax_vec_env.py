"""JaxVecEnv: a VectorEnv presented as a Stable-Baselines3 VecEnv."""

from __future__ import annotations

import inspect
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
import torch
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector.utils import create_empty_array
from jax.sharding import Mesh
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvObs, VecEnvStepReturn

from bridge.configuration import with_own_settings
from bridge.dlpack import tensor_to_host, to_jax, to_torch
from bridge.sb3 import AnyEnv
from bridge.vec_env import argument_checks as checks
from bridge.vec_env.actions import ActionChecker
from bridge.vec_env.attribute_access import GYMNASIUMS, attribute_of, with_state
from bridge.vec_env.base import MAX_IMAGES, BatchedVecEnv
from bridge.vec_env.compiled_functions import CompiledFunctions
from bridge.vec_env.infos import QuietInfos, ended_infos, info_rows, update_reset_infos
from bridge.vec_env.packing import Packed
from bridge.vec_env.placement import DEVICES
from bridge.vec_env.state import state_from_arrays, state_to_arrays
from jaxenvs import Environment, VectorEnv
from jaxenvs.arguments import function, instance, one_of
from jaxenvs.compilation import require_usable
from jaxenvs.learn import make_mesh
from jaxenvs.parameters import with_parameter
from jaxenvs.wrappers.action_masker import has_action_masks, with_action_masks


class JaxVecEnv(BatchedVecEnv):
    """Vectorized environment for Stable-Baselines3 that steps `num_envs` JAX environments with one compiled function.

    `reset` and `step` return new NumPy arrays, which are writable and never overwritten. Each environment has its own
    info dict, with `TimeLimit.truncated` and the environment's info, and at an episode's end `terminal_observation` and
    `episode` (`r`, `l`, `t`, as Monitor writes it). If environments have no info, and an episode continues, the dict
    may be the one of the previous step, unless your code wrote into it: copy infos that you keep and modify later.

    Stepping donates the previous state. If a step is interrupted (Ctrl-C) or fails, the state is lost, and `reset()`
    must be called before stepping again.

    Attributes:
      venv: the environments, with their current parameters.
      mesh: the devices among which the environments are divided equally; None if they are not divided.
      compiled: the compiled functions, shared by all JaxVecEnvs of this structure.
      quiet_infos: makes the infos of a step in which no episode ended.
      t_start: the time from which `episode["t"]` counts, as in VecMonitor.
    """

    @with_own_settings
    def __init__(
        self,
        env: Environment[Any] | VectorEnv,
        num_envs: int | None = None,
        seed: int | None = None,
        devices: int | Mesh | None = None,
        device: str = "auto",
    ) -> None:
        """Prepare to step the environments; `reset` starts their first episodes.

        Args:
          env: an environment, or a VectorEnv with auto-reset SAME_STEP.
          num_envs: the number of environments, by default 1, or the VectorEnv's own number.
          seed: environment i starts from `jax.random.key(seed + i)`, modulo 2^32, so it replays environment 0 of seed
            `seed + i`. If not given, NumPy's global generator draws a seed at the first reset, as in SB3.
          devices: a number of JAX devices, or a mesh with one axis, to divide the environments equally among. Results
            are the same as on one device; compiled algorithms also train on these devices.
          device: where this object steps them: "cpu", "cuda", or "auto", the GPU for thousands (docs/gpu.md).

        Raises:
          ValueError, TypeError: an argument, or a space of the environment, is invalid.
        """
        self._state: Packed | None = None
        self._stepping: Packed | None = None
        self.spec: EnvSpec | None = None  # Gymnasium's, if make_vec_env made the environments from an id
        venv = checks.vector_env_of(env, num_envs)
        self.mesh = checks.mesh_of(devices, venv.num_envs)
        self._asked_device = one_of("device", device, DEVICES)
        self._use(with_action_masks(venv, CompiledFunctions.of(venv, None, device).timestep))
        observation_space, action_space = checks.shared_spaces(self.venv)
        self._check_action = ActionChecker(action_space, self.venv.num_envs)
        empty = create_empty_array(observation_space, 0)
        self._observation_dtypes = jax.tree.map(lambda leaf: leaf.dtype, empty)
        self.quiet_infos = QuietInfos(self.venv.num_envs)
        self.t_start = time.time()
        super().__init__(self.venv.num_envs, observation_space, action_space)
        self.metadata = {"render_modes": self.metadata["render_modes"], "render_fps": self.venv.env_at(0).render_fps}  # type: ignore[dict-item]
        if seed is not None:
            self.seed(seed)

    def with_envs(self, venv: VectorEnv) -> JaxVecEnv:
        """Return a JaxVecEnv of other environments, not reset yet, with the same spaces and on one device.

        Args:
          venv: the environments, of any number. Their spaces may have other bounds.
        """
        new = object.__new__(JaxVecEnv)
        vars(new).update(vars(self))
        new._state = new._stepping = new.mesh = None
        new._use(with_action_masks(venv, CompiledFunctions.of(venv, None, self._asked_device).timestep))
        new._check_action = ActionChecker(self.action_space, venv.num_envs)
        new.quiet_infos = QuietInfos(venv.num_envs)
        BatchedVecEnv.__init__(new, venv.num_envs, self.observation_space, self.action_space)
        new.metadata = self.metadata
        return new

    # --- Stepping -----------------------------------------------------------------------------------------------

    @with_own_settings
    def reset(self, *args: object, **kwargs: object) -> VecEnvObs:
        """Start an episode in every environment: the first one of the seed if `seed` was called, else the next one.

        Raises:
          TypeError: arguments were given; SB3's `reset` takes none.
          RuntimeError: JAX cannot run in this process, see `jaxenvs.compilation.require_usable`. A step raises it too.
        """
        if args or kwargs:
            raise TypeError("reset takes no arguments, as in SB3: call seed before it.")
        require_usable()
        # Cleared first, so that after Ctrl-C or a failure the next reset starts anew.
        state, self._state, self._stepping = self._state, None, None
        if state is not None and self._seeds[0] is None:
            episodes = self.compiled.next_episodes(state)
        else:
            seeds: Sequence[Any] = self.seed() if self._seeds[0] is None else self._seeds
            episodes = self.compiled.first_episodes(np.array([seed % 2**32 for seed in seeds], np.uint32))
        self._state, observation, info = self.compiled.reset(self._parameters, episodes)
        self._reset_seeds()
        self.reset_infos = info_rows(jax.tree.map(np.asarray, info), (), self.num_envs)
        first: VecEnvObs = self.in_space_dtypes(jax.tree.map(np.array, observation))
        return first

    @with_own_settings
    def step_async(self, actions: object) -> None:
        """Start a step of all environments.

        Args:
          actions: (num_envs, *shape of an action), an array or lists.

        Raises:
          ValueError, TypeError: an action has the wrong shape, dtype or range, or is NaN. No environment was stepped.
        """
        actions = self._check_action(actions)
        # The state is donated: there is none until the compiled function has returned the next one.
        state, self._state = self.packed_state, None
        self._state, self._stepping = self.compiled.step(self._parameters, state, actions)

    def step_wait(self) -> VecEnvStepReturn:
        """Return observations, rewards float32 (num_envs,), dones bool (num_envs,), and infos of the step."""
        stepping, self._stepping = self._stepping, None
        if stepping is None:
            raise RuntimeError("step_wait was called without step_async.")
        try:
            outputs = self.compiled.outputs_on_host(stepping)
        except Exception:
            # On devices other than a CPU, a failure of the compiled function is raised only here.
            self._state = None
            raise
        infos = self.quiet_infos(outputs.final_info)
        ended = outputs.done.nonzero()[0]
        if ended.size:
            given = self.in_space_dtypes(outputs.final_observation)
            if given is not outputs.final_observation:
                outputs = outputs._replace(final_observation=given)
            for index, info in zip(ended.tolist(), ended_infos(outputs, (ended,), self.t_start)):
                infos[index] = info
            update_reset_infos(self.reset_infos, outputs.info, (ended,))
        return self.in_space_dtypes(outputs.observation), outputs.reward.astype("f4", copy=False), outputs.done, infos

    @with_own_settings
    def step_torch(self, actions: torch.Tensor) -> tuple[Any, torch.Tensor, torch.Tensor, torch.Tensor, Any]:
        """Step with tensors as actions and results, without infos. Tensors on the environments' device are not copied.

        Args:
          actions: (num_envs, *shape of an action). They are checked as in `step_async`. On a GPU that they share with
            the environments only their shape is checked, because reading them would wait for the GPU.

        Returns:
          observation, reward float32, terminated bool, truncated bool, final_observation: with the leading axis
            `num_envs`, on the device of the actions. `final_observation` is the observation before any reset. Do not
            write into them (see `to_torch`).

        Raises:
          ValueError, TypeError: as in `step_async`, or actions are not a tensor.
          RuntimeError: the environments are divided over devices, and a tensor is on one.
        """
        if self.mesh is not None:
            raise RuntimeError(
                f"step_torch needs environments on one device, but these are on {self.mesh.size} devices."
            )
        instance("actions", actions, torch.Tensor, "a torch.Tensor")
        state = self.packed_state
        action: jax.Array | np.ndarray
        if actions.device.type != "cpu" and state.words.device.platform != "cpu":
            self._check_action.check_shape(actions.shape)
            action = to_jax(actions).astype(self._check_action.dtype)
        else:
            action = self._check_action(tensor_to_host(actions))
        self._state = None
        self._state, outputs = self.compiled.step_on_device(self._parameters, state, action)
        tensors = jax.tree.map(lambda tensor: tensor.to(actions.device), to_torch(outputs))
        observation, reward, terminated, truncated, final_observation = tensors
        return observation, reward, terminated, truncated, final_observation

    def close(self) -> None:
        """Drop the state. `reset` starts the environments again."""
        self._state = self._stepping = None

    def set_options(self, options: list[dict[str, Any]] | Mapping[str, object] | None = None) -> None:
        """Raise ValueError if there are options: JAX environments have parameters instead, which `set_attr` changes."""
        if options and any(options if isinstance(options, list) else [options]):
            raise ValueError(
                f"A JaxVecEnv accepts no reset options, got {options}. Change parameters with set_attr. {GYMNASIUMS}"
            )

    # --- Attributes ---------------------------------------------------------------------------------------------

    @property
    def envs(self) -> list[AnyEnv]:
        """DummyVecEnv's list of Gymnasium environments, which a JaxVecEnv does not have: raises AttributeError."""
        raise AttributeError(f"A JaxVecEnv has no envs. {GYMNASIUMS}")

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """Return a parameter, property or method of each environment, wrappers included.

        Further names: `env`, the environment itself; `state`, its state; `render_mode`; and Gymnasium's `spec`, for
        environments made from an id, and `_max_episode_steps`.

        Raises:
          AttributeError: there is no such attribute.
          TypeError: `attr_name` is not a str.
          ValueError: an index is out of range.
        """
        instance("attr_name", attr_name, str, "a str")
        env_indices = checks.env_indices_of(indices, self.venv.num_envs)
        if attr_name == "state":
            return self._env_states(env_indices)
        if attr_name == "render_mode":
            return ["rgb_array" if self.venv.env.can_render else None for _ in env_indices]
        return [attribute_of(self.venv.env_at(index), attr_name, self.spec) for index in env_indices]

    def set_attr(self, attr_name: str, value: object, indices: VecEnvIndices = None) -> None:
        """Change a numeric parameter of the environments, immediately and without compiling again.

        A parameter may be a pytree, as a dict of arrays or the opponent of a SelfPlay. Given another structure or other
        shapes, it compiles once more, as does the first change that gives environments different values. Bounds
        of the observation space that depend on the parameter change with it; wrappers keep their copies of the previous
        space.

        Raises:
          AttributeError: there is no such parameter.
          TypeError: `attr_name` is not a str.
          ValueError: the parameter is static; the value is not a number of its shape; the action space would change, or
            only some environments' observation space; or an index is out of range.
        """
        instance("attr_name", attr_name, str, "a str")
        env_indices = checks.env_indices_of(indices, self.num_envs)
        what = f"{attr_name} = {value!r}" if jax.tree_util.all_leaves([value]) else f"The new {attr_name}"
        self._use_like(with_parameter(self.venv, attr_name, value, env_indices), what, env_indices)

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Call a method of each environment. If its first argument is named `state`, the environment's state is passed.

        If no wrapper has the method, it is called on the environment inside, with the state of that environment.

        Raises:
          AttributeError, TypeError: there is no such method.
          ValueError: an index is out of range.
        """
        env_indices = checks.env_indices_of(indices, self.num_envs)
        instance("method_name", method_name, str, "a str")
        if method_name == "action_masks" and not (method_args or method_kwargs) and self.compiled.has_action_masks:
            masks = np.asarray(self.compiled.action_masks(self._parameters, self.packed_state))
            return list(masks if indices is None else masks[env_indices])
        if method_name == "get_wrapper_attr":
            return self.get_attr(*method_args, **{"indices": indices, **method_kwargs})
        methods = [function(f"method_name = {method_name!r}", each) for each in self.get_attr(method_name, env_indices)]
        if not methods or next(iter(inspect.signature(methods[0]).parameters), None) != "state":
            return [method(*method_args, **method_kwargs) for method in methods]
        return [
            with_state(env, method_name, state)(*method_args, **method_kwargs)
            for env, state in zip(self.get_attr("env", env_indices), self._env_states(env_indices), strict=True)
        ]

    def get_images(self) -> Sequence[np.ndarray | None]:
        """Return pictures of the first environments, at most MAX_IMAGES (16), each uint8 (height, width, 3)."""
        return self.env_method("render", indices=range(min(self.num_envs, MAX_IMAGES)))

    def render(self, mode: str | None = None) -> np.ndarray | None:
        """Return the pictures of the first environments, tiled into one.

        Raises:
          NotImplementedError: the environment has no picture yet.
        """
        if self.render_mode is None:
            self.venv.env.render(None)  # raises, and says what is missing
        return super().render(mode)

    # --- State in, state out ------------------------------------------------------------------------------------

    def get_state(self) -> dict[str, np.ndarray]:
        """Return all that the next steps depend on: a flat dict of arrays, which `numpy.savez(file, **state)` takes."""
        return state_to_arrays(self.venv, self.compiled.unpack_state(self.packed_state))

    def set_state(self, state: Mapping[str, object]) -> None:
        """Continue from what `get_state` returned, in this or another process, or from `numpy.load` of the saved file.

        Raises:
          ValueError, TypeError: it is not a state, or one of other environments, as the message says. Nothing changed.
        """
        venv, vector_state = state_from_arrays(self.venv, state)
        packed = self.compiled.pack_state(vector_state)
        self._use_like(venv, "state", list(range(self.num_envs)))
        self.write_back(packed)
        self._reset_seeds()

    def __getstate__(self) -> dict[str, object]:
        state = None if self._state is None else self.get_state()
        # Only the number of devices is pickled, because another process has other device objects.
        mesh = None if self.mesh is None else self.mesh.size
        own = {"compiled": None, "_parameters": None, "_state": state, "mesh": mesh}
        return {**self.__dict__, **own, "_stepping": jax.device_get(self._stepping)}

    def __setstate__(self, attributes: dict[str, Any]) -> None:
        self.__dict__.update(attributes)
        if self.mesh is not None:
            self.mesh = make_mesh(attributes["mesh"])
        self._use(self.venv)
        if self._state is not None:
            self._state = self.compiled.pack_state(state_from_arrays(self.venv, attributes["_state"])[1])

    # --- For compiled rollouts, which step the environments without this class -----------------------------------

    @property
    def action_dtype(self) -> np.dtype:
        """The dtype in which actions reach the environments: the space's dtype as JAX represents it."""
        return self._check_action.dtype

    @property
    def has_untraceable_action_masks(self) -> bool:
        """True if the environments have `action_masks` that cannot be traced, and so run on the host."""
        return has_action_masks(self.venv.env) and not self.compiled.has_action_masks

    @property
    def packed_state(self) -> Packed:
        """The state, packed by `compiled.state`. Do not donate it. It raises a RuntimeError if there is none."""
        require_usable()
        if self._state is None:
            raise RuntimeError("Call reset() first: the environments have no state, or a failed step lost it.")
        return self._state

    def write_back(self, packed_state: Packed) -> None:
        """Continue from a state that a compiled function computed from `packed_state`."""
        self._state, self._stepping = packed_state, None

    def in_space_dtypes(self, observation: object) -> Any:
        """Cast the environments' observations, with any leading axes, to the dtypes of `observation_space`."""
        if isinstance(observation, np.ndarray):
            return observation.astype(self._observation_dtypes, copy=False)
        return jax.tree.map(lambda leaf, dtype: leaf.astype(dtype, copy=False), observation, self._observation_dtypes)

    # --- Inside -------------------------------------------------------------------------------------------------

    def _use(self, venv: VectorEnv) -> None:
        """Switch to other parameters, with the compiled functions that they need."""
        require_usable()
        compiled: CompiledFunctions = CompiledFunctions.of(venv, self.mesh, self._asked_device)
        parameters = compiled.parameters(venv)
        # One statement, which Ctrl-C cannot interrupt halfway.
        self.venv, self.compiled, self._parameters = venv, compiled, parameters

    def _use_like(self, venv: VectorEnv, what: str, env_indices: list[int]) -> None:
        """Call `_use` if the spaces stay as SB3 expects: the same actions, and one observation space for all.

        The change concerns the environments at `env_indices`; the error message calls it `what`.
        """
        if not env_indices:
            return
        observation_space, action_space = checks.shared_spaces(venv, env_indices)
        before = self.observation_space, self.action_space
        is_of_all = len(set(env_indices)) == self.num_envs
        checks.require_like(what, (observation_space, action_space), before, is_of_all)
        if self._state is not None and not CompiledFunctions.of(venv, self.mesh).state.fits(self.compiled.state):
            raise ValueError(f"{what} would give the environments states of other shapes: make a new JaxVecEnv.")
        self._use(venv)
        self.observation_space = observation_space

    def _env_states(self, env_indices: list[int]) -> list[object]:
        states = self.compiled.unpack_state(self.packed_state).env_states
        return [jax.tree.map(lambda leaf, index=index: leaf[index], states) for index in env_indices]
