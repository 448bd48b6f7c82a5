"""Programs of off-policy algorithms on JAX environments: steps and updates, by jaxenvs.learn's driver."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from bridge.engine.learner import ExportedOptimizers, Numbers, committed, transformations
from bridge.engine.plan import Plan
from bridge.engine.runtime import to_host
from bridge.engine.steps import End, Environments, Ran, Steps, Taken, as_given
from bridge.engine.update import read_learner
from bridge.engine.user_code.overrides import is_constant
from bridge.sb3 import OffPolicy
from bridge.translate.policies.off_policy_networks import ExportedOffPolicy
from jaxenvs.compilation import compiler_options
from jaxenvs.learn import CollectorState, LearnerState, Replay
from jaxenvs.learn.devices import Lanes, layout_behind, layouts, run_on
from jaxenvs.learn.loop import put, zeros
from jaxenvs.learn.off_policy import driver
from jaxenvs.learn.off_policy.iteration import ExplorationState, Iteration
from jaxenvs.learn.off_policy.settings import OffPolicySettings
from jaxenvs.learn.off_policy.store.hindsight import require_goals

# A program has room for what the host needs of so many steps, and of so many of all environments together.
MOST_STEPS, MOST_OF_ALL = 4096, 65_536

# Steps; as somebody sees them; and, where that is the last alone, the observation before it, unless it is the first.
Kept = tuple[Steps, Taken, Any]


def _train(
    policy: ExportedOffPolicy,
    optimizers: ExportedOptimizers,
    most: int,
    is_watched: bool,
    limits: driver.Limits,
    settings: OffPolicySettings,
    rates: driver.Rates,
    numbers: Numbers,
    learner: LearnerState,
    replay: Replay,
    environments: Environments,
    progress: driver.Progress,
    action_noise: Lanes,
    key_data: jax.Array,
) -> tuple[driver.Run, End, Kept]:
    """
    Args:
      policy: without weights.
      optimizers: by the names of parameters.
      most: for how many steps there is room.
      is_watched: whether every step is kept, for somebody who looks at each.

    Returns:
      The run, without what was kept and where the environments are, which follow, in turn.
    """
    inner = environments.stepping()

    def step(state: Any, action: jax.Array) -> Any:
        state, timestep, steps = inner(state, action)
        return state, timestep, (timestep.done, (steps, action, timestep.observation, timestep.final_observation))

    compute_reward = None if settings.hindsight is None else require_goals(environments.venv.first_env)
    run = driver.run(
        Iteration(policy, transformations(optimizers, numbers), step, compute_reward),
        settings,
        learner,
        ExplorationState(environments.start(), replay, action_noise.tree),
        progress,
        jax.random.wrap_key_data(key_data),
        limits,
        rates,
        KeepSteps(most, is_watched),
    )
    exploration = dataclasses.replace(run.exploration, collector=CollectorState((), ()))
    end = environments.end(run.exploration.collector)
    return dataclasses.replace(run, exploration=exploration, kept=()), end, run.kept


@dataclasses.dataclass(frozen=True)
class KeepSteps:
    """What the host needs of steps: every one's Steps, and every one or the last one as callbacks see it."""

    most: int
    is_watched: bool

    def empty(self, given: Any) -> Kept:
        """See driver.Keep."""
        action, (steps, *seen) = given
        taken = Taken(action, *seen)
        if self.is_watched:
            return zeros(steps, self.most), zeros(taken, self.most), ()
        return zeros(steps, self.most), zeros(taken), zeros(taken.observation)

    def put(self, kept: Kept, count: jax.Array, given: Any) -> Kept:
        """See driver.Keep."""
        action, (steps, *seen) = given
        taken, all_steps = Taken(action, *seen), put(kept[0], count, steps)
        if self.is_watched:
            return all_steps, put(kept[1], count, taken), ()
        return all_steps, taken, kept[1].observation


@functools.cache
def program(mesh: Mesh | None) -> Callable[..., Any]:
    """Jitted once for the process: JAX keeps a program for each structure, so models of one shape share theirs.

    The store is donated: a copy of a million rows would take longer than an update.
    """

    def train(
        policy: ExportedOffPolicy, optimizers: ExportedOptimizers, most: int, is_watched: bool, *given: Any
    ) -> Any:
        def train_one(*parts: Any) -> tuple[driver.Run, End, Kept]:
            run, end, kept = _train(policy, optimizers, most, is_watched, *parts)
            if mesh is not None:
                replay = run.exploration.replay.of_all_devices()
                run = dataclasses.replace(run, exploration=dataclasses.replace(run.exploration, replay=replay))
            return run, end, kept

        environments = given[6]
        return run_on(mesh, train_one, None if mesh is None else _specs(mesh, environments, is_watched), *given)

    return jax.jit(train, static_argnums=(0, 1, 2, 3), donate_argnums=(9,), compiler_options=compiler_options())


def _specs(mesh: Mesh, environments: Environments, is_watched: bool) -> tuple[driver.Run, Any, Any]:
    """How what the program gives is divided."""
    lanes: Any  # in the places of arrays
    same: Any
    (lanes, same), many = layouts(mesh), layout_behind(mesh)
    exploration = ExplorationState(CollectorState((), ()), lanes, lanes)
    counts = dict.fromkeys(("num_updated", "count", "num_ended"), same)
    run = driver.Run(learner=same, exploration=exploration, progress=same, metrics=same, kept=(), **counts)
    return run, environments.layout_of_end(lanes, same), (many, many, ()) if is_watched else (many, lanes, lanes)


def most_steps(num_envs: int) -> int:
    """How many steps one program has room for."""
    return max(1, min(MOST_STEPS, MOST_OF_ALL // num_envs))


def run_steps(
    algorithm: OffPolicy, plan: Plan, steps: int, episodes: float, is_watched: bool, is_seen: bool = False
) -> Ran:
    """Run the program, and leave what it gave where SB3 has it.

    Args:
      steps: at most so many of each environment. With 0, only the update that is due.
      episodes: stop as soon as so many have ended.
      is_watched: whether somebody looks at each step. `steps` are at most those of one iteration then.
      is_seen: whether somebody looks at the last step. What `_on_step` does after each that is looked at is the
        caller's, once it was looked at.

    Raises:
      ValueError: parameters became NaN. Those from before are kept, as are the environments and all counts; the replay
        buffer also holds the steps that were taken.
    """
    chain, learner, buffer, settings = plan.chain, plan.learner, algorithm.replay_buffer, algorithm._settings_now()
    assert chain is not None
    assert learner is not None
    before, num_envs, mesh = algorithm._last_obs, algorithm.n_envs, plan.mesh
    bound = committed if mesh is None else (lambda tree: tree)  # what is divided is where it is to be
    most = settings.train_freq if is_watched else most_steps(num_envs)
    static_part = plan.network, tuple(learner.exported.items()), most, is_watched
    rates = schedules(algorithm, steps, most)
    vectors = bound(read_learner(learner, algorithm._n_updates))
    environments = Environments.of(chain, before)
    environments = dataclasses.replace(environments, env_state=bound(environments.env_state))
    progress, action_noise, key = algorithm._progress()
    # Last, because whatever fails from here on has to give it back.
    left = int(-(-max(algorithm._total_timesteps - algorithm.num_timesteps, 0) // num_envs))
    replay = bound(buffer.lend(before, left + settings.train_freq, mesh))
    episodes = min(episodes, buffer.episodes_left(replay), 2**31 - 1)
    limits = driver.Limits(np.int32(steps), np.int32(episodes), np.int32(not is_watched), np.int32(not is_seen))
    try:
        run, end, kept = program(mesh)(
            *static_part,
            limits,
            settings,
            rates,
            learner.settings(),
            vectors,
            replay,
            environments,
            progress,
            Lanes(action_noise),
            key,
        )
    except BaseException:
        buffer.return_lent(replay)
        raise
    buffer.return_lent(run.exploration.replay)
    exploration = dataclasses.replace(run.exploration, replay=None)
    host, (all_steps, taken, last) = to_host((dataclasses.replace(run, exploration=exploration, learner=None), kept))
    count = int(host.count)
    all_steps = jax.tree.map(lambda leaf: leaf[:count], all_steps)
    _write_back(algorithm, plan, run, host, end, all_steps)
    if settings.hindsight is not None and host.progress.is_due:
        buffer.require_whole_episode()  # as SB3, before an update
    if is_watched:
        taken = jax.tree.map(lambda leaf: leaf[:count], taken)
    observation, final_observation = (as_given(before, each) for each in (taken.observation, taken.final_observation))
    return Ran(
        chain=chain,
        before=before if is_watched or count <= 1 else as_given(before, last),
        count=count,
        num_updated=int(host.num_updated),
        metrics={name: value.item() for name, value in host.metrics.items()},
        steps=all_steps,
        taken=Taken(taken.action, taken.env_action, observation, final_observation),
    )


def _write_back(algorithm: OffPolicy, plan: Plan, run: driver.Run, host: driver.Run, end: End, steps: Steps) -> None:
    """Write back to SB3's attributes what the compiled function returned, except for the replay buffer.

    Args:
      run: what the function returned. It has the weights.
      host: the same without the weights, as NumPy arrays.
      end: the state of the environments after the last step.
      steps: the steps that were taken.

    Raises:
      ValueError: parameters became NaN. Nothing has been written back then.
    """
    chain, learner = plan.chain, plan.learner
    assert chain is not None
    assert learner is not None
    try:
        # First, so that nothing has changed if it raises.
        learner.leave(run.learner.params, run.learner.targets, run.learner.optimizer_states)
    except ValueError as error:
        raise ValueError(
            f"{error} The environments and all counters were kept from before the update, too, but the replay buffer "
            f"also holds the {int(host.count)} steps of each environment in which this happened."
        ) from None
    end.leave(algorithm, chain, steps)
    normalize = algorithm._vec_normalize_env
    algorithm._last_original_obs = algorithm._last_obs if normalize is None else normalize.get_original_obs()
    algorithm._leave_progress(host.progress, host.exploration.action_noise)
    algorithm._n_updates = int(run.learner.num_updates)


def schedules(algorithm: OffPolicy, steps: int, most: int) -> driver.Rates:
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
    exploration_rate[: len(progress)] = algorithm._exploration_rates(progress)
    return driver.Rates(learning_rate, exploration_rate)  # type: ignore[arg-type]
