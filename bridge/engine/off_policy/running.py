"""Running the program of an off-policy training, and leaving what it gave where SB3 has it."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from bridge.engine.compilation import to_host
from bridge.engine.learner import committed
from bridge.engine.off_policy.program import MOST_OF_ALL, MOST_STEPS, Limits, Shape, Trained, program
from bridge.engine.plan import Plan
from bridge.engine.trust import is_constant
from bridge.engine.updates import read_off_policy
from bridge.sb3 import OffPolicy
from bridge.wrappers.chain import in_dtypes_of
from jaxenvs.learn import DQN


def most_steps(num_envs: int) -> int:
    """How many steps one program has room for."""
    return max(1, min(MOST_STEPS, MOST_OF_ALL // num_envs))


def run_steps(algorithm: OffPolicy, plan: Plan, steps: int, episodes: float, is_watched: bool) -> Trained:
    """Run the program, and leave what it gave where SB3 has it.

    Args:
      steps: at most so many of each environment. With 0, only the update that is due.
      episodes: stop as soon as so many have ended.
      is_watched: whether somebody looks at each step. `steps` are at most those of one iteration then.

    Raises:
      ValueError: parameters became NaN; those from before are kept.
    """
    chain, buffer, settings = plan.chain, algorithm.replay_buffer, algorithm._settings()
    assert chain is not None
    base, learner = chain.base, plan.learner
    assert learner is not None
    most = settings.train_freq if is_watched else most_steps(base.num_envs)
    shape = Shape(
        packing=base.programs.state,
        wrapper_types=chain.types,
        policy=plan.network,
        optimizers=tuple(learner.exported.items()),
        most=most,
        is_watched=is_watched,
    )
    arguments = (
        base.venv,
        settings,
        *schedules(algorithm, steps, most),
        learner.settings(),
        read_off_policy(learner, algorithm._n_updates),
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


def _leave(algorithm: OffPolicy, plan: Plan, trained: Trained, host: Trained) -> None:
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
    learner, state = plan.learner, trained.learner
    assert learner is not None
    learner.leave(state.params, state.targets, state.optimizer_states)
    algorithm._n_updates = int(state.num_updates)


def schedules(algorithm: OffPolicy, steps: int, most: int) -> tuple[np.ndarray, np.ndarray]:
    """The learning rate of an update before each of the next steps, and the share of random actions in it, (most,).

    Both are SB3's schedules, which may be any function of the progress.
    """
    total, num_envs = algorithm._total_timesteps, algorithm.n_envs
    # As SB3 has it: from the step before, which is 1 where there was none.
    progress = 1 - (algorithm.num_timesteps + num_envs * np.arange(max(steps, 1))) / total
    now = algorithm._current_progress_remaining
    learning_rate, exploration_rate = np.zeros(most, np.float32), np.zeros(most, np.float32)
    rate = algorithm.lr_schedule
    if is_constant(rate):
        learning_rate[:] = rate(now)
    else:
        learning_rate[: len(progress)] = [rate(each) for each in progress.tolist()]
    if isinstance(algorithm._settings(), DQN):
        dqn: Any = algorithm
        exploration_rate[: len(progress)] = [dqn.exploration_schedule(each) for each in progress.tolist()]
        exploration_rate[0] = dqn.exploration_rate
    return learning_rate, exploration_rate
