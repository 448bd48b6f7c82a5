"""The training of one agent by `learn`."""

from __future__ import annotations

from pathlib import Path

from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import configure

from bridge import NotCompilable
from bridge.app.config import TrainingConfig
from bridge.app.evaluation import ending_env
from bridge.app.runs import (
    CHECKPOINT,
    CONFIG,
    MODEL,
    config_of_checkpoint,
    make_agent,
    read_checkpoint,
    save_model,
    writing,
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
from jaxenvs.cli.user_errors import UserError, described, user_errors

NO_STATE = "the state of environments that are not JAX environments cannot be saved"
EVALUATED_AT_ONCE = 5  # episodes of an evaluation with --eval-freq, each in its own environment


class OneAgent:
    """The training of one agent, which continues from checkpoint.zip if it is resumed.

    Attributes:
      agents: the agent.
    """

    def __init__(self, config: TrainingConfig, out: Path, resume: bool) -> None:
        self._config, self._out, self._episodes = config, out, EpisodeLog()
        resumes = resume and (out / CHECKPOINT).exists()
        if resumes:
            config.require_begun_as(config_of_checkpoint(out), out / CONFIG)
        agent = read_checkpoint(out, config) if resumes else make_agent(out, config)
        self.agents, self._model = [agent], agent.model
        if resumes:
            self._episodes.read(out, until=self.num_timesteps)

    @property
    def num_timesteps(self) -> int:
        """The number of steps so far."""
        return self._model.num_timesteps

    def learn(self, interrupt: Interrupt) -> None:
        """Learn until the budget is spent or Ctrl-C comes, and write the episodes.

        Raises:
          UserError: something cannot be compiled with engine="xla", or became NaN; the environment raises a ValueError
            or an OSError; or a file cannot be written.
        """
        remaining = self._config.total_timesteps - self.num_timesteps
        try:
            if remaining > 0:
                self._learn(remaining, Checkpoints(self._config, self._out, self._episodes, interrupt))
        except Stopped:
            pass  # the checkpoint was written
        except Exception as error:
            name = CHECKPOINT if self._config.backend == "jax" else MODEL
            if name == MODEL and self.num_timesteps:  # the user's environment broke, and there is no checkpoint
                with writing(self._out):
                    save_model(self._model, self._out)
                    self._episodes.write(self._out)
            if not isinstance(error, OSError | ValueError):
                raise
            # A ValueError is raised for weights that became NaN, too.
            saved = f", and the last saved agent is {self._out / name}" if (self._out / name).exists() else ""
            raise UserError(f"Training stopped after {self.num_timesteps} steps{saved}: {described(error)}") from error
        with writing(self._out):
            self._episodes.write(self._out)

    def _learn(self, remaining: int, checkpoints: Checkpoints) -> None:
        config, out, begun_at = self._config, self._out, self.num_timesteps
        bar = progress_bar(total=config.total_timesteps, initial=begun_at)
        with user_errors(NotCompilable), bar:
            logs = Path(config.tensorboard_log) / out.name if config.tensorboard_log else out / "tensorboard"
            with writing(logs):
                self._model.set_logger(configure(str(logs), ["tensorboard"]))
            callbacks: list[BaseCallback] = [self._episodes, checkpoints, ProgressUpdates(bar)]
            if config.eval_freq:
                env = ending_env(config, EVALUATED_AT_ONCE, like=self._model.get_env())
                callbacks.append(evaluations(config, env, out, begun_at))
            self._model.learn(remaining, callback=callbacks, reset_num_timesteps=False)
        checkpoints.write_last()
