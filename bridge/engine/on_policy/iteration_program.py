"""Iterations of an on-policy training in one program, as long as no callback and no log looks in between."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bridge.engine.compilation import to_host
from bridge.engine.on_policy.rollout_program import Discounts, collect_steps
from bridge.engine.plan import POLICY, Plan
from bridge.engine.showing import Steps
from bridge.engine.updates import read_policy
from bridge.translate.optimizers import ExportedOptimizer
from bridge.translate.policies import ExportedPolicy
from bridge.vec_env.packing import Packed, Packing
from bridge.wrappers.chain import in_dtypes_of
from jaxenvs import VectorEnv, struct
from jaxenvs.compilation import compiler_options
from jaxenvs.learn import CollectorState, LearnerState, OnPolicySettings, Rollout

# A program has room for what the host needs of so many iterations, and of so many steps of all environments together.
MOST_ITERATIONS, MOST_STEPS = 100, 16_384


def most_iterations(n_steps: int, num_envs: int) -> int:
    """How many iterations of rollouts of this size one program can run."""
    return max(1, min(MOST_ITERATIONS, MOST_STEPS // (n_steps * num_envs)))


def _iterate(
    packing: Packing,
    wrapper_types: tuple[type, ...],
    network: ExportedPolicy,
    optimizer: ExportedOptimizer,
    sde_sample_freq: int,
    count: jax.Array,
    venv: VectorEnv,
    discounts: Discounts,
    settings: OnPolicySettings,
    optimizer_settings: dict[str, Any],
    learner: LearnerState,
    packed_state: Packed,
    wrapper_states: tuple[Any, ...],
    observation: Any,
    key_data: jax.Array,
) -> Any:
    transformation: Any = optimizer.transformation(optimizer_settings)
    most = jax.tree.leaves(settings)[0].shape[0]

    def iterate(state: tuple[LearnerState, CollectorState, jax.Array], settings: OnPolicySettings) -> Any:
        learner, collector, key = state
        # The keys of one iteration are those of a rollout and of an update that are programs each.
        key, draw = jax.random.split(key)
        collector, rollout, steps = collect_steps(
            wrapper_types, network, settings.n_steps, sde_sample_freq, False, venv, discounts,
            learner.params, collector, draw,
        )  # fmt: skip
        key, draw = jax.random.split(key)
        learner, metrics = settings.update(network, transformation, learner, rollout, draw)  # type: ignore[arg-type]
        metrics.pop("explained_variance")  # computed on the host, where NaN is a number
        is_sound = ~(jnp.isnan(rollout.log_prob).any() | jnp.isnan(learner.params).any())
        return (learner, collector, key), rollout, (steps, metrics, is_sound)

    def of_iteration(i: Any) -> OnPolicySettings:
        return jax.tree.map(lambda leaf: leaf[i].astype(learner.params.dtype), settings)  # type: ignore[no-any-return]

    def go_on(i: Any, carry: Any) -> Any:
        state, _, kept = carry
        state, rollout, outputs = iterate(state, of_iteration(i))
        return state, rollout, jax.tree.map(lambda many, one: many.at[i].set(one), kept, outputs)

    collector = CollectorState((packing.unpack(packed_state), wrapper_states), observation)
    state = (learner, collector, jax.random.wrap_key_data(key_data))
    _, rollout, outputs = jax.eval_shape(iterate, state, of_iteration(0))
    rollout = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), rollout)
    kept = jax.tree.map(lambda leaf: jnp.zeros((most, *leaf.shape), leaf.dtype), outputs)
    # Not a scan, whose length would be part of the program: all lengths are to give the same bits.
    (learner, collector, key), rollout, kept = jax.lax.fori_loop(0, count, go_on, (state, rollout, kept))
    env_state, wrapper_states = collector.env_state
    results = (learner, jax.random.key_data(key), wrapper_states, collector.observation, rollout, *kept)
    return packing.pack(env_state), results


@functools.cache
def _program() -> Callable[..., Any]:
    """Jitted once for the process: JAX keeps a program for each structure, so models of one shape share theirs."""
    return jax.jit(_iterate, static_argnums=(0, 1, 2, 3, 4), compiler_options=compiler_options())


@struct
class Iterated:
    """Iterations that took place in a program, and nowhere else yet: on the host, but for the environments' state.

    Attributes:
      learner: parameters and moments.
      env_state: packed, for the JaxVecEnv.
      wrapper_states: for the chain.
      observation: what the policy acts on next, in the dtypes in which the wrappers give it.
      key: the next one, as data.
      rollout: of the last iteration.
      steps: of all iterations, one after the other.
      metrics: of each update, but for the explained variance.
    """

    learner: LearnerState
    env_state: Packed
    wrapper_states: tuple[Any, ...]
    observation: Any
    key: np.ndarray
    rollout: Rollout
    steps: Steps
    metrics: list[dict[str, Any]]


def run_iterations(
    plan: Plan,
    observation: Any,
    key: np.ndarray,
    settings: list[OnPolicySettings],
    sde_sample_freq: int,
    discounts: Discounts,
) -> Iterated | None:
    """Run the program. Nothing changes.

    Args:
      observation: the last one, as the outermost wrapper gave it.
      key: its data.
      settings: of each iteration.

    Returns:
      None if something became NaN: iteration by iteration, it shows what and when.
    """
    chain = plan.chain
    assert plan.learner is not None
    assert chain is not None
    base = chain.base
    count, num_envs = len(settings), base.num_envs
    filled = settings + settings[-1:] * (most_iterations(settings[0].n_steps, num_envs) - count)
    env_state, results = _program()(
        base.programs.state,
        chain.types,
        plan.network,
        plan.learner.exported[POLICY],
        sde_sample_freq,
        count,
        base.venv,
        discounts,
        jax.tree.map(lambda *leaves: np.array(leaves, float), *filled),
        plan.learner.settings()[POLICY],
        read_policy(plan.learner),
        base.packed_state,
        chain.state(),
        chain.observation(observation),
        key,
    )
    learner, key, wrapper_states, next_observation, rollout, steps, metrics, is_sound = to_host(results)
    if not is_sound[:count].all():
        return None
    return Iterated(
        learner=learner,
        env_state=env_state,
        wrapper_states=wrapper_states,
        observation=jax.tree.map(np.array, in_dtypes_of(observation, next_observation)),
        key=np.array(key),
        rollout=rollout,
        steps=jax.tree.map(lambda leaf: leaf[:count].reshape(-1, *leaf.shape[2:]), steps),
        metrics=[{name: each[i].item() for name, each in metrics.items()} for i in range(count)],
    )
