"""The parameters of an Environment as attributes of what Gymnasium has in its place."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxenvs.environment import Environment, Wrapper


class ParameterAttributes:
    """A mixin: what is no attribute of the object itself is a parameter of its environment, to read and to set.

    So is it with Gymnasium's own environments, `env.unwrapped.gravity = 5.0`, and so `get_wrapper_attr` and
    `set_wrapper_attr` find it through any wrappers. `compute_reward` of an environment with goals is there too.
    """

    def _environment(self) -> Environment[Any] | None:
        """Whose parameters these are; None while the object is being made."""
        raise NotImplementedError

    def _set_parameter(self, name: str, value: Any) -> None:
        """Go on with another value."""
        raise NotImplementedError

    def is_parameter(self, name: str) -> bool:
        """Whether a name is that of a parameter, and not of an attribute of the object itself."""
        if name in self.__dict__ or hasattr(type(self), name):  # asked first, as steps set attributes
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

    def __setattr__(self, name: str, value: Any) -> None:
        if self.is_parameter(name):
            self._set_parameter(name, value)
        else:
            object.__setattr__(self, name, value)


def names_of_parameters(env: Environment[Any]) -> set[str]:
    """The names of all fields of an environment and those inside it, but for the one of a wrapper that holds those."""
    names = set(env.parameter_names)
    return names - {"env"} | names_of_parameters(env.env) if isinstance(env, Wrapper) else names
