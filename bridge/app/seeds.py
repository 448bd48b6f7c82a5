"""Many seeds of a training run as one compiled program."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from stable_baselines3.common.vec_env import VecEnv

import jaxenvs
from bridge.app.callbacks import Interrupt, Timer, progress_bar
from bridge.app.config import TrainingConfig
from bridge.app.evaluation import describe_seeds, evaluate_model
from bridge.app.files import CannotWrite, make_folder, replacing
from bridge.app.model_training import Model, parameters_of, take_over, training_of
from bridge.app.runs import CONFIG, CURVE, SEEDS_CHECKPOINT, folders_of_models, make_env, make_model, save_model
from bridge.app.training import Interrupted, announce
from jaxenvs.arrays import from_arrays, to_arrays
from jaxenvs.cli import UserError
from jaxenvs.learn import OffPolicySettings, Training, TrainingState, advance
from jaxenvs.learn.sweep import compile_sweep, sweep

# Between two calls of the program progress is shown, a checkpoint written, and Ctrl-C heard.
SECONDS_PER_CALL = 1.0
MOST_ROWS_PER_CALL = 256
# A row of metrics is of one rollout; off-policy, where an iteration may be one step, of some of them.
MOST_ITERATIONS_PER_ROW = 64
KEPT = ("timesteps", "episodes", "episode_return", "epochs")  # of the metrics
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
    training = training_of(config, models[0])
    keys = jnp.stack([jax.random.key(each.seed) for _, each in folders])
    params = jax.tree.map(lambda *leaves: jnp.stack(leaves), *map(parameters_of, models))
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
                take_over(model, own_state, own_metrics, each.total_timesteps)
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
    in_a_row = _iterations_in_a_row(training, training.num_iterations - done)
    timesteps = in_a_row * training.algorithm.steps_per_iteration * config.num_envs
    program, count = _program(training, state, in_a_row), 1
    with progress_bar(config.total_timesteps, int(metrics["timesteps"][0, -1]) if metrics else 0) as bar:
        while done < training.num_iterations and not interrupt.came:
            count = min(count, (training.num_iterations - done) // in_a_row, MOST_ROWS_PER_CALL)
            start = time.monotonic()
            state, new = program(state, jnp.full(config.num_seeds, count))
            rows = {name: np.asarray(row)[:, :count] for name, row in new.items()}
            metrics = {name: np.concatenate([metrics.get(name, row[:, :0]), row], 1) for name, row in rows.items()}
            done += count * in_a_row
            bar.update(count * timesteps)
            # At most twice as many as before, as the first calls are slower than the rest.
            count = max(1, int(count * min(2, SECONDS_PER_CALL / (time.monotonic() - start))))
            if timer.is_due:
                with timer.writing():
                    _write(path, state, metrics)
    return state, metrics


def _iterations_in_a_row(training: Training, left: int) -> int:
    """Of how many iterations a row of metrics is: a number that divides those that are left."""
    if not isinstance(training.algorithm, OffPolicySettings):
        return 1
    return next(count for count in range(min(MOST_ITERATIONS_PER_ROW, left), 0, -1) if left % count == 0)


def _program(
    training: Training, state: TrainingState, in_a_row: int
) -> Callable[..., tuple[TrainingState, dict[str, jax.Array]]]:
    """States and a number of rows to states and metrics: as `advance`, whose number is part of the program."""

    def advance_a_row(state: TrainingState) -> tuple[TrainingState, dict[str, jax.Array]]:
        state, metrics = advance(training, state, in_a_row)
        episodes = metrics["episodes"]
        row = {name: values[-1] if name == "timesteps" else values.sum() for name, values in metrics.items()}
        row["episode_return"] = (metrics["episode_return"] * episodes).sum() / jnp.maximum(episodes.sum(), 1)
        return state, {name: row[name] for name in KEPT if name in row}

    def run(state: TrainingState, num_rows: jax.Array) -> Any:
        def iterate(i: jax.Array, carry: Any) -> Any:
            state, metrics = carry
            state, row = advance_a_row(state)
            return state, jax.tree.map(lambda rows, row: rows.at[i].set(row), metrics, row)

        shapes = jax.eval_shape(lambda state: advance_a_row(state)[1], state)
        metrics = jax.tree.map(lambda leaf: jnp.zeros(MOST_ROWS_PER_CALL, leaf.dtype), shapes)
        return jax.lax.fori_loop(0, num_rows, iterate, (state, metrics))

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
        return from_arrays(like, _in_larger_store(like, arrays)), metrics
    except Exception as error:  # whatever reading a damaged file ends in
        raise UserError(f"Cannot go on from {path}: {type(error).__name__}: {error}") from error


def _in_larger_store(like: Any, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays with a replay store as large as that of `like`: a larger budget has a larger one."""
    replay = getattr(like, "replay", None)
    if replay is None or arrays[".replay.tag"].shape[1] >= replay.tag.shape[1]:
        return arrays
    grown = dict(arrays)
    for path, leaf in jax.tree_util.tree_leaves_with_path(replay):
        name = f".replay{jax.tree_util.keystr(path)}"
        more = [(0, new - old) for new, old in zip(leaf.shape, arrays[name].shape)]
        # No end, and slots without a past: see Replay.create.
        empty = -1 if name in (".replay.tag", ".replay.end_slot") else 0
        grown[name] = np.pad(arrays[name], more, constant_values=empty)
    # It had room for the budget, so if it was full, it had just become so.
    was_full = (arrays[".replay.position"] == 0) & (arrays[".iteration"] > 0)
    rows = np.int32(arrays[".replay.tag"].shape[1])
    grown[".replay.position"] = np.where(was_full, rows, arrays[".replay.position"])
    return grown


def _make_model(config: TrainingConfig, env: VecEnv) -> Model:
    model = make_model(config, env)
    assert isinstance(model, Model)
    return model


def _plot(config: TrainingConfig, metrics: Metrics, path: Path) -> None:
    from bridge.app.learning_curve import plot_seeds  # here, because matplotlib takes long to import

    with replacing(path) as unfinished:
        plot_seeds(
            metrics["timesteps"][0],
            metrics["episode_return"],
            metrics["episodes"],
            unfinished,
            title=f"{config.env_id}, {config.algorithm}, {config.num_seeds} seeds",
            threshold=jaxenvs.spec(config.env_id).reward_threshold,
        )
