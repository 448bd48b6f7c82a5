"""SelfPlayCallback: copies the learner into the pool of its opponents."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback

from bridge.errors import NotCompilable
from bridge.self_play.policy_pools import Member, logits_and_parameters, parameters_of, play, pool_of
from bridge.vec_env.jax_vec_env import JaxVecEnv
from jaxenvs.arguments import boolean, number, positive_int
from jaxenvs.wrappers import Opponents, SelfPlay
from jaxenvs.wrappers.multi_agent.self_play import member_to_drop

# The win rate at which a member of a prioritized pool is still drawn this often, relative to one that always wins.
LEAST_WEIGHT = 0.05
# Games against each member from which a prioritized pool estimates win rates.
GAMES = 128


@dataclasses.dataclass
class League:
    """Members of the pool of a model's opponents, as they are saved with the model: `model.league`.

    Attributes:
      members: parameters by name, the oldest first; None moves at random.
      numbers: how many copies had been made when each member was added.
      num_copies: how many copies have been made.
      last_timesteps: `num_timesteps` at the last copy.
      win_rates: of the learner against each member, when the pool was last changed; None if it is not prioritized.
      pool_size: the number of places of the pool, some of which may be empty.
    """

    members: list[Member] = dataclasses.field(default_factory=lambda: [None])
    numbers: list[int] = dataclasses.field(default_factory=lambda: [0])
    num_copies: int = 0
    last_timesteps: int = 0
    win_rates: list[float] | None = None
    pool_size: int = 0

    def add(self, parameters: dict[str, np.ndarray], pool_size: int) -> None:
        """Add a copy of the learner. If the pool is full, drop another one."""
        self.num_copies += 1
        self.win_rates = None  # until they are found against the new pool
        self.members.append(parameters)
        self.numbers.append(self.num_copies)
        self.fit(pool_size)

    def fit(self, pool_size: int) -> None:
        """Drop the members that `member_to_drop` returns, as long as there are more than `pool_size`."""
        while len(self.members) > pool_size:
            drop = member_to_drop(np.array(self.numbers))
            del self.members[drop], self.numbers[drop]
            self.win_rates = None

    def weights(self, pool_size: int, chance: float) -> np.ndarray:
        """Return how often each of `pool_size` places is drawn: copies equally often, or hard ones more often."""
        weights = np.zeros(pool_size, np.float32)
        rates = (self.win_rates or [0.0] * len(self.members))[1:]
        copies = np.array([max((1.0 - rate) ** 2, LEAST_WEIGHT) for rate in rates])
        weights[1 : len(self.members)] = (1 - chance) * copies / copies.sum()
        weights[0] = chance
        return weights


class SelfPlayCallback(BaseCallback):
    """Callback that makes the opponents of a SelfPlay environment copies of the learner, and a random player.

    The pool starts with a random player and the untrained learner. Between two rollouts, the callback adds a copy of
    the learner. A full pool keeps the random player, the first copy and the newest one, and drops others so that the
    rest stays spread over the whole training. A new pool compiles nothing.

    Use it with PPO, A2C or MaskablePPO, compiled or SB3's own, on a JaxVecEnv of `jaxenvs.wrappers.SelfPlay`. The
    compiled ones add one with these defaults on `make_vec_env(..., opponent="self")`, unless `learn` gets another one.

    The pool is saved and loaded with the model, as `model.league`, and training continues with it.

    Args:
      every: copy the learner every this many steps of all environments together.
      pool_size: the number of members, at least 2. All have the memory of one policy.
      threshold: copy only if the learner's win rate in the last episodes, `model.ep_info_buffer`, exceeds this number;
        a draw counts as half a win. By default, copy every time.
      prioritized: draw copies with weight (1 - win rate)^2, from games that are played at each copy: prioritized
        fictitious self-play (Vinyals et al. 2019). By default, all copies are drawn equally often.
      chance: the share of games against the random player, from 0 to 1. With few of them, the learner
        forgets how to beat weak opponents.
      verbose: 1 prints each copy.
    """

    model: Any  # with a `league`

    def __init__(
        self,
        every: int = 16_384,
        pool_size: int = 16,
        threshold: float | None = None,
        prioritized: bool = False,
        chance: float = 0.25,
        verbose: int = 0,
    ) -> None:
        super().__init__(verbose)
        self.every = positive_int("every", every)
        if positive_int("pool_size", pool_size) < 2:
            raise ValueError(f"pool_size must be at least 2, for a random player and the newest copy, got {pool_size}.")
        self.pool_size = pool_size
        self.threshold = None if threshold is None else number("threshold", threshold, least=0, most=1)
        self.prioritized = boolean("prioritized", prioritized)
        self.chance = number("chance", chance, least=0, most=1)

    @property
    def league(self) -> League:
        """The members of the pool, which are saved with the model."""
        league: League = self.model.league
        return league

    def _on_training_start(self) -> None:
        env = self._env()
        self._logits, parameters = logits_and_parameters(self.model.policy)
        game_space = env.venv.first_env.observation_space
        if self.model.policy.observation_space != game_space:
            raise NotCompilable(
                f"SelfPlayCallback needs a policy that sees what the game shows, {game_space}, got one that sees "
                f"{self.model.policy.observation_space}: wrap the game instead of the VecEnv."
            )
        if not isinstance(getattr(self.model, "league", None), League):
            self.model.league = League()
            self.league.add(parameters, self.pool_size)
            self.league.last_timesteps = self.num_timesteps
        self.league.last_timesteps = min(self.league.last_timesteps, self.num_timesteps)
        self.league.fit(self.pool_size)  # which may have been larger
        self._set_pool()

    def _on_rollout_start(self) -> None:
        league = self.league
        if self.num_timesteps - league.last_timesteps < self.every or not self._is_good_enough():
            return
        league.last_timesteps = self.num_timesteps
        league.add(parameters_of(self.model.policy, self._logits.network), self.pool_size)
        if self.prioritized:
            league.win_rates = self._win_rates()
        self._set_pool()
        if self.verbose:
            print(f"SelfPlayCallback: copy {league.num_copies} after {self.num_timesteps:,} steps.")

    def _on_step(self) -> bool:
        return True

    def _is_good_enough(self) -> bool:
        if self.threshold is None:
            return True
        episodes = self.model.ep_info_buffer or ()
        return bool(episodes) and score(np.array([episode["r"] for episode in episodes])) > self.threshold

    def _win_rates(self) -> list[float]:
        """Return the learner's score against each member, from games in one compiled function."""
        pool = self._pool()
        learner = pool_of(self._logits, [self.league.members[-1]])
        pairs = np.stack([np.zeros(pool.size, int), np.arange(pool.size)], axis=1)
        game: Any = self._env().venv.first_env
        returns = play(game.env, learner, pool, pairs, GAMES, self.num_timesteps)
        return [score(each) for each in returns[: len(self.league.members)]]

    def _pool(self) -> Opponents:
        members = self.league.members
        absent = [None] * (self.pool_size - len(members))  # the shapes are the same from the first step on
        return pool_of(self._logits, [*members, *absent], self.league.weights(self.pool_size, self.chance))

    def _set_pool(self) -> None:
        self.league.pool_size = self.pool_size
        self._env().set_attr("opponent", self._pool())

    def _env(self) -> JaxVecEnv:
        env = self.training_env.unwrapped
        if not isinstance(env, JaxVecEnv) or not isinstance(env.venv.env, SelfPlay):
            raise NotCompilable(
                "SelfPlayCallback needs a JaxVecEnv of jaxenvs.wrappers.SelfPlay, as "
                f'make_vec_env("pgx/connect_four", 8, opponent="self") makes it, got {env}.'
            )
        return env


def make_room_for_league(model: BaseAlgorithm) -> None:
    """Give the environments of a loaded model a pool of the shapes that it had when the model was saved.

    A checkpoint has the numbers in these arrays, which `JaxVecEnv.set_state` takes only if they fit the environments.
    """
    league, env = getattr(model, "league", None), getattr(model.get_env(), "unwrapped", None)
    if isinstance(league, League) and isinstance(env, JaxVecEnv) and isinstance(env.venv.env, SelfPlay):
        env.set_attr("opponent", pool_of(logits_and_parameters(model.policy)[0], [None] * league.pool_size))


def score(returns: np.ndarray) -> float:
    """Return the share of games won, where a draw counts as half a win."""
    return float(np.mean((returns > 0) + 0.5 * (returns == 0)))
