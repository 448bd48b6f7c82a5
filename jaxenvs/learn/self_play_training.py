"""self_play: a whole training against past selves as one pure function."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from jaxenvs import arguments
from jaxenvs.environment import struct
from jaxenvs.learn.on_policy.settings import OnPolicySettings
from jaxenvs.learn.training import Result, Training, advance
from jaxenvs.vector import join_axes
from jaxenvs.wrappers import Opponents, SelfPlay
from jaxenvs.wrappers.multi_agent.self_play import member_to_drop


@struct
class SelfPlayResult(Result):
    """Result of a training by self-play: a Result, with the opponents.

    Attributes:
      opponents: the final pool: a random player, and copies of the learner, the oldest first. Places without a copy
        have the weight 0.
    """

    opponents: Opponents


def self_play(
    key: jax.Array, training: Training, every: int = 4, pool_size: int = 16, chance: float = 0.25, params: Any = None
) -> SelfPlayResult:
    """Run a whole training against past selves as one pure function: jit it, or `vmap` it over keys and settings.

    The pool of opponents begins with a random player and the untrained learner. Every few iterations, it gets a copy of
    the learner. A full pool keeps the random player, the first copy and the newest one, and drops others so that the
    rest stays spread over the training.

    Args:
      key: a typed key, which determines everything.
      training: what to train, as for `train`: its environment is a SelfPlay, not in other wrappers, and its algorithm
        on-policy, such as MaskablePPO(). The opponents of the environment are not used.
      every: copy the learner every this many iterations; static.
      pool_size: the number of members, at least 3; static.
      chance: the share of games against the random player, from 0 to 1.
      params: of the network, to start from. If not given, new ones.

    Raises:
      TypeError, ValueError: an argument is invalid.
    """
    arguments.instance("training", training, Training, "a learn.Training")
    every = arguments.positive_int("every", every)
    pool_size = arguments.integer("pool_size", pool_size, 3)
    arguments.number("chance", chance, least=0, most=1)
    if not isinstance(training.venv.env, SelfPlay) or training.venv.env_axis is not None:
        raise ValueError(f"training.venv must be a VectorEnv of one SelfPlay, got {type(training.venv.env).__name__}.")
    if not isinstance(training.algorithm, OnPolicySettings) or hasattr(training.network, "no_memory"):
        raise ValueError(
            "training.algorithm must be on-policy and without memory, such as learn.MaskablePPO(), got "
            f"{type(training.algorithm).__name__}."
        )
    if training.normalize:
        raise ValueError("training.normalize must be False, as opponents see the game's own observations, got True.")
    first = training.init(key, params).learner.network_params
    members = jax.tree.map(lambda leaf: jnp.repeat(leaf[None], pool_size, axis=0), first)
    numbers = jnp.where(jnp.arange(pool_size) < 2, jnp.arange(pool_size), -1)  # of the copies; -1 where none is yet
    rounds, rest = divmod(training.num_iterations, every)

    def against(members: Any, numbers: jax.Array) -> Training:
        env = training.venv.env.replace(opponent=_pool(training, members, numbers, chance))
        return training.replace(venv=dataclasses.replace(training.venv, env=env))

    def run_round(carry: Any, number: int | jax.Array, num_iterations: int = every) -> Any:
        state, members, numbers = carry
        state, metrics = advance(against(members, numbers), state, num_iterations)
        members = jax.tree.map(lambda old, new: jnp.append(old, new[None], 0), members, state.learner.network_params)
        numbers = jnp.append(numbers, number + 2)
        empty = numbers < 0
        dropped = jnp.where(jnp.any(empty), jnp.argmax(empty), member_to_drop(numbers))
        kept = jnp.arange(pool_size)
        kept = kept + (kept >= dropped)
        return (state, jax.tree.map(lambda leaf: leaf[kept], members), numbers[kept]), metrics

    carry = against(members, numbers).init(key, first), members, numbers
    carry, metrics = jax.lax.scan(run_round, carry, jnp.arange(rounds))
    metrics = join_axes(metrics)
    if rest:
        carry, last = run_round(carry, rounds, rest)
        metrics = jax.tree.map(lambda *parts: jnp.concatenate(parts), metrics, last)
    state, members, numbers = carry
    return SelfPlayResult(state, metrics, _pool(training, members, numbers, chance))


def _pool(training: Training, members: Any, numbers: jax.Array, chance: float) -> Opponents:
    is_chance, is_copy = jnp.arange(len(numbers)) == 0, numbers > 0
    weights = jnp.where(is_chance, chance, (1 - chance) * is_copy / jnp.sum(is_copy))
    return Opponents(members, weights, is_chance, _logits(training.network))


@functools.cache
def _logits(network: Any) -> Any:
    """Return the function of a network's logits, the same object for equal networks, which share compiled functions."""

    def logits(params: Any, observation: Any) -> jax.Array:
        batch = jax.tree.map(lambda leaf: leaf[None], observation)
        distribution: Any = network.apply(params, batch)[0]
        numbers: jax.Array = distribution.logits[0]
        return numbers

    return logits
