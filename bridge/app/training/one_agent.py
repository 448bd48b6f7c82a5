"""A training run of the command line: train or resume, save, evaluate."""

from __future__ import annotations

from pathlib import Path

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import configure

from bridge import NotCompilable
from bridge.app.config import TrainingConfig
from bridge.app.evaluation import describe, ending_env, evaluate_model
from bridge.app.files import CannotWrite, make_folder, writing
from bridge.app.runs import (
    CHECKPOINT,
    CONFIG,
    config_of_checkpoint,
    files_of,
    make_env,
    make_model,
    read_checkpoint,
    save_model,
)
from bridge.app.training.callbacks import (
    Checkpoints,
    EpisodeLog,
    Interrupt,
    ProgressUpdates,
    Stopped,
    evaluations,
    progress_bar,
)
from bridge.app.training.learning_curve import draw_learning_curve
from jaxenvs.cli.user_errors import UserError

NO_STATE = "the state of environments that are not JAX environments cannot be saved"
EVALUATED_AT_ONCE = 5  # episodes of an evaluation with --eval-freq, each in its own environment


class Interrupted(Exception):
    """Ctrl-C during training. What was learnt until then is saved."""

    def __init__(self, num_timesteps: int, out: Path, can_resume: bool = True) -> None:
        to_go_on = f" To resume: jaxenvs train --resume {out}" if can_resume else ""
        super().__init__(f"Interrupted after {num_timesteps} steps; the agent so far is saved in {out}.{to_go_on}")


def train(config: TrainingConfig, out: Path, resume: bool = False) -> str:
    """Train one agent, save it, and evaluate it.

    It writes `files_of(config)` into the folder `out`. A stopped run continues from checkpoint.zip.

    Args:
      config: of the run.
      out: the folder to write to.
      resume: continue from the checkpoint in `out`; if there is none, begin anew.

    Returns:
      The result of the trained model's evaluation, as a line of text.

    Raises:
      UserError: the environment or the algorithm does not accept the config; nothing can be written; or the run cannot
        be resumed, as its environments are not JAX environments.
      Interrupted: by Ctrl-C during training, after everything was written.
    """
    can_resume = config.backend == "jax"
    if resume and not can_resume:
        raise UserError(f"{out} cannot be resumed, because {NO_STATE}.")
    resumes = resume and (out / CHECKPOINT).exists()
    if resumes:
        config.require_begun_as(config_of_checkpoint(out), out / CONFIG)
    env, episodes = make_env(config), EpisodeLog()
    if resumes:
        model = read_checkpoint(out, config, env)
        episodes.read(out, until=model.num_timesteps)
    else:
        model = make_model(config, env)
    make_folder(out)
    config.save(out / CONFIG)
    try:
        with Interrupt() as interrupt:
            announce(config, out, model.num_timesteps)
            if not can_resume:
                print(f"This run writes no checkpoints and cannot be resumed, because {NO_STATE}.")
            checkpoints = Checkpoints(config, out, episodes, interrupt)
            _learn(model, config, out, episodes, checkpoints)
            save_model(model, out)
            episodes.write(out)
            draw_learning_curve(config, out)
    except CannotWrite as error:
        kept = f" The last checkpoint is intact. To resume: jaxenvs train --resume {out}" if can_resume else ""
        raise UserError(f"{error}{kept}") from error
    if interrupt.came:
        raise Interrupted(model.num_timesteps, out, can_resume)
    result = describe(evaluate_model(config, model, env))
    env.close()
    return result


def announce(config: TrainingConfig, out: Path, num_timesteps: int) -> None:
    """Print what is trained, and which files that will write.

    Args:
      num_timesteps: the number of steps from which a resumed run continues.
    """
    if num_timesteps >= config.total_timesteps:
        print(f"{out} is finished, after {num_timesteps} steps. To train longer, add a larger --total-timesteps.")
        return
    last = config.seed + config.num_seeds - 1
    print(
        f"Training {config.algorithm} on {config.num_envs} x {config.env_id} for {config.total_timesteps} steps"
        + (f" from {num_timesteps} on, " if num_timesteps else ", ")
        + (
            f"seed {config.seed}"
            if config.num_seeds == 1
            else f"seeds {config.seed} to {last} in one compiled function"
        )
        + (f", over {config.devices} device{'s' * (config.devices > 1)}" if config.devices else "")
        + f"\nIt will write to {out}: {', '.join(files_of(config))}",
        flush=True,
    )


def _learn(
    model: BaseAlgorithm, config: TrainingConfig, out: Path, episodes: EpisodeLog, checkpoints: Checkpoints
) -> None:
    """Learn until the budget is spent or Ctrl-C comes.

    Raises:
      UserError: something cannot be compiled with engine="xla", or became NaN.
      CannotWrite: a file in `out` cannot be written.
    """
    remaining = config.total_timesteps - model.num_timesteps
    if remaining <= 0:
        return
    try:
        with writing(out), progress_bar(total=config.total_timesteps, initial=model.num_timesteps) as bar:
            logs = Path(config.tensorboard_log) / out.name if config.tensorboard_log else out / "tensorboard"
            model.set_logger(configure(str(logs), ["tensorboard"]))
            callbacks: list[BaseCallback] = [episodes, checkpoints, ProgressUpdates(bar)]
            if config.eval_freq:
                env = ending_env(config, EVALUATED_AT_ONCE, like=model.get_env())
                callbacks.append(evaluations(config, env, out, model.num_timesteps))
            model.learn(remaining, callback=callbacks, reset_num_timesteps=False)
        checkpoints.write_last()
    except Stopped:
        pass  # the checkpoint was written
    except NotCompilable as reason:
        raise UserError(str(reason)) from reason
    except ValueError as error:  # for example weights that became NaN
        saved = f" The last checkpoint is in {out}." if (out / CHECKPOINT).exists() else ""
        raise UserError(f"Training stopped after {model.num_timesteps} steps: {error}{saved}") from error
