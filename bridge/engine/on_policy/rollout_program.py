"""Compiled collecting: a rollout as one program, from the state of environments, wrappers and policy to the next."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from bridge.engine.compilation import to_host
from bridge.engine.plan import Plan
from bridge.engine.showing import Steps
from bridge.translate.modules import read_parameters
from bridge.translate.policies import ExportedPolicy
from bridge.vec_env.packing import Packed, Packing
from bridge.vec_env.programs import Outputs
from bridge.wrappers.chain import in_dtypes_of
from bridge.wrappers.chain import step as step_chain
from jaxenvs import VectorEnv, struct
from jaxenvs.compilation import compiler_options
from jaxenvs.learn import CollectorState, Rollout, collect


@struct
class Discounts:
    """As SB3 has them: its buffer keeps a gamma of its own, which callbacks may change."""

    gamma: float
    buffer_gamma: float
    gae_lambda: float


def collect_steps(
    wrapper_types: tuple[type, ...],
    network: ExportedPolicy,
    n_steps: int,
    sde_sample_freq: int,
    keep_final_observation: bool,
    venv: VectorEnv,
    discounts: Discounts,
    params: jax.Array,
    start: CollectorState,
    key: jax.Array,
) -> tuple[CollectorState, Rollout, Steps]:
    """A rollout, within a program.

    Args:
      start: `env_state` is that of the environments and those of the wrappers.
    """

    def step(state: Any, action: jax.Array) -> Any:
        env_state, wrapper_states = state
        env_state, timestep = venv.step(env_state, action)
        wrapper_states, timestep, wrapper_outputs = step_chain(wrapper_types, wrapper_states, timestep, action)
        outputs = Outputs.of(timestep)._replace(observation=())
        if not keep_final_observation:
            outputs = outputs._replace(final_observation=())
        return (env_state, wrapper_states), timestep, Steps(outputs, wrapper_outputs)

    return collect(
        network,  # type: ignore[arg-type]
        params,
        step,
        start,
        key,
        n_steps,
        gamma=discounts.gamma,
        gae_lambda=discounts.gae_lambda,
        gae_gamma=discounts.buffer_gamma,
        sde_sample_freq=sde_sample_freq,
    )


def _collect(
    packing: Packing,
    wrapper_types: tuple[type, ...],
    network: ExportedPolicy,
    n_steps: int,
    sde_sample_freq: int,
    keep_final_observation: bool,
    venv: VectorEnv,
    discounts: Discounts,
    params: jax.Array,
    packed_state: Packed,
    wrapper_states: tuple[Any, ...],
    observation: Any,
    key_data: jax.Array,
) -> Any:
    key, draw = jax.random.split(jax.random.wrap_key_data(key_data))
    start = CollectorState((packing.unpack(packed_state), wrapper_states), observation)
    arguments = (wrapper_types, network, n_steps, sde_sample_freq, keep_final_observation, venv, discounts)
    end, rollout, steps = collect_steps(*arguments, params, start, draw)
    env_state, wrapper_states = end.env_state
    return packing.pack(env_state), (jax.random.key_data(key), wrapper_states, end.observation, rollout, steps)


@functools.cache
def _program() -> Callable[..., Any]:
    """Jitted once for the process: JAX keeps a program for each structure, so models of one shape share theirs."""
    return jax.jit(_collect, static_argnums=(0, 1, 2, 3, 4, 5), compiler_options=compiler_options())


@struct
class Collected:
    """A rollout that took place in a program, and nowhere else yet: on the host, but for the environments' state.

    Attributes:
      env_state: packed, for the JaxVecEnv.
      wrapper_states: for the chain.
      observation: what the policy acts on next, in the dtypes in which the wrappers give it.
      key: the next one, as data.
    """

    env_state: Packed
    wrapper_states: tuple[Any, ...]
    observation: Any
    rollout: Rollout
    steps: Steps
    key: np.ndarray


def run_rollout(
    plan: Plan,
    observation: Any,
    key: np.ndarray,
    n_steps: int,
    sde_sample_freq: int,
    discounts: Discounts,
    keep_final_observation: bool,
) -> Collected:
    """Run the program. Nothing changes: a rollout that was interrupted, or that fails, did not take place.

    Args:
      observation: the last one, as the outermost wrapper gave it.
      key: its data.
      keep_final_observation: whether somebody looks at the last observations of episodes.

    Raises:
      ValueError: what the policy computed is NaN, at which Stable-Baselines3 fails too.
    """
    chain = plan.chain
    assert chain is not None
    base = chain.base
    env_state, results = _program()(
        base.programs.state,
        chain.types,
        plan.network,
        n_steps,
        sde_sample_freq,
        keep_final_observation,
        base.venv,
        discounts,
        read_parameters(plan.parameters),
        base.packed_state,
        chain.state(),
        chain.observation(observation),
        key,
    )
    key, wrapper_states, next_observation, rollout, steps = to_host(results)
    _require_numbers(rollout)
    if keep_final_observation:
        final_observation = in_dtypes_of(observation, steps.outputs.final_observation)
        steps = Steps(steps.outputs._replace(final_observation=final_observation), steps.wrapper_outputs)
    next_observation = jax.tree.map(np.array, in_dtypes_of(observation, next_observation))
    return Collected(env_state, wrapper_states, next_observation, rollout, steps, np.array(key))


def _require_numbers(rollout: Rollout) -> None:
    if np.isnan(rollout.log_prob).any():
        step, lane = np.argwhere(np.isnan(rollout.log_prob))[0].tolist()
        observations = jax.tree.leaves(jax.tree.map(lambda leaf: leaf[step, lane], rollout.observation))
        cause = "its weights or what it computes from them"
        if any(np.issubdtype(leaf.dtype, np.floating) and np.isnan(leaf).any() for leaf in observations):
            cause = "the observation"
        raise ValueError(
            f"The policy gave a distribution of NaN in step {step} of environment {lane}: {cause} is NaN. The rollout "
            "did not take place; the environments are where they were before it."
        )
