"""The command `jaxenvs zoo`: RL Baselines3 Zoo's own scripts, with the algorithms and environments of jaxenvs.sb3."""

from __future__ import annotations

import importlib.util
import inspect
import itertools
import runpy
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Any

from stable_baselines3.common import env_util
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from bridge.algorithms.specs import SPECS
from bridge.environment_ids import is_jax_id
from bridge.factory import make_vec_env
from jaxenvs.cli.user_errors import UserError, import_module

# RL-Zoo's scripts, by their names in this command. RL-Zoo's own names are accepted too.
SCRIPTS = {"train": "train", "enjoy": "enjoy", "record": "record_video", "plot": "plots.plot_train"}
OTHERS = ("record_training", "record_video", "plots.plot_train", "plots.all_plots", "plots.plot_from_file")
SCRIPTS |= {path.rpartition(".")[2]: path for path in (*OTHERS, "push_to_hub", "load_from_hub")}

HELP = f"""usage: jaxenvs zoo {{{",".join(SCRIPTS)}}} ...

Run RL Baselines3 Zoo's scripts with compiled algorithms. `jaxenvs zoo train --help` lists the arguments of train, if
the Zoo is installed: pip install "jaxenvs[zoo]".

For example: jaxenvs zoo train --algo ppo --env CartPole-v1 --eval-freq 10000"""


def run(argv: list[str]) -> None:
    """Run a script of RL-Zoo with its own arguments.

    Args:
      argv: the name of a script, and its arguments.

    Raises:
      UserError: RL-Zoo is not installed, has no such script, or refuses an argument; or there is no such package.
    """
    asks = not {"-h", "--help"}.isdisjoint(argv)
    if asks and (argv[0] not in SCRIPTS or importlib.util.find_spec("rl_zoo3") is None):
        print(HELP)
        return
    if not argv or argv[0] not in SCRIPTS:
        got = f", got {argv[0]}" if argv else ""
        raise UserError(f"jaxenvs zoo needs one of {', '.join(SCRIPTS)}{got}: jaxenvs zoo train --help.")
    _use_bridge()
    if "--gym-packages" in argv:
        for package in itertools.takewhile(lambda word: word[:1] != "-", argv[argv.index("--gym-packages") + 1 :]):
            import_module(package)  # which may be in the current folder
    typed = sys.argv
    sys.argv = [f"jaxenvs zoo {argv[0]}", *argv[1:]]
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*found in sys.modules", RuntimeWarning)  # a package imports its scripts
            runpy.run_module(f"rl_zoo3.{SCRIPTS[argv[0]]}", run_name="__main__")
    except (AssertionError, ValueError) as error:
        if "rl_zoo3" in traceback.extract_tb(error.__traceback__)[-1].filename:  # a mistake that RL-Zoo names
            raise UserError(f"RL-Zoo says: {error}") from error
        raise
    finally:
        sys.argv = typed


def _use_bridge() -> None:
    """Let RL-Zoo use bridge's algorithms and environments instead of SB3's.

    Raises:
      UserError: RL-Zoo is not installed.
    """
    try:
        modules: list[Any] = [importlib.import_module(f"rl_zoo3.{name}") for name in ("utils", "exp_manager")]
    except ImportError as error:
        raise UserError(
            f'jaxenvs zoo needs RL Baselines3 Zoo, but {error.name} is not installed: pip install "jaxenvs[zoo]".'
        ) from error
    utils, manager = modules
    for name, cls in utils.ALGOS.items():
        if cls.__name__ in SPECS:
            utils.ALGOS[name] = SPECS[cls.__name__].cls
    utils.make_vec_env = manager.make_vec_env = _make_vec_env


def _make_vec_env(make_env: Callable[..., Any], n_envs: int = 1, **arguments: Any) -> VecEnv:
    """Make a JaxVecEnv if jaxenvs has the environment and takes the arguments, else what RL-Zoo makes.

    Args:
      make_env: RL-Zoo's function, which calls the variable `spec` around it.
      n_envs, arguments: of SB3's `make_vec_env`.
    """
    spec = inspect.getclosurevars(make_env).nonlocals.get("spec")
    env_id = getattr(spec, "id", "").removeprefix("jaxenvs/")
    if is_jax_id(env_id) and arguments.get("vec_env_cls") in (None, DummyVecEnv):
        ours = {name: value for name, value in arguments.items() if name not in ("vec_env_cls", "vec_env_kwargs")}
        # SB3 puts every environment in a Monitor, and warns if the environments of training and evaluation are not of
        # the same type.
        ours["monitor_kwargs"] = {"info_keywords": ()} | (ours.get("monitor_kwargs") or {})
        try:
            return make_vec_env(env_id, n_envs, **ours, backend="jax")
        except (TypeError, ValueError) as error:  # a window, or a wrapper of Gymnasium's environments
            why = str(error).partition(". ")[0].rstrip(".")
            print(f"These are Gymnasium's environments, because the JAX ones refuse: {why}.", file=sys.stderr)
    made: VecEnv = env_util.make_vec_env(make_env, n_envs, **arguments)
    return made
