"""CompiledWrapper: what a wrapper of Stable-Baselines3 says of itself to take part in a compiled rollout."""

from __future__ import annotations

import copy
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper

from bridge.sb3 import Infos
from jaxenvs import VectorTimeStep

W = TypeVar("W", bound=VecEnvWrapper)


class CompiledWrapper(Generic[W]):
    """How one kind of VecEnvWrapper takes part in a compiled rollout; `bridge.register_wrapper` makes it known.

    Before a rollout `state` is asked where the wrapper stands; `step`, part of the program, does to each step what the
    wrapper does to it; afterwards `check`, `write_back` and `infos` are called, in this order, with what came out, and
    leave the wrapper where it would be had every step gone through it.

    Settings that choose a code path or a shape are static fields of the state (`jaxenvs.struct` and `jaxenvs.static`),
    numbers are arrays in it. So one program serves all chains of the same classes whose settings agree.

    Attributes:
      wrapper: SB3's.
      any_num_envs: whether its `reset` makes anew all that it keeps of each environment, so that a copy of it may be
        around another number of them: `bridge.evaluate` then runs as many episodes at once as there are.
      divides: whether environments in it may be divided over devices, each of which steps a part: `layout` says what
        belongs to lanes, and all arrays of the outputs of `step` do.
      is_watched: whether a callback sees each step of the rollout. If so, `step` may give more outputs, for `show`.
    """

    any_num_envs: ClassVar[bool] = False
    divides: ClassVar[bool] = False
    is_watched: bool = False

    def __init__(self, wrapper: W) -> None:
        """
        Raises:
          NotCompilable: with the settings that this one has it cannot be compiled.
        """
        self.wrapper = wrapper

    @property
    def goes_on(self) -> bool:
        """Whether a rollout may begin, bit for bit, with the state that the last one ended with, and has no `check`.

        Then several run in one program, and `write_back` and `infos` are called once for all of them.
        """
        return False

    def around(self, venv: VecEnv) -> W:
        """A copy of the wrapper around other environments, for an evaluation: what it does is not felt here.

        Args:
          venv: as many of them, or any number with `any_num_envs`. Their next `reset` is the first.
        """
        new: W = object.__new__(type(self.wrapper))  # `copy` stumbles over SB3's `__getattr__`
        if self.any_num_envs:
            vars(new).update(vars(self.wrapper))
            VecEnvWrapper.__init__(new, venv, self.wrapper.observation_space, self.wrapper.action_space)
        else:
            same = {id(self.wrapper.class_attributes): self.wrapper.class_attributes}  # has what cannot be copied
            known = {id(self.wrapper): new, id(self.wrapper.venv): venv, id(self.wrapper.unwrapped): venv.unwrapped}
            vars(new).update(copy.deepcopy(vars(self.wrapper), same | known))
        return new

    def state(self) -> Any:
        """The state with which a rollout starts: a pytree of NumPy arrays. Leave out what `step` does not need."""
        return ()

    @staticmethod
    def step(state: Any, timestep: VectorTimeStep, action: Any) -> tuple[Any, VectorTimeStep, Any]:
        """What the wrapper does to a step, in traced code.

        Args:
          state: its own.
          timestep: as the wrapper inside gave it: rewards float32 (num_envs,); `final_observation`, from which
            `terminal_observation` is made, where an episode ended the last one before the reset, else `observation`.
          action: of all lanes, as the environments took it.

        Returns:
          The state, of the same structure, shapes and dtypes; the TimeStep as the wrapper gives it; and what the
          methods below need to know of this step, a pytree, which comes to them stacked: (n_steps, ...). () is nothing.
        """
        raise NotImplementedError("A CompiledWrapper must define step.")

    @staticmethod
    def layout(state: Any, lanes: Any, same: Any) -> Any:
        """A prefix of the state that says how it is divided over devices. With `divides` alone.

        Args:
          state: its own.
          lanes: stands where arrays have the leading axis of lanes.
          same: stands where they are the same on all devices, as what `step` makes of them has to be.
        """
        return lanes

    def check(self, outputs: Any) -> None:
        """Raise or warn because of what happened in a rollout. If this raises, the rollout did not take place."""

    def write_back(self, state: Any) -> None:
        """Leave the wrapper where the rollout ended.

        Args:
          state: after the last step, on the host, not for writing.
        """

    def show(self, outputs: Any) -> None:
        """Show the wrapper as it is after one step, while a callback sees that step.

        Args:
          outputs: of `step`, for this step, on the host.
        """

    def infos(self, infos: Infos, step: np.ndarray, lane: np.ndarray, outputs: Any) -> None:
        """Change, in place, the infos of the episodes that ended.

        Their `terminal_observation`, if they have one, is that of the outermost wrapper already. A class that leaves
        this method alone lets a rollout make no more infos than somebody reads.

        Args:
          infos: as the wrapper inside gave them, in chronological order.
          step, lane: where each of them ended its episode.
          outputs: of `step`, stacked, on the host.
        """
