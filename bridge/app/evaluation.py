"""Evaluation of trained agents."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from pathlib import Path

import gymnasium
import numpy as np
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecEnv

from bridge import Evaluation, NotCompilable, evaluate
from bridge.app.config import TrainingConfig
from bridge.app.runs import Agent, folders_of_models, load_agent, make_env, read_run
from bridge.evaluation.on_host import evaluate_on_host
from jaxenvs import TimeLimit

N_EPISODES = 100
# For episodes without a limit: an agent may have learnt to let them continue for ever.
MOST_STEPS = 10_000
# Environments on the host in an evaluation: a prediction for several costs little more than for one.
ON_HOST = 16


def evaluate_agent(agent: Agent, n_episodes: int | None = None, seed: int | None = None) -> Evaluation:
    """Run deterministic episodes on fresh environments, of N_EPISODES (100) and from `first_seed` on, if not given."""
    _, config, model, env = agent
    limit = None if config.environment.has_time_limit else MOST_STEPS
    seed = first_seed(config) if seed is None else seed
    n_episodes = N_EPISODES if n_episodes is None else n_episodes
    if config.backend == "jax":
        with contextlib.suppress(NotCompilable):  # then the model's own `predict` chooses the actions
            return evaluate(model, env, n_episodes, seed=seed, max_steps=limit)
    at_once = config.num_envs if config.backend == "process" else ON_HOST
    fresh = ending_env(config, min(n_episodes, at_once), like=env)
    try:
        return evaluate_on_host(model, fresh, n_episodes, True, seed, None)
    finally:
        fresh.close()


def ending_env(config: TrainingConfig, num_envs: int, like: VecEnv | None) -> VecEnv:
    """Make environments whose episodes end, if need be after MOST_STEPS, with the statistics of other environments."""
    wrapper: object = None
    if not config.environment.has_time_limit and config.backend == "jax":
        wrapper = functools.partial(TimeLimit, max_steps=MOST_STEPS)
    elif not config.environment.has_time_limit:  # in a Monitor, which must see where the limit ends episodes
        wrapper = lambda env: Monitor(gymnasium.wrappers.TimeLimit(env, MOST_STEPS))  # noqa: E731
    return make_env(dataclasses.replace(config, seed=first_seed(config)), num_envs, like=like, wrapper=wrapper)


def first_seed(config: TrainingConfig) -> int:
    """Return the first seed of an evaluation, which follows the seeds of the training's environments, seed + i."""
    return config.seed + config.num_envs


def evaluate_run(folder: Path, n_episodes: int | None, seed: int | None, best: bool = False) -> str:
    """Return the results of a run's agents, a line for each, and a line for all of them.

    Args:
      n_episodes, seed: as in `evaluate_agent`.
      best: as in `load_model`.

    Raises:
      UserError: the run cannot be read.
    """
    agents = [load_agent(each, config, best) for each, config in folders_of_models(folder, read_run(folder))]
    evaluations = [evaluate_agent(each, n_episodes, seed) for each in agents]
    lines = [f"{each.folder.name}: {describe(evaluation)}" for each, evaluation in zip(agents, evaluations)]
    return "\n".join([*(lines if len(lines) > 1 else []), describe_all(evaluations)])


def describe(evaluation: Evaluation) -> str:
    """Return an evaluation as a line of text."""
    returns = f"Return of {len(evaluation.returns)} episodes: {evaluation.mean:.2f} ± {evaluation.std:.2f}"
    cut = int((evaluation.lengths == MOST_STEPS).sum())
    return f"{returns} ({cut} of them cut after {MOST_STEPS} steps)" if cut else returns


def describe_all(evaluations: list[Evaluation]) -> str:
    """Return the evaluations of all agents of a run as a line of text."""
    if len(evaluations) == 1:
        return describe(evaluations[0])
    low, median, high = np.percentile([evaluation.mean for evaluation in evaluations], [25, 50, 75])
    n_episodes = len(evaluations[0].returns)
    return f"Mean return of {n_episodes} episodes each: median {median:.2f}, quartiles {low:.2f}, {high:.2f}"
