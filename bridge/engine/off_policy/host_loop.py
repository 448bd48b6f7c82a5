"""Collecting for an off-policy algorithm in environments on the host: SB3's loop, with a compiled policy.

Locals that no callback reads are left out.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.noise import ActionNoise
from stable_baselines3.common.type_aliases import RolloutReturn, TrainFreq, TrainFrequencyUnit
from stable_baselines3.common.utils import should_collect_more_steps
from stable_baselines3.common.vec_env import VecEnv

from bridge.engine.callbacks.callback_schedule import steps_until_needed
from bridge.engine.plan import Plan
from bridge.engine.session import CallbackDoor
from bridge.host_env.step_infos import StepInfos
from bridge.sb3 import OffPolicy

# SB3's message.
COLLECTS_NOTHING = "Should at least collect one step or episode."


def collect_rollouts(
    algorithm: OffPolicy,
    plan: Plan,
    env: VecEnv,
    door: CallbackDoor,
    train_freq: TrainFreq,
    replay_buffer: ReplayBuffer,
    action_noise: ActionNoise | None = None,
    learning_starts: int = 0,
    log_interval: int | None = None,
    begun: int | None = None,
) -> RolloutReturn:
    """Collect a rollout as SB3's `collect_rollouts`. Locals are updated only in steps that the callback may read.

    Args:
      algorithm: its `_sample_action` acts.
      plan: of this rollout.
      env, train_freq, replay_buffer, action_noise, learning_starts, log_interval: SB3's.
      door: to the callback.
      begun: how many steps of the rollout have been taken, if `on_rollout_start` has been called; else None.
    """
    num_envs = env.num_envs
    assert train_freq.frequency > 0, COLLECTS_NOTHING
    if algorithm.policy.training:
        algorithm.policy.set_training_mode(False)
    if num_envs > 1:
        assert train_freq.unit is TrainFrequencyUnit.STEP, "You must use only one env when doing episodic training."
    sde_sample_freq = algorithm.sde_sample_freq if algorithm.use_sde else 0
    if algorithm.use_sde:
        algorithm.policy.actor.reset_noise(num_envs)
    if begun is None:
        door.on_rollout_start()
    num_steps, num_episodes = begun or 0, 0
    needs_every_step, continue_training, callback = door.needs_every_step, True, door.callback
    calls_hook = "_update_info_buffer" in plan.user_code
    shown: dict[str, Any] = {"self": algorithm, "env": env, "callback": callback, "train_freq": train_freq}
    shown.update(replay_buffer=replay_buffer, action_noise=action_noise, learning_starts=learning_starts)
    shown.update(log_interval=log_interval, continue_training=True)
    while should_collect_more_steps(train_freq, num_steps, num_episodes):
        if sde_sample_freq > 0 and num_steps % sde_sample_freq == 0:
            algorithm.policy.actor.reset_noise(num_envs)
        actions, buffer_actions = algorithm._sample_action(learning_starts, action_noise, num_envs)
        needs_step = needs_every_step or steps_until_needed(callback, algorithm.num_timesteps, num_envs) == 0
        new_obs, rewards, dones, infos = env.step(actions)
        algorithm.num_timesteps += num_envs
        num_steps += 1
        if needs_step:
            shown.update(actions=actions, buffer_actions=buffer_actions, new_obs=new_obs, rewards=rewards, dones=dones)
            shown.update(infos=infos, num_collected_steps=num_steps, num_collected_episodes=num_episodes)
        continue_training = door.on_step(shown if needs_step else None)
        if not continue_training:
            return RolloutReturn(num_steps * num_envs, num_episodes, continue_training=False)
        ended = np.asarray(dones).nonzero()[0].tolist()  # SB3 accepts a list too
        # StepInfos have `episode` only where an episode ended, and are created when they are read.
        if ended or calls_hook or type(infos) is not StepInfos:
            algorithm._update_info_buffer(infos, dones)
        algorithm._store_transition(replay_buffer, buffer_actions, new_obs, rewards, dones, infos)
        algorithm._update_current_progress_remaining(algorithm.num_timesteps, algorithm._total_timesteps)
        algorithm._on_step()
        for index in ended:
            num_episodes += 1
            algorithm._episode_num += 1
            if action_noise is not None:
                action_noise.reset(**({"indices": [index]} if num_envs > 1 else {}))
            if log_interval is not None and algorithm._episode_num % log_interval == 0:
                algorithm.dump_logs()
    door.on_rollout_end()
    return RolloutReturn(num_steps * num_envs, num_episodes, continue_training)
