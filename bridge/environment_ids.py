"""Whose environment an id means: that of jaxenvs, or that of Gymnasium."""

from __future__ import annotations

import copy
import importlib
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

import jaxenvs
from jaxenvs import Spec, UnknownEnvironment


def is_jax_id(env_id: str) -> bool:
    """Return whether bridge makes the environment of jaxenvs for an id.

    An id that you registered or changed in Gymnasium is yours, also if jaxenvs has an environment of this name. An id
    that you registered with `jaxenvs.register` is that of jaxenvs.
    """
    try:
        known = jaxenvs.spec(env_id)
    except UnknownEnvironment:
        return False
    in_gymnasium = gymnasium.registry.get(known.id)
    has_own = isinstance(known.entry_point, str) and known.entry_point.startswith("jaxenvs.")
    return not has_own or in_gymnasium is None or _is_same(known, in_gymnasium)


def _is_same(known: Spec, in_gymnasium: Any) -> bool:
    """Return whether Gymnasium's spec is the one that came with Gymnasium or jaxenvs, for the same task."""
    entry_point = in_gymnasium.entry_point
    if not isinstance(entry_point, str) or in_gymnasium.additional_wrappers:
        return False
    if entry_point.startswith("jaxenvs.gym."):
        return True
    has_same_limit = in_gymnasium.max_episode_steps == known.max_episode_steps
    return entry_point.startswith("gymnasium.") and has_same_limit and in_gymnasium.kwargs == dict(known.parameters)


def spec_of_jax_id(env_id: str, parameters: dict[str, Any]) -> EnvSpec | None:
    """Return Gymnasium's spec of an id of jaxenvs, as of an environment that was made with some parameters.

    Returns:
      The spec of this id, or of "jaxenvs/<id>", or None: Gymnasium does not know environments of other libraries.
    """
    name = jaxenvs.spec(env_id).id
    spec = gymnasium.registry.get(name) if is_jax_id(env_id) else None
    spec = copy.deepcopy(spec or gymnasium.registry.get(f"jaxenvs/{name}"))
    if spec is not None:
        kwargs = dict(parameters)
        limit = kwargs.pop("max_episode_steps", None)
        spec.kwargs = {**spec.kwargs, **kwargs}
        spec.max_episode_steps = spec.max_episode_steps if limit is None else None if limit == -1 else limit
    return spec


def require_in_gymnasium(env_id: str) -> None:
    """
    Raises:
      UnknownEnvironment: Gymnasium does not have the id, nor does jaxenvs.
    """
    try:
        gymnasium_spec(env_id)
    except gymnasium.error.UnregisteredEnv as gymnasium_error:
        try:
            jaxenvs.spec(env_id)
        except UnknownEnvironment as error:
            raise UnknownEnvironment(f"{error} Gymnasium says: {gymnasium_error}") from None


def gymnasium_spec(env_id: str) -> Any:
    """Return Gymnasium's spec of an id, or the id itself if it has no version, as `gymnasium.make` takes the newest.

    Raises:
      gymnasium.error.UnregisteredEnv: Gymnasium does not have the id.
    """
    module, _, name = env_id.rpartition(":")
    if module:
        importlib.import_module(module)
    try:
        return gymnasium.spec(name)
    except gymnasium.error.UnregisteredEnv:
        raise
    except gymnasium.error.Error:
        return env_id
