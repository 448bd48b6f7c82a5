"""Steps of environments and of SB3's wrappers around them, within programs, and what the host needs of them."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from bridge.engine.lstm_state import Memory, to_states
from bridge.engine.runtime import to_host
from bridge.sb3 import Algorithm
from bridge.vec_env.packing import Packed, Packing
from bridge.vec_env.programs import Outputs
from bridge.wrappers import Chain, CompiledWrapper
from bridge.wrappers.chain import in_dtypes_of
from bridge.wrappers.chain import step as step_chain
from jaxenvs import VectorEnv, VectorTimeStep, struct
from jaxenvs.environment import static
from jaxenvs.learn import CollectorState, Masked, Recalled
from jaxenvs.learn.interfaces import Arrays
from jaxenvs.learn.on_policy.collecting import Step, masked_observation, masked_step


@struct
class Steps:
    """What the host needs of steps in a program. Leading axes (n_steps, num_envs).

    Attributes:
      outputs: as a step of a JaxVecEnv gives them, after the wrappers; without the observations, and with the final
        ones only if somebody looks at them.
      wrapper_outputs: those of each wrapper.
    """

    outputs: Outputs
    wrapper_outputs: tuple[Any, ...]

    @property
    def dones(self) -> np.ndarray:
        """Whether an episode ended."""
        dones: np.ndarray = self.outputs.done
        return dones


@struct
class Taken:
    """Steps as somebody sees them who looks at locals: with the leading axis of steps, if each is kept, else the last.

    Attributes:
      action: as stored; env_action: as the environments took it; observation: what came after it.
      final_observation: the last ones of the episodes that ended; the observation, elsewhere.
    """

    action: Any
    env_action: Any
    observation: Arrays
    final_observation: Arrays


@dataclasses.dataclass
class Ran:
    """What an off-policy program gave that somebody may be shown, on the host.

    Attributes:
      chain: the environments; before: the observation before the first of `taken`.
      count: how many steps of each environment it took.
      num_updated, metrics: see `driver.Run`.
      steps, taken: those steps.
    """

    chain: Chain
    before: Arrays
    count: int
    num_updated: int
    metrics: dict[str, float]
    steps: Steps
    taken: Taken


class End(NamedTuple):
    """Where environments are after a program, which are nowhere else yet; and what a policy acts on next."""

    env_state: Packed
    wrapper_states: tuple[Any, ...]
    observation: Arrays
    memory: Memory | None = None  # of a recurrent policy

    def leave(self, algorithm: Algorithm, chain: Chain, steps: Steps) -> None:
        """Leave the environments, the wrappers around them and what a model sees of them there."""
        chain.base.write_back(self.env_state)
        chain.write_back(to_host(self.wrapper_states))
        algorithm._last_obs = as_given(algorithm._last_obs, to_host(self.observation))
        if self.memory is not None:
            algorithm._last_lstm_states = to_states(algorithm, to_host(self.memory))  # type: ignore[attr-defined]
        if len(steps.dones):
            algorithm._last_episode_starts = np.array(steps.dones[-1])


@struct
class Environments:
    """A chain as a program takes it.

    Attributes:
      packing: of the state of the environments.
      wrapper_types, wrapper_states: of the chain.
      masks: whether the policy is told which actions are legal.
      venv: their parameters.
      env_state: packed.
      observation: what a policy acts on next.
      recalled: of a recurrent policy, what it remembers, and where episodes begin; else None.
    """

    packing: Packing = static()
    wrapper_types: tuple[type[CompiledWrapper[Any]], ...] = static()
    masks: bool = static()
    venv: VectorEnv
    env_state: Packed
    wrapper_states: tuple[Any, ...]
    observation: Arrays
    recalled: tuple[Memory, np.ndarray] | None = None

    @classmethod
    def of(
        cls, chain: Chain, last_obs: Arrays, masks: bool = False, recalled: tuple[Memory, np.ndarray] | None = None
    ) -> Environments:
        """
        Args:
          last_obs: as the outermost wrapper gave it.
          masks, recalled: as the attributes.
        """
        base = chain.base
        observation = chain.observation(last_obs)
        static_part = base.programs.state, chain.types, masks
        return cls(*static_part, base.venv, base.packed_state, chain.state(), observation, recalled)

    def layout(self, lanes: Any, same: Any) -> Environments:
        """A prefix of this pytree: `lanes` where arrays have the leading axis of lanes, `same` where they are the same
        on all devices."""
        venv = same if self.venv.env_axis is None else lanes
        own = {"env_state": lanes, "wrapper_states": self._layouts(lanes, same), "observation": lanes}
        return dataclasses.replace(self, venv=venv, recalled=None if self.recalled is None else lanes, **own)

    def layout_of_end(self, lanes: Any, same: Any) -> End:
        """That of what `end` gives."""
        return End(lanes, self._layouts(lanes, same), lanes, None if self.recalled is None else lanes)

    def _layouts(self, lanes: Any, same: Any) -> tuple[Any, ...]:
        return tuple(kind.layout(state, lanes, same) for kind, state in zip(self.wrapper_types, self.wrapper_states))

    def of_one_device(self, mesh: Mesh) -> Environments:
        """Inside of a program over the devices of a mesh: the part of one."""
        venv = dataclasses.replace(self.venv, num_envs=self.venv.num_envs // mesh.size)
        return dataclasses.replace(self, venv=venv)

    def start(self) -> CollectorState:
        """Where collecting begins, in traced code. The environments' state and those of the wrappers are a pair."""
        state = self.packing.unpack(self.env_state), self.wrapper_states
        observation = self.observation
        if self.recalled is not None:
            return CollectorState(state, Recalled(observation, *self.recalled))
        return CollectorState(state, masked_observation(self.venv, state, observation) if self.masks else observation)

    def stepping(self, keeps_final_observation: bool = False) -> Step:
        """A step of the environments and of the wrappers around them, in traced code; besides, it gives its Steps."""

        def step(state: tuple[Any, Any], action: jax.Array) -> tuple[Any, VectorTimeStep, Steps]:
            env_state, wrapper_states = state
            env_state, timestep = self.venv.step(env_state, action)
            wrapper_states, timestep, wrapper_outputs = step_chain(self.wrapper_types, wrapper_states, timestep, action)
            outputs = Outputs.of(timestep)._replace(observation=())
            if not keeps_final_observation:
                outputs = outputs._replace(final_observation=())
            return (env_state, wrapper_states), timestep, Steps(outputs, wrapper_outputs)

        return masked_step(self.venv, step) if self.masks else step

    def end(self, collector: CollectorState) -> End:
        """Where collecting ended, in traced code."""
        env_state, wrapper_states = collector.env_state
        observation, memory = collector.observation, None
        if isinstance(observation, Masked | Recalled):
            memory = observation.memory if isinstance(observation, Recalled) else None
            observation = observation.observation
        return End(self.packing.pack(env_state), wrapper_states, observation, memory)


def as_given(like: Arrays, observation: Arrays) -> Any:
    """Observations that a program gave, as SB3's wrappers give them: in their dtypes, in memory of their own."""
    return jax.tree.map(np.array, in_dtypes_of(like, observation))
