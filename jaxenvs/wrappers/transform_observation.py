"""TransformObservation: applies a function to observations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium

from jaxenvs.arguments import function, type_name
from jaxenvs.environment import Environment, TimeStep, environment, static
from jaxenvs.wrappers.bases import ObservationWrapper


class HashableSpace:
    """Space that can be a static field: Gymnasium's spaces can be compared, but not hashed."""

    def __init__(self, space: gymnasium.Space[object]) -> None:
        self.space = space

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HashableSpace) and bool(self.space == other.space)

    def __hash__(self) -> int:
        return hash((type(self.space), self.space.shape))

    def __repr__(self) -> str:
        return repr(self.space)


@environment
class TransformObservation(ObservationWrapper):
    """Wrapper that observes `func(observation)`, as `gymnasium.wrappers.TransformObservation` does.

    The function is traced and is part of the compiled function: environments with the same function object share it,
    but two lambdas that do the same do not. The state is the state of `env`.

    Args:
      env: the wrapped environment.
      func: from an observation of `env` to an array, or a dict or tuple of arrays.
      observation_space: the space of the results; the space of `env` if not given.
      space: internal form of `observation_space`; do not set it.
    """

    env: Environment[Any]
    func: Callable[[Any], Any] = static()
    space: HashableSpace | None = static(default=None)

    def __init__(
        self,
        env: Environment[Any],
        func: Callable[[Any], Any],
        observation_space: gymnasium.Space[object] | None = None,
        space: HashableSpace | None = None,
    ) -> None:
        # A field cannot have the name of a property. Copies are created by the names of fields.
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
    def observation_space(self) -> gymnasium.Space[object]:
        return self.env.observation_space if self.space is None else self.space.space

    def observe(self, state: object, observation: object) -> Any:
        # `create` makes the dtypes independent of constants in the function.
        return TimeStep.create(self.func(observation)).observation
