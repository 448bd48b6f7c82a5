"""Running the program of an off-policy training, and showing its steps to callbacks, statistics and logs."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback

from bridge.engine.callbacks import looks_at_steps
from bridge.engine.compilation import to_host
from bridge.engine.interrupts import HeldInterrupt
from bridge.engine.off_policy.plan import OffPolicyPlan
from bridge.engine.off_policy.program import MOST_OF_ALL, MOST_STEPS, Limits, Shape, Trained, program
from bridge.engine.off_policy.updating import committed, optimizer_settings, read_learner, write_learner
from bridge.vec_env.infos import ended_infos, update_reset_infos
from bridge.wrappers.chain import in_dtypes_of
from jaxenvs.learn import DQN


def most_steps(num_envs: int) -> int:
    """How many steps one program has room for."""
    return max(1, min(MOST_STEPS, MOST_OF_ALL // num_envs))


def run_steps(algorithm: Any, plan: OffPolicyPlan, steps: int, episodes: float, is_watched: bool) -> Trained:
    """Run the program, and leave what it gave where SB3 has it; but for what `show_steps` does.

    Args:
      steps: at most so many of each environment. With 0, only the update that is due.
      episodes: stop as soon as so many have ended.
      is_watched: whether somebody looks at each step. `steps` are at most those of one iteration then.

    Raises:
      ValueError: parameters became NaN; those from before are kept.
    """
    chain, buffer, settings = plan.chain, algorithm.replay_buffer, algorithm._settings()
    assert chain is not None
    base = chain.base
    most = settings.train_freq if is_watched else most_steps(base.num_envs)
    shape = Shape(
        packing=base.programs.state,
        wrapper_types=chain.types,
        policy=plan.policy,
        optimizers=tuple(plan.optimizers.items()),
        most=most,
        is_watched=is_watched,
    )
    arguments = (
        base.venv,
        settings,
        *algorithm._schedules_ahead(steps, most),
        optimizer_settings(plan),
        read_learner(plan, algorithm._n_updates),
    )
    rest = (committed(base.packed_state), chain.state(), chain.observation(algorithm._last_obs), algorithm._progress())
    # Last, because whatever fails from here on has to give it back.
    left = -(-max(algorithm._total_timesteps - algorithm.num_timesteps, 0) // base.num_envs)
    replay = committed(buffer.lend(algorithm._last_obs, left + settings.train_freq))
    # The program comes back before it must forget rows for want of room for their ends, and is lent more.
    limits = Limits(np.int32(steps), np.int32(min(episodes, buffer.episodes_left(replay))))
    try:
        trained = program()(shape, limits, *arguments, replay, *rest)
    except BaseException:
        buffer.return_lent(replay)
        raise
    buffer.return_lent(trained.replay)
    host = _to_host(trained)
    _leave(algorithm, plan, trained, host)
    return host


def _to_host(trained: Trained) -> Trained:
    rest = trained.but(replay=None, env_state=None, learner=None)
    host: Trained = to_host(rest)
    return host


def _leave(algorithm: Any, plan: OffPolicyPlan, trained: Trained, host: Trained) -> None:
    """Leave the environments, the model and what it learns where the program ended."""
    chain = plan.chain
    assert chain is not None
    chain.base.write_back(trained.env_state)
    chain.write_back(host.wrapper_states)
    observation = jax.tree.map(np.array, in_dtypes_of(algorithm._last_obs, host.observation))
    algorithm._last_obs = algorithm._last_original_obs = observation
    algorithm._leave_progress(host.progress)
    if host.count:
        algorithm._last_episode_starts = np.array(host.steps.dones[host.count - 1])
    # Last, because it raises if something is NaN.
    write_learner(plan, trained.learner)
    algorithm._n_updates = int(trained.learner.num_updates)


def show_steps(
    algorithm: Any,
    plan: OffPolicyPlan,
    callback: BaseCallback,
    log_interval: int | None,
    host: Trained,
    watched: bool,
    held: HeldInterrupt,
) -> bool:
    """Count the steps that a program took, call the callback for each, and keep and log the episodes that ended.

    Args:
      host: what the program gave, on the host.
      watched: whether the callback may look at each step; else at the last one, at most.
      held: released before the callback may take long.

    Returns:
      False as soon as the callback does.
    """
    chain, count = plan.chain, int(host.count)
    assert chain is not None
    steps = jax.tree.map(lambda leaf: leaf[:count], host.steps)
    ended = steps.dones.nonzero()
    update_reset_infos(chain.base.reset_infos, steps.outputs.info, ended)
    outputs = steps.outputs
    if watched:
        observation = in_dtypes_of(algorithm._last_obs, outputs.final_observation)
        outputs = outputs._replace(final_observation=observation)
    infos = ended_infos(outputs, ended, chain.base.t_start)
    chain.infos(infos, ended[0], ended[1], steps.wrapper_outputs)
    first_of_step = np.searchsorted(ended[0], np.arange(count + 1)).tolist()
    num_envs = algorithm.n_envs
    shown = {"self": algorithm, "env": algorithm.env, "callback": callback, "replay_buffer": algorithm.replay_buffer}
    shown.update(train_freq=algorithm.train_freq, action_noise=algorithm.action_noise, log_interval=log_interval)
    shown.update(learning_starts=algorithm.learning_starts, continue_training=True)
    shows_ends = has_shown_ends = looks_at_steps(callback)  # those of the program before, too
    for step in range(count):
        rows = slice(first_of_step[step], first_of_step[step + 1])
        algorithm.num_timesteps += num_envs
        if (num_collected := algorithm._step_of(step + 1 - count)) == 1:
            algorithm._episodes_before_iteration = algorithm._episode_num
        if watched or step == count - 1:
            held.release()
            quiet = jax.tree.map(lambda leaf, step=step: leaf[step], outputs.final_info)
            step_infos = chain.base.quiet_infos(quiet)
            for lane, info in zip(ended[1][rows].tolist(), infos[rows]):
                step_infos[lane] = info
            taken = jax.tree.map(lambda leaf, step=step: leaf[step], host.taken) if watched else host.taken
            callback.update_locals(
                {
                    **shown,
                    **_seen(algorithm, taken),
                    "num_collected_steps": num_collected,
                    "num_collected_episodes": algorithm._episode_num - algorithm._episodes_before_iteration,
                    "rewards": np.array(outputs.reward[step]),
                    "dones": np.array(outputs.done[step]),
                    "infos": step_infos,
                }
            )
        elif shows_ends and (rows.start < rows.stop or has_shown_ends):
            has_shown_ends = rows.start < rows.stop
            step_infos = [{} for _ in range(num_envs)]
            for lane, info in zip(ended[1][rows].tolist(), infos[rows]):
                step_infos[lane] = info
            callback.update_locals({"self": algorithm, "dones": np.array(outputs.done[step]), "infos": step_infos})
        if not callback.on_step():
            return False
        if rows.start < rows.stop:
            algorithm._update_info_buffer(infos[rows], np.ones(rows.stop - rows.start, bool))
        algorithm._update_current_progress_remaining(algorithm.num_timesteps, algorithm._total_timesteps)
        algorithm._count_step()
        for _ in range(rows.start, rows.stop):
            algorithm._episode_num += 1
            if log_interval is not None and algorithm._episode_num % log_interval == 0:
                algorithm.dump_logs()
    return True


def _seen(algorithm: Any, taken: Any) -> dict[str, Any]:
    """The locals of SB3's `collect_rollouts` that tell of one step."""
    space = algorithm.action_space
    is_discrete = isinstance(space, spaces.Discrete)
    buffer_actions = np.array(taken.action, np.int64 if is_discrete else np.float32)
    if not is_discrete:
        buffer_actions = buffer_actions.reshape(-1, *space.shape)
    return {
        "buffer_actions": buffer_actions,
        "actions": buffer_actions if is_discrete else np.array(taken.env_action),
        "new_obs": jax.tree.map(np.array, in_dtypes_of(algorithm._last_obs, taken.observation)),
    }


def schedules(algorithm: Any, steps: int, most: int) -> tuple[np.ndarray, np.ndarray]:
    """The learning rate of an update before each of the next steps, and the share of random actions in it, (most,).

    Both are SB3's schedules, which may be any function of the progress.
    """
    total, num_envs = algorithm._total_timesteps, algorithm.n_envs
    # As SB3 has it: from the step before, which is 1 where there was none.
    progress = 1 - (algorithm.num_timesteps + num_envs * np.arange(max(steps, 1))) / total
    now = algorithm._current_progress_remaining
    learning_rate, exploration_rate = np.zeros(most, np.float32), np.zeros(most, np.float32)
    rate = algorithm.lr_schedule
    if isinstance(algorithm.learning_rate, int | float):
        learning_rate[:] = rate(now)
    else:
        learning_rate[: len(progress)] = [rate(each) for each in progress.tolist()]
    if isinstance(algorithm._settings(), DQN):
        exploration_rate[: len(progress)] = [algorithm.exploration_schedule(each) for each in progress.tolist()]
        exploration_rate[0] = algorithm.exploration_rate
    return learning_rate, exploration_rate
