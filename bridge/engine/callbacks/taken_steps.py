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
from bridge.engine.plan import Plan
from bridge.engine.session import Session
from bridge.engine.steps import StepBatch
from bridge.sb3 import Algorithm, Infos, OffPolicy
from bridge.vec_env.infos import ended_infos, update_reset_infos


def count_steps(
    algorithm: Algorithm,
    session: Session,
    plan: Plan,
    callback: BaseCallback,
    steps: StepBatch,
    after_step: Callable[[int], None] | None = None,
) -> bool:
    """Count steps, call the callback for each, and keep the ended episodes.

    Args:
      callback: does not look.
      steps: on the host.
      after_step: is called after each step with the number of episodes that ended in it.

    Returns:
      False as soon as the callback does.
    """
    shows, dones, (num_steps, num_envs) = shows_ends(callback), steps.dones, steps.dones.shape
    # If nothing else counts them, only the episodes that the model keeps can be seen.
    most = None if shows or after_step is not None else algorithm.ep_info_buffer.maxlen
    infos, env_indices, first_of_step = _ended_infos(plan, steps, most)
    if shows:
        session.forget()  # callbacks of users run
    is_quiet = False
    for step in range(num_steps):
        rows = slice(first_of_step[step], first_of_step[step + 1])
        ended = infos[rows]
        algorithm.num_timesteps += num_envs
        if shows and (ended or not is_quiet):
            is_quiet = not ended
            of_envs: Infos = [{} for _ in range(num_envs)]
            for index, info in zip(env_indices[rows], ended):
                of_envs[index] = info
            callback.update_locals({"self": algorithm, "dones": np.array(dones[step]), "infos": of_envs})
        if not callback.on_step():
            return False
        if ended:
            algorithm._update_info_buffer(ended, np.ones(len(ended), bool))
        if after_step is not None:
            after_step(len(ended))
    return True


def _ended_infos(plan: Plan, steps: StepBatch, most: int | None) -> tuple[Infos, list[int], list[int]]:
    """Return the infos of the episodes that ended, by steps, with their environments and the first row of each step.

    Args:
      most: create only this many of the newest infos, unless a wrapper may change them.
    """
    wrapped_env, ended = plan.wrapped_env, steps.dones.nonzero()
    assert wrapped_env is not None
    update_reset_infos(wrapped_env.base.reset_infos, steps.outputs.info, ended)
    if most is not None and not wrapped_env.changes_infos:
        ended = (ended[0][-most:], ended[1][-most:])
    infos = ended_infos(steps.outputs, ended, wrapped_env.base.t_start)
    wrapped_env.infos(infos, ended[0], ended[1], steps.wrapper_outputs)
    return infos, ended[1].tolist(), np.searchsorted(ended[0], np.arange(len(steps.dones) + 1)).tolist()


def after_step(algorithm: OffPolicy, log_interval: int | None, num_ended: int) -> None:
    """Do what SB3's off-policy loop does after a step in which `num_ended` episodes ended, and its callback."""
    algorithm._update_current_progress_remaining(algorithm.num_timesteps, algorithm._total_timesteps)
    algorithm._count_step()
    for _ in range(num_ended):
        algorithm._episode_num += 1
        if log_interval is not None and algorithm._episode_num % log_interval == 0:
            algorithm.dump_logs()
