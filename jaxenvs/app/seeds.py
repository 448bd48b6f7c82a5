"""Many seeds of a training run as one compiled program."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecNormalize

import jaxenvs
from bridge.algorithms.on_policy import CompiledOnPolicyAlgorithm
from bridge.translate.optimizers import export_optimizer, write_optimizer
from bridge.translate.policies import NotCompilable, export_policy, read_parameters, write_parameters
from bridge.wrappers.compiled_env import CompiledEnv
from jaxenvs.app.config import TrainingConfig, UserError
from jaxenvs.app.hyperparameters import to_schedule
from jaxenvs.app.training import evaluate_model, make_env, make_model, save_model
from jaxenvs.learn import Moments, OnPolicy, Result, train
from jaxenvs.learn.sweep import sweep


def train_seeds(config: TrainingConfig, out: Path) -> np.ndarray:
    """Train `config.num_seeds` agents side by side; write a folder seed-N for each, with the model.zip that SB3 loads,
    and config.json and learning_curve.png for all.

    Returns:
      The mean return of each agent's evaluation, (num_seeds,).

    Raises:
      UserError: the config is not accepted, or cannot be compiled.
    """
    configs = [dataclasses.replace(config, seed=config.seed + i, num_seeds=1) for i in range(config.num_seeds)]
    models = [_make_model(each) for each in configs]
    learner = _learner(config, models[0])
    out.mkdir(parents=True, exist_ok=True)
    config.save(out / "config.json")
    print(
        f"Training {config.algorithm} on {config.num_envs} x {config.env_id} for {config.total_timesteps} steps, "
        f"seeds {config.seed} to {configs[-1].seed} in one program, into {out}",
        flush=True,
    )
    keys = jnp.stack([jax.random.key(each.seed % 2**32) for each in configs])
    params = jnp.stack([jnp.asarray(read_parameters(model.policy)) for model in models])
    results: Result = jax.device_get(sweep(lambda key, params: train(key, learner, params), keys, params))

    means = []
    for i, (each, model) in enumerate(zip(configs, models)):
        _take_over(model, jax.tree.map(lambda leaf, i=i: leaf[i], results), config.total_timesteps)
        folder = out / f"seed-{each.seed}"
        folder.mkdir(exist_ok=True)
        save_model(model, folder)
        means.append(evaluate_model(each, model)[0])
    _plot(config, results.metrics, out / "learning_curve.png")
    return np.array(means)


def _make_model(config: TrainingConfig) -> CompiledOnPolicyAlgorithm:
    model = make_model(config, make_env(config))
    assert isinstance(model, CompiledOnPolicyAlgorithm)
    return model


def _learner(config: TrainingConfig, model: CompiledOnPolicyAlgorithm) -> OnPolicy:
    """The settings of the model, with a value of each schedule for each iteration."""
    try:
        env = CompiledEnv(model.get_env())
        network = export_policy(model.policy)
        optimizer = export_optimizer(model.policy.optimizer)
    except NotCompilable as reason:
        raise UserError(f"--seeds trains compiled agents only: {reason}") from reason
    learner = model._learner(
        venv=env.base.venv,
        network=network,
        optimizer=optimizer,
        n_steps=model.n_steps,
        noise_steps=model.noise_steps(model.n_steps),
        normalize=env.normalize is not None,
        total_timesteps=config.total_timesteps,
    )
    rollout = model.n_steps * config.num_envs
    # SB3 looks at what remains after collecting a rollout, when it learns from it.
    remaining = 1 - rollout * np.arange(1, learner.num_iterations + 1) / config.total_timesteps
    schedules: dict[str, Any] = {}
    for name in learner.SCHEDULED:
        schedule = to_schedule(config.hyperparameters[name])
        if callable(schedule):
            schedules[name] = jnp.array([schedule(progress) for progress in remaining])
        else:
            schedules[name] = schedule
    return learner.replace(**schedules)


def _take_over(model: CompiledOnPolicyAlgorithm, result: Result, total_timesteps: int) -> None:
    """Leave the model as its own training would have."""
    write_parameters(model.policy, result.state.params)
    write_optimizer(model.policy.optimizer, result.state.optimizer_state)
    epochs = result.metrics.get("epochs")
    model._n_updates = len(result.metrics["timesteps"]) if epochs is None else int(epochs.sum())
    model.num_timesteps = int(result.metrics["timesteps"][-1])
    model._total_timesteps = total_timesteps
    model._current_progress_remaining = 1 - model.num_timesteps / total_timesteps
    env = model.get_env()
    if isinstance(env, VecNormalize) and result.normalizer is not None:
        moments, all_rms = result.normalizer.observation, env.obs_rms
        if isinstance(all_rms, dict):
            for name, rms in all_rms.items():
                _set(rms, moments[name])
        else:
            _set(all_rms, moments)
        _set(env.ret_rms, result.normalizer.reward)


def _set(rms: RunningMeanStd, moments: Moments) -> None:
    rms.mean, rms.var = (np.asarray(part, np.float64) for part in (moments.mean, moments.variance))
    rms.count = float(moments.count)


def _plot(config: TrainingConfig, metrics: dict[str, Any], path: Path) -> None:
    from jaxenvs.app.learning_curve import plot_seeds  # here, because matplotlib takes long to import

    plot_seeds(
        metrics["timesteps"][0],
        metrics["episode_return"],
        metrics["episodes"],
        path,
        title=f"{config.env_id}, {config.algorithm}, {config.num_seeds} seeds",
        threshold=jaxenvs.spec(config.env_id).reward_threshold,
    )
