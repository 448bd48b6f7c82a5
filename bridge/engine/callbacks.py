"""The steps of a compiled rollout, shown one by one to callbacks and to the statistics of episodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.utils import obs_as_tensor

from bridge.engine.rollouts import Steps
from bridge.engine.tensors import looks_at_steps
from bridge.vec_env.programs import Outputs
from bridge.wrappers.compiled_env import CompiledEnv


def replay(
    algorithm: OnPolicyAlgorithm, env: CompiledEnv, callback: BaseCallback, rollout_buffer: RolloutBuffer, steps: Steps
) -> bool:
    """Count the steps of a rollout, call the callback for each, with SB3's locals, and keep the episodes that ended.

    Args:
      algorithm: has its observation after the rollout already.
      env: its environments.
      callback: called as by SB3.
      rollout_buffer: holds the rollout.
      steps: the rest of it, on the host.

    Returns:
      False as soon as the callback does.
    """
    n_steps, num_envs = steps.dones.shape
    outputs = Outputs(*[jax.tree.leaves(part) for part in steps.outputs])
    if not (looks_at_steps(callback) or env.has_monitors):
        for _ in range(n_steps):
            algorithm.num_timesteps += num_envs
            if not callback.on_step():
                return False
        history = algorithm.ep_info_buffer
        assert history is not None
        infos = env.infos_of_ends(steps.dones, outputs, most=history.maxlen or steps.dones.size)
        algorithm._update_info_buffer(infos, np.ones(len(infos), bool))
        return True

    columns = _columns(algorithm, rollout_buffer, steps)
    final_observation = env.as_given(steps.final_observation) if env.changes_observations else None
    seen = {"self": algorithm, "env": algorithm.env, "callback": callback, "rollout_buffer": rollout_buffer}
    for step in range(n_steps):
        ended = steps.dones[step].nonzero()[0]
        infos = env.infos(step, steps.raw_rewards, steps.rewards, ended, outputs, final_observation)
        algorithm.num_timesteps += num_envs
        now = {name: rows[step] for name, rows in columns.items()}
        callback.update_locals({**seen, "n_rollout_steps": n_steps, "n_steps": step, "infos": infos, **now})
        if not callback.on_step():
            return False
        if ended.size:
            algorithm._update_info_buffer([infos[lane] for lane in ended.tolist()], np.ones(ended.size, bool))
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
        "rewards": _rows(np.array(steps.rewards)),
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
