"""jaxenvs.sb3.train_seeds: train a model with many seeds in one compiled function."""

from __future__ import annotations

import copy
import io
from collections.abc import Iterable
from typing import Any, TypeVar

import numpy as np
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from bridge.algorithms.common.compiled_algorithm import CompiledAlgorithm
from bridge.configuration import with_own_settings
from bridge.errors import NotCompilable
from bridge.seeds.model_training import Model, require_fully_compiled
from bridge.seeds.seed_sweep import SeedSweep
from bridge.vec_env.jax_vec_env import JaxVecEnv
from jaxenvs import arguments

AnyModel = TypeVar("AnyModel", bound=Model)
LAST_SEED = 2**32 - 1  # NumPy's
# The values of the remaining progress at which schedules are compared. At 1, DQN's may divide by 0.
PROGRESS = np.linspace(1, 0, 101)[1:].tolist()


@with_own_settings
def train_seeds(model: AnyModel, total_timesteps: int, seeds: Iterable[int]) -> list[AnyModel]:
    """Train one agent for each seed, all in one function that is compiled once and uses all cores of a CPU.

    Use it to measure how much results vary between seeds, in less time than separate trainings. Each agent is what the
    constructor of `model` makes with that seed, on environments of that seed, and has learned as by
    `learn(total_timesteps)`, but with other random numbers. It can be saved, evaluated, and trained further. There are
    no callbacks and no logs, and replay buffers are empty afterwards.

    For all cores, call `jaxenvs.learn.sweep.reserve_threads()` before JAX runs anything; otherwise one core trains all
    agents, and a warning says so.

    Args:
      model: a compiled algorithm, on JAX environments, optionally in a VecNormalize, that has not begun to learn. It
        is not changed.
      total_timesteps: environment steps of each agent.
      seeds: the seeds of the agents, integers from 0 to 2**32 - 1.

    Returns:
      The trained models, in the order of the seeds.

    Raises:
      NotCompilable: something cannot be compiled into one function, such as a custom class, method or schedule.
      TypeError, ValueError: an argument is invalid, `model` has begun to learn, or parameters became NaN.
    """
    arguments.instance("model", model, CompiledAlgorithm, "an algorithm of jaxenvs.sb3")
    total_timesteps = arguments.positive_int("total_timesteps", total_timesteps)
    seeds = arguments.instance("seeds", seeds, Iterable, "an iterable of ints")
    numbers = [arguments.integer("seeds", seed, 0, LAST_SEED) for seed in seeds]
    if not numbers:
        raise ValueError("seeds must hold at least one seed, got none.")
    if model.num_timesteps:
        raise ValueError(f"model must not have begun to learn, got one with {model.num_timesteps} steps.")
    require_fully_compiled(model)
    _require_constructors_schedules(model)
    models = _with_seeds(model, numbers)
    sweep = SeedSweep(models, total_timesteps)
    while not sweep.is_done:
        sweep.advance()
    if failed := sweep.finish():
        raise ValueError(
            f"Parameters became NaN with the seeds {[numbers[i] for i in failed]}. Leave them out, or try a lower "
            "learning_rate, and check that observations and rewards are finite."
        )
    return models


def _require_constructors_schedules(model: Any) -> None:
    """Raise NotCompilable for schedules that were set on the model: models of other seeds get the constructor's."""
    fresh = object.__new__(type(model))
    fresh.learning_rate = model.learning_rate
    fresh._setup_lr_schedule()
    expected = {"lr_schedule": fresh.lr_schedule}
    if hasattr(model, "exploration_schedule"):
        names = ("exploration_fraction", "exploration_initial_eps", "exploration_final_eps")
        fraction, first, last = (getattr(model, name) for name in names)
        expected["exploration_schedule"] = lambda progress: np.interp(1 - progress, [0, fraction], [first, last])
    for name, schedule in expected.items():
        own = getattr(model, name)
        if getattr(own, "value_schedule", own) is model.learning_rate:
            continue  # a function. It is not called more often than needed
        values, expected_values = ([float(each(progress)) for progress in PROGRESS] for each in (own, schedule))
        if not np.allclose(values, expected_values, atol=0):
            raise NotCompilable(
                f"{name} of the model was replaced, and the constructor for each seed would not set it: pass it to "
                "the constructor of the model, if the constructor takes it."
            )


def _with_seeds(model: Any, seeds: list[int]) -> list[Any]:
    """Return, for each seed, what the constructor of the model makes with it, on separate environments."""
    file, models = io.BytesIO(), []
    model.save(file)
    for seed in seeds:
        file.seek(0)
        own = type(model).load(file, env=_with_seed(model.get_env(), seed), device=model.device, seed=seed)
        own._setup_model()  # draws new weights; `load` has set the saved ones
        own.asked_device = model.asked_device
        models.append(own)
    return models


def _with_seed(env: VecEnv, seed: int) -> VecEnv:
    base = env.unwrapped
    assert isinstance(base, JaxVecEnv)
    fresh = base.with_envs(base.venv)
    fresh.seed(seed)
    if not isinstance(env, VecNormalize):
        return fresh
    normalize = copy.deepcopy(env)  # the copy has no environments
    normalize.set_venv(fresh)
    return normalize
