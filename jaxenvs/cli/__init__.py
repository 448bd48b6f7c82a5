"""The `jaxenvs` command: list and doctor; train, evaluate, record and zoo are in `bridge.app`.

Nothing here needs PyTorch, so that list and doctor work without it, and start at once.
"""

from __future__ import annotations

import fnmatch
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Callable
from typing import Annotated, TextIO

import gymnasium
import numpy as np
import tyro

import jaxenvs
import jaxenvs.third_party
from jaxenvs.arguments import did_you_mean
from jaxenvs.cli.user_errors import UserError, described, import_module, report_end, user_errors
from jaxenvs.registry import LIBRARIES
from jaxenvs.third_party.library import require_library

DESCRIPTION = """Reinforcement learning on JAX environments. `jaxenvs --version` prints the version.

For example: jaxenvs train ppo CartPole-v1
"""
ENDED_BY_SIGPIPE = 141  # the exit status of shells
# The commands of `bridge.app.cli`, and the first line of their help, which fits into a line of `jaxenvs --help`.
OF_BRIDGE = {
    "train": "Train an agent, evaluate it, and draw its learning curve.",
    "evaluate": "Print the mean and standard deviation of an agent's returns.",
    "record": "Record an agent as a GIF or MP4 video.",
    "zoo": "Run RL Baselines3 Zoo's scripts with compiled algorithms.",
}
# Packages of these commands, by the names of their modules; the extra `sb3`. Only looked for, because importing takes
# seconds.
PACKAGES = ("torch", "stable_baselines3", "tqdm", "rich", "tensorboard", "matplotlib", "PIL", "yaml")

Modules = Annotated[
    tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[MODULE or LIBRARY ...]", help_behavior_hint="")
]


def main(argv: list[str] | None = None) -> None:
    """Run the `jaxenvs` command.

    Exits with 2 and one line on stderr after a user's mistake, with 130 after Ctrl-C, and with 141 if the reader of its
    output has closed the pipe.
    """
    status = 0
    try:
        try:
            _run(sys.argv[1:] if argv is None else argv)
        except (UserError, KeyboardInterrupt) as error:
            status = report_end(error)
        finally:
            for stream in _open_streams():
                stream.flush()
    except BrokenPipeError:  # the reader has closed the pipe, as `jaxenvs list | head -1` does
        for stream in _open_streams():
            try:
                stream.flush()
            except BrokenPipeError:  # Python writes the rest when it exits
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        status = ENDED_BY_SIGPIPE
    if status:
        sys.exit(status)


def _open_streams() -> list[TextIO]:
    """Return stdout and stderr, except one that was closed before Python started, as by `>&-`."""
    return [stream for stream in (sys.stdout, sys.stderr) if stream is not None]


def _run(argv: list[str]) -> None:
    if argv[:1] == ["--version"]:
        print(f"jaxenvs {jaxenvs.__version__}")
        return
    name, wants_help = argv[0] if argv else "", not {"-h", "--help"}.isdisjoint(argv[1:])
    helps = OF_BRIDGE | {name: (command.__doc__ or "").partition("\n")[0] for name, command in OWN.items()}
    commands: dict[str, Callable[..., None]] = {name: _stand_in(help) for name, help in helps.items()}
    missing = _missing_packages(name) if name in OF_BRIDGE else ""
    if missing and not wants_help:
        raise UserError(missing)
    if missing:
        commands[name], argv = _stand_in(f"{helps[name]}\n\n{missing}"), [name, "--help"]
    elif name == "zoo":  # RL-Zoo reads its arguments itself
        from bridge.app import zoo

        zoo.run(argv[1:])
        return
    elif name in OF_BRIDGE:
        from bridge.app import cli, config

        commands |= cli.COMMANDS
        if name == "train" and not wants_help:
            config.refuse_hyperparameters(argv)
    elif name in OWN:
        commands |= OWN
    for command in commands.values():  # tyro breaks a line of the help wherever the docstring breaks it
        command.__doc__ = re.sub(r"\n {4}(?=\S)", " ", inspect.cleandoc(command.__doc__ or ""))
    tyro.extras.subcommand_cli_from_dict(commands, prog="jaxenvs", description=DESCRIPTION, args=argv)


def _stand_in(help: str) -> Callable[[], None]:
    """Create a command for the list of all commands, which never runs."""

    def command() -> None: ...

    command.__doc__ = help
    return command


def _missing_packages(command: str) -> str:
    """Return what to install for a command of bridge; an empty text if it has all packages that it needs."""
    missing = [package for package in PACKAGES if importlib.util.find_spec(package) is None]
    said = f"jaxenvs {command} needs PyTorch and Stable-Baselines3, but {', '.join(missing)} cannot be imported"
    return f'{said}: pip install "jaxenvs[sb3]".' if missing else ""


def list_environments(modules: Modules = ()) -> None:
    """Print the environments of jaxenvs or of another library.

    For example: jaxenvs list gymnax

    Args:
      modules: Your modules that register environments, which are imported first. Or libraries, if installed, whose ids
        are printed instead: brax, craftax, gymnax, jumanji, navix, pgx, playground or xminigrid. Or envpool and a part
        of an id: envpool Cheetah
    """
    if modules[:1] == ("envpool",):
        _print_table([("id", "family", "also known as"), *envpool_rows(*modules[1:])])
        return
    if libraries := [name for name in modules if name in LIBRARIES]:
        for library in libraries:
            with user_errors(ImportError):
                print(*jaxenvs.third_party.ids(library), sep="\n")
        modules = tuple(name for name in modules if name not in LIBRARIES)
        if not modules:
            return
    others = [*LIBRARIES, "envpool"]
    known = f"Libraries whose environments can be listed: {', '.join(others)}."
    for module in modules:
        import_module(module, did_you_mean(module, others, most=1) or known)
    rows: list[tuple[str, ...]] = [("id", "observation space", "action space", "time limit", "threshold")]
    for env_id in jaxenvs.registered():
        spec = jaxenvs.spec(env_id)
        limits = ("-" if limit is None else f"{limit:g}" for limit in (spec.max_episode_steps, spec.reward_threshold))
        try:
            env = jaxenvs.make(env_id)
            spaces = _describe(env.observation_space), _describe(env.action_space)
        except Exception as error:  # of any kind: the constructor may be the user's
            print(f"{env_id} cannot be made: {described(error)}", file=sys.stderr)
            spaces = "-", "-"
        rows.append((env_id, *spaces, *limits))
    _print_table(rows)


def _print_table(rows: list[tuple[str, ...]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def doctor() -> None:
    """Print a report of this machine to paste into an issue.

    It has versions, devices, settings, known faults of XLA, and what is compiled for Stable-Baselines3.

    For example: jaxenvs doctor
    """
    from jaxenvs.cli import machine_report  # which imports what takes seconds

    print(machine_report.report())


OWN: dict[str, Callable[..., None]] = {"list": list_environments, "doctor": doctor}


def _describe(space: gymnasium.Space[object]) -> str:
    """Describe the space in one short line: bounds only if they are the same everywhere."""
    if isinstance(space, gymnasium.spaces.Box) and (np.unique(space.low).size > 1 or np.unique(space.high).size > 1):
        return f"Box({space.shape}, {space.dtype})"
    return " ".join(str(space).split())


def envpool_rows(*parts: str) -> list[tuple[str, str, str]]:
    """Return rows of EnvPool's ids that contain one of these parts, ignoring case, with `*` and `?` as in a shell.

    Each row has the id, its family, and the name that its reference has for it: Gymnasium, or ale-py.

    Raises:
      UserError: EnvPool is not installed, or has no such id.
    """
    with user_errors(ImportError):
        envpool = require_library("envpool")
    registry = envpool.registration.registry
    patterns = [f"*{part.lower()}*" for part in parts] or ["*"]
    rows = []
    for env_id in sorted(envpool.list_all_envs()):
        if any(fnmatch.fnmatchcase(env_id.lower(), pattern) for pattern in patterns):
            family = registry.specs[env_id][0].removeprefix("envpool.")
            known = f"ALE/{env_id}" if family == "atari" else env_id if env_id in gymnasium.registry else ""
            rows.append((env_id, family, known))
    if not rows:
        raise UserError(f"EnvPool has no id that contains {' or '.join(parts)}: `jaxenvs list envpool` prints all ids.")
    return rows
