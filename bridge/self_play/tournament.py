"""tournament: thousands of games between every two of some players, with wins, draws, losses and Elo ratings."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

import jaxenvs
from bridge.self_play.policy_pools import play, pools_of
from jaxenvs import Environment
from jaxenvs.arguments import instance, integer, positive_int
from jaxenvs.wrappers import Opponents, SelfPlay
from jaxenvs.wrappers.multi_agent.self_play import require_game

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NUM_RESAMPLES = 200
INTERVAL = (2.5, 97.5)  # percentiles: 95 % of the resampled ratings
# One draw more than was played between every two players, so that a player who always wins has a finite rating.
PRIOR_DRAWS = 1.0


@dataclasses.dataclass(frozen=True, eq=False)
class Tournament:
    """Results of the games between every two of some players. `str` shows a table, the best player first.

    Attributes:
      names: of the players.
      wins: int (players, players), how many games the player of the row won against the player of the column.
      draws: int (players, players), how many games were drawn.
      elo: float (players,), the ratings; their mean is 0. A player with 400 more is expected to score 10 times as much.
      elo_interval: float (players, 2), the middle 95 % of the ratings of resampled games.
    """

    names: tuple[str, ...]
    wins: np.ndarray
    draws: np.ndarray
    elo: np.ndarray
    elo_interval: np.ndarray

    @property
    def losses(self) -> np.ndarray:
        """Number of games the player of the row lost against the player of the column, int (players, players)."""
        return self.wins.T

    @property
    def scores(self) -> np.ndarray:
        """Share of games won, where a draw counts as half a win, float (players, players); NaN on the diagonal."""
        games = self.wins + self.losses + self.draws
        with np.errstate(invalid="ignore"):
            return np.where(games > 0, (self.wins + 0.5 * self.draws) / np.maximum(games, 1), np.nan)

    def __str__(self) -> str:
        width = max(map(len, self.names))
        lines = [f"{'':{width}}    Elo   95 % interval    won  drawn   lost"]
        for i in np.argsort(-self.elo):
            (low, high), totals = self.elo_interval[i], (self.wins[i].sum(), self.draws[i].sum(), self.losses[i].sum())
            counts = "".join(f"{count:7,}" for count in totals)
            lines.append(f"{self.names[i]:{width}} {self.elo[i]:6.0f}  {low:6.0f} to {high:5.0f}{counts}")
        return "\n".join(lines)


def tournament(
    players: Mapping[str, Any] | Sequence[object], game: str | Environment[Any], n_games: int = 1000, *, seed: int = 0
) -> Tournament:
    """Play games between every two players, all games of a pair at once, and rate the players.

    Actions are drawn from the policies, and seats at random. In a game of more than two players, the second player of a
    pair has all other seats, and a player wins who earns more than 0.

    Args:
      players: at least two, by name or as a list: "random", models, policies, or paths of zips of PPO, A2C or
        MaskablePPO. Players of one architecture share a compiled function.
      game: an id, such as "pgx/connect_four", or a game as SelfPlay takes it.
      n_games: for each pair.
      seed: of all random draws.

    Raises:
      TypeError, ValueError: an argument is invalid, or a player does not fit the game.
      NotCompilable: a policy has no translation to JAX.
    """
    env = jaxenvs.make(game) if isinstance(game, str) else instance("game", game, Environment, "an id or a game")
    env = env.env if isinstance(env, SelfPlay) else env
    timestep = require_game("game", env)
    n_games, seed = positive_int("n_games", n_games), integer("seed", seed, 0)
    if isinstance(players, str) or not isinstance(players, Mapping | Sequence) or len(players) < 2:
        raise ValueError(f"players must be a dict or a list of at least two players, got {players!r}.")
    names = tuple(players) if isinstance(players, Mapping) else tuple(map(_name, players))
    pools, places = pools_of(list(players.values() if isinstance(players, Mapping) else players))
    for pool in pools:
        pool.require_fit("players", timestep)
    wins, draws = (np.zeros((len(names), len(names)), int) for _ in range(2))
    for (i, j), returns in _games(env, pools, places, n_games, seed):
        wins[i, j], wins[j, i] = (returns > 0).sum(), (returns < 0).sum()
        draws[i, j] = draws[j, i] = (returns == 0).sum()
    elo = elo_of(wins + 0.5 * draws)
    return Tournament(names, wins, draws, elo, _interval(wins, draws, seed))


def _name(player: object) -> str:
    """Return a name for a player of a list: what the user wrote, or its class."""
    return str(player) if isinstance(player, str) or hasattr(player, "__fspath__") else type(player).__name__


def _games(
    env: Environment[Any], pools: list[Opponents], places: list[tuple[int, int]], n_games: int, seed: int
) -> Iterator[tuple[tuple[int, int], np.ndarray]]:
    """Yield each pair of players and the returns of its first player, from one call for every two architectures."""
    pairs: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for i, j in itertools.combinations(range(len(places)), 2):
        pairs.setdefault((places[i][0], places[j][0]), []).append((i, j))
    for number, ((mine, theirs), of_pools) in enumerate(pairs.items()):
        members = np.array([(places[i][1], places[j][1]) for i, j in of_pools])
        returns = play(env, pools[mine], pools[theirs], members, n_games, seed + number)
        yield from zip(of_pools, returns, strict=True)


def elo_of(points: np.ndarray) -> np.ndarray:
    """Return the Elo ratings of players, (..., players), with a mean of 0.

    They are the most likely ratings of the model of Bradley and Terry (1952), computed by Hunter's (2004) algorithm.

    Args:
      points: (..., players, players), what the player of the row scored against the player of the column.
    """
    number = points.shape[-1]
    points = points + PRIOR_DRAWS / 2 * (1 - np.eye(number))
    games = points + np.swapaxes(points, -1, -2)
    strength = np.ones(points.shape[:-1])
    for _ in range(2000):
        sums = strength[..., :, None] + strength[..., None, :]
        new = points.sum(axis=-1) / (games / sums).sum(axis=-1)
        new /= np.exp(np.log(new).mean(axis=-1, keepdims=True))
        has_converged = np.allclose(new, strength, rtol=1e-6, atol=0)
        strength = new
        if has_converged:
            break
    return 400 * np.log10(strength)


def _interval(wins: np.ndarray, draws: np.ndarray, seed: int) -> np.ndarray:
    """Return the percentiles of the ratings of games drawn with replacement, (players, 2)."""
    random, number = np.random.default_rng(seed), len(wins)
    resampled = np.zeros((NUM_RESAMPLES, number, number))
    for i, j in itertools.combinations(range(number), 2):
        counts = np.array([wins[i, j], draws[i, j], wins[j, i]])
        won, drawn, lost = random.multinomial(counts.sum(), counts / counts.sum(), NUM_RESAMPLES).T
        resampled[:, i, j], resampled[:, j, i] = won + 0.5 * drawn, lost + 0.5 * drawn
    percentiles: np.ndarray = np.percentile(elo_of(resampled), INTERVAL, axis=0)
    return percentiles.T


def plot_tournament(result: Tournament, *, ax: Axes | None = None) -> Axes:
    """Draw a tournament: the scores of each pair as a table of colors, with the Elo ratings beside the names.

    Args:
      result: as `tournament` returns it.
      ax: the axes to draw on. If not given, on a new figure of pyplot, which notebooks show.

    Returns:
      The axes: `plot_tournament(result).figure.savefig("tournament.png")`.
    """
    instance("result", result, Tournament, "a Tournament")
    order = np.argsort(-result.elo)
    names = [result.names[i] for i in order]
    half_widths = np.ptp(result.elo_interval, axis=1) / 2
    scores = result.scores[np.ix_(order, order)]
    if ax is None:
        from matplotlib import pyplot  # here, because it takes long to import

        side = 2.5 + 0.6 * len(names)
        _, ax = pyplot.subplots(figsize=(side + 1.5, side), layout="constrained")
    ax.imshow(scores, cmap="RdYlGn", vmin=0, vmax=1)
    for (row, column), score in np.ndenumerate(scores):
        if row != column:
            color = "white" if abs(score - 0.5) > 0.3 else "black"  # the ends of the color map are dark
            ax.text(column, row, f"{100 * score:.0f}", ha="center", va="center", color=color)
    ratings = [f"{name}  {result.elo[i]:+.0f} ± {half_widths[i]:.0f}" for name, i in zip(names, order, strict=True)]
    ax.set_yticks(range(len(names)), ratings)
    ax.set_xticks(range(len(names)), names, rotation=45, ha="right")
    ax.set_title("score of the row against the column [%], and Elo")
    return ax
