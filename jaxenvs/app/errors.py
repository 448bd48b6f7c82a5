"""What the command says to a mistake of the user's: one line, no traceback."""

from __future__ import annotations

import importlib.util

# Of the extra `sb3`, as they are imported. Looked for, not imported: that takes seconds.
PACKAGES = ("torch", "stable_baselines3", "tqdm", "rich", "tensorboard", "matplotlib", "PIL")


class UserError(Exception):
    """A mistake in what the user asked for, or something that their machine does not have. One line says which."""


def require_sb3(command: str) -> None:
    """
    Raises:
      UserError: a package that the command needs is not installed.
    """
    missing = [package for package in PACKAGES if importlib.util.find_spec(package) is None]
    if missing:
        raise UserError(
            f"jaxenvs {command} needs PyTorch and Stable-Baselines3, and {', '.join(missing)} cannot be imported: "
            'pip install "jaxenvs[sb3]".'
        )
