"""The compiled function of evaluate: episodes of a policy, each with the random draws that it would have alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from bridge.translate.policies.exported_policy import ExportedPolicy
from bridge.translate.policies.off_policy_networks import Deterministic, ExportedActor, ExportedQNetwork
from bridge.translate.pytorch.modules import unravel
from bridge.vec_env.packing import Packed, Packing
from bridge.wrappers import CompiledWrapper
from bridge.wrappers.vec_monitor import CompiledMonitor
from bridge.wrappers.wrapped_env import step_wrappers
from jaxenvs import VectorEnv, VectorTimeStep
from jaxenvs.compilation import compiler_options
from jaxenvs.compilation.default_device import cached_by_device
from jaxenvs.learn import Masked, Recalled
from jaxenvs.learn.networks.distributions import Distribution
from jaxenvs.wrappers.action_masker import action_masks

Network = ExportedPolicy | ExportedActor
# Folded into an environment's key instead of an episode's number, for the policy's draws: no episode has this number.
DRAWS_OF_POLICY = 2**32 - 1


def _episodes(
    network: Network,
    deterministic: bool,
    masks: bool,
    wrapper_types: tuple[type[CompiledWrapper[Any]], ...],
    packing: Packing,
    venv: VectorEnv,
    parameters: jax.Array,
    begun: tuple[Packed, tuple[Any, ...], Any] | None,
    seeds: jax.Array,
    wanted: jax.Array,
    max_steps: jax.Array,
    exploration_rate: jax.Array,
) -> tuple[jax.Array, ...]:
    """Return return, length, terminated and truncated of the first episode of each environment, each (num_envs,).

    Args:
      network, parameters: the exported policy, and its weights.
      deterministic, max_steps: as in `evaluate`.
      masks: whether the network is given the legal actions.
      wrapper_types: the types of the WrappedEnv.
      venv, packing: the environments, which are not reset after an episode, and the packing of their state.
      begun: the first states of environments and wrappers, and the first observation; None without wrappers, and then
        environments are reset here.
      seeds, wanted: of the environments; whether their episode is needed.
      exploration_rate: how often a Q network acts at random, if it is not deterministic.
    """
    env_keys = jax.vmap(jax.random.key)(seeds)
    policy_keys = jax.vmap(jax.random.fold_in, in_axes=(0, None))(env_keys, jnp.uint32(DRAWS_OF_POLICY))
    named, recalls = unravel(network.module.inputs, parameters), hasattr(network, "recall")
    recurrent: Any = network

    # One environment at a time, so that its random draws do not depend on the number of environments.
    def act(observation: Any, key: jax.Array, step: jax.Array) -> tuple[jax.Array, Any]:
        seen = jax.tree.map(lambda leaf: leaf[None], observation)
        memory = recurrent.recall(named, seen) if recalls else None
        action = _choose(network, deterministic, exploration_rate, network.distribution(named, seen), key, step)
        return action, jax.tree.map(lambda leaf: leaf[0], memory)

    def is_running(carry: Any) -> Any:
        *_, running, step = carry
        return jnp.any(running) & (step < max_steps)

    def advance(carry: Any) -> Any:
        state, wrapper_states, observation, memory, records, running, step = carry
        seen = Masked(observation, action_masks(venv, state)) if masks else observation
        if recalls:
            seen = Recalled(observation, memory, jnp.broadcast_to(step == 0, running.shape))
        action, memory = jax.vmap(act, in_axes=(0, 0, None))(seen, policy_keys, step)
        # Environments whose episode has ended continue to step, and their results are ignored.
        state, timestep = venv.step(state, action)
        wrapper_states, seen, outputs = step_wrappers(wrapper_types, wrapper_states, timestep, action)
        new = (*_totals(wrapper_types, timestep, outputs), timestep.terminated, timestep.truncated)
        records = jax.tree.map(lambda new, old: jnp.where(running, new, old), new, records)
        return state, wrapper_states, seen.observation, memory, records, running & ~timestep.done, step + 1

    if begun is None:
        (state, timestep), wrapper_states = venv.reset(env_keys), ()
        observation = timestep.observation
    else:
        packed_state, wrapper_states, observation = begun
        state = packing.unpack(packed_state)
    nothing = (state.episode_return, state.episode_length, jnp.zeros_like(state.done), jnp.zeros_like(state.done))
    memory = recurrent.no_memory(named, venv.num_envs) if recalls else None
    start = (state, wrapper_states, observation, memory, nothing, wanted, jnp.zeros((), jnp.int32))
    *_, (returns, lengths, terminated, truncated), running, _ = jax.lax.while_loop(is_running, advance, start)
    return returns, lengths, terminated, truncated | running


def _choose(
    network: Network,
    deterministic: bool,
    exploration_rate: jax.Array,
    distribution: Distribution | Deterministic,
    key: jax.Array,
    step: jax.Array,
) -> jax.Array:
    """Return the action of one environment, as the environment takes it, from the distribution of a batch of one.

    The key of the environment and the number of the step determine the draw.
    """
    if isinstance(network, ExportedQNetwork) and not deterministic:
        key, which = jax.random.split(jax.random.fold_in(key, step))
        random = jax.random.randint(key, (1,), 0, network.head.size, jnp.int32)
        explores = jax.random.uniform(which) < exploration_rate
        return network.to_env(jnp.where(explores, random, distribution.mode()))[0]
    if deterministic or isinstance(distribution, Deterministic):
        return network.to_env(distribution.mode())[0]
    if network.exploration is None:
        key = jax.random.fold_in(key, step)
    sample = distribution.sample(distribution.noise(key, 1)[0])
    return network.to_env(sample)[0]


def _totals(
    wrapper_types: tuple[type[CompiledWrapper[Any]], ...], timestep: VectorTimeStep, outputs: tuple[Any, ...]
) -> tuple[jax.Array, jax.Array]:
    """Return the returns and lengths that infos report: the outermost VecMonitor's, if there is one."""
    monitors = [output for kind, output in zip(wrapper_types, outputs) if kind is CompiledMonitor]
    counted = monitors[-1] if monitors else timestep
    return counted.episode_return.astype(timestep.episode_return.dtype), counted.episode_length


@cached_by_device
def compiled_function() -> Callable[..., tuple[jax.Array, ...]]:
    """Return the jitted function, one for each device, so that a similar evaluation does not compile again."""
    return jax.jit(_episodes, static_argnums=(0, 1, 2, 3, 4), compiler_options=compiler_options())
