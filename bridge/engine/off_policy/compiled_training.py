"""Compiled off-policy training on JAX environments: steps and updates in one function, by jaxenvs.learn's driver.

    host                                     compiled function (driver.run)
    weights and moments, as vectors  ---->   until a limit is reached:
    environments and wrappers        ---->     update, if one is due
    replay store, which is donated   ---->     act, step all environments, store the transitions
    progress, action noise, key      ---->     keep what callbacks and logs need of the step
    everything is written back, and  <----
    the steps are counted

The limits are a number of steps (until a callback needs one) and a number of ended episodes (until a log is
due). Results are bitwise identical however training is split into calls.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from bridge.engine.learner import ExportedOptimizers, Numbers, transformations
from bridge.engine.plan import Plan
from bridge.engine.runtime import to_host
from bridge.engine.steps import Environments, FinalState, StepBatch
from bridge.engine.update import read_learner
from bridge.engine.user_code.overrides import is_constant
from bridge.sb3 import OffPolicy
from bridge.translate.policies.off_policy_networks import ExportedOffPolicy
from jaxenvs import VectorTimeStep
from jaxenvs.compilation import compiler_options
from jaxenvs.compilation.default_device import cached_by_device, here, on_device_of
from jaxenvs.learn import CollectorState, LearnerState, Replay
from jaxenvs.learn.devices import Sharded, layout_behind, layouts, run_on
from jaxenvs.learn.off_policy import driver
from jaxenvs.learn.off_policy.driver import Progress, RunState, Schedule
from jaxenvs.learn.off_policy.iteration import ExplorationState, Iteration
from jaxenvs.learn.off_policy.settings import OffPolicySettings
from jaxenvs.learn.off_policy.store.hindsight import require_goals

# A call can keep what the host needs of at most this many steps of each environment, and of all together.
MOST_STEPS, MOST_OF_ALL = 4096, 65_536


def _train(
    policy: ExportedOffPolicy,
    optimizers: ExportedOptimizers,
    settings: OffPolicySettings,
    schedule: Schedule,
    numbers: Numbers,
    learner: LearnerState,
    replay: Replay,
    environments: Environments,
    progress: Progress,
    action_noise: Sharded,
    key_data: jax.Array,
) -> tuple[RunState, FinalState, StepBatch]:
    """Run the driver: the updates that are due, and steps, in turns.

    Args:
      policy: without weights.
      optimizers: by the names of parameters.

    Returns:
      The run, without the steps and without the environments; the final state of the environments; and the steps.
    """
    inner = environments.stepping()

    def step(state: object, action: jax.Array) -> tuple[object, VectorTimeStep, object]:
        state, timestep, steps = inner(state, action)
        return state, timestep, (timestep.done, steps)

    compute_reward = None if settings.hindsight is None else require_goals(environments.venv.first_env)
    run = driver.run(
        Iteration(policy, transformations(optimizers, numbers), step, compute_reward),
        settings,
        learner,
        ExplorationState(environments.start(), replay, action_noise.tree),
        progress,
        jax.random.wrap_key_data(key_data),
        schedule,
    )
    exploration = dataclasses.replace(run.exploration, collector=CollectorState((), ()))
    final_state = environments.final_state(run.exploration.collector)
    return dataclasses.replace(run, exploration=exploration, kept=()), final_state, run.kept


@cached_by_device
def compiled_function(mesh: Mesh | None) -> jax.stages.Wrapped:
    """Return the compiled function, jitted once per process.

    JAX keeps the code for each structure of arguments, so models of one shape share it. The store is donated: copying a
    million rows would take longer than an update.
    """

    def train(policy: ExportedOffPolicy, optimizers: ExportedOptimizers, *given: Any) -> object:
        replay, environments = given[4:6]
        specs = None if mesh is None else _specs(mesh, replay, environments)
        return run_on(mesh, functools.partial(_train, policy, optimizers), specs, *given)

    return jax.jit(train, static_argnums=(0, 1), donate_argnums=(6,), compiler_options=compiler_options())


def _specs(mesh: Mesh, replay: Replay, environments: Environments) -> tuple[RunState, FinalState, PartitionSpec]:
    """Return how the results of the compiled function are divided over devices."""
    per_env: Any  # they stand for arrays
    same: Any
    (per_env, same), many = layouts(mesh), layout_behind(mesh)
    exploration = ExplorationState(CollectorState((), ()), replay.layout(per_env, same), per_env)
    counts = dict.fromkeys(("num_updated", "count", "num_ended"), same)
    run = RunState(learner=same, exploration=exploration, progress=same, metrics=same, kept=(), **counts)
    return run, environments.layout_of_final_state(per_env, same), many


def most_steps(num_envs: int) -> int:
    """Return how many steps of each environment one call can take."""
    return max(1, min(MOST_STEPS, MOST_OF_ALL // num_envs))


@on_device_of("plan")
def run_steps(algorithm: OffPolicy, plan: Plan, steps: int, episodes: float) -> tuple[StepBatch, dict[str, float], int]:
    """Run the compiled function, and write its results back to where SB3 has them.

    Args:
      steps: take at most this many steps of each environment. With 0, run only the update that is due.
      episodes: stop as soon as this many episodes have ended.

    Returns:
      The steps that were taken, on the host; the metrics of the last update; and how many updates there were.

    Raises:
      ValueError: parameters became NaN. The previous parameters are kept, as are the environments and all counts; the
        replay buffer also holds the steps that were taken.
    """
    wrapped_env, learner, buffer = plan.wrapped_env, plan.learner, algorithm.replay_buffer
    assert wrapped_env is not None
    assert learner is not None
    num_envs, mesh, settings = algorithm.n_envs, plan.mesh, algorithm._settings_now()
    schedule = make_schedule(algorithm, steps, episodes, most_steps(num_envs))
    vectors = read_learner(learner, algorithm._n_updates)
    environments = Environments.of(wrapped_env, algorithm._last_obs)
    progress, action_noise, key = algorithm._progress()
    replay = here(buffer.to_device(rows_to_come(algorithm), mesh))
    run, final_state, kept = compiled_function(mesh)(
        plan.network,
        tuple(learner.exported.items()),
        settings,
        schedule,
        learner.settings(),
        vectors,
        replay,
        environments,
        progress,
        Sharded(action_noise),
        key,
    )
    count = int(run.count)
    buffer.keep_on_device(run.exploration.replay, count)
    small = dataclasses.replace(run, exploration=dataclasses.replace(run.exploration, replay=None), learner=None)
    host, all_steps = to_host((small, kept))
    all_steps = jax.tree.map(lambda leaf: leaf[:count], all_steps)
    _write_back(algorithm, plan, run, host, final_state, all_steps)
    if settings.hindsight is not None and host.progress.is_due:
        buffer.require_whole_episode()  # as SB3 does before an update
    return all_steps, {name: value.item() for name, value in host.metrics.items()}, int(host.num_updated)


def rows_to_come(algorithm: OffPolicy) -> int:
    """Return how many rows a training may still add to the replay buffer."""
    left = max(algorithm._total_timesteps - algorithm.num_timesteps, 0)
    return int(-(-left // algorithm.n_envs)) + algorithm._frequency.frequency


def _write_back(
    algorithm: OffPolicy, plan: Plan, run: RunState, host: RunState, final_state: FinalState, steps: StepBatch
) -> None:
    """Write back to SB3's attributes what the compiled function returned, except for the replay buffer.

    Args:
      run: what the function returned. It has the weights.
      host: the same without the weights, as NumPy arrays.

    Raises:
      ValueError: parameters became NaN. Nothing has been written back then.
    """
    wrapped_env, learner = plan.wrapped_env, plan.learner
    assert wrapped_env is not None
    assert learner is not None
    try:
        # First, so that nothing has changed if it raises.
        learner.write_back(run.learner.params, run.learner.targets, run.learner.optimizer_states)
    except ValueError as error:
        if not host.count:
            raise
        raise ValueError(
            f"{error} The environments and all counters were kept from before the update, too, but the replay buffer "
            f"also holds the {int(host.count)} steps of each environment in which this happened."
        ) from None
    final_state.write_back(algorithm, wrapped_env, steps)
    normalize = algorithm._vec_normalize_env
    algorithm._last_original_obs = algorithm._last_obs if normalize is None else normalize.get_original_obs()
    algorithm._write_progress(host.progress, host.exploration.action_noise)
    algorithm._n_updates = int(run.learner.num_updates)


def make_schedule(algorithm: OffPolicy, steps: int, episodes: float, most: int) -> Schedule:
    """Return the limits, and the learning rate and the share of random actions in the next steps, each (most,).

    The learning rate is for an update before the step. Both are SB3's schedules, which may be any function of the
    progress.
    """
    total, num_envs = algorithm._total_timesteps, algorithm.n_envs
    # As in SB3, the progress before a step is what the previous step left: 1 before the first.
    progress = 1 - (algorithm.num_timesteps + num_envs * np.arange(max(steps, 1))) / total
    now = algorithm._current_progress_remaining
    learning_rate, exploration_rate = np.zeros(most, np.float32), np.zeros(most, np.float32)
    rate = algorithm.lr_schedule
    if is_constant(rate):
        learning_rate[:] = rate(now)
    else:
        learning_rate[: len(progress)] = [rate(each) for each in progress.tolist()]
    exploration_rate[: len(progress)] = algorithm._exploration_rates(progress)
    episodes = min(episodes, 2**31 - 1)
    return Schedule(learning_rate, exploration_rate, np.int32(steps), np.int32(episodes))
