"""The objective of a study: train agents of several seeds with the hyperparameters that a trial draws."""

from __future__ import annotations

import dataclasses
import json
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution, distribution_to_json
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import VecEnv

from bridge.app.config import TrainingConfig
from bridge.app.evaluation import evaluate_model
from bridge.app.hyperparameters import NOISE
from bridge.app.runs import folders_of_models, make_env, make_model
from bridge.app.tuning.spaces import SPACES, Space, distributions, meant_by, settings
from bridge.errors import NotCompilable
from bridge.seeds.model_training import training_of
from bridge.seeds.seed_sweep import SeedSweep, structure_of
from jaxenvs import arguments
from jaxenvs.cli.user_errors import UserError
from jaxenvs.learn import Training

LENGTHS = ("n_steps", "train_freq", "learning_starts")  # for which a training may be too short
MOST_COMPILED = 16  # compiled functions that are kept, with their models
RETURNS = "returns"  # the user attribute of a trial that holds the last mean return of each seed


@dataclasses.dataclass
class Agents:
    """Models of all seeds, and the sweep that trains them in one compiled function."""

    configs: list[TrainingConfig]
    envs: list[VecEnv]
    sweep: SeedSweep

    @classmethod
    def make(cls, config: TrainingConfig) -> Agents:
        """Make the models of a config."""
        configs = [each for _, each in folders_of_models(Path(), config)]
        envs = [make_env(each) for each in configs]
        models = [make_model(each, env) for each, env in zip(configs, envs)]
        return cls(configs, envs, SeedSweep(cast(Any, models), config.total_timesteps, shares_compiled=True))

    def evaluate(self, n_episodes: int) -> list[float]:
        """Return the mean return of each agent: minus infinity for an agent whose weights are not finite."""
        sound, models = self.sweep.finish(skips_nan=True), cast("list[BaseAlgorithm]", self.sweep.models)
        return [
            evaluate_model(config, model, env, n_episodes).mean if is_sound else -np.inf
            for config, model, env, is_sound in zip(self.configs, models, self.envs, sound)
        ]


class Objective:
    """Objective that Optuna maximizes: the median over seeds of the mean return after training.

    The episodes are deterministic. Trials that differ only in numbers share a compiled function. A trial whose median
    agent diverges is pruned.

    Attributes:
      settings: everything that all trials of a study have in common, as JSON.
    """

    def __init__(
        self,
        algorithm: str,
        env_id: str,
        hyperparameters: Mapping[str, Any] | None,
        space: Space | None,
        n_evaluations: int,
        n_eval_episodes: int = 10,
        **run: Any,
    ) -> None:
        """Resolve the config that trials have in common.

        Args:
          algorithm, env_id, hyperparameters, space, n_evaluations, n_eval_episodes: as in `bridge.tune`.
          run: further arguments of `TrainingConfig.resolve`.

        Raises:
          UserError: a name or a choice is unknown, or does not fit the others.
        """
        arguments.positive_int("n_evaluations", n_evaluations)
        arguments.positive_int("n_eval_episodes", n_eval_episodes)
        given, space = dict(hyperparameters or {}), space or SPACES.get(algorithm, {})
        self._space = distributions({name: among for name, among in space.items() if meant_by(name) not in given})
        least = {name: _least(among) for name, among in self._space.items()}
        # The defaults may be too long for a short training.
        shortest = {name: least[name] for name in LENGTHS if name in least}
        self._config = TrainingConfig.resolve(algorithm, env_id, hyperparameters=shortest | given, **run)
        if not self._space:
            raise UserError("The space has no hyper-parameter to search, because all of them are given.")
        self.config_of(least)
        self._n_evaluations, self._n_eval_episodes = n_evaluations, n_eval_episodes
        self._agents: OrderedDict[Any, Agents] = OrderedDict()
        self.settings = self._config.as_json() | {"n_evaluations": n_evaluations, "n_eval_episodes": n_eval_episodes}
        self.settings["space"] = {name: json.loads(distribution_to_json(each)) for name, each in self._space.items()}

    def __call__(self, trial: optuna.Trial) -> float:
        """Train and evaluate the agents of a trial, and return its value.

        After Ctrl-C, the trial is queued up again.
        """
        try:
            params = {name: _suggest(trial, name, among) for name, among in self._space.items()}
            agents, training = self._agents_for(self.config_of(params))
            agents.sweep.begin(training)
            return self._train(trial, agents)
        except KeyboardInterrupt:
            trial.study.enqueue_trial(trial.params)
            raise
        finally:
            for each in self._agents.values():
                each.sweep.release()

    def config_of(self, params: Mapping[str, Any]) -> TrainingConfig:
        """Return the config of a trial with these params.

        Raises:
          UserError: the algorithm does not accept them.
        """
        fields = {field.name: getattr(self._config, field.name) for field in dataclasses.fields(self._config)}
        return TrainingConfig.resolve(**fields | {"hyperparameters": settings(params, self._config)})

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
        """Return agents whose compiled function fits the config, and the training from which they take the numbers."""
        try:
            model: Any = make_model(config, make_env(config))
            training = training_of(model, config.total_timesteps)
            in_training = {field.name for field in dataclasses.fields(training.algorithm)} | NOISE.keys()
            others = {name: value for name, value in config.hyperparameters.items() if name not in in_training}
            key = (structure_of(training), json.dumps(others, sort_keys=True))
            agents = self._agents.pop(key) if key in self._agents else Agents.make(config)
        except NotCompilable as reason:
            raise UserError(f"This training cannot be compiled as a whole: {reason}") from reason
        self._agents[key] = agents
        if len(self._agents) > MOST_COMPILED:
            self._agents.popitem(last=False)
        return agents, training


def _suggest(trial: optuna.Trial, name: str, among: BaseDistribution) -> Any:
    if isinstance(among, CategoricalDistribution):
        return trial.suggest_categorical(name, among.choices)
    suggest = trial.suggest_int if isinstance(among, IntDistribution) else trial.suggest_float
    ends: Any = among
    return suggest(name, ends.low, ends.high, step=ends.step, log=ends.log)


def _least(among: Any) -> Any:
    """Return the least value of a distribution; of choices without an int, the first."""
    if not isinstance(among, CategoricalDistribution):
        return among.low
    return min((choice for choice in among.choices if isinstance(choice, int)), default=among.choices[0])
