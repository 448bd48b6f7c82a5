"""User code in a training: compiled functions replace only the code of bridge and SB3, and all other code is called.

What is known is listed. Everything else is user code, which may read anything and change anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit
from stable_baselines3.common import utils
from stable_baselines3.common.logger import (
    CSVOutputFormat,
    HumanOutputFormat,
    JSONOutputFormat,
    Logger,
    TensorBoardOutputFormat,
)
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.noise import NormalActionNoise, OrnsteinUhlenbeckActionNoise, VectorizedActionNoise
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecEnvWrapper, VecVideoRecorder

from bridge.host_env.gym_vec_env import GymVecEnv
from bridge.host_env.native_vec_env import NativeVecEnv
from bridge.host_env.processes.process_vec_env import ProcessVecEnv
from bridge.host_env.serial_vec_env import SerialVecEnv
from bridge.originals import has_own_methods, is_shadowed, remember, remember_packages, replaced, routines
from bridge.replay.rows import is_known
from bridge.sb3 import SB3S_BUFFERS
from bridge.translate.user_modules.purity import Purity
from bridge.translate.user_modules.reads import SCHEDULES
from bridge.vec_env.jax_vec_env import JaxVecEnv
from bridge.wrappers.wrapped_env import is_compiled

# bridge's algorithms themselves. A subclass of one may do anything.
_ALGORITHMS: set[type] = set()

# Methods that no loop of collecting and learning calls, only code that sets up, saves, loads or uses a model.
BESIDE_TRAINING = frozenset(
    (
        *("__init__", "learn", "plan", "save", "load", "get_parameters", "set_parameters", "set_random_seed"),
        *("get_env", "set_env", "get_vec_normalize_env", "set_logger", "save_replay_buffer", "load_replay_buffer"),
        *("_setup_model", "_setup_learn", "_setup_lr_schedule", "_convert_train_freq", "_init_callback"),
        *("_create_aliases", "_wrap_env", "_get_policy_from_name", "_excluded_save_params", "_get_torch_save_params"),
    )
)
# Names that PPO and A2C use only between rollouts.
BETWEEN_ROLLOUTS = frozenset(
    (
        *("train", "dump_logs", "logger", "_update_learning_rate", "_update_current_progress_remaining"),
        *("lr_schedule", "clip_range", "clip_range_vf", "collect_rollouts"),
    )
)
# Special methods that take part in every access to an object.
_ACCESS = ("__getattribute__", "__setattr__", "__delattr__")

FORMATS = (HumanOutputFormat, JSONOutputFormat, CSVOutputFormat, TensorBoardOutputFormat)
NOISES = (NormalActionNoise, OrnsteinUhlenbeckActionNoise, VectorizedActionNoise)
HOST_WRAPPERS = (VecVideoRecorder,)
# Environments whose observations are never overwritten. Other environments may reuse their memory.
KEEPS_OBSERVATIONS = (
    *(SerialVecEnv, GymVecEnv, NativeVecEnv, ProcessVecEnv, JaxVecEnv),
    *(DummyVecEnv, SubprocVecEnv),
)
SERIAL = (SerialVecEnv, DummyVecEnv)
# Others, such as TransformObservation, call functions of users.
GYMNASIUM_WRAPPERS = (TimeLimit, OrderEnforcing, PassiveEnvChecker, Monitor)
ELSEWHERE = (JaxVecEnv, ProcessVecEnv, SubprocVecEnv)
CONSTANT = getattr(utils, "ConstantSchedule", None)  # in later versions of SB3
# Schedules by their ids, and whether they are pure. Each model keeps its own, because they may refer to the model.
ReadSchedules = dict[int, tuple[object, Purity]]
MOST_SCHEDULES = 8


def register(cls: type) -> None:
    """Register one of bridge's classes with its present methods."""
    _ALGORITHMS.add(cls)
    remember(cls)
    # Including what was imported for it: modules of bridge and sb3-contrib are imported late.
    remember_packages("stable_baselines3", "sb3_contrib", "bridge")


def is_ours(cls: type) -> bool:
    """Return whether a class is one of bridge's algorithms itself, with its original methods."""
    return cls in _ALGORITHMS and not set(replaced(cls)) - BESIDE_TRAINING


def names_of_user_code(algorithm: object, env: VecEnv | None) -> tuple[str, ...]:
    """Return the names of all user code that a training calls (neither bridge's nor SB3's): methods, logger,
    schedules...

    Three kinds of user code are not included, because other modules handle them: callbacks (`callback_schedule`),
    environments (`run_no_user_code`), and networks (`Snapshot`).
    """
    names = [*_own_methods(algorithm)]
    if not _is_known_logger(vars(algorithm).get("_logger")):
        names.append("logger")
    names += impure_schedules(algorithm)
    buffer, noise = (vars(algorithm).get(name) for name in ("replay_buffer", "action_noise"))
    if not (buffer is None or ((is_known(buffer) or type(buffer) in SB3S_BUFFERS) and not has_own_methods(buffer))):
        names.append("replay_buffer")
    noises = [] if noise is None else [noise, *getattr(noise, "noises", ())]
    if not all(type(each) in NOISES and not has_own_methods(each) for each in noises):
        names.append("action_noise")
    *wrappers, _ = inner_environments(env)
    for each in wrappers:
        if has_own_methods(each) or not (is_compiled(type(each)) or type(each) in HOST_WRAPPERS):
            names.append(type(each).__name__)
    return tuple(names)


def _own_methods(algorithm: object) -> list[str]:
    """Return the names of methods that user code has put in place of bridge's: in a subclass, the model or a class.

    All are checked each time, because user code may replace one at any time.
    """
    cls = type(algorithm)
    ours = next(each for each in cls.__mro__ if each in _ALGORITHMS)
    in_model = [name for name in vars(algorithm).keys() & routines(ours) if name not in BESIDE_TRAINING]
    in_model += [name for name in replaced(cls) if name not in BESIDE_TRAINING and name not in in_model]
    if cls is ours:
        return in_model
    beside = BESIDE_TRAINING | {"predict"} if issubclass(ours, OnPolicyAlgorithm) else BESIDE_TRAINING
    names = {
        name
        for each in cls.__mro__
        if each not in ours.__mro__  # also classes after it: a mixin may be between bridge's class and SB3's
        for name, value in vars(each).items()
        if (hasattr(ours, name) and (callable(value) or hasattr(type(value), "__get__")))
        or (hasattr(type(value), "__set__") and getattr(value, "fset", value) is not None)
    }
    known = {*beside, *in_model}
    return sorted(name for name in names - known if not name.startswith("__") or name in _ACCESS) + in_model


def replaced_in_sb3(algorithm: object) -> list[str]:
    """Return the names of methods that bridge's class overrides, and that user code has replaced in SB3's class."""
    cls = type(algorithm)
    return [name for name in replaced(cls) if name not in BESIDE_TRAINING and is_shadowed(cls, name)]


def inner_environments(env: VecEnv | None) -> Iterable[VecEnv | None]:
    """Yield the environments of a model, the outermost wrapper first, and None last where there are none."""
    while isinstance(env, VecEnvWrapper):
        yield env
        env = vars(env).get("venv")  # a copy of a VecNormalize has none, and SB3's `__getattr__` never ends then
    yield env


def run_no_user_code(env: VecEnv | None) -> bool:
    """Return whether no code of users runs in this process when the environments are stepped.

    JAX environments are compiled, other processes cannot reach the model, and Gymnasium's own environments, with the
    wrappers that `gymnasium.make` and SB3 put around them, do not know it.
    """
    *_, inner = inner_environments(env)
    if inner is None or (type(inner) in ELSEWHERE and not has_own_methods(inner)):
        return True
    if type(inner) not in SERIAL or has_own_methods(inner):
        return False
    return all(map(_is_gymnasiums, cast(DummyVecEnv, inner).envs))


def _is_gymnasiums(env: Any) -> bool:
    while type(env) in GYMNASIUM_WRAPPERS and _has_library_methods(env):
        env = env.env
    return type(env).__module__.startswith("gymnasium.envs.") and _has_library_methods(env)


def _has_library_methods(env: object) -> bool:
    """Return whether the methods of an environment that a training calls are still the library's."""
    methods = [getattr(getattr(type(env), name), "__module__", "") for name in ("step", "reset")]
    return not has_own_methods(env) and all(each.startswith(("gymnasium.", "stable_baselines3.")) for each in methods)


def keeps_observations(env: VecEnv | None) -> bool:
    """Return whether environments return observations that they never overwrite, so that they may be read later."""
    *_, inner = inner_environments(env)
    return type(inner) in KEEPS_OBSERVATIONS and not has_own_methods(inner)


def _is_known_logger(logger: object) -> bool:
    if logger is None:  # until learning begins
        return True
    if type(logger) is not Logger or has_own_methods(logger):
        return False
    return all(type(each) in FORMATS for each in logger.output_formats)


def impure_schedules(algorithm: object) -> dict[str, str]:
    """Return the names of a model's schedules that are not known to be pure, and why."""
    names = ("lr_schedule", "clip_range", "clip_range_vf", "exploration_schedule")
    read: ReadSchedules = vars(algorithm).setdefault("_read_schedules", {})
    return {name: why for name in names if (why := why_impure(vars(algorithm).get(name), read))}


def why_impure(schedule: object, read: ReadSchedules | None = None) -> str | None:
    """Return why it may make a difference how often a schedule is called; None if it makes none.

    Args:
      read: what is known of schedules that were read before; this one is added.
    """
    read = {} if read is None else read
    while type(schedule) in SCHEDULES:
        schedule = vars(schedule).get("value_schedule")
    if schedule is None or isinstance(schedule, int | float):
        return None
    # It is read again only if something that it reads has changed.
    known, purity = read.get(id(schedule), (None, None))
    if purity is None or known is not schedule or not purity.reads.is_current():
        if len(read) > MOST_SCHEDULES:
            read.clear()
        read[id(schedule)] = schedule, (purity := Purity(schedule))
    return purity.reason


def is_constant(schedule: object) -> bool:
    """Return whether a schedule is SB3's schedule of a number."""
    return type(schedule) in SCHEDULES and type(vars(schedule).get("value_schedule", schedule)) is CONSTANT
