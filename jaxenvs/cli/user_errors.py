"""UserError, and finding what the user of the command named: shared by the commands here and in `bridge.app`."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import traceback
from collections.abc import Iterator
from typing import Any

import jaxenvs


class UserError(Exception):
    """Error in what the user asked for, or something that their machine lacks. The message is one line."""


@contextlib.contextmanager
def user_errors(kinds: type[Exception] | tuple[type[Exception], ...], before: str = "") -> Iterator[None]:
    """Return a context that converts errors to UserErrors with the same message.

    Args:
      kinds: the errors to convert. If it is Exception, the message also names the kind.
      before: text before the message.
    """
    try:
        yield
    except UserError:
        raise
    except kinds as error:
        kind = f"{type(error).__name__}: " if kinds is Exception else ""
        raise UserError(f"{before}{kind}{error}") from error


def report_end(error: BaseException) -> int:
    """Print the error with which the command ends, and return its exit status."""
    if isinstance(error, UserError):
        print(f"jaxenvs: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    if isinstance(error, KeyboardInterrupt):
        return 130
    traceback.print_exception(error, file=sys.stderr)
    return 1


def find_environment(env_id: str) -> Any:
    """Return an id; or the class or function that "module:Class" names. The module is imported, and may register ids.

    Raises:
      UserError: the module cannot be imported.
    """
    module, _, name = env_id.rpartition(":")
    if not module:
        return env_id
    import_module(module)
    found = getattr(sys.modules[module], name, None)
    return found if callable(found) else name


def import_module(name: str, hint: str = "") -> None:
    """Import a module of the user's, which registers environments.

    Args:
      hint: what to say besides if there is no such module.

    Raises:
      UserError: there is no such module, or it raises.
    """
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)  # as `python -m` does; sys.path has the folder of the command instead
    try:
        importlib.import_module(name)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            raise UserError(f"No module {name!r}, neither in {here} nor installed. {hint}".rstrip()) from error
        raise UserError(f"The module {name!r} cannot be imported: {described(error)}") from error


def described(error: Exception) -> str:
    """Return the error in one line, with the place in the user's code where it was raised."""
    said = f"{type(error).__name__}: {error}"
    root = os.path.dirname(os.path.dirname(jaxenvs.__file__))
    folders = os.path.join(root, "jaxenvs"), os.path.join(root, "bridge"), os.path.dirname(os.__file__)
    own = ("<", *(os.path.join(folder, "") for folder in folders))
    places = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(own)]
    outside = [frame for frame in places if "site-packages" not in frame.filename]
    return f"{said} ({outside[-1].filename}, line {outside[-1].lineno})" if outside else said
