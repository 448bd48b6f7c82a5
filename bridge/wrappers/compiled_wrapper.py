"""CompiledWrapper: the base class of compiled versions of Stable-Baselines3's wrappers."""

from __future__ import annotations

import copy
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper

from bridge.sb3 import Infos
from jaxenvs import VectorTimeStep

W = TypeVar("W", bound=VecEnvWrapper)


class CompiledWrapper(Generic[W]):
    """Base class for the compiled version of one kind of VecEnvWrapper, made known by `register_wrapper`.

    Subclass it to compile rollouts through a custom wrapper. Before a rollout, `state` returns the wrapper's state.
    `step`, part of the compiled function, does to each step what the wrapper does. Afterwards `check`, `write_back` and
    `infos` are called, in this order, with the results, and leave the wrapper as if every step had gone through it.

    Settings that choose a code path or a shape are static fields of the state (`jaxenvs.struct` and `jaxenvs.static`);
    numbers are arrays in it. So one compiled function serves all wrappers of the same classes whose settings agree.

    Attributes:
      wrapper: SB3's wrapper.
      any_num_envs: True if `reset` renews all that the wrapper stores for each environment, so that a copy of it may
        wrap another number of environments: then `evaluate` runs that many episodes at once.
      divides: True if the wrapped environments may be divided over devices, each of which steps a part. `layout` says
        which parts of the state have the axis of environments; all outputs of `step` have it.
    """

    any_num_envs: ClassVar[bool] = False
    divides: ClassVar[bool] = False

    def __init__(self, wrapper: W) -> None:
        """Store SB3's wrapper. A subclass raises NotCompilable if it cannot compile a wrapper with these settings."""
        self.wrapper = wrapper

    @property
    def can_continue(self) -> bool:
        """True if several rollouts may run in one compiled function.

        It requires that a rollout may begin bitwise with the state that ended the previous one, and that there is no
        `check`. Then `write_back` and `infos` are called once for all of the rollouts.
        """
        return False

    def around(self, venv: VecEnv) -> W:
        """Return a copy of the wrapper around other environments, for an evaluation that does not affect the original.

        Args:
          venv: as many environments, or any number with `any_num_envs`. `reset` is called next.
        """
        new: W = object.__new__(type(self.wrapper))  # `copy` fails because of SB3's `__getattr__`
        if self.any_num_envs:
            vars(new).update(vars(self.wrapper))
            VecEnvWrapper.__init__(new, venv, self.wrapper.observation_space, self.wrapper.action_space)
        else:
            same = {id(self.wrapper.class_attributes): self.wrapper.class_attributes}  # cannot be copied
            known = {id(self.wrapper): new, id(self.wrapper.venv): venv, id(self.wrapper.unwrapped): venv.unwrapped}
            vars(new).update(copy.deepcopy(vars(self.wrapper), same | known))
        return new

    def state(self) -> Any:
        """Return the state with which a rollout starts: a pytree of NumPy arrays, with only what `step` needs."""
        return ()

    @staticmethod
    def step(state: Any, timestep: VectorTimeStep, action: Any) -> tuple[Any, VectorTimeStep, Any]:
        """Do to a step what the wrapper does, in traced code.

        Args:
          state: the wrapper's state.
          timestep: the step of the wrapper inside: rewards are float32 (num_envs,); `final_observation`, from which
            `terminal_observation` is made, is the last observation before the reset where an episode ended, else
            `observation`.
          action: of all environments, as they took it.

        Returns:
          The state, of the same structure, shapes and dtypes; the TimeStep that the wrapper returns; and a pytree of
            what the methods below need of this step, which they get stacked: (n_steps, ...). () for nothing.
        """
        raise NotImplementedError("A CompiledWrapper must define step.")

    @staticmethod
    def layout(state: Any, per_env: Any, same: Any) -> Any:
        """Return a prefix of the state that says how it is divided over devices. Used only with `divides`.

        Args:
          state: the wrapper's state.
          per_env: marks arrays with the leading axis of environments.
          same: marks arrays that are the same on all devices, also after `step`.
        """
        return per_env

    def check(self, outputs: Any) -> None:
        """Raise or warn because of the stacked outputs of `step`. If it raises, the rollout is discarded."""

    def write_back(self, state: Any) -> None:
        """Write the state after the last step of a rollout, which is on the host and read-only, to the wrapper."""

    def infos(self, infos: Infos, step: np.ndarray, env_indices: np.ndarray, outputs: Any) -> None:
        """Change the infos of the episodes that ended, in place.

        Their `terminal_observation`, if they have one, is already the outermost wrapper's. If a class does not override
        this method, a rollout makes only the infos that are read.

        Args:
          infos: of the wrapper inside, in chronological order.
          step, env_indices: the step and the index of the environment in which each of the episodes ended.
          outputs: of `step`, stacked, on the host.
        """
