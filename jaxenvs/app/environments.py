"""Environments as the command names them: an id of `jaxenvs list`, or module:id, whose module registers it."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from typing import Any

import jaxenvs
import jaxenvs.foreign
from jaxenvs import Environment
from jaxenvs.app.errors import UserError


def make(env_id: str, env_kwargs: dict[str, Any]) -> Environment[Any]:
    """`jaxenvs.make`, with the module of the id looked for in the current directory too.

    Raises:
      UserError: the module cannot be imported, it does not register the id, or does not accept `env_kwargs`.
    """
    module, _, _ = env_id.rpartition(":")
    if module:
        import_module(module)
    try:
        env = jaxenvs.make(env_id, **env_kwargs)
        _ = env.observation_space, env.action_space
        return env
    except jaxenvs.UnknownEnvironment as error:
        raise UserError(f"{module} was imported. {error}" if module else str(error)) from error
    except Exception as error:  # of whatever kind: the constructor may be the user's
        given = f" with {env_kwargs}" if env_kwargs else ""
        raise UserError(f"{env_id} cannot be made{given}: {_described(error)}") from error


def library_ids(library: str) -> list[str]:
    """The ids of another library's environments.

    Raises:
      UserError: the library is not installed.
    """
    try:
        return jaxenvs.foreign.ids(library)
    except ImportError as error:
        raise UserError(str(error)) from error


def import_module(name: str) -> None:
    """Import a module of the user's, which registers environments.

    Raises:
      UserError: there is no such module, or it raises.
    """
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)  # as `python -m` does; the command's own folder is there instead
    try:
        importlib.import_module(name)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            raise UserError(f"No module {name!r}, neither in {here} nor installed.") from error
        raise UserError(f"The module {name!r} cannot be imported: {_described(error)}") from error


def has_time_limit(env_id: str, env_kwargs: dict[str, Any]) -> bool:
    """Whether `make` puts a limit on an episode."""
    limit = env_kwargs.get("max_episode_steps")
    return (jaxenvs.spec(env_id).max_episode_steps if limit is None else limit) not in (None, -1)


def _described(error: Exception) -> str:
    """The error in one line, with the place in the user's code where it was raised."""
    said = f"{type(error).__name__}: {error}"
    own = os.path.dirname(jaxenvs.__file__)
    places = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(("<", own))]
    outside = [frame for frame in places if "site-packages" not in frame.filename and "importlib" not in frame.filename]
    return f"{said} ({outside[-1].filename}, line {outside[-1].lineno})" if outside else said
