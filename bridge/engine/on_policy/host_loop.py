"""Collecting in environments on the host: SB3's loop, with a small program where it calls the policy."""

from __future__ import annotations

import functools
import operator
from typing import Any

import jax
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.utils import obs_as_tensor
from stable_baselines3.common.vec_env import VecEnv

from bridge.buffers.rollout import read_rollout, write_memory
from bridge.engine.acting import JudgingActor, unscaled
from bridge.engine.memory import Memory, of_states, read_memory, to_states
from bridge.engine.on_policy.pipelining import Act, Pipeline, Stepped
from bridge.engine.on_policy.remote_rollouts import RemoteRollout
from bridge.engine.plan import Plan
from bridge.engine.trust import BETWEEN_ROLLOUTS
from bridge.engine.watching import looks_at_steps
from bridge.host_env.cluster.ray_vec_env import RayVecEnv
from bridge.host_env.processes.worker_vec_env import WorkerVecEnv
from bridge.host_env.step_infos import StepInfos
from bridge.sb3 import OnPolicy
from bridge.vec_env.actions import as_sb3_gives
from jaxenvs.learn import Masked, Recalled

# Last observations of truncated episodes are valued by so many at once.
MOST_ROWS = 256


def collect_rollouts(
    algorithm: OnPolicy,
    plan: Plan,
    env: VecEnv,
    callback: BaseCallback,
    buffer: RolloutBuffer,
    sde_sample_freq: int,
    has_begun: bool = False,
) -> bool:
    """What `OnPolicyAlgorithm.collect_rollouts` does: the same calls in the same order, the same in the buffer.

    Values and probabilities are computed in each step only if a callback may look at them, else for all steps at once.

    Args:
      plan: its actor acts, as long as it still is the policy: asked after each step that a callback may look at. Else,
        the rest of the rollout is the policy's own.
      env, callback: called as by SB3.
      buffer: is overwritten.
      sde_sample_freq: for how many steps the noise stays.
      has_begun: whether the callback has been told that the rollout starts.

    Returns:
      False as soon as the callback does.

    Raises:
      ValueError: what the policy computes is NaN. Environments are where they were when it did.
    """
    policy, num_envs, n_steps = algorithm.policy, env.num_envs, buffer.buffer_size
    if policy.training:
        policy.set_training_mode(False)
    buffer.reset()
    if algorithm.use_sde:
        # For `predict`, whose noise is PyTorch's, to have the present deviation.
        policy.reset_noise(num_envs)
    if not has_begun:
        callback.on_rollout_start()
    watched = looks_at_steps(callback)
    others_run = watched or not BETWEEN_ROLLOUTS.issuperset(plan.others)  # in each step, and may change what acts
    calls_hook = "_update_info_buffer" in plan.others
    noise: Any = [None] * n_steps
    actor = None  # or what acts; without, the policy itself does
    if isinstance(plan.actor, JudgingActor) and (not others_run or plan.acts_as_planned(algorithm.policy)):
        actor = plan.actor
        actor.refresh()
        noise = actor.draw_noise(num_envs, n_steps, sde_sample_freq)
    is_box = isinstance(algorithm.action_space, spaces.Box)
    if plan.rolls_out and actor is not None and not others_run:
        assert isinstance(env, RayVecEnv)  # the plan has seen to that
        take_step = RemoteRollout(env, actor, noise).step
    elif plan.pipelines and actor is not None:
        assert isinstance(env, WorkerVecEnv)
        take_step = Pipeline(env, noise, looks_ahead=not others_run).step
    else:
        take_step = functools.partial(step_together, env, noise)
    shown: dict[str, Any] = {"self": algorithm, "env": env, "callback": callback, "rollout_buffer": buffer}
    shown["n_rollout_steps"] = n_steps
    if algorithm.MASKS:
        shown.update(use_masking=algorithm._masks, action_masks=None)
    truncated: list[tuple[int, int, Any, Any]] = []
    memory: Any = read_memory(algorithm)
    for step in range(n_steps):
        observation: Any = algorithm._last_obs
        seen = observation
        if algorithm._masks:
            masks = np.stack(env.env_method("action_masks"))
            seen, shown["action_masks"] = Masked(observation, masks.reshape(num_envs, -1)), masks
        if memory is not None:
            seen = Recalled(observation, memory, np.asarray(algorithm._last_episode_starts, bool))
        act: Act
        if actor is not None:
            act = actor.act_and_judge if others_run else actor.act
        else:
            act = functools.partial(_act_in_torch, algorithm)
            if algorithm.use_sde and step % sde_sample_freq == 0:
                policy.reset_noise(num_envs)
        new_obs: Any
        actions, clipped_actions, rest, (new_obs, rewards, dones, infos) = take_step(act, seen, step)
        algorithm.num_timesteps += num_envs
        is_judged = others_run or actor is None
        if memory is not None:
            write_memory(buffer, step, memory)
            *rest, memory = rest
        if is_judged:
            values, log_probs = rest
        if watched:
            actions = np.array(actions, None if is_box else clipped_actions.dtype)
            values, log_probs = np.array(values), np.array(log_probs)  # what a callback writes there is stored
            shown.update(n_steps=step, actions=actions, new_obs=new_obs)
            shown.update({} if algorithm.MASKS else {"clipped_actions": clipped_actions})
            if memory is not None:
                starts = torch.tensor(algorithm._last_episode_starts, dtype=torch.float32, device=algorithm.device)
                shown.update(lstm_states=to_states(algorithm, memory), episode_starts=starts)
            shown.update(rewards=rewards, dones=dones, infos=infos)
            shown.update(obs_tensor=obs_as_tensor(observation, algorithm.device))
            shown.update(values=torch.as_tensor(values[:, None], device=algorithm.device))
            shown.update(log_probs=torch.as_tensor(log_probs, device=algorithm.device))
            callback.update_locals(shown)
        if not callback.on_step():
            return False
        ended = np.asarray(dones).nonzero()[0].tolist()
        # StepInfos have `episode` at ends alone, and are made when they are read.
        if ended or calls_hook or type(infos) is not StepInfos:
            algorithm._update_info_buffer(infos, dones)
        for lane in ended:
            if infos[lane].get("TimeLimit.truncated", False) and infos[lane].get("terminal_observation") is not None:
                # A copy: environments may use the memory again before the rollout ends.
                last = jax.tree.map(np.array, infos[lane]["terminal_observation"])
                truncated.append((step, lane, last, jax.tree.map(operator.itemgetter(lane), memory)))
        if isinstance(observation, dict):
            for name, part in observation.items():
                buffer.observations[name][step] = part.reshape(buffer.observations[name].shape[1:])
        else:
            buffer.observations[step] = observation.reshape(buffer.observations.shape[1:])
        if algorithm._masks:
            buffer.action_masks[step] = seen.action_mask  # type: ignore[attr-defined]
        buffer.actions[step] = actions.reshape(num_envs, -1)
        buffer.rewards[step] = rewards
        buffer.episode_starts[step] = algorithm._last_episode_starts
        buffer.pos = step + 1
        algorithm._last_obs, algorithm._last_episode_starts = new_obs, dones
        if memory is not None and (others_run or step == n_steps - 1):
            algorithm._last_lstm_states = to_states(algorithm, memory)  # type: ignore[attr-defined]
        if is_judged:
            buffer.values[step], buffer.log_probs[step] = values, log_probs
        if others_run:
            # Anything may have changed, and what was acted and valued so far is the policy's from before.
            _add_values_behind(algorithm, buffer, truncated)
            algorithm._hand_over()
            if actor is not None and not plan.acts_as_planned(algorithm.policy):
                actor = None
            elif actor is not None:
                actor.refresh()
    buffer.full = True
    _add_values_behind(algorithm, buffer, truncated)
    if actor is not None:
        judged = (buffer.values, buffer.log_probs) if others_run else None
        ends = np.concatenate([buffer.episode_starts[1:], np.asarray(dones, buffer.episode_starts.dtype)[None]])
        last_seen = new_obs if memory is None else Recalled(new_obs, memory, np.asarray(dones, bool))
        results = actor.judge(read_rollout(buffer), judged, ends, last_seen, buffer.gamma, buffer.gae_lambda)
        buffer.values[:], buffer.log_probs[:], buffer.advantages[:], buffer.returns[:] = results
    else:
        last_values = _values_in_torch(algorithm, obs_as_tensor(new_obs, algorithm.device), memory, dones)
        buffer.compute_returns_and_advantage(last_values=last_values, dones=dones)
    callback.update_locals({**shown, "n_steps": n_steps})
    callback.on_rollout_end()
    if others_run:
        algorithm._hand_over()
    return True


def step_together(env: VecEnv, noise: np.ndarray, act: Act, observation: Any, step: int) -> Stepped:
    """Take a step of all lanes at once, as `Pipeline.step` does in two groups."""
    actions, to_env, *judged = act(observation, noise[step])
    clipped_actions = as_sb3_gives(to_env, env.action_space)
    return actions, clipped_actions, judged, env.step(clipped_actions)


def _act_in_torch(algorithm: OnPolicy, observation: Any, noise: Any) -> Any:
    further: dict[str, Any] = {}
    if isinstance(observation, Masked):
        further = {"action_masks": observation.action_mask}
    elif isinstance(observation, Recalled):
        starts = torch.tensor(observation.episode_start, dtype=torch.float32, device=algorithm.device)
        further = {"lstm_states": to_states(algorithm, observation.memory), "episode_starts": starts}
    observation = observation.observation if further else observation
    with torch.no_grad():
        *results, last = algorithm.policy(obs_as_tensor(observation, algorithm.device), **further)
    remembered = (of_states(last),) if "lstm_states" in further else ()
    actions, values, log_probs = (result.cpu().numpy() for result in (*results, *(() if remembered else (last,))))
    return actions, unscaled(algorithm.policy, actions), values.flatten(), log_probs, *remembered


def _values_in_torch(algorithm: OnPolicy, observation: Any, memory: Memory | None, starts: np.ndarray) -> torch.Tensor:
    """Those of PyTorch's policy.

    Args:
      observation: tensors.
      memory, starts: what is remembered, and where episodes begin, of a recurrent policy.
    """
    further: tuple[Any, ...] = ()
    if memory is not None:
        begins = torch.tensor(starts, dtype=torch.float32, device=algorithm.device)
        further = to_states(algorithm, memory).vf, begins
    with torch.no_grad():
        values: torch.Tensor = algorithm.policy.predict_values(observation, *further)
    return values


def _add_values_behind(algorithm: OnPolicy, buffer: RolloutBuffer, truncated: list[tuple[int, int, Any, Any]]) -> None:
    """Add the discounted values of last observations to the rewards of steps and lanes, and forget these.

    By PyTorch: there are few, and a program would be compiled for each number of them.
    """
    for first in range(0, len(truncated), MOST_ROWS):
        steps, lanes, observations, memories = zip(*truncated[first : first + MOST_ROWS])
        batch, memory = (jax.tree.map(lambda *leaves: np.stack(leaves), *each) for each in (observations, memories))
        tensors = algorithm.policy.obs_to_tensor(batch)[0]
        values = _values_in_torch(algorithm, tensors, memory, np.zeros(len(steps), bool))
        buffer.rewards[steps, lanes] += algorithm.gamma * values.flatten().cpu().numpy()
    truncated.clear()
