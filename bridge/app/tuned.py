"""Settings that are known to work: from an installed RL Baselines3 Zoo, from tuned.toml, or from a user's file."""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib.util
import itertools
import sys
import tomllib
from pathlib import Path
from typing import Any

from bridge.app.hyperparameters import whole_number
from jaxenvs.cli.user_errors import UserError, user_errors

# Algorithm -> environment -> settings.
Tuned = dict[str, dict[str, dict[str, Any]]]

FILE = Path(__file__).with_name("tuned.toml")
# Stands for an environment's id: all Atari games. RL-Zoo calls them "atari".
GAMES = "Atari"
# RL-Zoo's file of an algorithm, if it has another name.
FILES_OF_ZOO = {"recurrent_ppo": "ppo_lstm"}
# Settings of RL-Zoo that `jaxenvs zoo` uses, and `jaxenvs train` does not have.
OF_ZOO_ONLY = (
    "callback",
    "env_wrapper",
    "monitor_kwargs",
    "replay_buffer_class",
    "replay_buffer_kwargs",
    "vec_env_wrapper",
)
COUNTS = ("buffer_size", "learning_starts", "n_envs", "n_timesteps")  # which RL-Zoo writes as 1e6, a float


def settings_for(algorithm: str, env_id: str, is_game: bool, path: Path | None) -> dict[str, Any]:
    """Return the settings that a file has for an environment.

    Args:
      algorithm: a key of ALGORITHMS.
      env_id: an id, without a module.
      is_game: True for Atari games, which share settings.
      path: a file in the form of tuned.toml or of RL-Zoo's .yml files; if None, the files of an installed RL-Zoo and
        then tuned.toml, which may have no settings.

    Raises:
      UserError: the file cannot be read, or has no settings for the environment, or some that cannot be used.
    """
    name = GAMES if is_game else env_id
    if path is None:
        return _installed(algorithm, name) or TUNED.get(algorithm, {}).get(name, {})
    if path.suffix not in (".yml", ".yaml"):
        found = read(path).get(algorithm, {}).get(name)
        if found is None:
            raise UserError(f'{path} has no table [{algorithm}."{name}"].')
        return found
    rows = read_yaml(path)
    key = next((key for key in (env_id, name.lower(), "default") if key in rows), None)
    if key is None:
        raise UserError(f"{path} has no settings for {env_id}: add them below the key {env_id!r}, or 'default'.")
    settings, left_out = from_zoo(rows[key])
    if left_out:
        raise UserError(
            f"jaxenvs train cannot use {', '.join(left_out)} in {path}: leave them out, or use jaxenvs zoo train "
            f"--conf-file {path}."
        )
    return settings


@functools.cache
def _installed(algorithm: str, name: str) -> dict[str, object]:
    """Return the settings that an installed RL-Zoo has for an environment, and say on stderr what is left out."""
    package = importlib.util.find_spec("rl_zoo3")
    if package is None or package.origin is None:
        return {}
    path = Path(package.origin).parent / "hyperparams" / f"{FILES_OF_ZOO.get(algorithm, algorithm)}.yml"
    rows = read_yaml(path) if path.exists() else {}
    settings, left_out = from_zoo(rows.get("atari" if name == GAMES else name, {}))
    left_out = [each for each in left_out if (each, name) != ("env_wrapper", GAMES)]  # games are made in AtariWrapper
    if left_out:
        print(
            f"RL-Zoo's settings for {name} also have {', '.join(left_out)}, which jaxenvs train does not use: jaxenvs "
            "zoo train does.",
            file=sys.stderr,
        )
    return settings


def read_yaml(path: Path) -> dict[str, dict[str, Any]]:
    """Read a file of RL-Zoo: for each environment, its settings for one algorithm.

    Raises:
      UserError: the file cannot be read, or has another format.
    """
    import yaml  # imported here, because only these files need it

    with user_errors((OSError, ValueError, yaml.YAMLError), f"Cannot read settings from {path}: "):
        rows = yaml.safe_load(path.read_text())
    if not isinstance(rows, dict) or not all(isinstance(row, dict) for row in rows.values()):
        raise UserError(f"{path} must hold settings below the id of each environment, as RL-Zoo's files do.")
    for name in itertools.chain.from_iterable(rows.values()):
        if not isinstance(name, str):
            raise UserError(f"{path} must hold settings by their names, got {name!r}.")
    return rows


def from_zoo(row: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return settings of RL-Zoo as tuned.toml has them, and the names of those that cannot be used."""
    settings: dict[str, object] = {"n_envs": 1} if row else {}
    left_out = [name for name in OF_ZOO_ONLY if row.get(name) is not None]
    for name, value in row.items():
        if name in ("normalize", "policy_kwargs", "env_kwargs") and isinstance(value, str):
            try:
                value = _literal(ast.parse(value.strip(), mode="eval").body)
            except (SyntaxError, ValueError):
                left_out.append(name)
                continue
        if name in COUNTS:
            with contextlib.suppress(ValueError):  # what is no whole number is refused later
                value = whole_number(str(value))
        is_standard_policy = name == "policy" and "." not in str(value)  # the observations decide which
        if not is_standard_policy and name not in OF_ZOO_ONLY:
            settings[name] = value
    return settings, left_out


def _literal(node: ast.AST) -> object:
    """Evaluate an expression such as `dict(net_arch=[64], activation_fn=nn.ReLU)`; a class is replaced by its name.

    Raises:
      ValueError: it contains anything else than literals, `dict(...)` and names in `nn`.
    """
    match node:
        case ast.Call(func=ast.Name(id="dict"), args=[], keywords=keywords):
            return {str(keyword.arg): _literal(keyword.value) for keyword in keywords}
        case ast.Attribute(value=ast.Name(id="nn"), attr=name):
            return name
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return [_literal(element) for element in elements]
        case ast.Dict(keys=keys, values=values):
            return {ast.literal_eval(key or ""): _literal(value) for key, value in zip(keys, values)}
        case ast.expr():
            return ast.literal_eval(node)
    raise ValueError(f"not an expression: {node}")


def read(path: Path) -> Tuned:
    """Read the settings of a file with the format of tuned.toml, which its header describes.

    Raises:
      UserError: the file cannot be read, or has another format.
    """
    with user_errors((OSError, ValueError), f"Cannot read settings from {path}: "):
        tables = tomllib.loads(path.read_text())
    tuned: Tuned = {}
    for algorithm, rows in tables.items():
        if not isinstance(rows, dict) or not all(isinstance(row, dict) for row in rows.values()):
            raise UserError(
                f"{path} must hold only tables [algorithm.environment], as {FILE}, but {algorithm} is something else."
            )
        for names, row in rows.items():
            settings = dict(row)
            if (like := settings.pop("like", None)) is not None:
                above, _, other = str(like).partition(".")
                if other not in tuned.get(above, {}):
                    raise UserError(
                        f'like must name an earlier table, such as "ppo.CartPole-v1", got {like!r} in {path}.'
                    )
                settings = tuned[above][other] | settings
            tuned.setdefault(algorithm, {}).update({env_id: dict(settings) for env_id in names.split(", ")})
    return tuned


TUNED = read(FILE)
