"""Games of several players for make_vec_env: with an opponent they are environments of one."""

from __future__ import annotations

from typing import Any

from bridge.self_play.policy_pools import RANDOM, opponents_of
from jaxenvs import Environment
from jaxenvs.arguments import shown
from jaxenvs.wrappers import Opponents, SelfPlay
from jaxenvs.wrappers.multi_agent.self_play import num_players_of

SELF = "self"


def with_opponent(env: Environment[Any], opponent: Any) -> Environment[Any]:
    """Return a game as an environment of one player, and any other environment unchanged.

    Args:
      opponent: as for `make_vec_env`. "self" moves at random until SelfPlayCallback puts copies of the learner there.

    Raises:
      ValueError: a game needs an opponent and has none, or the environment has one player.
    """
    num_players = num_players_of(env)
    if opponent is None:
        if num_players > 1 and not isinstance(env, SelfPlay):
            raise ValueError(
                f"{type(env.unwrapped).__name__} is a game of {num_players} players, so it needs an opponent. "
                "Pass opponent='self', opponent='random', or the path of a zip."
            )
        return env
    if num_players < 2 or isinstance(env, SelfPlay):
        raise ValueError(
            f"opponent must be None for an environment of one player, such as {type(env.unwrapped).__name__}, got "
            f"{shown(opponent)}."
        )
    if isinstance(opponent, str) and opponent in (SELF, RANDOM):
        return SelfPlay(env, Opponents.random())
    return SelfPlay(env, opponents_of(opponent))
