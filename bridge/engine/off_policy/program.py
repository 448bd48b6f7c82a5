"""Programs of off-policy algorithms: updates; and on JAX environments steps and updates, by jaxenvs.learn's driver."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from gymnasium import spaces
from jax.sharding import Mesh

from bridge.engine.compilation import to_host
from bridge.engine.learner import ExportedOptimizers, Learner, Numbers, committed, transformations
from bridge.engine.plan import Plan
from bridge.engine.steps import End, Environments, Ran, Steps, Taken, as_given
from bridge.engine.trust import is_constant
from bridge.observations import map_parts
from bridge.replay.store.samples import PrioritizedSamples
from bridge.sb3 import OffPolicy, Space
from bridge.translate.off_policy_networks import ExportedOffPolicy
from jaxenvs.compilation import compiler_options
from jaxenvs.learn import CollectorState, Replay, Transitions
from jaxenvs.learn.devices import layout_behind, layouts, on_each
from jaxenvs.learn.off_policy import driver
from jaxenvs.learn.off_policy.hindsight import require_goals
from jaxenvs.learn.off_policy.iteration import ExplorationState
from jaxenvs.learn.off_policy.replay import TD_ERRORS
from jaxenvs.learn.off_policy.settings import OffPolicySettings, OffPolicyState

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
    rates: tuple[jax.Array, jax.Array],
    optimizer_settings: Numbers,
    learner: OffPolicyState,
    replay: Replay,
    environments: Environments,
    progress: driver.Progress,
    action_noise: jax.Array | None,
    key_data: jax.Array,
) -> tuple[driver.Run, End, Kept]:
    """
    Args:
      policy: without weights.
      optimizers: by the names of parameters.
      most: for how many steps there is room.
      is_watched: whether every step is kept, for somebody who looks at each.
      rates: see `driver.run`, `learning_rate` and `exploration_rate`.

    Returns:
      The run, without what was kept and where the environments are, which follow, in turn.
    """
    inner = environments.stepping()

    def step(state: Any, action: jax.Array) -> Any:
        state, timestep, steps = inner(state, action)
        return state, timestep, (timestep.done, (steps, action, timestep.observation, timestep.final_observation))

    def empty(given: Any) -> Kept:
        action, (steps, *seen) = given
        taken = Taken(action, *seen)
        if is_watched:
            return _zeros(steps, most), _zeros(taken, most), ()
        return _zeros(steps, most), _zeros(taken), _zeros(taken.observation)

    def keep(kept: Kept, count: jax.Array, given: Any) -> Kept:
        def put(many: jax.Array, one: jax.Array) -> jax.Array:
            return many.at[count].set(one)

        action, (steps, *seen) = given
        taken = Taken(action, *seen)
        all_steps = jax.tree.map(put, kept[0], steps)
        if is_watched:
            return all_steps, jax.tree.map(put, kept[1], taken), ()
        return all_steps, taken, kept[1].observation

    run = driver.run(
        settings,
        policy,
        transformations(optimizers, optimizer_settings),
        step,
        learner,
        ExplorationState(environments.start(), replay, action_noise),
        progress,
        jax.random.wrap_key_data(key_data),
        limits,
        *rates,
        keep,
        empty,
        None if settings.hindsight is None else require_goals(environments.venv.first_env),
    )
    exploration = dataclasses.replace(run.exploration, collector=CollectorState((), ()))
    end = environments.end(run.exploration.collector)
    return dataclasses.replace(run, exploration=exploration, kept=()), end, run.kept


def _zeros(tree: Any, *lead: int) -> Any:
    return jax.tree.map(lambda leaf: jnp.zeros((*lead, *leaf.shape), leaf.dtype), tree)


def _train_on(
    mesh: Mesh, policy: ExportedOffPolicy, optimizers: ExportedOptimizers, most: int, is_watched: bool, *given: Any
) -> tuple[driver.Run, End, Kept]:
    """`_train` over devices, each with its lanes and its part of the store and of the minibatches."""
    *_, environments, _, _, _ = given
    lanes: Any  # in the places of arrays
    same: Any
    (lanes, same), many = layouts(mesh), layout_behind(mesh)

    def on_one(
        limits: driver.Limits,
        settings: OffPolicySettings,
        rates: Any,
        numbers: Numbers,
        learner: OffPolicyState,
        replay: Replay,
        environments: Environments,
        *rest: Any,
    ) -> tuple[driver.Run, End, Kept]:
        own = jax.tree.map(lambda leaf: leaf[0], replay), environments.of_one_device(mesh)
        settings = settings.replace(axis_name=mesh.axis_names[0])
        static_part = policy, optimizers, most, is_watched
        run, end, kept = _train(*static_part, limits, settings, rates, numbers, learner, *own, *rest)
        stored = jax.tree.map(lambda leaf: leaf[None], run.exploration.replay)
        return dataclasses.replace(run, exploration=dataclasses.replace(run.exploration, replay=stored)), end, kept

    specs = (same, same, same, same, same, lanes, environments.layout(lanes, same), same, lanes, same)
    exploration = ExplorationState(CollectorState((), ()), lanes, lanes)
    counts = dict.fromkeys(("num_updated", "count", "num_ended"), same)
    run = driver.Run(learner=same, exploration=exploration, progress=same, metrics=same, kept=(), **counts)
    kept = (many, many, ()) if is_watched else (many, lanes, lanes)
    on_all = on_each(on_one, mesh, specs, (run, environments.layout_of_end(lanes, same), kept))
    result: tuple[driver.Run, End, Kept] = on_all(*given)
    return result


@functools.cache
def program(mesh: Mesh | None) -> Callable[..., Any]:
    """Jitted once for the process: JAX keeps a program for each structure, so models of one shape share theirs.

    The store is donated: a copy of a million rows would take longer than an update.
    """
    train = _train if mesh is None else functools.partial(_train_on, mesh)
    return jax.jit(train, static_argnums=(0, 1, 2, 3), donate_argnums=(9,), compiler_options=compiler_options())


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
      ValueError: parameters became NaN; those from before are kept.
    """
    chain, learner, buffer, settings = plan.chain, plan.learner, algorithm.replay_buffer, algorithm._settings_now()
    assert chain is not None
    assert learner is not None
    before, num_envs, mesh = algorithm._last_obs, algorithm.n_envs, plan.mesh
    bound = committed if mesh is None else (lambda tree: tree)  # what is divided is where it is to be
    most = settings.train_freq if is_watched else most_steps(num_envs)
    static_part = plan.network, tuple(learner.exported.items()), most, is_watched
    rates = schedules(algorithm, steps, most)
    vectors = bound(read_off_policy(learner, algorithm._n_updates))
    environments = Environments.of(chain, before)
    environments = dataclasses.replace(environments, env_state=bound(environments.env_state))
    where = algorithm._progress()
    # Last, because whatever fails from here on has to give it back.
    left = int(-(-max(algorithm._total_timesteps - algorithm.num_timesteps, 0) // num_envs))
    replay = bound(buffer.lend(before, left + settings.train_freq, mesh))
    episodes = min(episodes, buffer.episodes_left(replay), 2**31 - 1)
    limits = driver.Limits(np.int32(steps), np.int32(episodes), np.int32(not is_watched), np.int32(not is_seen))
    try:
        run, end, kept = program(mesh)(
            *static_part, limits, settings, rates, learner.settings(), vectors, replay, environments, *where
        )
    except BaseException:
        buffer.return_lent(replay)
        raise
    buffer.return_lent(run.exploration.replay)
    exploration = dataclasses.replace(run.exploration, replay=None)
    host, (all_steps, taken, last) = to_host((dataclasses.replace(run, exploration=exploration, learner=None), kept))
    count = int(host.count)
    all_steps = jax.tree.map(lambda leaf: leaf[:count], all_steps)
    # Leave the environments, the model and what it learns where the program ended.
    end.leave(algorithm, chain, all_steps)
    algorithm._last_original_obs = algorithm._last_obs
    algorithm._leave_progress(host.progress, host.exploration.action_noise)
    # Last, because it raises if something is NaN.
    learner.leave(run.learner.params, run.learner.targets, run.learner.optimizer_states)
    algorithm._n_updates = int(run.learner.num_updates)
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
    exploration_rate[: len(progress)] = algorithm._exploration_rates(progress)
    return learning_rate, exploration_rate


@functools.lru_cache(maxsize=64)
def update_program(policy: ExportedOffPolicy, optimizers: ExportedOptimizers, in_order: bool) -> Callable[..., Any]:
    """The program of updates.

    Of a network each, because to look for it among static arguments would take as long as a small update does.
    """

    def update(
        settings: OffPolicySettings,
        optimizer_settings: Numbers,
        learner: OffPolicyState,
        batches: Transitions,
        key_data: jax.Array,
        first: jax.Array,
    ) -> tuple[OffPolicyState, jax.Array, dict[str, jax.Array]]:
        key, draw = jax.random.split(jax.random.wrap_key_data(key_data))
        num = batches.reward.shape[0]
        example = jax.tree.map(lambda leaf: leaf[0], batches)
        noise = settings.noise(policy, settings.acting_params(learner), example, draw, num)
        of_each = transformations(optimizers, optimizer_settings)
        learner, metrics = settings.updates(policy, of_each, learner, batches, noise, first=first)
        return learner, jax.random.key_data(key), metrics

    return jax.jit(update, compiler_options=compiler_options(in_order=in_order))


def update_from_samples(
    plan: Plan,
    settings: OffPolicySettings,
    num_updates: int,
    samples: Sequence[Any],
    action_space: Space,
    key: np.ndarray,
    first: int,
    keep: bool,
) -> tuple[np.ndarray, dict[str, float], np.ndarray | None]:
    """Learn from samples of SB3's.

    Args:
      settings: of now, with the learning rate of each network.
      num_updates: how many there were before.
      samples: of a batch for each gradient step.
      key: its data.
      first: the number of the first one among those after one collection.
      keep: see `Learner.leave`.

    Returns:
      The next key, the means of the metrics, and of samples with weights the sizes of their temporal-difference
      errors, (num_updates, batch_size).

    Raises:
      ValueError: parameters became NaN. Those from before are kept.
    """
    learner = plan.learner
    assert learner is not None
    update = plan.update_program(update_program, not learner.is_large(samples[0].rewards.shape[0]))
    each = [_transitions(sample, action_space, settings.gamma) for sample in samples]
    batches = jax.tree.map(lambda leaf, *rest: np.stack([leaf, *rest]) if rest else leaf[None], *each)
    state, key, metrics = update(
        settings, learner.settings(), read_off_policy(learner, num_updates), batches, key, np.int32(first)
    )
    metrics = to_host(metrics)
    errors = metrics.pop(TD_ERRORS, None)
    means = {name: value.item() for name, value in metrics.items()}
    # Where a mean is NaN, parameters may be, of those networks too that are looked at later.
    keep = keep and not any(value != value for value in means.values())
    learner.leave(state.params, state.targets, state.optimizer_states, keep)
    return np.array(key), means, errors


def read_off_policy(learner: Learner, num_updates: int) -> OffPolicyState:
    """What off-policy algorithms learn, as their programs take it."""
    return OffPolicyState(*learner.vectors(), np.int32(num_updates))  # type: ignore[arg-type]


def _transitions(sample: Any, action_space: Space, gamma: float) -> Transitions:
    """What SB3 samples as programs take it."""
    discounts = getattr(sample, "discounts", None)
    going_on = 1 - _array(sample.dones)[:, 0]
    action = _array(sample.actions)
    return Transitions(
        observation=map_parts(_array, sample.observations),
        action=action[:, 0] if isinstance(action_space, spaces.Discrete) else action,
        reward=_array(sample.rewards)[:, 0],
        next_observation=map_parts(_array, sample.next_observations),
        discount=going_on * (np.float32(gamma) if discounts is None else _array(discounts)[:, 0]),
        weight=_array(sample.weights) if isinstance(sample, PrioritizedSamples) else None,
    )


def _array(tensor: torch.Tensor) -> Any:
    return tensor.cpu().numpy()
