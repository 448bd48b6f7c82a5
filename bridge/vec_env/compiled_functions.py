"""CompiledFunctions: the compiled functions of a JaxVecEnv, shared by all JaxVecEnvs of the same structure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.tree_util import PyTreeDef

from bridge.vec_env.argument_checks import require_memory
from bridge.vec_env.packing import Packed, Packing, Stacking
from bridge.vec_env.placement import of_environments
from jaxenvs import VectorEnv, VectorState
from jaxenvs.arrays import key_impl
from jaxenvs.compilation import compiler_options
from jaxenvs.compilation.cache import configure_by_default
from jaxenvs.compilation.default_device import bound, cached_by_device, on
from jaxenvs.jax_names import config
from jaxenvs.learn.devices import layout_behind, layouts, on_each, place
from jaxenvs.vector import VectorTimeStep
from jaxenvs.wrappers.action_masker import action_masks, has_action_masks


class Outputs(NamedTuple):
    """The outputs of a step that the host reads: pytrees with the leading axis `num_envs`."""

    observation: object = ()
    reward: Any = ()
    done: Any = ()
    terminated: Any = ()
    final_observation: Any = ()
    episode_return: Any = ()
    episode_length: Any = ()
    final_info: object = ()
    info: object = ()

    @classmethod
    def of(cls, timestep: VectorTimeStep) -> Outputs:
        """Return the outputs of one step, or of many."""
        return cls(*(getattr(timestep, name) for name in cls._fields))


class CompiledFunctions:
    """Compiled functions of a JaxVecEnv: `reset`, and two kinds of `step`, on a packed state.

    `reset` takes the episodes that `first_episodes` or `next_episodes` return. The parameters of the environments are
    arguments, so changing one does not compile again. The state is donated; the other outputs of a step do not share
    its memory, so they may be passed to user code.

    With a mesh, each device runs the functions for its part of the environments, and packed arrays hold the devices'
    parts one after the other.

    Attributes:
      state: the Packing of the VectorState; with a mesh, of each device's part.
      timestep: the outputs of `step`, as `jax.ShapeDtypeStruct`s.
      has_action_masks: True if `action_masks`, which maps the state to the legal actions, can be compiled.
    """

    @classmethod
    def of(cls, venv: VectorEnv, mesh: Mesh | None = None, device: str = "auto") -> CompiledFunctions:
        """Return the functions for all VectorEnvs like this one: only the values of their parameters may differ.

        If there is a mesh, the environments are divided equally among its devices. Else `device` is a JaxVecEnv's.
        """
        configure_by_default()
        placed = None if mesh is not None else of_environments(device, venv).device
        kinds = tuple((leaf.shape, leaf.dtype, leaf.weak_type) for leaf in _leaves(venv))
        x64 = config.jax_enable_x64
        with on(placed):
            return _functions_of_kind(jax.tree.structure(venv), kinds, x64, mesh, _Unhashed(venv))

    def __init__(self, venv: VectorEnv, mesh: Mesh | None) -> None:
        """Trace the environments, and jit their functions, which compile at their first call, for the device in use."""
        self._device = config.jax_default_device
        self._mesh, part = mesh, venv if mesh is None else _part(venv, mesh.size)
        # The key is made in traced code, as making one compiles a function.
        state, timestep = jax.eval_shape(lambda: part.reset(jax.random.key(0)))
        if mesh is None:
            require_memory(venv.num_envs, (state, timestep))
            self.timestep, self.has_action_masks = timestep, _gives_masks(venv, state)
        else:  # traced before, by the JaxVecEnv
            whole = CompiledFunctions.of(venv)
            self.timestep, self.has_action_masks = whole.timestep, whole.has_action_masks
        self._structure = jax.tree.structure(part)
        self._stacking = Stacking(_leaves(venv))
        self.state, self._outputs = Packing(state), Packing(jax.eval_shape(Outputs.of, timestep))
        self._key_impl = key_impl(state.env_keys)
        per_env, own = (None, None) if mesh is None else layouts(mesh)
        if mesh is not None and venv.env_axis is not None:
            own = layout_behind(mesh)
        self._per_env, self._own = per_env, own
        self.reset = self._jit(self._reset, own, per_env)
        self.first_episodes = self._jit(self._first_episodes, per_env)
        self.step = self._jit(self._step, own, per_env, per_env, donate_argnums=1)
        self.step_on_device = self._jit(self._step_on_device, own, per_env, per_env, donate_argnums=1)
        self.pack_state = self._jit(self.state.pack, per_env)
        self.unpack_state = self.state.unpack if mesh is None else self._jit(self.state.unpack, per_env)
        self.action_masks = self._jit(self._action_masks, own, per_env)

    def _jit(self, function: Callable[..., object], *specs: object, **options: Any) -> Any:
        """Return a jitted function whose outputs have an axis of environments.

        `specs` are the layouts of its arguments over the devices of the mesh.
        """
        if self._mesh is not None:
            function = on_each(function, self._mesh, specs, self._per_env)
        return bound(jax.jit(function, compiler_options=compiler_options(), **options))

    def parameters(self, venv: VectorEnv) -> list[jax.Array]:
        """Return the parameters of `venv` on the device, in the form that the compiled functions take."""
        with on(self._device):
            stacks = self._stacking.stack(_leaves(venv))
        return stacks if self._mesh is None else place(stacks, self._own, self._mesh)

    def outputs_on_host(self, packed: Packed) -> Outputs:
        """Return the outputs of a step as NumPy arrays in newly allocated memory."""
        outputs: Outputs = jax.tree.unflatten(self._outputs.structure, self._on_host(self._outputs, packed))
        return outputs

    def _on_host(self, packing: Packing, packed: Packed) -> list[np.ndarray]:
        if self._mesh is None:
            return packing.unpack_on_host(packed)
        num_devices = self._mesh.size
        words, *rest = (np.split(np.asarray(leaf), num_devices) for leaf in (packed.words, *packed.rest))
        parts = [packing.unpack_on_host(Packed(words[i], [leaf[i] for leaf in rest])) for i in range(num_devices)]
        return [np.concatenate(leaves) for leaves in zip(*parts)]

    def _venv(self, parameters: list[jax.Array]) -> VectorEnv:
        venv: VectorEnv = jax.tree.unflatten(self._structure, self._stacking.unstack(parameters))
        return venv

    def next_episodes(self, packed: Packed) -> tuple[jax.Array, np.ndarray]:
        """Return the keys of the environments and the numbers of their next episodes.

        NumPy computes them on the host, because a jitted function would have to compile first.
        """
        state = jax.tree.unflatten(self.state.structure, self._on_host(self.state, packed))
        return jax.random.wrap_key_data(state.env_keys, impl=self._key_impl), state.episode + 1

    def _first_episodes(self, seeds: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jax.vmap(jax.random.key)(seeds), jnp.zeros(seeds.shape, jnp.uint32)

    def _reset(self, parameters: list[jax.Array], episodes: tuple[jax.Array, jax.Array]) -> tuple[Packed, Any, Any]:
        state, timestep = self._venv(parameters).reset(*episodes)
        return self.state.pack(state), timestep.observation, timestep.info

    def _step(self, parameters: list[jax.Array], packed: Packed, action: jax.Array) -> tuple[Packed, Packed]:
        state, timestep = self._venv(parameters).step(self.state.unpack(packed), action)
        return self.state.pack(state), self._outputs.pack(Outputs.of(timestep))

    def _action_masks(self, parameters: list[jax.Array], packed: Packed) -> jax.Array:
        return action_masks(self._venv(parameters), self.state.unpack(packed))

    def _step_on_device(self, parameters: list[jax.Array], packed: Packed, action: jax.Array) -> tuple[Packed, object]:
        state, timestep = self._venv(parameters).step(self.state.unpack(packed), action)
        return self.state.pack(state), (
            timestep.observation,
            timestep.reward.astype(jnp.float32),
            timestep.terminated,
            timestep.truncated,
            timestep.final_observation,
        )


def _gives_masks(venv: VectorEnv, state: VectorState) -> bool:
    """Return whether the environments have `action_masks` that can be traced: on the host it may run any code."""
    if not has_action_masks(venv.env):
        return False
    try:
        jax.eval_shape(action_masks, venv, state)
    except Exception:  # of any kind, as user code raises it
        return False
    return True


def _part(venv: VectorEnv, num_devices: int) -> VectorEnv:
    """Return the first environments of `venv`, as many as each device has."""
    num_envs = venv.num_envs // num_devices
    env = venv.env if venv.env_axis is None else jax.tree.map(lambda leaf: leaf[:num_envs], venv.env)
    return dataclasses.replace(venv, env=env, num_envs=num_envs)


def _leaves(venv: VectorEnv) -> list[jax.Array]:
    return [jnp.asarray(leaf) for leaf in jax.tree.leaves(venv)]


class _Unhashed:
    """An argument that a cache's key ignores, because the other arguments determine it."""

    def __init__(self, value: VectorEnv) -> None:
        self.value = value

    def __hash__(self) -> int:
        return 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Unhashed)


@cached_by_device
def _functions_of_kind(
    structure: PyTreeDef, kinds: tuple[object, ...], x64: bool, mesh: Mesh | None, venv: _Unhashed
) -> CompiledFunctions:
    return CompiledFunctions(venv.value, mesh)
