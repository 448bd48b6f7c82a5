"""Show callbacks, episode statistics and logs the steps that a compiled function took, one by one, as SB3 does.

    compiled function   took n steps; their results are arrays (n, num_envs, ...) on the host
                        environments and weights are already in the state after step n - 1
    for each step:      num_timesteps += num_envs
                        callback.locals = SB3's locals in this step     (if the callback reads them)
                        callback.on_step()      False: stop; later steps are not counted, nor their episodes kept
                        ended episodes -> ep_info_buffer, logs
    at the end:         rewards (on-policy also values and dones) that a callback wrote into its locals take effect

On-policy, `_last_obs`, `_last_episode_starts`, the recurrent state and the position of the rollout buffer are set to
their values in each step while it is shown. The environments cannot be set back: they have taken all steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.utils import obs_as_tensor

from bridge.engine.acting import unscaled
from bridge.engine.lstm_state import read_memory, rows_of, to_states
from bridge.engine.on_policy.host_loop import values_in_torch
from bridge.engine.rollout_buffer import read_rollout
from bridge.engine.session import CallbackDoor
from bridge.engine.steps import StepBatch, StepLocals, TrainingResults
from bridge.engine.user_code.signals import Signals
from bridge.sb3 import Infos, OffPolicy, OnPolicy, Space
from bridge.vec_env.actions import as_sb3_gives
from bridge.vec_env.infos import ended_infos, update_reset_infos
from bridge.wrappers import WrappedEnv
from jaxenvs.learn.interfaces import Arrays


class StepBatchInfos:
    """The infos of the steps that a compiled function took.

    Args:
      wrapped_env: the environments.
      steps: on the host.
      final_observation: of the last of these steps, (some steps, num_envs, ...). The infos of the other steps have
        none.
      most: create only this many of the newest infos, if no callback reads the others.
    """

    def __init__(
        self, wrapped_env: WrappedEnv, steps: StepBatch, final_observation: Arrays = (), most: int | None = None
    ) -> None:
        self._wrapped_env, self._outputs = wrapped_env, steps.outputs
        self.num_steps, self.num_envs = steps.dones.shape
        ended = steps.dones.nonzero()
        update_reset_infos(wrapped_env.base.reset_infos, steps.outputs.info, ended)
        if most is not None and not wrapped_env.changes_infos:
            ended = (ended[0][-most:], ended[1][-most:])
        self.infos = ended_infos(steps.outputs, ended, wrapped_env.base.t_start)
        if leaves := jax.tree.leaves(final_observation):
            first = self.num_steps - len(leaves[0])
            for info, step, index in zip(self.infos, *(part.tolist() for part in ended)):
                if step >= first:
                    last = jax.tree.map(lambda leaf, at=(step - first, index): np.array(leaf[at]), final_observation)
                    info["terminal_observation"] = last
        wrapped_env.infos(self.infos, ended[0], ended[1], steps.wrapper_outputs)
        self._env_indices = ended[1].tolist()
        # Also in steps in which no episode ends.
        self._envs_have_infos = bool(jax.tree.leaves(steps.outputs.final_info))
        self._first_of_step = np.searchsorted(ended[0], np.arange(self.num_steps + 1)).tolist()

    def ended(self, step: int) -> Infos:
        """Return the infos of the episodes that ended in a step."""
        return self.infos[self._first_of_step[step] : self._first_of_step[step + 1]]

    def step_infos(self, step: int, only_ends: bool = False) -> Infos:
        """Return the infos of all environments in a step; with `only_ends`, empty ones where no episode ended."""
        rows = slice(self._first_of_step[step], self._first_of_step[step + 1])
        if only_ends:
            infos: Infos = [{} for _ in range(self.num_envs)]
        else:
            info = jax.tree.map(lambda leaf: leaf[step], self._outputs.final_info) if self._envs_have_infos else {}
            infos = self._wrapped_env.base.quiet_infos(info)
        for index, info in zip(self._env_indices[rows], self.infos[rows]):
            infos[index] = info
        return infos


def show_rollout(
    algorithm: OnPolicy,
    wrapped_env: WrappedEnv,
    door: CallbackDoor,
    buffer: RolloutBuffer,
    steps: StepBatch,
    needs_steps: bool,
    signals: Signals,
) -> bool:
    """Count the steps of a rollout, call the callback for each and at its end, and keep the ended episodes.

    Rewards, values and dones that the callback writes into its locals are used for learning, as in SB3.

    Args:
      algorithm: already has its observation after the rollout.
      wrapped_env: its environments.
      door: to the callback, which is called as by SB3, with SB3's locals.
      buffer: holds the rollout.
      steps: the rest of the rollout. If the callback does not read steps, they may be more than one rollout.
      needs_steps: whether the callback may read steps.
      signals: released before the callback may take long.

    Returns:
      False as soon as the callback does.
    """
    if not needs_steps:
        return _count_rollout(algorithm, wrapped_env, door, steps)
    batch_infos, columns = StepBatchInfos(wrapped_env, steps), _columns(algorithm, buffer, steps)
    shown: dict[str, Any] = {"self": algorithm, "env": algorithm.env, "callback": door.callback}
    shown["rollout_buffer"] = buffer
    shown["n_rollout_steps"] = batch_infos.num_steps
    if algorithm.MASKS:
        shown.update(use_masking=algorithm._masks, action_masks=None)
    states_before = columns.pop("_last_lstm_states", None)
    states_after = getattr(algorithm, "_last_lstm_states", None)
    given = [np.array(column) for column in (columns["rewards"], columns["dones"], buffer.values)]
    last = algorithm._last_obs, algorithm._last_episode_starts
    before = columns.pop("_last_obs")
    names, starts = list(columns), list(buffer.episode_starts > 0)
    signals.release()
    try:
        for step, now in enumerate(zip(*columns.values())):
            wrapped_env.show(steps.wrapper_outputs, step)
            # As in SB3's loop, the step is not in the buffer yet.
            algorithm._last_obs, algorithm._last_episode_starts = before[step], starts[step]
            if states_before is not None:
                algorithm._last_lstm_states = states_before[step]  # type: ignore[attr-defined]
            buffer.pos, buffer.full = step, False
            algorithm.num_timesteps += batch_infos.num_envs
            shown.update(zip(names, now), n_steps=step, infos=batch_infos.step_infos(step))
            if not door.on_step(shown):
                return False
            if ended := batch_infos.ended(step):
                algorithm._update_info_buffer(ended, np.ones(len(ended), bool))
        buffer.pos, buffer.full = batch_infos.num_steps, True
    finally:
        # If the callback stops here, the buffer stays as full as SB3's would be. The environments have taken all steps.
        algorithm._last_obs, algorithm._last_episode_starts = last
        if states_before is not None:
            algorithm._last_lstm_states = states_after  # type: ignore[attr-defined]
        wrapped_env.show(steps.wrapper_outputs, batch_infos.num_steps - 1)
    written = [columns["rewards"], columns["dones"], buffer.values]
    if not all(np.array_equal(a, b, equal_nan=True) for a, b in zip(written, given)):
        _apply_written(algorithm, buffer, np.asarray(written[0]) - given[0], np.asarray(written[1]))
    end: dict[str, Any] | None = None
    if algorithm.SHOWS_ROLLOUT_END:
        values = _last_values(algorithm, algorithm._last_episode_starts)
        end = shown | {"n_steps": batch_infos.num_steps, "values": values}
    door.on_rollout_end(end)
    return True


def _count_rollout(algorithm: OnPolicy, wrapped_env: WrappedEnv, door: CallbackDoor, steps: StepBatch) -> bool:
    """Do what `show_rollout` does, for a callback that does not read steps, such as SB3's progress bar."""
    # Only the episodes that the model keeps can be seen.
    batch_infos = StepBatchInfos(wrapped_env, steps, most=algorithm.ep_info_buffer.maxlen)
    for _ in range(batch_infos.num_steps):
        algorithm.num_timesteps += batch_infos.num_envs
        if not door.on_step():
            return False
    algorithm._update_info_buffer(batch_infos.infos, np.ones(len(batch_infos.infos), bool))
    return True


def _apply_written(algorithm: OnPolicy, buffer: RolloutBuffer, rewards: np.ndarray, dones: np.ndarray) -> None:
    """Recompute advantages and returns from what a callback has written into locals.

    Args:
      rewards: what the callback has added to the rewards.
      dones: the flags of ended episodes.
    """
    buffer.rewards += rewards
    buffer.episode_starts[1:] = dones[:-1]
    algorithm._last_episode_starts = np.array(dones[-1])
    buffer.compute_returns_and_advantage(last_values=_last_values(algorithm, dones[-1]), dones=dones[-1])


def _last_values(algorithm: OnPolicy, dones: np.ndarray) -> torch.Tensor:
    """Return the values of the observations after a rollout."""
    observation = obs_as_tensor(algorithm._last_obs, algorithm.device)
    return values_in_torch(algorithm, observation, read_memory(algorithm), dones)


def _columns(algorithm: OnPolicy, buffer: RolloutBuffer, steps: StepBatch) -> dict[str, Any]:
    """Return the locals of SB3's `collect_rollouts` in each step of a rollout at which it calls callbacks."""
    lead, space = steps.dones.shape, algorithm.action_space
    observations = _in_shape_of(algorithm.observation_space, buffer.observations, lead)
    actions = clipped_actions = buffer.actions.reshape(*lead, *(space.shape or ()))
    if isinstance(space, spaces.Box):
        clipped_actions = as_sb3_gives(unscaled(algorithm.policy, actions), space)
    elif isinstance(space, spaces.MultiBinary):
        actions = clipped_actions = as_sb3_gives(actions.astype(np.int64) if algorithm.MASKS else actions, space)
    rows = _rows(observations)
    further: dict[str, Any] = {"clipped_actions": _rows(clipped_actions)}
    if algorithm.MASKS:
        further = {}
    if algorithm._masks:
        assert algorithm.env is not None
        like = np.stack(algorithm.env.env_method("action_masks"))
        masks = buffer.action_masks.reshape(lead[0], *like.shape).astype(like.dtype)  # type: ignore[attr-defined]
        further = {"action_masks": _rows(masks)}
    if (memory := read_memory(algorithm)) is not None:
        observation: Any = read_rollout(buffer).observation  # Recalled
        states = rows_of(algorithm, observation.memory)
        starts = torch.as_tensor(buffer.episode_starts, device=algorithm.device)
        further |= {"_last_lstm_states": states, "lstm_states": [*states[1:], to_states(algorithm, memory)]}
        further["episode_starts"] = _rows(starts)
    return further | {
        "_last_obs": rows,
        "obs_tensor": _rows(obs_as_tensor(observations, algorithm.device)),
        "actions": _rows(actions),
        "values": _rows(torch.as_tensor(buffer.values[..., None], device=algorithm.device)),
        "log_probs": _rows(torch.as_tensor(buffer.log_probs, device=algorithm.device)),
        "new_obs": [*rows[1:], algorithm._last_obs],
        "rewards": np.array(steps.outputs.reward),
        "dones": np.array(steps.dones),
    }


def _in_shape_of(space: Space, observations: Any, lead: tuple[int, ...]) -> Any:
    """Return observations as environments return them. For Discrete observations the buffer has one axis more."""
    if isinstance(space, spaces.Dict):
        return {name: _in_shape_of(space[name], part, lead) for name, part in observations.items()}
    return observations.reshape(*lead, *(space.shape or ()))


def _rows(column: Any) -> Sequence[Any]:
    """Return the steps of an array, a tensor or a dict of these: all at once, which is several times as fast."""
    if isinstance(column, dict):
        return [dict(zip(column, row)) for row in zip(*map(_rows, column.values()))]
    return column.unbind() if isinstance(column, torch.Tensor) else list(column)


def show_steps(
    algorithm: OffPolicy,
    door: CallbackDoor,
    log_interval: int | None,
    results: TrainingResults,
    needs_every_step: bool,
    signals: Signals,
) -> bool:
    """Count the steps of a compiled off-policy function, call the callback for each, and keep and log ended episodes.

    Args:
      results: what the function returned.
      needs_every_step: whether the callback may read each step; otherwise at most the last one.
      signals: released before the callback may take long.

    Returns:
      False as soon as the callback does.
    """
    steps, step_locals, before, num_envs = results.steps, results.step_locals, results.before, algorithm.n_envs
    # Of all steps if the callback reads each; else of the last step only, whose infos it may read.
    lead = slice(None) if needs_every_step else None
    final = jax.tree.map(lambda leaf: np.asarray(leaf)[lead], step_locals.final_observation)
    batch_infos, after = StepBatchInfos(results.wrapped_env, steps, final), algorithm._last_obs
    shown = _rollout_locals(algorithm, door, log_interval)
    shows_ends = has_shown_ends = door.needs_steps  # also the ends that the previous call has shown
    outputs, count, can_continue = steps.outputs, batch_infos.num_steps, True
    rewards = np.array(outputs.reward)
    for step in range(count):
        ended = batch_infos.ended(step)
        algorithm.num_timesteps += num_envs
        if (num_collected := (algorithm._step_of_iteration + step - count) % algorithm._frequency.frequency + 1) == 1:
            algorithm._episodes_before_iteration = algorithm._episode_num
        now: dict[str, Any] | None = None
        if needs_every_step or step == count - 1:
            signals.release()
            seen = _seen(algorithm, step_locals, step if needs_every_step else None)
            now = {
                **shown,
                **seen,
                "num_collected_steps": num_collected,
                "num_collected_episodes": algorithm._episode_num - algorithm._episodes_before_iteration,
                "rewards": rewards[step],
                "dones": np.array(outputs.done[step]),
                "infos": batch_infos.step_infos(step),
            }
            algorithm._last_obs, before = before, seen["new_obs"]
        elif shows_ends and (ended or has_shown_ends):
            has_shown_ends = bool(ended)
            infos = batch_infos.step_infos(step, only_ends=True)
            now = {"self": algorithm, "dones": np.array(outputs.done[step]), "infos": infos}
        try:
            can_continue = door.on_step(now, acts=shows_ends)
        finally:
            algorithm._last_obs = after
        if not can_continue:
            break
        if ended:
            algorithm._update_info_buffer(ended, np.ones(len(ended), bool))
        algorithm._update_current_progress_remaining(algorithm.num_timesteps, algorithm._total_timesteps)
        if shows_ends and (needs_every_step or step == count - 1):
            algorithm._on_step()  # the compiled function has left it until after the callback
        else:
            algorithm._count_step()
        for _ in ended:
            algorithm._episode_num += 1
            if log_interval is not None and algorithm._episode_num % log_interval == 0:
                algorithm.dump_logs()
    if not np.array_equal(rewards, outputs.reward, equal_nan=True):
        algorithm.replay_buffer.replace_rewards(rewards)  # SB3 stores what a callback has written into its locals
    return can_continue


def _rollout_locals(algorithm: OffPolicy, door: CallbackDoor, log_interval: int | None) -> dict[str, Any]:
    """Return the locals of SB3's `collect_rollouts` that stay the same in all steps."""
    return {
        "self": algorithm,
        "env": algorithm.env,
        "callback": door.callback,
        "replay_buffer": algorithm.replay_buffer,
        "train_freq": algorithm._frequency,
        "action_noise": algorithm.action_noise,
        "log_interval": log_interval,
        "learning_starts": algorithm.learning_starts,
        "continue_training": True,
    }


def _seen(algorithm: OffPolicy, step_locals: StepLocals, step: int | None) -> dict[str, Any]:
    """Return the locals of SB3's `collect_rollouts` that describe one step.

    Args:
      step: the index of the step in `step_locals`; None if they are of one step.
    """
    if step is not None:
        step_locals = jax.tree.map(lambda leaf: leaf[step], step_locals)
    space = algorithm.action_space
    is_discrete = isinstance(space, spaces.Discrete)
    buffer_actions = np.array(step_locals.action, np.int64 if is_discrete else np.float32)
    if not is_discrete:
        buffer_actions = buffer_actions.reshape(-1, *(space.shape or ()))
    return {
        "buffer_actions": buffer_actions,
        "actions": buffer_actions if is_discrete else np.array(step_locals.env_action),
        "new_obs": step_locals.observation,
    }
