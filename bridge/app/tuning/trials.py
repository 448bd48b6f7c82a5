"""A trial: agents of many seeds trained with the hyper-parameters that it draws, and evaluated now and then."""

from __future__ import annotations

import dataclasses
import json
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.storages import RetryHeartbeatStaleTrialCallback
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import VecEnv

from bridge.app.config import TrainingConfig
from bridge.app.evaluation import evaluate_model
from bridge.app.hyperparameters import NOISE
from bridge.app.runs import folders_of_models, make_env, make_model
from bridge.app.tuning.spaces import settings
from bridge.app.tuning.storage import BEGUN
from bridge.errors import NotCompilable
from bridge.seeds.model_training import training_of
from bridge.seeds.shared_sweep import SharedSweep, structure_of
from jaxenvs.cli import UserError
from jaxenvs.learn import Training

# So many programs and their models are kept; `sweep` keeps two for each.
MOST_PROGRAMS = 16
RETURNS = "returns"  # among a trial's user_attrs: of each seed, in its last evaluation


@dataclasses.dataclass
class Agents:
    """Models of all seeds, and what trains them."""

    configs: list[TrainingConfig]
    envs: list[VecEnv]
    sweep: SharedSweep

    @classmethod
    def make(cls, config: TrainingConfig) -> Agents:
        """
        Raises:
          UserError: the config is not accepted, or cannot be one program.
        """
        configs = [each for _, each in folders_of_models(Path(), config)]
        envs = [make_env(each) for each in configs]
        models = [make_model(each, env) for each, env in zip(configs, envs)]
        return cls(configs, envs, SharedSweep(cast(Any, models), config.total_timesteps))

    def evaluate(self, n_episodes: int) -> list[float]:
        """The mean return of each agent; minus infinity of one whose weights are no numbers."""
        sound, models = self.sweep.finish(), cast("list[BaseAlgorithm]", self.sweep.models)
        return [
            evaluate_model(config, model, env, n_episodes).mean if is_sound else -np.inf
            for config, model, env, is_sound in zip(self.configs, models, self.envs, sound)
        ]


class Objective:
    """What Optuna maximises: the median over the seeds of the mean return of deterministic episodes at the end.

    Trials that differ in numbers alone share their programs. Diverged trials, whose median agent has no numbers for
    weights, are pruned.
    """

    def __init__(
        self,
        config: TrainingConfig,
        space: Mapping[str, BaseDistribution],
        n_evaluations: int,
        n_eval_episodes: int,
    ) -> None:
        """
        Args:
          config: of a trial, but for what `space` draws.
          space: see `bridge.app.tuning.spaces`.
          n_evaluations: of a trial: after each but the last it may be pruned.
          n_eval_episodes: of each agent in each evaluation.
        """
        self._config, self._space = config, space
        self._n_evaluations, self._n_eval_episodes = n_evaluations, n_eval_episodes
        self._agents: OrderedDict[Any, Agents] = OrderedDict()

    def __call__(self, trial: optuna.Trial) -> float:
        try:
            trial.set_user_attr(BEGUN, trial.number)
            params = {name: _suggest(trial, name, among) for name, among in self._space.items()}
            return self._run(trial, self.config_of(params))
        except KeyboardInterrupt:
            RetryHeartbeatStaleTrialCallback()(trial.study, trial.study.trials[trial.number])  # for any worker
            raise

    def config_of(self, params: Mapping[str, Any]) -> TrainingConfig:
        """The config of a trial.

        Args:
          params: as the trial has them.

        Raises:
          UserError: the algorithm does not accept them.
        """
        fields = {field.name: getattr(self._config, field.name) for field in dataclasses.fields(self._config)}
        return TrainingConfig.resolve(**fields | {"hyperparameters": settings(params, self._config)})

    def _run(self, trial: optuna.Trial, config: TrainingConfig) -> float:
        agents, training = self._agents_for(config)
        agents.sweep.begin(training)
        try:
            return self._train(trial, agents)
        finally:
            agents.sweep.release()

    def _train(self, trial: optuna.Trial, agents: Agents) -> float:
        sweep, median, returns = agents.sweep, -np.inf, list[float]()
        for evaluation in range(1, self._n_evaluations + 1):
            until = -(-evaluation * sweep.num_iterations // self._n_evaluations)
            while sweep.iteration < until:
                sweep.advance(until)
            returns = agents.evaluate(self._n_eval_episodes)
            median = float(np.median(returns))
            if np.isinf(median):
                raise optuna.TrialPruned(f"Diverged before evaluation {evaluation}.")
            trial.report(median, evaluation)
            if evaluation < self._n_evaluations and trial.should_prune():
                raise optuna.TrialPruned(f"Pruned at evaluation {evaluation}.")
        trial.set_user_attr(RETURNS, returns)
        return median

    def _agents_for(self, config: TrainingConfig) -> tuple[Agents, Training]:
        """Agents of the same structure, and the training of the config, of which they take the numbers."""
        try:
            model: Any = make_model(config, make_env(config))
            training = training_of(model, config.total_timesteps)
            in_training = {field.name for field in dataclasses.fields(training.algorithm)} | NOISE.keys()
            others = {name: value for name, value in config.hyperparameters.items() if name not in in_training}
            key = (structure_of(training), json.dumps(others, sort_keys=True))
            agents = self._agents.pop(key, None) or Agents.make(config)
        except NotCompilable as reason:
            raise UserError(f"This cannot be trained in one program: {reason}") from reason
        self._agents[key] = agents
        if len(self._agents) > MOST_PROGRAMS:
            self._agents.popitem(last=False)
        return agents, training


def _suggest(trial: optuna.Trial, name: str, among: BaseDistribution) -> Any:
    if isinstance(among, CategoricalDistribution):
        return trial.suggest_categorical(name, among.choices)
    suggest = trial.suggest_int if isinstance(among, IntDistribution) else trial.suggest_float
    ends: Any = among
    return suggest(name, ends.low, ends.high, step=ends.step, log=ends.log)
