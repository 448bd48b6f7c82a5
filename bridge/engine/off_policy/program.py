"""Steps of environments and updates of an off-policy training as one program, with the replay store inside."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from bridge.engine.showing import Steps
from bridge.translate.optimizers import ExportedOptimizer
from bridge.vec_env.packing import Packed, Packing
from bridge.vec_env.programs import Outputs
from bridge.wrappers.chain import step as step_chain
from jaxenvs import VectorEnv, struct
from jaxenvs.compilation import compiler_options
from jaxenvs.learn import DQN, CollectorState, Replay
from jaxenvs.learn.off_policy.loop import ExplorationState, Noise, num_at_once, take_step, update
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
class Progress:
    """Where a training is, besides its environments and what it learns.

    Attributes:
      iteration: its number. All that is drawn follows from it and the key.
      step: of the iteration, how many were taken.
      is_due: whether an update is due before the next step.
      num_timesteps: steps of all environments together.
      calls: how many steps each environment took, by which DQN counts.
      key: its data.
      action_noise: the state of `settings.action_noise`.
    """

    iteration: Any
    step: Any
    is_due: Any
    num_timesteps: Any
    calls: Any
    key: Any
    action_noise: Any


@struct
class Limits:
    """Until when the program runs.

    Attributes:
      steps: so many steps of each environment; with 0, only the update that is due.
      episodes: until so many more episodes have ended.
    """

    steps: Any
    episodes: Any


@struct
class Taken:
    """Steps as somebody sees them who looks at locals: with the leading axis of steps, if each is kept, else the last.

    Attributes:
      action: as stored; env_action: as the environments took it; observation: what came after it.
    """

    action: Any
    env_action: Any
    observation: Any


@struct
class Trained:
    """What the program goes on with and gives.

    Attributes:
      learner: parameters, targets and moments.
      replay: the store.
      env_state: of the environments; packed in what the program gives.
      wrapper_states, observation, progress: where it is.
      metrics: each of the last update that had it; `num_updated`: how many times there was one.
      count: how many steps of each environment there were; `num_ended`: how many episodes ended in them.
      steps, taken: of them.
    """

    learner: OffPolicyState
    replay: Replay
    env_state: Any
    wrapper_states: tuple[Any, ...]
    observation: Any
    progress: Progress
    metrics: dict[str, Any]
    num_updated: Any
    count: Any
    num_ended: Any
    steps: Steps
    taken: Taken

    def but(self, **changes: Any) -> Trained:
        return dataclasses.replace(self, **changes)


def _train(
    shape: Shape,
    limits: Limits,
    venv: VectorEnv,
    settings: OffPolicySettings,
    learning_rate: jax.Array,
    exploration_rate: jax.Array,
    optimizer_settings: dict[str, dict[str, Any]],
    learner: OffPolicyState,
    replay: Replay,
    packed_state: Packed,
    wrapper_states: tuple[Any, ...],
    observation: Any,
    progress: Progress,
) -> Trained:
    """
    Args:
      limits: until when.
      settings: of which the learning rate is not used.
      learning_rate, exploration_rate: (most,), of an update before each of the steps, and of the step.
    """
    policy, num_envs = shape.policy, replay.num_envs
    dtype = jax.tree.leaves(learner.params)[0].dtype
    optimizers: Any = {name: each.transformation(optimizer_settings[name]) for name, each in shape.optimizers}
    num_updates, train_freq = settings.num_updates(num_envs), settings.train_freq

    def draw(iteration: jax.Array) -> Noise:
        key = jax.random.fold_in(jax.random.wrap_key_data(progress.key), iteration)
        return Noise.draw(settings, policy, learner.params, observation, key)

    def learn(carry: Trained, noise: Noise) -> tuple[OffPolicyState, dict[str, Any]]:
        now = settings.replace(learning_rate=learning_rate[carry.count].astype(dtype))
        # None rather than a branch around them, which would copy what they change.
        num = jnp.where(carry.progress.is_due, num_updates, 0)
        return update(now, policy, optimizers, carry.learner, carry.replay, noise, num)

    def update_if_due(carry: Trained, noise: Noise) -> Trained:
        if not num_updates:
            return carry
        is_due = carry.progress.is_due
        learner, metrics = learn(carry, noise)
        before, after = carry.learner.num_updates, learner.num_updates
        there = {name: settings.num_averaged(name, before, after) > 0 for name in metrics}
        return carry.but(
            learner=learner,
            metrics={name: jnp.where(there[name], new, carry.metrics[name]) for name, new in metrics.items()},
            num_updated=carry.num_updated + is_due,
            progress=dataclasses.replace(carry.progress, is_due=jnp.asarray(False)),
        )

    def step_env(state: Any, action: jax.Array) -> Any:
        env_state, wrapper_states = state
        env_state, timestep = venv.step(env_state, action)
        wrapper_states, timestep, wrapper_outputs = step_chain(shape.wrapper_types, wrapper_states, timestep, action)
        outputs = Outputs.of(timestep)._replace(observation=())
        if not shape.is_watched:
            outputs = outputs._replace(final_observation=())
        seen = (timestep.done, Steps(outputs, wrapper_outputs), action, timestep.observation)
        return (env_state, wrapper_states), timestep, seen

    def step_once(carry: Trained, noise: Noise) -> tuple[Trained, jax.Array, Steps, Taken]:
        progress, now = carry.progress, settings
        if isinstance(settings, DQN):
            rate = exploration_rate[carry.count].astype(dtype)
            now = settings.replace(exploration_initial_eps=rate, exploration_final_eps=rate)
        exploration = ExplorationState(
            CollectorState((carry.env_state, carry.wrapper_states), carry.observation),
            carry.replay,
            progress.action_noise,
        )
        row = carry.replay.position
        exploration, (done, steps, env_action, observation) = take_step(
            now,
            policy,
            carry.learner.params,
            step_env,
            exploration,
            noise,
            progress.step,
            progress.num_timesteps,
            jnp.zeros((), dtype),
        )
        calls, step = progress.calls, progress.step + 1
        num_timesteps = progress.num_timesteps + num_envs
        is_last = step == train_freq
        progress = dataclasses.replace(
            progress,
            iteration=progress.iteration + is_last,
            step=jnp.where(is_last, 0, step),
            is_due=is_last & (num_timesteps > settings.learning_starts) & (num_updates > 0),
            num_timesteps=num_timesteps,
            calls=calls + 1,
            action_noise=exploration.action_noise,
        )
        env_state, wrapper_states = exploration.collector.env_state
        after = carry.but(
            learner=settings.on_step(policy, carry.learner, calls, calls + 1, num_envs),
            replay=exploration.replay,
            env_state=env_state,
            wrapper_states=wrapper_states,
            observation=observation,
            progress=progress,
        )
        return after, done, steps, Taken(exploration.replay.action[row], env_action, observation)

    def step(carry: Trained, noise: Noise) -> Trained:
        after, done, steps, taken = step_once(carry, noise)

        def keep(kept: jax.Array, one: jax.Array) -> jax.Array:
            return kept.at[carry.count].set(one)

        return after.but(
            count=carry.count + 1,
            num_ended=carry.num_ended + done.sum(dtype=jnp.int32),
            steps=jax.tree.map(keep, carry.steps, steps),
            taken=jax.tree.map(keep, carry.taken, taken) if shape.is_watched else taken,
        )

    def goes_on(carry: Trained) -> Any:
        return (carry.count < limits.steps) & (carry.num_ended < limits.episodes)

    def iterate(carry: Trained, noise: Noise) -> Trained:
        """The update that is due, and the rest of an iteration, or as much of it as the limits allow."""

        def in_iteration(inner: tuple[Trained, jax.Array]) -> Any:
            return goes_on(inner[0]) & ~inner[1]

        def step_on(inner: tuple[Trained, jax.Array]) -> tuple[Trained, jax.Array]:
            after = step(inner[0], noise)
            return after, after.progress.step == 0

        return jax.lax.while_loop(in_iteration, step_on, (update_if_due(carry, noise), jnp.asarray(False)))[0]

    start = Trained(
        learner=learner,
        replay=replay,
        env_state=shape.packing.unpack(packed_state),
        wrapper_states=wrapper_states,
        observation=observation,
        progress=progress,
        metrics={},
        num_updated=jnp.zeros((), jnp.int32),
        count=jnp.zeros((), jnp.int32),
        num_ended=jnp.zeros((), jnp.int32),
        steps=Steps(Outputs(), ()),
        taken=Taken((), (), ()),
    )
    noise = jax.eval_shape(draw, progress.iteration)
    _, _, steps, taken = jax.eval_shape(step_once, start, noise)
    start = start.but(
        metrics=_zeros(jax.eval_shape(learn, start, noise)[1]) if num_updates else {},
        steps=_zeros(steps, shape.most),
        taken=_zeros(taken, *([shape.most] if shape.is_watched else [])),
    )
    chunk = num_at_once(noise, shape.most // train_freq)

    def iterate_chunk(carry: tuple[Trained, jax.Array]) -> tuple[Trained, jax.Array]:
        """As many iterations as draw at once."""
        first = carry[0].progress.iteration
        noise = jax.vmap(draw)(first + jnp.arange(chunk, dtype=jnp.int32))

        def in_chunk(carry: tuple[Trained, jax.Array]) -> Any:
            return carry[1] | (goes_on(carry[0]) & (carry[0].progress.iteration < first + chunk))

        def next_iteration(carry: tuple[Trained, jax.Array]) -> tuple[Trained, jax.Array]:
            own = jax.tree.map(lambda leaf: leaf[carry[0].progress.iteration - first], noise)
            return iterate(carry[0], own), jnp.asarray(False)

        return jax.lax.while_loop(in_chunk, next_iteration, carry)

    # Once at least, for the update that is due; and not a scan, whose length would be part of the program: however a
    # training is cut into programs, the bits are the same.
    end, _ = jax.lax.while_loop(lambda carry: carry[1] | goes_on(carry[0]), iterate_chunk, (start, jnp.asarray(True)))
    return end.but(env_state=shape.packing.pack(end.env_state))


def _zeros(tree: Any, *lead: int) -> Any:
    return jax.tree.map(lambda leaf: jnp.zeros((*lead, *leaf.shape), leaf.dtype), tree)


@functools.cache
def program() -> Callable[..., Any]:
    """Jitted once for the process: JAX keeps a program for each structure, so models of one shape share theirs.

    The store is donated: a copy of a million rows would take longer than an update.
    """
    return jax.jit(_train, static_argnums=(0,), donate_argnums=(8,), compiler_options=compiler_options())
