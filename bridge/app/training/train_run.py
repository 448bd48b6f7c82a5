"""A run of `jaxenvs train`: train or resume, save, evaluate."""

from __future__ import annotations

import contextlib
from pathlib import Path

from bridge import plot_results
from bridge.app.config import TrainingConfig
from bridge.app.evaluation import describe_all, evaluate_agent
from bridge.app.runs import CONFIG, CURVE, files_of, locked, refuse_used, require_writable, save_model, writing
from bridge.app.training.callbacks import Interrupt
from bridge.app.training.in_one_function import AgentsInOneFunction
from bridge.app.training.one_agent import NO_STATE, OneAgent
from jaxenvs.cli.user_errors import UserError
from jaxenvs.files import replacing
from jaxenvs.learn.devices import is_first_process

SOLVED = "#dc2626"  # the color of the line at the return at which the task counts as solved


class Interrupted(Exception):
    """Ctrl-C during training. What was learnt until then is saved."""


def train(config: TrainingConfig, out: Path, resume: bool = False) -> str:
    """Train the agents of a run, save them, and evaluate them.

    It writes `files_of(config)`. If there are several processes, all call it, and the first writes and evaluates.

    Args:
      config: of the run.
      out: the folder to write to.
      resume: continue from the checkpoint in `out`; if there is none, begin anew.

    Returns:
      The results of the evaluations, as a line of text; an empty text in processes other than the first.

    Raises:
      UserError: the config is not accepted, cannot be compiled or divided, or cannot be resumed; nothing can be
        written; or parameters became NaN.
      Interrupted: by Ctrl-C during training, after everything was written.
    """
    is_first, can_resume = not config.is_in_one_function or is_first_process(), config.backend == "jax"
    if resume and not can_resume:
        raise UserError(f"{out} cannot be resumed, because {NO_STATE}.")
    if is_first and not resume:
        refuse_used(out)
    if config.tensorboard_log is not None:
        require_writable(Path(config.tensorboard_log))
    training = (AgentsInOneFunction if config.is_in_one_function else OneAgent)(config, out, resume)
    with contextlib.ExitStack() as stack:
        if is_first:
            with writing(out):
                out.mkdir(parents=True, exist_ok=True)
                stack.enter_context(locked(out))
                config.save(out / CONFIG)
        interrupt = stack.enter_context(Interrupt())
        _announce(config, out, training.num_timesteps)
        training.learn(interrupt)
        if is_first:
            with writing(out):
                for agent in training.agents:
                    agent.folder.mkdir(exist_ok=True)
                    save_model(agent.model, agent.folder)
                _draw_learning_curve(config, out)
        if failed := config.num_seeds - len(training.agents):
            raise UserError(
                f"The parameters of {failed} of {config.num_seeds} agents became NaN, so only the other agents were "
                "saved. Try a lower learning_rate, and check that observations and rewards are finite."
            )
    if interrupt.came:
        to_resume = f" To resume: jaxenvs train --resume {out}" if can_resume else ""
        raise Interrupted(
            f"Interrupted after {training.num_timesteps} steps; the agent so far is saved in {out}.{to_resume}"
        )
    if not is_first:
        return ""
    result = describe_all([evaluate_agent(agent) for agent in training.agents])
    for agent in training.agents:
        agent.env.close()
    return result


def _announce(config: TrainingConfig, out: Path, num_timesteps: int) -> None:
    """Print what is trained, from which number of steps on, and which files that will write."""
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
    if config.backend != "jax":
        print(f"This run writes no checkpoints and cannot be resumed, because {NO_STATE}.")


def _draw_learning_curve(config: TrainingConfig, out: Path) -> None:
    from matplotlib.figure import Figure  # imported here, because it takes long

    figure = Figure(figsize=(7.5, 4.5), layout="constrained")  # not pyplot's, which may open a window
    seeds = f"seed {config.seed}" if config.num_seeds == 1 else f"{config.num_seeds} seeds"
    axes = plot_results(out, task_name=f"{config.env_id}, {config.algorithm}, {seeds}", ax=figure.add_subplot())
    threshold = config.environment.reward_threshold
    if threshold is not None:
        axes.axhline(threshold, color=SOLVED, linestyle=(0, (5, 3)), linewidth=1.2, label=f"solved: {threshold:g}")
        axes.legend(frameon=False, loc="best")
    with replacing(out / CURVE) as unfinished:
        figure.savefig(unfinished, dpi=150)
