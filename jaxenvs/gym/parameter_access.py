"""Parameters of an Environment as attributes of its Gymnasium wrapper."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxenvs.environment import Environment, Wrapper


class ParameterAttributes:
    """Mixin that reads and sets parameters of the environment where the object itself has no such attribute.

    It works as with Gymnasium's environments, `env.unwrapped.gravity = 5.0`, and `get_wrapper_attr` and
    `set_wrapper_attr` find parameters through any wrappers. `compute_reward` of an environment with goals is available
    too.
    """

    def _environment(self) -> Environment[Any] | None:
        """Return the environment with the parameters; None while the object is being constructed."""
        raise NotImplementedError

    def _set_parameter(self, name: str, value: object) -> None:
        raise NotImplementedError

    def is_parameter(self, name: str) -> bool:
        """Return whether a name belongs to a parameter, and not to an attribute of the object itself."""
        if name in self.__dict__ or hasattr(type(self), name):  # checked first, because steps set attributes
            return False
        env = self._environment()
        return env is not None and name in names_of_parameters(env)

    def __getattr__(self, name: str) -> Any:
        env = self._environment()
        if name == "compute_reward" and env is not None:
            method = env.parameter(name)
            return lambda *args, **kwargs: np.asarray(method(*args, **kwargs))
        if env is None or not self.is_parameter(name):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return env.parameter(name)

    def __setattr__(self, name: str, value: object) -> None:
        if self.is_parameter(name):
            self._set_parameter(name, value)
        else:
            object.__setattr__(self, name, value)


def names_of_parameters(env: Environment[Any]) -> set[str]:
    """Return the names of all fields of an environment and its inner ones, except the fields `env` of wrappers."""
    names = set(env.parameter_names)
    return names - {"env"} | names_of_parameters(env.env) if isinstance(env, Wrapper) else names
