"""An off-policy training on JAX environments: the driver of jaxenvs.learn as a program, and what it leaves where."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bridge.engine.compilation import to_host
from bridge.engine.learner import committed, transformations
from bridge.engine.plan import Plan
from bridge.engine.showing import Steps
from bridge.engine.trust import is_constant
from bridge.engine.updates import read_off_policy
from bridge.sb3 import OffPolicy
from bridge.translate.optimizers import ExportedOptimizer
from bridge.vec_env.packing import Packed, Packing
from bridge.vec_env.programs import Outputs
from bridge.wrappers.chain import in_dtypes_of
from bridge.wrappers.chain import step as step_chain
from jaxenvs import VectorEnv, struct
from jaxenvs.compilation import compiler_options
from jaxenvs.learn import DQN, CollectorState, Replay
from jaxenvs.learn.off_policy import driver
from jaxenvs.learn.off_policy.loop import ExplorationState
from jaxenvs.learn.off_policy.settings import OffPolicySettings, OffPolicyState

# A program has room for what the host needs of so many steps, and of so many of all environments together.
MOST_STEPS, MOST_OF_ALL = 4096, 65_536


@dataclasses.dataclass(frozen=True)
class Shape:
    """What of a training is the program, rather than an argument of it.

    Attributes:
      packing: of the environments' state.
      wrapper_types: those of the chain.
      policy: without weights.
      optimizers: by the names of parameters.
      most: for how many steps there is room.
      is_watched: whether every step is kept, for somebody who looks at each.
    """

    packing: Packing
    wrapper_types: tuple[type, ...]
    policy: Any
    optimizers: tuple[tuple[str, ExportedOptimizer], ...]
    most: int
    is_watched: bool


@struct
class Taken:
    """Steps as somebody sees them who looks at locals: with the leading axis of steps, if each is kept, else the last.

    Attributes:
      action: as stored; env_action: as the environments took it; observation: what came after it.
      final_observation: the last ones of the episodes that ended; the observation, elsewhere.
    """

    action: Any
    env_action: Any
    observation: Any
    final_observation: Any


def _train(
    shape: Shape,
    limits: driver.Limits,
    venv: VectorEnv,
    settings: OffPolicySettings,
    rates: tuple[jax.Array, jax.Array],
    optimizer_settings: dict[str, dict[str, Any]],
    learner: OffPolicyState,
    replay: Replay,
    packed_state: Packed,
    wrapper_states: tuple[Any, ...],
    observation: Any,
    progress: driver.Progress,
    action_noise: Any,
    key_data: jax.Array,
) -> tuple[driver.Run, Packed, tuple[Steps, Taken]]:
    """
    Args:
      rates: see `driver.run`, `learning_rate` and `exploration_rate`.

    Returns:
      The run, without what was kept and the environments' state, which follow: packed, and the steps that were kept.
    """

    def step(state: Any, action: jax.Array) -> Any:
        env_state, wrapper_states = state
        env_state, timestep = venv.step(env_state, action)
        wrapper_states, timestep, wrapper_outputs = step_chain(shape.wrapper_types, wrapper_states, timestep, action)
        outputs = Outputs.of(timestep)._replace(observation=(), final_observation=())
        seen = (Steps(outputs, wrapper_outputs), action, timestep.observation, timestep.final_observation)
        return (env_state, wrapper_states), timestep, (timestep.done, seen)

    def empty(given: Any) -> tuple[Steps, Taken]:
        action, (steps, *seen) = given
        return _zeros(steps, shape.most), _zeros(Taken(action, *seen), *([shape.most] if shape.is_watched else []))

    def keep(kept: tuple[Steps, Taken], count: jax.Array, given: Any) -> tuple[Steps, Taken]:
        def put(many: jax.Array, one: jax.Array) -> jax.Array:
            return many.at[count].set(one)

        action, (steps, *seen) = given
        taken = Taken(action, *seen)
        return jax.tree.map(put, kept[0], steps), jax.tree.map(put, kept[1], taken) if shape.is_watched else taken

    collector = CollectorState((shape.packing.unpack(packed_state), wrapper_states), observation)
    end = driver.run(
        settings,
        shape.policy,
        transformations(shape.optimizers, optimizer_settings),
        step,
        learner,
        ExplorationState(collector, replay, action_noise),
        progress,
        jax.random.wrap_key_data(key_data),
        limits,
        *rates,
        keep,
        empty,
    )
    env_state, wrapper_states = end.exploration.collector.env_state
    collector = CollectorState(((), wrapper_states), end.exploration.collector.observation)
    exploration = dataclasses.replace(end.exploration, collector=collector)
    return dataclasses.replace(end, exploration=exploration, kept=()), shape.packing.pack(env_state), end.kept


def _zeros(tree: Any, *lead: int) -> Any:
    return jax.tree.map(lambda leaf: jnp.zeros((*lead, *leaf.shape), leaf.dtype), tree)


@functools.cache
def program() -> Callable[..., Any]:
    """Jitted once for the process: JAX keeps a program for each structure, so models of one shape share theirs.

    The store is donated: a copy of a million rows would take longer than an update.
    """
    return jax.jit(_train, static_argnums=(0,), donate_argnums=(7,), compiler_options=compiler_options())


@dataclasses.dataclass
class Ran:
    """What a program gave that somebody may be shown, on the host.

    Attributes:
      count: how many steps of each environment it took.
      num_updated, metrics: see `driver.Run`.
      steps, taken: those steps.
    """

    count: int
    num_updated: int
    metrics: dict[str, float]
    steps: Steps
    taken: Taken


def most_steps(num_envs: int) -> int:
    """How many steps one program has room for."""
    return max(1, min(MOST_STEPS, MOST_OF_ALL // num_envs))


def run_steps(algorithm: OffPolicy, plan: Plan, steps: int, episodes: float, is_watched: bool) -> Ran:
    """Run the program, and leave what it gave where SB3 has it.

    Args:
      steps: at most so many of each environment. With 0, only the update that is due.
      episodes: stop as soon as so many have ended.
      is_watched: whether somebody looks at each step. `steps` are at most those of one iteration then.

    Raises:
      ValueError: parameters became NaN; those from before are kept.
    """
    chain, learner, buffer, settings = plan.chain, plan.learner, algorithm.replay_buffer, algorithm._settings_now()
    assert chain is not None
    assert learner is not None
    base = chain.base
    most = settings.train_freq if is_watched else most_steps(base.num_envs)
    shape = Shape(
        packing=base.programs.state,
        wrapper_types=chain.types,
        policy=plan.network,
        optimizers=tuple(learner.exported.items()),
        most=most,
        is_watched=is_watched,
    )
    rates, vectors = schedules(algorithm, steps, most), committed(read_off_policy(learner, algorithm._n_updates))
    rest = (committed(base.packed_state), chain.state(), chain.observation(algorithm._last_obs))
    where = algorithm._progress()
    # Last, because whatever fails from here on has to give it back.
    left = int(-(-max(algorithm._total_timesteps - algorithm.num_timesteps, 0) // base.num_envs))
    replay = committed(buffer.lend(algorithm._last_obs, left + settings.train_freq))
    limits = driver.Limits(np.int32(steps), np.int32(min(episodes, buffer.episodes_left(replay), 2**31 - 1)))
    try:
        run, env_state, kept = program()(
            shape, limits, base.venv, settings, rates, learner.settings(), vectors, replay, *rest, *where
        )
    except BaseException:
        buffer.return_lent(replay)
        raise
    buffer.return_lent(run.exploration.replay)
    exploration = dataclasses.replace(run.exploration, replay=None)
    host, (all_steps, taken) = to_host((dataclasses.replace(run, exploration=exploration, learner=None), kept))
    count = int(host.count)
    # Leave the environments, the model and what it learns where the program ended.
    chain.base.write_back(env_state)
    chain.write_back(host.exploration.collector.env_state[1])
    like = algorithm._last_obs
    observation = jax.tree.map(np.array, in_dtypes_of(like, host.exploration.collector.observation))
    algorithm._last_obs = algorithm._last_original_obs = observation
    algorithm._leave_progress(host.progress, host.exploration.action_noise)
    if count:
        algorithm._last_episode_starts = np.array(all_steps.dones[count - 1])
    # Last, because it raises if something is NaN.
    learner.leave(run.learner.params, run.learner.targets, run.learner.optimizer_states)
    algorithm._n_updates = int(run.learner.num_updates)
    return Ran(
        count=count,
        num_updated=int(host.num_updated),
        metrics={name: value.item() for name, value in host.metrics.items()},
        steps=jax.tree.map(lambda leaf: leaf[:count], all_steps),
        taken=_in_dtypes_of(like, jax.tree.map(lambda leaf: leaf[:count], taken) if is_watched else taken),
    )


def _in_dtypes_of(like: Any, taken: Taken) -> Taken:
    """What SB3's wrappers would give, in memory of its own."""
    observation, final_observation = (
        jax.tree.map(np.array, in_dtypes_of(like, each)) for each in (taken.observation, taken.final_observation)
    )
    return Taken(taken.action, taken.env_action, observation, final_observation)


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
    if isinstance(algorithm._settings_now(), DQN):
        dqn: Any = algorithm
        exploration_rate[: len(progress)] = [dqn.exploration_schedule(each) for each in progress.tolist()]
        exploration_rate[0] = dqn.exploration_rate
    return learning_rate, exploration_rate
