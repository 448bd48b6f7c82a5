"""Registry of environments, and `make` and `make_vec`, which create them by id."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from types import NoneType
from typing import Any

import gymnasium
import jax
import numpy as np
from gymnasium.vector import AutoresetMode

from jaxenvs.arguments import (
    boolean,
    did_you_mean,
    function,
    instance,
    integer,
    nearest,
    no_parameter,
    number,
    positive_int,
)
from jaxenvs.environment import Environment, require_environment
from jaxenvs.vector import VectorEnv
from jaxenvs.wrappers import TimeLimit


class UnknownEnvironment(KeyError):
    """Error that no environment is registered under an id. The message suggests the nearest ids."""

    def __str__(self) -> str:
        return str(self.args[0])


@dataclasses.dataclass(frozen=True)
class Spec:
    """Registered data of an environment, as passed to `register`.

    Attributes:
      id: name and version, as "CartPole-v1".
      entry_point: a class or function that makes the environment from its parameters, or "module:name" of one.
      max_episode_steps: the limit that `make` puts on an episode, or None.
      reward_threshold: the mean return at which the task counts as solved, or None.
      parameters: defaults that `make` passes to the entry point.
    """

    id: str
    entry_point: Callable[..., Environment[Any]] | str
    max_episode_steps: int | None = None
    reward_threshold: float | None = None
    parameters: Mapping[str, object] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        instance("id", self.id, str, "a str")
        if isinstance(self.entry_point, str) and not all(self.entry_point.partition(":")):
            raise ValueError(f'entry_point must be a function or "module:name", got {self.entry_point!r}.')
        if not isinstance(self.entry_point, str):
            function("entry_point", self.entry_point)
        if self.max_episode_steps is not None:
            positive_int("max_episode_steps", self.max_episode_steps)
        if self.reward_threshold is not None:
            number("reward_threshold", self.reward_threshold)
        instance("parameters", self.parameters, Mapping, "a mapping of names to values")
        for name in self.parameters:
            instance("the name of a parameter", name, str, "a str")


_specs: dict[str, Spec] = {}

# Other libraries, whose environments have the ids "library/name", with the limit of an episode that the library leaves
# to its wrappers. Neither a library nor its adapter in jaxenvs.third_party is imported before `make`.
LIBRARIES: dict[str, int | None] = {
    "brax": 1000,
    "craftax": None,
    "gymnax": None,
    "jaxmarl": None,
    "jumanji": None,
    "navix": None,
    "pgx": None,
    "playground": 1000,
    "xminigrid": None,
}


def register(
    id: str,
    entry_point: Callable[..., Environment[Any]] | str,
    *,
    max_episode_steps: int | None = None,
    reward_threshold: float | None = None,
    parameters: Mapping[str, object] | None = None,
    override: bool = False,
) -> None:
    """Register an environment for `make`, for `jaxenvs.sb3.make_vec_env`, and in Gymnasium as "jaxenvs/<id>".

    Registering your own id again replaces it, so that a notebook cell can be run twice.

    Args:
      id: name and version, as "CartPole-v1".
      entry_point: a class or function that makes the environment from its parameters, or "module:name" of one.
      max_episode_steps: the limit that `make` puts on an episode, or None.
      reward_threshold: the mean return at which the task counts as solved, or None.
      parameters: defaults that `make` passes to the entry point.
      override: replace an environment that comes with jaxenvs.

    Raises:
      TypeError, ValueError: an argument has the wrong type or value, or the id is one of jaxenvs's own.
      gymnasium.error.Error: Gymnasium does not take the id; its message says why.
    """
    instance("parameters", parameters, (Mapping, NoneType), "a mapping of names to values")
    spec = Spec(id, entry_point, max_episode_steps, reward_threshold, dict(parameters or {}))
    known, override = _specs.get(id, spec), boolean("override", override)
    if known != spec and str(known.entry_point).startswith("jaxenvs.envs.") and not override:
        raise ValueError(f"id must not be {id!r}, which comes with jaxenvs: take another, or pass override=True.")
    _register_in_gymnasium(spec)  # first, as Gymnasium may refuse the id
    _specs[id] = spec


def registered() -> list[str]:
    """Return all ids, sorted."""
    return sorted(_specs)


def spec(id: str) -> Spec:
    """Return the Spec of an id. For "module:id", import the module first, which registers the id, as Gymnasium does.

    For "library/name", with one of LIBRARIES, whether the library has the environment is only checked when it is
    created.

    Args:
      id: as for `make`.

    Raises:
      UnknownEnvironment: the id is not registered; the message suggests the nearest ids.
      ModuleNotFoundError: there is no such module.
    """
    instance("id", id, str, "a str")
    module, _, name = id.rpartition(":")
    if module and id not in _specs:
        importlib.import_module(module)
        id = name
    library, _, name = id.partition("/")
    if name and library in LIBRARIES and id not in _specs:
        return Spec(id, f"jaxenvs.third_party.{library}:make", LIBRARIES[library], parameters={"name": name})
    if id not in _specs:
        near = ", ".join(nearest(id, _specs))
        hint = did_you_mean(id, _specs) or f"The closest ids are {near}; `jaxenvs list` shows all."
        raise UnknownEnvironment(f"No environment {id!r}. {hint}")
    return _specs[id]


def make(id: str, *, max_episode_steps: int | None = None, **parameters: object) -> Environment[Any]:
    """Create the environment of an id, with its time limit.

    Args:
      id: as "CartPole-v1"; of another library, "brax/ant"; "module:id" imports the module first, which registers it.
      max_episode_steps: another limit than the registered one; -1 for none, as in Gymnasium.
      parameters: fields of the environment, as `make("CartPole-v1", gravity=5.0)`.

    Raises:
      UnknownEnvironment: nothing is registered under this id.
      TypeError: the environment has no such parameter; the message suggests the nearest. Or a parameter is not a
        number.
      ValueError: max_episode_steps is neither None, -1 nor a positive int.
      ImportError: the entry point cannot be imported.
    """
    known = spec(id)
    no_limit = isinstance(max_episode_steps, int | np.integer) and max_episode_steps == -1
    if not (max_episode_steps is None or no_limit or isinstance(max_episode_steps, jax.Array)):  # it may be traced
        integer("max_episode_steps", max_episode_steps, 1, expected="None, -1 for no limit, or a positive int")
    entry_point = import_entry_point(known)
    if isinstance(entry_point, type) and dataclasses.is_dataclass(entry_point):
        names = [field.name for field in dataclasses.fields(entry_point)]
        for name in parameters:
            if name not in names:
                raise TypeError(no_parameter(entry_point.__name__, name, names))
    env: Environment[Any] = entry_point(**{**known.parameters, **parameters})
    require_environment(f"What the entry point of {id!r} returns", env)
    # An environment of a library may have another limit, which is known once it is created.
    default = getattr(env, "default_max_episode_steps", known.max_episode_steps)
    limit = default if max_episode_steps is None else max_episode_steps
    return env if limit is None or no_limit else TimeLimit(env, limit)


def import_entry_point(spec: Spec) -> Callable[..., Environment[Any]]:
    """Return the class or function that makes the environment of a spec."""
    if not isinstance(spec.entry_point, str):
        return spec.entry_point
    module, _, name = spec.entry_point.partition(":")
    try:
        entry_point: Callable[..., Environment[Any]] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ImportError(
            f"The entry point of {spec.id!r}, {spec.entry_point!r}, cannot be imported: {error}"
        ) from error
    return entry_point


def make_vec(
    id: str, num_envs: int, *, autoreset: AutoresetMode = AutoresetMode.SAME_STEP, **parameters: Any
) -> VectorEnv:
    """Create a VectorEnv of `num_envs` copies of the environment of an id.

    Args:
      id: as for `make`.
      num_envs: how many.
      autoreset: what follows the end of an episode: SAME_STEP, NEXT_STEP or DISABLED, as in VectorEnv.
      parameters: as for `make`, including `max_episode_steps`.

    Raises:
      ValueError, TypeError: `num_envs` or `autoreset` has the wrong type or value; or as `make`.
      UnknownEnvironment: nothing is registered under this id.
    """
    num_envs = positive_int("num_envs", num_envs)
    return VectorEnv(make(id, **parameters), num_envs, autoreset)


def _register_in_gymnasium(spec: Spec) -> None:
    """Register an environment for `gymnasium.make` and `make_vec`, as "jaxenvs/<id>"; an id with a "/" unchanged."""
    gymnasium_id = spec.id if "/" in spec.id else f"jaxenvs/{spec.id}"
    # By name, so that Gymnasium imports the classes. This module cannot, because they create environments by id.
    entry_point, vector_entry_point = (f"jaxenvs.gym.registration:Registered{kind}" for kind in ("Env", "VectorEnv"))
    known = gymnasium.registry.get(gymnasium_id)
    if known is not None and known.entry_point == entry_point:
        del gymnasium.registry[gymnasium_id]  # otherwise Gymnasium would warn about a cell that is run twice
    gymnasium.register(
        gymnasium_id,
        entry_point=entry_point,
        vector_entry_point=vector_entry_point,
        max_episode_steps=spec.max_episode_steps,
        reward_threshold=spec.reward_threshold,
        kwargs={"env_id": spec.id},  # the registry knows the rest
    )
