"""The command `jaxenvs tune`."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import optuna
from optuna.pruners import BasePruner, MedianPruner, NopPruner, SuccessiveHalvingPruner
from optuna.samplers import BaseSampler, RandomSampler, TPESampler

from bridge.app.files import make_folder, replacing
from bridge.app.tuning.report import describe
from bridge.app.tuning.storage import open_storage
from bridge.app.tuning.study import N_EVAL_EPISODES, begin, work
from jaxenvs.cli import UserError

OPTIONS = "tuning.json"
SAMPLERS, PRUNERS = ("tpe", "random"), ("median", "halving", "none")


def run(options: dict[str, Any], out: Path) -> str:
    """Work on a study in a storage until it has enough trials.

    Args:
      options: `storage`, `study_name`, `sampler`, `pruner`, `startup_trials`, and arguments of `tune`.
      out: where tuning.json is written, with which `--resume` goes on, and the files of `tune`.

    Returns:
      What the study came to.

    Raises:
      UserError: something is unknown, does not fit together, or cannot be opened or written.
      KeyboardInterrupt: Ctrl-C, after the files were written.
    """
    _require_same(options, out / OPTIONS)
    make_folder(out)
    optuna.logging.set_verbosity(optuna.logging.ERROR)  # of a Ctrl-C it has a traceback
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # heartbeats
    of_trials = dict(options)
    storage, name = of_trials.pop("storage"), of_trials.pop("study_name")
    n_trials, startup_trials = of_trials.pop("n_trials"), of_trials.pop("startup_trials")
    sampler = make_sampler(of_trials.pop("sampler"), startup_trials)
    pruner = make_pruner(of_trials.pop("pruner"), startup_trials, options["n_evaluations"])
    try:
        study = optuna.create_study(
            storage=open_storage(storage),
            study_name=name,
            load_if_exists=True,
            direction="maximize",
            sampler=sampler,
            pruner=pruner,
        )
        objective = begin(study=study, n_eval_episodes=N_EVAL_EPISODES, **of_trials)
    except (optuna.exceptions.OptunaError, ValueError) as error:
        raise UserError(f"Cannot open the study {name} of {storage}: {error}") from error
    with replacing(out / OPTIONS) as unfinished:
        unfinished.write_text(json.dumps(options, indent=2) + "\n")
    print(f"Tuning {options['algorithm']} on {options['env_id']}: study {name} of {storage}, into {out}", flush=True)
    try:
        work(study, objective, n_trials, out, verbose=True)
    except KeyboardInterrupt:
        print(f"\nInterrupted. {describe(study)}\nTo go on: jaxenvs tune --resume {out}", file=sys.stderr)
        raise
    except optuna.exceptions.StorageInternalError as error:
        raise UserError(f"{storage} failed: {error} To go on: jaxenvs tune --resume {out}") from error
    return f"{describe(study)}\nTo train it: jaxenvs train --config {out / 'best.json'}"


def read_options(out: Path) -> dict[str, Any]:
    """What `run` was called with.

    Raises:
      UserError: there is no such file, or it is not one of those.
    """
    path = out / OPTIONS
    try:
        options: dict[str, Any] = json.loads(path.read_text())
        if not {"algorithm", "env_id", "storage", "study_name"} <= options.keys():
            raise ValueError("other names")
    except OSError as error:
        raise UserError(f"Cannot read {path}: {error.strerror}.") from error
    except (ValueError, AttributeError) as error:
        raise UserError(f"{path} is not the {OPTIONS} of jaxenvs tune.") from error
    return options


def read_space(path: Path) -> dict[str, Any]:
    """A space as JSON.

    Raises:
      UserError: it cannot be read, or is none.
    """
    try:
        space = json.loads(path.read_text())
    except OSError as error:
        raise UserError(f"Cannot read {path}: {error.strerror}.") from error
    except ValueError as error:
        raise UserError(f"{path} is no JSON: {error}") from error
    if not isinstance(space, dict):
        raise UserError(f'{path} must be an object, as {{"gamma": [0.9, 0.99]}}, got {space!r}.')
    return space


def make_sampler(name: str, startup_trials: int) -> BaseSampler:
    """Of a key of SAMPLERS. The first `startup_trials` are drawn at random.

    Raises:
      UserError: there is none of that name.
    """
    _require_one_of("--sampler", name, SAMPLERS)
    # Workers side by side: what the others try now counts as bad, so that they do not try the same.
    return RandomSampler() if name == "random" else TPESampler(n_startup_trials=startup_trials, constant_liar=True)


def make_pruner(name: str, startup_trials: int, n_evaluations: int) -> BasePruner:
    """Of a key of PRUNERS, as RL Baselines3 Zoo sets them: the median's does not prune in the first third of a trial.

    Raises:
      UserError: there is none of that name.
    """
    _require_one_of("--pruner", name, PRUNERS)
    if name == "halving":
        return SuccessiveHalvingPruner(min_resource=1, reduction_factor=4)
    return NopPruner() if name == "none" else MedianPruner(startup_trials, n_evaluations // 3)


def _require_one_of(flag: str, name: str, known: tuple[str, ...]) -> None:
    if name not in known:
        raise UserError(f"{flag} must be one of {', '.join(known)}, got {name}.")


def _require_same(options: dict[str, Any], path: Path) -> None:
    """Refuse a folder of another search; that of the same is another worker's, or is gone on with."""
    if not path.exists():
        return
    before = read_options(path.parent)
    now = json.loads(json.dumps(options))
    other = [name for name in now if name != "n_trials" and before.get(name) != now[name]]
    if other:
        raise UserError(f"{path.parent} is of another search, with other {', '.join(other)}: give another --out.")
