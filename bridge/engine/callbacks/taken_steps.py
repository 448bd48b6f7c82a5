"""Count the steps that a compiled function took, call callbacks for them, and keep the episodes that ended.

compiled function   took n steps; their results are arrays (n, num_envs, ...) on the host
                    environments and weights are already in the state after step n - 1
for each step:      num_timesteps += num_envs
                    callback.locals = dones and infos, if an episode ended and the callback is a ScheduledCallback
                    callback.on_step()      False: stop; later steps are not counted, nor their episodes kept
                    ended episodes -> ep_info_buffer, logs
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback

from bridge.engine.callbacks.known import shows_ends
from bridge.engine.session import Session
from bridge.engine.steps import StepBatch
from bridge.sb3 import Algorithm, Infos, OffPolicy
from bridge.vec_env.infos import ended_infos, update_reset_infos
from bridge.wrappers import WrappedEnv


class EndedInfos:
    """The infos of the episodes that ended in the steps of a compiled function.

    Args:
      wrapped_env: the environments.
      steps: on the host.
      most: create only this many of the newest infos, if no callback reads the others.
    """

    def __init__(self, wrapped_env: WrappedEnv, steps: StepBatch, most: int | None = None) -> None:
        self._wrapped_env, self._outputs = wrapped_env, steps.outputs
        self.num_steps, self.num_envs = steps.dones.shape
        ended = steps.dones.nonzero()
        update_reset_infos(wrapped_env.base.reset_infos, steps.outputs.info, ended)
        if most is not None and not wrapped_env.changes_infos:
            ended = (ended[0][-most:], ended[1][-most:])
        self.infos = ended_infos(steps.outputs, ended, wrapped_env.base.t_start)
        wrapped_env.infos(self.infos, ended[0], ended[1], steps.wrapper_outputs)
        self._env_indices = ended[1].tolist()
        self._first_of_step = np.searchsorted(ended[0], np.arange(self.num_steps + 1)).tolist()

    def ended(self, step: int) -> Infos:
        """Return the infos of the episodes that ended in a step."""
        return self.infos[self._first_of_step[step] : self._first_of_step[step + 1]]

    def step_infos(self, step: int) -> Infos:
        """Return the infos of a step of all environments, empty where no episode ended."""
        rows = slice(self._first_of_step[step], self._first_of_step[step + 1])
        infos: Infos = [{} for _ in range(self.num_envs)]
        for index, info in zip(self._env_indices[rows], self.infos[rows]):
            infos[index] = info
        return infos


def count_steps(
    algorithm: Algorithm,
    session: Session,
    callback: BaseCallback,
    wrapped_env: WrappedEnv,
    steps: StepBatch,
    after_step: Callable[[int], None] | None = None,
) -> bool:
    """Count steps, call the callback for each, and keep the ended episodes.

    Args:
      session: of the model.
      callback: does not look.
      wrapped_env: the environments.
      steps: on the host.
      after_step: is called after each step with the number of episodes that ended in it.

    Returns:
      False as soon as the callback does.
    """
    shows = shows_ends(callback)
    if not shows and after_step is None:
        return _count_unseen(algorithm, callback, wrapped_env, steps)
    infos, dones = EndedInfos(wrapped_env, steps), steps.dones
    num_envs = infos.num_envs
    if shows:
        session.forget()  # callbacks of users run
    quiet = {"self": algorithm, "dones": np.zeros(num_envs, bool), "infos": [{} for _ in range(num_envs)]}
    is_quiet, can_continue = False, True
    for step in range(infos.num_steps):
        ended = infos.ended(step)
        algorithm.num_timesteps += num_envs
        if shows and not (is_quiet and not ended):
            is_quiet = not ended
            shown = {"self": algorithm, "dones": np.array(dones[step]), "infos": infos.step_infos(step)}
            callback.update_locals(quiet if is_quiet else shown)
        can_continue = callback.on_step()
        if not can_continue:
            break
        if ended:
            algorithm._update_info_buffer(ended, np.ones(len(ended), bool))
        if after_step is not None:
            after_step(len(ended))
    return can_continue


def _count_unseen(algorithm: Algorithm, callback: BaseCallback, wrapped_env: WrappedEnv, steps: StepBatch) -> bool:
    """Do what `count_steps` does, for a callback that needs nothing of the steps but their number."""
    # Only the episodes that the model keeps can be seen.
    infos = EndedInfos(wrapped_env, steps, most=algorithm.ep_info_buffer.maxlen)
    for _ in range(infos.num_steps):
        algorithm.num_timesteps += infos.num_envs
        if not callback.on_step():
            return False
    algorithm._update_info_buffer(infos.infos, np.ones(len(infos.infos), bool))
    return True


def after_step(algorithm: OffPolicy, log_interval: int | None, num_ended: int) -> None:
    """Do what SB3's off-policy loop does after a step and its callback.

    Args:
      num_ended: how many episodes ended in the step.
    """
    algorithm._update_current_progress_remaining(algorithm.num_timesteps, algorithm._total_timesteps)
    algorithm._count_step()
    for _ in range(num_ended):
        algorithm._episode_num += 1
        if log_interval is not None and algorithm._episode_num % log_interval == 0:
            algorithm.dump_logs()
