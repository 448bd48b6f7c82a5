"""Pools of opponents from models, policies and zips of Stable-Baselines3, and the games that they play."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.save_util import load_from_zip_file

from bridge.contrib import is_recurrent
from bridge.errors import NotCompilable
from bridge.translate.policies.exported_policy import ExportedPolicy
from bridge.translate.policies.off_policy import acting_tensors, export_acting
from jaxenvs import Environment
from jaxenvs.arguments import shown
from jaxenvs.compilation import compiler_options
from jaxenvs.wrappers import Opponents, SelfPlay
from jaxenvs.wrappers.multi_agent.self_play import num_players_of

Member = dict[str, np.ndarray] | None  # parameters by name; None moves at random
SELF, RANDOM = "self", "random"
# Games that are longer count as draws, as games that never end would.
MOST_MOVES = 10_000


@dataclasses.dataclass(frozen=True)
class PolicyLogits:
    """Function from a policy's parameters and one observation to the logits of its actions.

    Attributes:
      network: the policy without its weights. Policies of equal architecture are equal.
    """

    network: ExportedPolicy

    def __call__(self, parameters: Any, observation: Any) -> jax.Array:
        """Return the logits, (num_actions,)."""
        batch = jax.tree.map(lambda leaf: leaf[None], observation)
        distribution: Any = self.network.distribution(parameters, batch)
        logits: jax.Array = distribution.logits[0]
        return logits


def logits_and_parameters(player: object) -> tuple[PolicyLogits, dict[str, np.ndarray]]:
    """Return the function of a player's logits, and the player's parameters by name.

    Args:
      player: a model, a policy, or the path of a zip of PPO, A2C or MaskablePPO, with a Discrete action space.

    Raises:
      TypeError: it is none of these.
      NotCompilable: the policy has no translation to JAX, or no logits.
    """
    policy = load_policy(player) if isinstance(player, str | os.PathLike) else getattr(player, "policy", player)
    if not isinstance(policy, BasePolicy):
        raise TypeError(f"A player must be {RANDOM!r}, the path of a zip, a model or a policy, got {shown(player)}.")
    network = export_acting(policy)
    if not isinstance(network, ExportedPolicy) or is_recurrent(policy) or network.head.kind != "discrete":
        raise NotCompilable(
            f"A player must be a policy of PPO, A2C or MaskablePPO over a Discrete action space, got a "
            f"{type(policy).__name__} over {policy.action_space}."
        )
    return PolicyLogits(network), parameters_of(policy, network)


def parameters_of(policy: BasePolicy, network: ExportedPolicy) -> dict[str, np.ndarray]:
    """Return the parameters of a policy by name, on the host."""
    return network.module.read(acting_tensors(policy, network))


def load_policy(path: str | os.PathLike[str]) -> BasePolicy:
    """Return the policy in a zip of a model, without the model's environments, buffers and optimizer.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: the zip holds no model.
    """
    try:
        data, params, _ = load_from_zip_file(os.fspath(path), device="cpu")
    except FileNotFoundError:
        raise FileNotFoundError(
            f"A player must be {RANDOM!r} or the path of a zip that exists, got {os.fspath(path)!r}. Only the argument "
            "opponent of make_vec_env also accepts 'self'."
        ) from None
    if data is None or "policy_class" not in data or params is None:
        raise ValueError(f"{os.fspath(path)} must be a zip that a model of Stable-Baselines3 saved.")
    further = {"use_sde": True} if data.get("use_sde") else {}
    arguments = {**further, **data.get("policy_kwargs", {})}
    arguments.pop("device", None)
    policy = data["policy_class"](data["observation_space"], data["action_space"], lambda _: 0.0, **arguments)
    policy.load_state_dict(params["policy"])
    policy.set_training_mode(False)
    loaded: BasePolicy = policy
    return loaded


def pools_of(players: Sequence[object]) -> tuple[list[Opponents], list[tuple[int, int]]]:
    """Return one pool for each architecture among some players, and which member of which pool each player is.

    Args:
      players: as for `logits_and_parameters`; or "random", which becomes a member of the first pool.
    """
    found = [None if isinstance(each, str) and each == RANDOM else logits_and_parameters(each) for each in players]
    policies = list(dict.fromkeys(each[0] for each in found if each is not None))
    if not policies:
        return [Opponents.random()], [(0, 0)] * len(found)
    members: list[list[Member]] = [[] for _ in policies]
    places = []
    for each in found:
        pool = 0 if each is None else policies.index(each[0])
        places.append((pool, len(members[pool])))
        members[pool].append(None if each is None else each[1])
    return [pool_of(policy, each) for policy, each in zip(policies, members, strict=True)], places


def pool_of(policy: PolicyLogits, members: Sequence[Member], weights: np.ndarray | None = None) -> Opponents:
    """Return the pool of members of one architecture."""
    network = policy.network.module
    zeros = {name: np.zeros(shape, np.float32) for name, shape in network.inputs}
    given = [zeros if each is None else each for each in members]
    return Opponents.of(policy, given, weights, [each is None for each in members])


def with_opponent(env: Environment[Any], opponent: object) -> Environment[Any]:
    """Return a game as an environment of one player, and any other environment unchanged.

    Args:
      opponent: as for `make_vec_env`: None; "self", which moves at random until SelfPlayCallback puts copies of the
        learner there; "random"; an Opponents; the path of a zip, a model or a policy; or a list of these, with
        "random".

    Raises:
      ValueError: a game needs an opponent and has none, or the environment has one player, or policies have different
        architectures.
    """
    num_players, name = num_players_of(env), type(env.unwrapped).__name__
    if opponent is None:
        if num_players > 1 and not isinstance(env, SelfPlay):
            raise ValueError(
                f"{name} is a game of {num_players} players, so it needs an opponent. Pass opponent='self', "
                "opponent='random', or the path of a zip."
            )
        return env
    if num_players < 2 or isinstance(env, SelfPlay):
        raise ValueError(
            f"opponent must be None for an environment of one player, such as {name}, got {shown(opponent)}."
        )
    if isinstance(opponent, Opponents):
        return SelfPlay(env, opponent)
    several = list(opponent) if isinstance(opponent, list | tuple) else [opponent]
    if not several:
        raise ValueError("opponent must name at least one player, got an empty list.")
    pools, _ = pools_of([RANDOM if isinstance(opponent, str) and opponent == SELF else each for each in several])
    if len(pools) > 1:
        raise ValueError(
            f"opponent must be policies of one architecture, because all are one stacked network, got {len(pools)} "
            "architectures."
        )
    return SelfPlay(env, pools[0])


@functools.cache
def _compiled_games() -> Callable[..., jax.Array]:
    return jax.jit(_returns, static_argnums=(5,), compiler_options=compiler_options())


def play(
    game: Environment[Any], players: Opponents, others: Opponents, pairs: np.ndarray, n_games: int, seed: int
) -> np.ndarray:
    """Return what players earned against others in whole games, float (num_pairs, n_games).

    Each player is drawn a seat in each game, and all other seats are the opponent's.

    Args:
      players, others: pools.
      pairs: int (num_pairs, 2), a member of `players` and one of `others`.
    """
    key = jax.random.key(seed)
    return np.asarray(_compiled_games()(game, players, others, np.asarray(pairs, np.int32), key, n_games))


def _returns(
    game: Environment[Any], players: Opponents, others: Opponents, pairs: jax.Array, key: jax.Array, n_games: int
) -> jax.Array:
    def play_pair(pair_and_key: tuple[jax.Array, jax.Array]) -> jax.Array:
        (mine, theirs), key = pair_and_key
        player, other = _alone(players, mine), _alone(others, theirs)
        env = SelfPlay(game, other)
        reset_key, act_key = jax.random.split(key)
        state, timestep = jax.vmap(env.reset)(jax.random.split(reset_key, n_games))
        first = jnp.zeros((), jnp.int32)
        act = jax.vmap(player.act, in_axes=(None, 0, 0, 0))

        def advance(carry: Any) -> Any:
            state, timestep, returns, is_on, count = carry
            keys = jax.random.split(jax.random.fold_in(act_key, count), n_games)
            action = act(first, timestep.observation, state.action_mask, keys)
            state, timestep = jax.vmap(env.step)(state, action)
            returns = returns + jnp.where(is_on, timestep.reward, 0)
            return state, timestep, returns, is_on & ~timestep.done, count + 1

        def is_running(carry: Any) -> jax.Array:
            *_, is_on, count = carry
            is_unfinished: jax.Array = jnp.any(is_on) & (count < MOST_MOVES)
            return is_unfinished

        begun = state, timestep, timestep.reward, ~timestep.done, jnp.zeros((), jnp.int32)
        return jax.lax.while_loop(is_running, advance, begun)[2]

    found: jax.Array = jax.lax.map(play_pair, (pairs, jax.random.split(key, len(pairs))))
    return found


def _alone(pool: Opponents, member: jax.Array) -> Opponents:
    """Return the pool of one member only: all games of a pair then share one product of matrices for each layer."""
    parameters = jax.tree.map(lambda leaf: jnp.asarray(leaf)[member][None], pool.parameters)
    at_random = jnp.asarray(pool.at_random)[member][None]
    return Opponents(parameters, jnp.ones(1), at_random, pool.policy)
