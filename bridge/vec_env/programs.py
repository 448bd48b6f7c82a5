"""The compiled programs behind a JaxVecEnv, shared by all that have the same structure."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bridge.vec_env.arguments import require_memory
from bridge.vec_env.packing import Packed, Packing, Stacking
from jaxenvs import VectorEnv
from jaxenvs.arrays import key_impl
from jaxenvs.compilation import compiler_options
from jaxenvs.vector import VectorTimeStep
from jaxenvs.wrappers.action_masker import action_masks, has_action_masks


class Outputs(NamedTuple):
    """What the host needs of a step: pytrees with the leading axis `num_envs`."""

    observation: Any = ()
    reward: Any = ()
    done: Any = ()
    terminated: Any = ()
    final_observation: Any = ()
    episode_return: Any = ()
    episode_length: Any = ()
    final_info: Any = ()
    info: Any = ()

    @classmethod
    def of(cls, timestep: VectorTimeStep) -> Outputs:
        """The outputs of a step, or of many."""
        return cls(
            observation=timestep.observation,
            reward=timestep.reward,
            done=timestep.done,
            terminated=timestep.terminated,
            final_observation=timestep.final_observation,
            episode_return=timestep.episode_return,
            episode_length=timestep.episode_length,
            final_info=timestep.final_info,
            info=timestep.info,
        )


class Programs:
    """`reset`, to what `first_episodes` or `next_episodes` gives, and two kinds of `step`, on a packed state.

    The parameters of the environments go in as data, so that changing one does not compile again. The state is
    donated; what a step returns beside it is its own, so that it may be handed to others.

    Attributes:
      state: the Packing of the VectorState.
      timestep: what `step` gives, as `jax.ShapeDtypeStruct`s.
      has_action_masks: whether `action_masks`, from the state to which actions are legal, can be a program.
    """

    @classmethod
    def of(cls, venv: VectorEnv) -> Programs:
        """The programs of all VectorEnvs like this one: the values of their parameters may differ, nothing else."""
        kinds = tuple((leaf.shape, leaf.dtype, leaf.weak_type) for leaf in _leaves(venv))
        x64 = jax.config.jax_enable_x64  # type: ignore[attr-defined]
        return _programs_of_kind(jax.tree.structure(venv), kinds, x64, _Unhashed(venv))

    def __init__(self, venv: VectorEnv) -> None:
        """
        Raises:
          ValueError: there are more environments than fit into this machine.
        """
        self._structure = jax.tree.structure(venv)
        self._stacking = Stacking(_leaves(venv))
        state, self.timestep = jax.eval_shape(venv.reset, jax.random.key(0))
        require_memory(venv.num_envs, (state, self.timestep))
        self.state, self._outputs = Packing(state), Packing(jax.eval_shape(Outputs.of, self.timestep))
        self._key_impl = key_impl(state.lane_key)
        jit = functools.partial(jax.jit, compiler_options=compiler_options())
        self.reset = jit(self._reset)
        self.first_episodes = jit(self._first_episodes)
        self.step = jit(self._step, donate_argnums=1)
        self.step_on_device = jit(self._step_on_device, donate_argnums=1)
        self.pack_state = jax.jit(self.state.pack)
        self.action_masks = jit(self._action_masks)
        self.has_action_masks = _gives_masks(venv, state)

    def parameters(self, venv: VectorEnv) -> list[jax.Array]:
        """The parameters of `venv`, on the device, as the programs take them."""
        return self._stacking.stack(_leaves(venv))

    def outputs_on_host(self, packed: Packed) -> Outputs:
        """What a step gave, as NumPy arrays of their own."""
        outputs: Outputs = jax.tree.unflatten(self._outputs.structure, self._outputs.unpack_on_host(packed))
        return outputs

    def _venv(self, parameters: list[jax.Array]) -> VectorEnv:
        venv: VectorEnv = jax.tree.unflatten(self._structure, self._stacking.unstack(parameters))
        return venv

    def next_episodes(self, packed: Packed) -> tuple[Any, Any]:
        """The keys of the lanes and the numbers of their episodes, by the host: a program would have to compile."""
        state = jax.tree.unflatten(self.state.structure, self.state.unpack_on_host(packed))
        return jax.random.wrap_key_data(state.lane_key, impl=self._key_impl), state.episode + 1

    def _first_episodes(self, seeds: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jax.vmap(jax.random.key)(seeds), jnp.zeros(seeds.shape, jnp.uint32)

    def _reset(self, parameters: list[jax.Array], episodes: tuple[jax.Array, jax.Array]) -> tuple[Packed, Any, Any]:
        state, timestep = self._venv(parameters).reset(*episodes)
        return self.state.pack(state), timestep.observation, timestep.info

    def _step(self, parameters: list[jax.Array], packed: Packed, action: Any) -> tuple[Packed, Packed]:
        state, timestep = self._venv(parameters).step(self.state.unpack(packed), action)
        return self.state.pack(state), self._outputs.pack(Outputs.of(timestep))

    def _action_masks(self, parameters: list[jax.Array], packed: Packed) -> jax.Array:
        return action_masks(self._venv(parameters), self.state.unpack(packed))

    def _step_on_device(self, parameters: list[jax.Array], packed: Packed, action: Any) -> tuple[Packed, Any]:
        state, timestep = self._venv(parameters).step(self.state.unpack(packed), action)
        return self.state.pack(state), (
            timestep.observation,
            timestep.reward.astype(jnp.float32),
            timestep.terminated,
            timestep.truncated,
            timestep.final_observation,
        )


def _gives_masks(venv: VectorEnv, state: Any) -> bool:
    """Whether environments have `action_masks` that can be traced. On the host, anything is allowed in it."""
    if not has_action_masks(venv.env):
        return False
    try:
        jax.eval_shape(action_masks, venv, state)
    except Exception:  # of code that is not ours
        return False
    return True


def _leaves(venv: VectorEnv) -> list[jax.Array]:
    return [jnp.asarray(leaf) for leaf in jax.tree.leaves(venv)]


class _Unhashed:
    """An argument that a cache does not look at, because others determine it."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __hash__(self) -> int:
        return 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Unhashed)


@functools.lru_cache(maxsize=64)
def _programs_of_kind(structure: Any, kinds: Any, x64: bool, venv: _Unhashed) -> Programs:
    return Programs(venv.value)
