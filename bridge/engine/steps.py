"""Steps of environments and of SB3's wrappers around them inside compiled functions, and what the host needs of them.

    host                             compiled function                                  host
    Environments.of(wrapped_env)  -->  start() -> step -> step -> ... -> step -> final_state() --> write_back: to SB3
    state of the environments,                     |       |              |
    packed into few arrays                         +-------+- StepBatch --+                   --> callbacks, infos, logs

The state of the environments is packed (`bridge.vec_env.packing`), because each array that enters or leaves a compiled
function costs time.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from bridge.engine.lstm_state import Memory, keep_memory
from bridge.engine.runtime import to_host
from bridge.sb3 import Algorithm
from bridge.vec_env.compiled_functions import Outputs
from bridge.vec_env.packing import Packed, Packing
from bridge.wrappers import CompiledWrapper, WrappedEnv
from bridge.wrappers.wrapped_env import in_dtypes_of, step_wrappers
from jaxenvs import VectorEnv, VectorTimeStep, struct
from jaxenvs.compilation.default_device import here
from jaxenvs.environment import static
from jaxenvs.learn import CollectorState, Recalled
from jaxenvs.learn.interfaces import Arrays, Step, unmasked
from jaxenvs.learn.on_policy.collecting import masked_observation, masked_step


@struct
class StepBatch:
    """Results of the steps of a compiled function that the host needs, with the leading axes (n_steps, num_envs).

    Attributes:
      outputs: what a step of a JaxVecEnv returns, after the wrappers, without observations.
      wrapper_outputs: the outputs of each wrapper.
    """

    outputs: Outputs
    wrapper_outputs: tuple[object, ...]

    @property
    def dones(self) -> np.ndarray:
        """Flags of ended episodes, (n_steps, num_envs)."""
        dones: np.ndarray = self.outputs.done
        return dones


class FinalState(NamedTuple):
    """Final state of the environments after a compiled function, not yet written back, and the next observation."""

    env_state: Packed
    wrapper_states: tuple[object, ...]
    observation: Arrays
    memory: Memory | None = None  # of a recurrent policy

    def write_back(self, algorithm: Algorithm, wrapped_env: WrappedEnv, steps: StepBatch) -> None:
        """Write the states of the environments and of the wrappers back, and what the model keeps of them."""
        wrapped_env.base.write_back(self.env_state)
        wrapped_env.write_back(to_host(self.wrapper_states))
        # In the dtypes of SB3's wrappers, and as copies.
        observation = in_dtypes_of(algorithm._last_obs, to_host(self.observation))
        algorithm._last_obs = jax.tree.map(np.array, observation)
        if self.memory is not None:
            keep_memory(algorithm, to_host(self.memory))
        if len(steps.dones) and isinstance(algorithm, OnPolicyAlgorithm):  # SB3's off-policy loop does not touch it
            algorithm._last_episode_starts = np.array(steps.dones[-1])


@struct
class Environments:
    """Environments and the wrappers around them, as arguments of a compiled function.

    Attributes:
      packing: packs `env_state`, the state of the environments, into few arrays.
      masks: whether the policy gets action masks.
      venv: the parameters of the environments.
      observation: the policy's next observation.
      lstm_states: for a recurrent policy, its states and where episodes begin; else None.
    """

    packing: Packing = static()
    wrapper_types: tuple[type[CompiledWrapper[Any]], ...] = static()
    masks: bool = static()
    venv: VectorEnv
    env_state: Packed
    wrapper_states: tuple[object, ...]
    observation: Arrays
    lstm_states: tuple[Memory, np.ndarray] | None = None

    @classmethod
    def of(
        cls,
        wrapped_env: WrappedEnv,
        last_obs: Arrays,
        masks: bool = False,
        lstm_states: tuple[Memory, np.ndarray] | None = None,
    ) -> Environments:
        """Return a WrappedEnv, whose outermost wrapper returned `last_obs`, as arguments of a compiled function."""
        base = wrapped_env.base
        observation = wrapped_env.observation(last_obs)
        static_part = base.compiled.state, wrapped_env.types, masks
        return cls(*static_part, base.venv, here(base.packed_state), wrapped_env.state(), observation, lstm_states)

    def layout(self, per_env: Any, same: Any) -> Environments:
        """Return how arrays are divided over devices, as a prefix of this pytree.

        Args:
          per_env: stands for arrays with a leading axis of environments.
          same: stands for arrays that are equal on all devices.
        """
        venv = same if self.venv.env_axis is None else per_env
        own = {"env_state": per_env, "wrapper_states": self._layouts(per_env, same), "observation": per_env}
        return dataclasses.replace(self, venv=venv, lstm_states=None if self.lstm_states is None else per_env, **own)

    def layout_of_final_state(self, per_env: Any, same: object) -> FinalState:
        """Return how the arrays of `final_state` are divided over devices, with the arguments of `layout`."""
        return FinalState(per_env, self._layouts(per_env, same), per_env, None if self.lstm_states is None else per_env)

    def _layouts(self, per_env: object, same: object) -> tuple[object, ...]:
        return tuple(kind.layout(state, per_env, same) for kind, state in zip(self.wrapper_types, self.wrapper_states))

    def of_one_device(self, mesh: Mesh) -> Environments:
        """Return the part of one device, inside a function that is compiled for the devices of a mesh."""
        venv = dataclasses.replace(self.venv, num_envs=self.venv.num_envs // mesh.size)
        return dataclasses.replace(self, venv=venv)

    def start(self) -> CollectorState:
        """Return the state in which collecting begins, in traced code.

        Its `env_state` is a pair: the states of the environments and of the wrappers.
        """
        state = self.packing.unpack(self.env_state), self.wrapper_states
        seen = masked_observation(self.venv, state, self.observation) if self.masks else self.observation
        return CollectorState(state, seen if self.lstm_states is None else Recalled(seen, *self.lstm_states))

    def stepping(self) -> Step:
        """Return a function that steps the environments and the wrappers, in traced code.

        It also returns the results of the step that the host needs, as a StepBatch without the axis of steps.
        """

        def step(state: tuple[Any, Any], action: jax.Array) -> tuple[object, VectorTimeStep, StepBatch]:
            env_state, wrapper_states = state
            env_state, timestep = self.venv.step(env_state, action)
            wrapper_states, timestep, wrapper_outputs = step_wrappers(
                self.wrapper_types, wrapper_states, timestep, action
            )
            outputs = Outputs.of(timestep)._replace(observation=(), final_observation=())
            return (env_state, wrapper_states), timestep, StepBatch(outputs, wrapper_outputs)

        return masked_step(self.venv, step) if self.masks else step

    def final_state(self, collector: CollectorState) -> FinalState:
        """Return the state in which collecting ended, in traced code."""
        env_state, wrapper_states = collector.env_state
        seen = unmasked(collector.observation)[0]
        memory = seen.memory if isinstance(seen, Recalled) else None
        observation: Any = seen.observation if isinstance(seen, Recalled) else seen
        return FinalState(self.packing.pack(env_state), wrapper_states, observation, memory)
