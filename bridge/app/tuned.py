"""Settings that are known to work: tuned.toml, or a user's modified copy of it."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from jaxenvs.cli import UserError

# Algorithm -> environment -> settings.
Tuned = dict[str, dict[str, dict[str, Any]]]

FILE = Path(__file__).with_name("tuned.toml")
# Stands for an environment's id: all Atari games.
GAMES = "Atari"


def read(path: Path) -> Tuned:
    """Read the settings of a file with the format of tuned.toml, which its header describes.

    Raises:
      UserError: the file cannot be read, or has another format.
    """
    try:
        tables = tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"Cannot read settings from {path}: {error}.") from error
    tuned: Tuned = {}
    for algorithm, rows in tables.items():
        for names, row in _tables(rows, algorithm, path).items():
            settings = dict(row)
            above = _above(tuned, settings.pop("like"), path) if "like" in settings else {}
            for env_id in names.split(", "):
                tuned.setdefault(algorithm, {})[env_id] = above | settings
    return tuned


def _tables(rows: Any, algorithm: str, path: Path) -> dict[str, dict[str, Any]]:
    """Return the tables of an algorithm.

    Raises:
      UserError: there is something else than tables in it.
    """
    if not isinstance(rows, dict) or not all(isinstance(row, dict) for row in rows.values()):
        raise UserError(
            f"{path} must hold only tables [algorithm.environment], as {FILE}, but {algorithm} is something else."
        )
    return rows


def _above(tuned: Tuned, name: Any, path: Path) -> dict[str, Any]:
    algorithm, _, env_id = str(name).partition(".")
    if env_id not in tuned.get(algorithm, {}):
        raise UserError(f'like must name an earlier table, such as "ppo.CartPole-v1", got {name!r} in {path}.')
    return tuned[algorithm][env_id]


TUNED = read(FILE)
