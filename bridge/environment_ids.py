"""Decides whether an id and its keywords mean an environment of jaxenvs or of Gymnasium."""

from __future__ import annotations

import copy
import importlib
import inspect
from collections.abc import Mapping
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Tuple

import jaxenvs
from jaxenvs import Environment, FlattenObservation, Spec, UnknownEnvironment
from jaxenvs.registry import import_entry_point

# Keywords of Gymnasium's constructors, by the jaxenvs entry points that have another name for the same parameter.
OTHER_NAMES: dict[object, dict[str, str]] = {
    "jaxenvs.envs.classic_control.pendulum:Pendulum": {"g": "gravity"},
}


def is_jax_id(env_id: str) -> bool:
    """Return whether bridge makes the environment of jaxenvs for an id.

    It does not for an id that you registered or changed in Gymnasium, even if jaxenvs has an environment of this name.
    It does for an id that you registered with `jaxenvs.register`.
    """
    try:
        known = jaxenvs.spec(env_id)
    except UnknownEnvironment:
        return False
    in_gymnasium = gymnasium.registry.get(known.id)
    has_own = isinstance(known.entry_point, str) and known.entry_point.startswith("jaxenvs.")
    return not has_own or in_gymnasium is None or _is_same(known, in_gymnasium)


def with_arrays(env: Environment[Any]) -> Environment[Any]:
    """Return an environment whose observations are vectors instead of a Tuple, which no algorithm of SB3 supports."""
    return FlattenObservation(env) if isinstance(env.observation_space, Tuple) else env


def _is_same(known: Spec, in_gymnasium: EnvSpec) -> bool:
    """Return whether Gymnasium's spec is the one that came with Gymnasium or jaxenvs, for the same task."""
    entry_point = in_gymnasium.entry_point
    if not isinstance(entry_point, str) or in_gymnasium.additional_wrappers:
        return False
    if entry_point.startswith("jaxenvs.gym."):
        return True
    has_same_limit = in_gymnasium.max_episode_steps == known.max_episode_steps
    return entry_point.startswith("gymnasium.") and has_same_limit and in_gymnasium.kwargs == dict(known.parameters)


def spec_of_jax_id(env_id: str, parameters: dict[str, Any]) -> EnvSpec | None:
    """Return Gymnasium's spec of an id of jaxenvs, or of "jaxenvs/<id>", with these parameters.

    It is None for environments of other libraries, which Gymnasium does not know.
    """
    spec = copy.deepcopy(gymnasium.registry.get(gymnasium_id(env_id)))
    if spec is not None:
        kwargs = {name: value for name, value in parameters.items() if name != "disable_env_checker"}
        limit = kwargs.pop("max_episode_steps", None)
        spec.kwargs = {**spec.kwargs, **kwargs}
        spec.max_episode_steps = spec.max_episode_steps if limit is None else None if limit == -1 else limit
    return spec


def gymnasium_id(env_id: str) -> str:
    """Return the id under which Gymnasium makes the environment of an id of jaxenvs: this id, or "jaxenvs/<id>"."""
    name = jaxenvs.spec(env_id).id
    return name if name in gymnasium.registry and is_jax_id(env_id) else f"jaxenvs/{name}"


def jax_parameters(env_id: str | type[Environment[Any]], kwargs: Mapping[str, object]) -> dict[str, Any]:
    """Translate keywords of `gymnasium.make` to parameters of the JAX environment of an id or a class.

    A keyword that the JAX environment has itself stays as it is, and so does one that neither has.
    """
    if not kwargs:
        return {}
    spec = jaxenvs.spec(env_id) if isinstance(env_id, str) else None
    entry_point: Any = env_id if spec is None else import_entry_point(spec)
    own = inspect.signature(entry_point).parameters
    other_names = {} if spec is None else OTHER_NAMES.get(spec.entry_point, {})
    parameters = {name if name in own else other_names.get(name, name): value for name, value in kwargs.items()}
    if len(parameters) < len(kwargs):
        raise TypeError(f"env_kwargs sets one parameter under two names: {', '.join(kwargs)}.")
    if "disable_env_checker" not in own:
        parameters.pop("disable_env_checker", None)  # disables Gymnasium's checker, which changes nothing
    if "render_mode" not in own:
        render_mode = parameters.pop("render_mode", None)
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"render_mode must be None or 'rgb_array' for JAX environments, got {render_mode!r}.")
    return parameters


def require_in_gymnasium(env_id: str) -> None:
    """Raise an UnknownEnvironment if neither Gymnasium nor jaxenvs has an id."""
    try:
        gymnasium_spec(env_id)
    except gymnasium.error.UnregisteredEnv as gymnasium_error:
        try:
            jaxenvs.spec(env_id)
        except UnknownEnvironment as error:
            raise UnknownEnvironment(f"{error} Gymnasium says: {gymnasium_error}") from None


def gymnasium_spec(env_id: str) -> Any:
    """Return Gymnasium's spec of an id, or the id itself if it has no version, as `gymnasium.make` takes the newest."""
    module, _, name = env_id.rpartition(":")
    if module:
        importlib.import_module(module)
    try:
        return gymnasium.spec(name)
    except gymnasium.error.UnregisteredEnv:
        raise
    except gymnasium.error.Error:
        return env_id
