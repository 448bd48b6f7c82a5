"""The steps of a compiled rollout, shown one by one to callbacks and to the statistics of episodes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import (
    BaseCallback,
    CallbackList,
    CheckpointCallback,
    ConvertCallback,
    EvalCallback,
    EveryNTimesteps,
    LogEveryNTimesteps,
    ProgressBarCallback,
)
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.utils import obs_as_tensor

from bridge.engine.on_policy.collecting import Steps
from bridge.vec_env.infos import ended_infos, update_reset_infos
from bridge.wrappers.chain import Chain

# Of SB3's callbacks, those that do nothing but at steps that one can tell.
ACT_AT_STEPS = (EvalCallback, CheckpointCallback, EveryNTimesteps, LogEveryNTimesteps)


class QuietCallback(BaseCallback):
    """A callback that says when it looks, so that a program of an off-policy training can run until then.

    `on_step` is called for every step, as ever. Locals are there where an episode ended, `dones` and `infos` alone, and
    all of SB3's in the step that `quiet_steps` tells. `on_rollout_start` is called where programs begin, between two
    steps. PPO and A2C show it every step, as any callback.
    """

    def quiet_steps(self, num_timesteps: int, num_envs: int) -> int:
        """For how many of the next steps it does not look. If not overridden, never but where episodes end.

        Args:
          num_timesteps: so many there were, of all environments together.
        """
        return sys.maxsize


def looks_at_steps(callback: BaseCallback) -> bool:
    """Whether a callback may look at locals. Any may, but SB3's progress bar and its stand-in for no callback."""
    if type(callback) is CallbackList:
        return any(looks_at_steps(part) for part in callback.callbacks)
    if type(callback) is ConvertCallback:
        return callback.callback is not None
    return type(callback) is not ProgressBarCallback


def looks_at_each_step(callback: BaseCallback) -> bool:
    """Whether a callback may look at locals in every step, rather than in those that `quiet_steps` tells."""
    if type(callback) is CallbackList:
        return any(looks_at_each_step(part) for part in callback.callbacks)
    return looks_at_steps(callback) and not (isinstance(callback, QuietCallback) or type(callback) in ACT_AT_STEPS)


def quiet_steps(callback: BaseCallback, num_timesteps: int, num_envs: int, shows_ends: bool = False) -> int:
    """For how many of the next steps a callback neither looks at locals nor does anything.

    Known are SB3's own: by exact type, because subclasses may do anything.

    Args:
      num_timesteps: so many there were, of all environments together.
      shows_ends: whether it gets what a QuietCallback wants to see.
    """
    if not looks_at_steps(callback):
        return sys.maxsize
    if type(callback) is CallbackList:
        return min(quiet_steps(part, num_timesteps, num_envs, shows_ends) for part in callback.callbacks)
    if isinstance(callback, QuietCallback):
        return callback.quiet_steps(num_timesteps, num_envs) if shows_ends else 0
    if type(callback) is EvalCallback:
        return callback.eval_freq - 1 - callback.n_calls % callback.eval_freq if callback.eval_freq > 0 else sys.maxsize
    if type(callback) is CheckpointCallback:
        return callback.save_freq - 1 - callback.n_calls % callback.save_freq
    if type(callback) in (EveryNTimesteps, LogEveryNTimesteps):
        assert isinstance(callback, EveryNTimesteps)
        left = callback.n_steps - (num_timesteps - callback.last_time_trigger)
        return max(0, -(-left // num_envs) - 1)
    return 0


def show_steps(
    algorithm: OnPolicyAlgorithm,
    chain: Chain,
    callback: BaseCallback,
    buffer: RolloutBuffer,
    steps: Steps,
    watched: bool,
) -> bool:
    """Count the steps of a rollout, call the callback for each, with SB3's locals, and keep the episodes that ended.

    Args:
      algorithm: has its observation after the rollout already.
      chain: its environments.
      callback: called as by SB3.
      buffer: holds the rollout.
      steps: the rest of it, on the host. More than the rollout, if nobody looks at them.
      watched: whether the callback may look at them.

    Returns:
      False as soon as the callback does.
    """
    history = algorithm.ep_info_buffer
    assert history is not None
    n_steps, num_envs = steps.dones.shape
    ended = steps.dones.nonzero()
    update_reset_infos(chain.base.reset_infos, steps.outputs.info, ended)
    if not (watched or chain.changes_infos):
        # What the model keeps of episodes is all that anybody can see.
        ended = (ended[0][-(history.maxlen or 0) :], ended[1][-(history.maxlen or 0) :])
    infos = ended_infos(steps.outputs, ended, chain.base.t_start)
    chain.infos(infos, ended[0], ended[1], steps.wrapper_outputs)

    if not watched:
        for _ in range(n_steps):
            algorithm.num_timesteps += num_envs
            if not callback.on_step():
                return False
        algorithm._update_info_buffer(infos, np.ones(len(infos), bool))
        return True

    columns = _columns(algorithm, buffer, steps)
    shown = {"self": algorithm, "env": algorithm.env, "callback": callback, "rollout_buffer": buffer}
    shown["n_rollout_steps"] = n_steps
    first_of_step = np.searchsorted(ended[0], np.arange(n_steps + 1)).tolist()
    for step in range(n_steps):
        rows = slice(first_of_step[step], first_of_step[step + 1])
        step_infos = chain.base.quiet_infos(jax.tree.map(lambda leaf, step=step: leaf[step], steps.outputs.final_info))
        for lane, info in zip(ended[1][rows].tolist(), infos[rows]):
            step_infos[lane] = info
        algorithm.num_timesteps += num_envs
        now = {name: column[step] for name, column in columns.items()}
        callback.update_locals({**shown, "n_steps": step, "infos": step_infos, **now})
        if not callback.on_step():
            return False
        if rows.start < rows.stop:
            algorithm._update_info_buffer(infos[rows], np.ones(rows.stop - rows.start, bool))
    callback.update_locals({**shown, "n_steps": n_steps})  # as SB3 does before a rollout ends
    return True


def _columns(algorithm: OnPolicyAlgorithm, buffer: RolloutBuffer, steps: Steps) -> dict[str, Sequence[Any]]:
    """What the locals of SB3's `collect_rollouts` are in each step of a rollout when it calls callbacks."""
    lead, space = steps.dones.shape, algorithm.action_space
    observations = _in_shape_of(algorithm.observation_space, buffer.observations, lead)
    actions = clipped_actions = buffer.actions.reshape(*lead, *(space.shape or ()))
    if isinstance(space, spaces.Box) and algorithm.policy.squash_output:
        clipped_actions = algorithm.policy.unscale_action(actions)
    elif isinstance(space, spaces.Box):
        clipped_actions = np.clip(actions, space.low, space.high)
    return {
        "obs_tensor": _rows(obs_as_tensor(observations, algorithm.device)),
        "actions": _rows(actions),
        "clipped_actions": _rows(clipped_actions),
        "values": _rows(torch.as_tensor(buffer.values[..., None], device=algorithm.device)),
        "log_probs": _rows(torch.as_tensor(buffer.log_probs, device=algorithm.device)),
        "new_obs": [*_rows(observations)[1:], algorithm._last_obs],
        "rewards": _rows(np.array(steps.outputs.reward)),
        "dones": _rows(np.array(steps.dones)),
    }


def _in_shape_of(space: spaces.Space[Any], observations: Any, lead: tuple[int, ...]) -> Any:
    """Observations as environments give them: the buffer has one axis more if they are Discrete."""
    if isinstance(space, spaces.Dict):
        return {name: _in_shape_of(space[name], part, lead) for name, part in observations.items()}
    return observations.reshape(*lead, *(space.shape or ()))


def _rows(column: Any) -> Sequence[Any]:
    """The steps of an array, a tensor or a dict of these. All at once, which is several times as fast."""
    if isinstance(column, dict):
        return [dict(zip(column, row)) for row in zip(*map(_rows, column.values()))]
    return column.unbind() if isinstance(column, torch.Tensor) else list(column)
