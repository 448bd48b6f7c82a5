"""Many seeds of a training run as one compiled program."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecEnv, VecNormalize, VecTransposeImage

import jaxenvs
from bridge.algorithms.on_policy import CompiledOnPolicyAlgorithm
from bridge.engine.plan import make_plan
from bridge.translate.modules import read_parameters, write_parameters
from bridge.translate.optimizers import write_optimizer
from jaxenvs.app.callbacks import Interrupt, Timer, progress_bar
from jaxenvs.app.config import TrainingConfig
from jaxenvs.app.errors import UserError
from jaxenvs.app.evaluation import describe_seeds, evaluate_model
from jaxenvs.app.files import CannotWrite, make_folder, replacing
from jaxenvs.app.hyperparameters import to_schedule
from jaxenvs.app.runs import CONFIG, CURVE, SEEDS_CHECKPOINT, folders_of_models, make_env, make_model, save_model
from jaxenvs.app.training import Interrupted, announce
from jaxenvs.arrays import from_arrays, to_arrays
from jaxenvs.learn import Moments, Training, TrainingState, advance
from jaxenvs.learn.sweep import compile_sweep, sweep

# Between two calls of the program progress is shown, a checkpoint written, and Ctrl-C heard.
SECONDS_PER_CALL = 1.0
MOST_ITERATIONS_PER_CALL = 256
METRICS = "metrics/"  # before their names in a checkpoint

Metrics = dict[str, np.ndarray]


def train_seeds(config: TrainingConfig, out: Path, resume: bool = False) -> str:
    """Train `config.num_seeds` agents side by side; write a folder seed-N for each, with the model.zip that SB3 loads,
    and config.json, learning_curve.png and, now and then, checkpoint.npz for all.

    Args:
      resume: go on from the checkpoint in `out`; without one, begin anew.

    Returns:
      What the evaluations of the agents came to, in a line.

    Raises:
      UserError: the config is not accepted, cannot be compiled, or nothing can be written.
      Interrupted: by Ctrl-C during training; everything was written all the same.
    """
    folders = folders_of_models(out, config)
    envs = [make_env(each) for _, each in folders]
    models = [_make_model(each, env) for (_, each), env in zip(folders, envs)]
    training = _training(config, models[0])
    keys = jnp.stack([jax.random.key(each.seed) for _, each in folders])
    params = jnp.stack([jnp.asarray(read_parameters(model.policy.parameters())) for model in models])
    make_folder(out)
    config.save(out / CONFIG)
    path = out / SEEDS_CHECKPOINT
    if resume and path.exists():
        state, metrics = _read(path, jax.eval_shape(jax.vmap(training.init), keys, params))
    else:
        state, metrics = sweep(lambda key, params: training.init(key, params), keys, params), {}
    announce(config, out, int(metrics["timesteps"][0, -1]) if metrics else 0)
    try:
        with Interrupt() as interrupt:
            state, metrics = _train(config, training, state, metrics, path, interrupt)
            _write(path, state, metrics)
            for i, (model, (folder, each)) in enumerate(zip(models, folders)):
                own_state, own_metrics = jax.tree.map(lambda leaf, i=i: leaf[i], (jax.device_get(state), metrics))
                _take_over(model, own_state, own_metrics, each.total_timesteps)
                make_folder(folder)
                save_model(model, folder)
            if metrics:
                _plot(config, metrics, out / CURVE)
    except CannotWrite as error:
        raise UserError(f"{error} Nothing before the last checkpoint is lost: jaxenvs train --resume {out}") from error
    if interrupt.came:
        raise Interrupted(models[0].num_timesteps, out)
    evaluations = [evaluate_model(each, model, env) for model, env, (_, each) in zip(models, envs, folders)]
    return describe_seeds(evaluations)


def _train(
    config: TrainingConfig, training: Training, state: TrainingState, metrics: Metrics, path: Path, interrupt: Interrupt
) -> tuple[TrainingState, Metrics]:
    """Train until the budget is spent or Ctrl-C comes."""
    done, timer = int(state.iteration[0]), Timer()
    if done >= training.num_iterations:
        return state, metrics
    timesteps = training.algorithm.n_steps * config.num_envs
    program, count = _program(training, state), 1
    with progress_bar(config.total_timesteps, done * timesteps) as bar:
        while done < training.num_iterations and not interrupt.came:
            count = min(count, training.num_iterations - done, MOST_ITERATIONS_PER_CALL)
            start = time.monotonic()
            state, new = program(state, jnp.full(config.num_seeds, count))
            rows = {name: np.asarray(row)[:, :count] for name, row in new.items()}
            metrics = {name: np.concatenate([metrics.get(name, row[:, :0]), row], 1) for name, row in rows.items()}
            done += count
            bar.update(count * timesteps)
            # At most twice as many as before, as the first calls are slower than the rest.
            count = max(1, int(count * min(2, SECONDS_PER_CALL / (time.monotonic() - start))))
            if timer.is_due:
                with timer.writing():
                    _write(path, state, metrics)
    return state, metrics


def _program(training: Training, state: TrainingState) -> Callable[..., tuple[TrainingState, dict[str, jax.Array]]]:
    """States and a number of iterations to states and metrics: as `advance`, whose number is part of the program."""

    def run(state: TrainingState, num_iterations: jax.Array) -> Any:
        def iterate(i: jax.Array, carry: Any) -> Any:
            state, metrics = carry
            state, row = advance(training, state, 1)
            return state, jax.tree.map(lambda rows, row: rows.at[i].set(row[0]), metrics, row)

        shapes = jax.eval_shape(lambda state: advance(training, state, 1)[1], state)
        metrics = jax.tree.map(lambda leaf: jnp.zeros((MOST_ITERATIONS_PER_CALL, *leaf.shape[1:]), leaf.dtype), shapes)
        return jax.lax.fori_loop(0, num_iterations, iterate, (state, metrics))

    return compile_sweep(run, state, jnp.ones(len(state.iteration), int))


def _write(path: Path, state: TrainingState, metrics: Metrics) -> None:
    arrays: dict[str, Any] = to_arrays(state) | {f"{METRICS}{name}": array for name, array in metrics.items()}
    with replacing(path) as unfinished:
        np.savez(unfinished, **arrays)


def _read(path: Path, like: Any) -> tuple[TrainingState, Metrics]:
    try:
        with np.load(path) as file:
            arrays = dict(file)
        names = [name for name in arrays if name.startswith(METRICS)]
        metrics = {name.removeprefix(METRICS): arrays.pop(name) for name in names}
        return from_arrays(like, arrays), metrics
    except Exception as error:  # whatever reading a damaged file ends in
        raise UserError(f"Cannot go on from {path}: {type(error).__name__}: {error}") from error


def _make_model(config: TrainingConfig, env: VecEnv) -> CompiledOnPolicyAlgorithm:
    model = make_model(config, env)
    assert isinstance(model, CompiledOnPolicyAlgorithm)
    return model


def _training(config: TrainingConfig, model: CompiledOnPolicyAlgorithm) -> Training:
    """The settings of the model, with a value of each schedule for each iteration.

    Raises:
      UserError: not everything can be compiled.
    """
    env = model.get_env()
    plan = make_plan(model.engine, model.policy, env, model.rollout_buffer)
    reasons = list(plan.reasons)
    if isinstance(env, VecTransposeImage):
        reasons.append("The channels of its images come last.")
    if plan.chain is None or plan.network is None or plan.optimizer is None or reasons:
        raise UserError(f"--seeds cannot train this in one program: {' '.join(reasons)}")
    training = Training(
        plan.chain.base.venv,
        cast(Any, plan.network),
        model._settings(),
        config.total_timesteps,
        optimizer=plan.optimizer.transformation(plan.optimizer.settings(model.policy.optimizer)),
        normalize=isinstance(env, VecNormalize),
    )
    rollout = model.n_steps * config.num_envs
    # SB3 looks at what remains after collecting a rollout, when it learns from it.
    remaining = 1 - rollout * np.arange(1, training.num_iterations + 1) / config.total_timesteps
    schedules: dict[str, Any] = {}
    for name in training.algorithm.SCHEDULED:
        schedule = to_schedule(config.hyperparameters[name])
        if callable(schedule):
            schedules[name] = jnp.array([schedule(progress) for progress in remaining])
        else:
            schedules[name] = schedule
    return training.replace(**schedules)


def _take_over(model: CompiledOnPolicyAlgorithm, state: TrainingState, metrics: Metrics, total_timesteps: int) -> None:
    """Leave the model as its own training would have."""
    write_parameters(model.policy.parameters(), state.learner.params)
    write_optimizer(model.policy.optimizer, state.learner.optimizer_state)
    epochs = metrics.get("epochs")
    model._n_updates = int(state.iteration) if epochs is None else int(epochs.sum())
    model.num_timesteps = int(state.iteration) * model.n_steps * model.n_envs
    model._total_timesteps = total_timesteps
    model._current_progress_remaining = 1 - model.num_timesteps / total_timesteps
    env, normalizer = model.get_env(), state.normalizer
    if isinstance(env, VecNormalize) and normalizer is not None:
        moments, all_rms = normalizer.observation, env.obs_rms
        if isinstance(all_rms, dict):
            for name, rms in all_rms.items():
                _set(rms, moments[name])
        else:
            _set(all_rms, moments)
        _set(env.ret_rms, normalizer.reward)


def _set(rms: RunningMeanStd, moments: Moments) -> None:
    rms.mean, rms.var = (np.asarray(part, np.float64) for part in (moments.mean, moments.variance))
    rms.count = float(moments.count)


def _plot(config: TrainingConfig, metrics: Metrics, path: Path) -> None:
    from jaxenvs.app.learning_curve import plot_seeds  # here, because matplotlib takes long to import

    with replacing(path) as unfinished:
        plot_seeds(
            metrics["timesteps"][0],
            metrics["episode_return"],
            metrics["episodes"],
            unfinished,
            title=f"{config.env_id}, {config.algorithm}, {config.num_seeds} seeds",
            threshold=jaxenvs.spec(config.env_id).reward_threshold,
        )
