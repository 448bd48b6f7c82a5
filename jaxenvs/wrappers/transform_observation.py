"""TransformObservation: a function of the observation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import jax

from jaxenvs.arguments import function, type_name
from jaxenvs.environment import Environment, TimeStep, Wrapper, environment, static


class HashableSpace:
    """A space as a static field needs it: Gymnasium's can be compared, but not hashed."""

    def __init__(self, space: gymnasium.Space[Any]) -> None:
        self.space = space

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HashableSpace) and bool(self.space == other.space)

    def __hash__(self) -> int:
        return hash((type(self.space), self.space.shape))

    def __repr__(self) -> str:
        return repr(self.space)


@environment
class TransformObservation(Wrapper[Any]):
    """Observes `func(observation)`, as `gymnasium.wrappers.TransformObservation` does.

    The function is traced and is part of the program: programs are shared by environments with the same one, not by
    those with two lambdas that do the same. The state is that of `env`.

    Args:
      env: the environment inside.
      func: from an observation of `env` to an array, or a dict or tuple of arrays.
      observation_space: where these lie; that of `env` if not given.
      space: the same, as it is kept; not for you.
    """

    env: Environment[Any]
    func: Callable[[Any], Any] = static()
    space: HashableSpace | None = static(default=None)

    def __init__(
        self,
        env: Environment[Any],
        func: Callable[[Any], Any],
        observation_space: gymnasium.Space[Any] | None = None,
        space: HashableSpace | None = None,
    ) -> None:
        # A field cannot be called as the property is. Copies are made by the names of fields.
        if observation_space is not None:
            if not isinstance(observation_space, gymnasium.Space):
                raise TypeError(
                    f"observation_space must be a gymnasium.Space or None, got {type_name(observation_space)}."
                )
            space = HashableSpace(observation_space)
        for name, value in (("env", env), ("func", func), ("space", space)):
            object.__setattr__(self, name, value)

    def __check_init__(self) -> None:
        function("func", self.func)
        super().__check_init__()

    @property
    def observation_space(self) -> gymnasium.Space[Any]:
        return self.env.observation_space if self.space is None else self.space.space

    def inner_state(self, state: Any) -> Any:
        return state

    def reset(self, key: jax.Array) -> tuple[Any, TimeStep]:
        state, timestep = self.env.reset(key)
        return state, self._transform(timestep)

    def step(self, state: Any, action: Any) -> tuple[Any, TimeStep]:
        state, timestep = self.env.step(state, action)
        return state, self._transform(timestep)

    def _transform(self, timestep: TimeStep) -> TimeStep:
        # Through `create`, so that the dtypes of what the function gives do not depend on constants in it.
        observation = TimeStep.create(self.func(timestep.observation)).observation
        return timestep.replace(observation=observation)
