"""SelfPlay: a game of two or more players as an environment of one, with the opponents' policies inside."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from jaxenvs.arguments import function, shown
from jaxenvs.environment import Environment, TimeStep, Wrapper, environment, static, struct
from jaxenvs.jax_names import is_traced

# Entries of the info of a game, besides `action_mask`.
PLAYER, REWARDS = "current_player", "rewards"
# Structures and shapes of SelfPlay environments that were checked.
_CHECKED: set[object] = set()


def _no_policy(parameters: object, observation: object) -> jax.Array:
    """Return logits of a member of a pool in which all move at random."""
    return jnp.zeros(())


@struct
class Opponents:
    """Pool of opponents: policies of one architecture, one of which is drawn for each other seat of an episode.

    Everything but `policy` is data: a pool with other parameters compiles nothing.

    Attributes:
      parameters: of all members, a pytree whose leaves have the leading axis `size`.
      weights: float (size,), how often each member is drawn, relative to the others.
      at_random: bool (size,), the members that take legal actions at random, whatever their parameters.
      policy: returns logits, (num_actions,), from the parameters of one member and one observation of the game. Actions
        are drawn from the logits of legal actions.
    """

    parameters: Any
    weights: jax.typing.ArrayLike
    at_random: jax.typing.ArrayLike
    policy: Callable[[Any, Any], jax.Array] = static(default=_no_policy)

    def __check_init__(self) -> None:
        function("policy", self.policy)
        shape = np.shape(self.weights)
        if len(shape) != 1 or not shape[0] or np.shape(self.at_random) != shape:
            raise ValueError(
                "weights and at_random must have one number for each member of the pool, got the shapes "
                f"{shape} and {np.shape(self.at_random)}."
            )
        if isinstance(self.weights, np.ndarray) and not (np.all(self.weights >= 0) and 0 < self.weights.sum() < np.inf):
            raise ValueError(f"weights must be finite, not negative, and not all 0, got {self.weights}.")
        for path, leaf in jax.tree_util.tree_leaves_with_path(self.parameters):
            if jnp.shape(leaf)[:1] != shape:
                raise ValueError(
                    f"parameters{jax.tree_util.keystr(path)} must have the leading axis size = {shape[0]}, got "
                    f"{shown(leaf)}."
                )

    @property
    def size(self) -> int:
        """The number of members."""
        return int(np.shape(self.weights)[0])

    @classmethod
    def random(cls) -> Self:
        """Return the pool whose only member takes legal actions at random."""
        return cls(np.zeros(1, np.float32), np.ones(1, np.float32), np.ones(1, bool))

    @classmethod
    def of(
        cls,
        policy: Callable[[Any, Any], jax.Array],
        parameters: Sequence[Any],
        weights: np.typing.ArrayLike | None = None,
        at_random: np.typing.ArrayLike | None = None,
    ) -> Self:
        """Return the pool of some members of one architecture.

        Args:
          policy: as the attribute.
          parameters: of each member.
          weights, at_random: as the attributes; by default all members are drawn equally often, and none moves at
            random.
        """
        if not (size := len(parameters)):
            raise ValueError("parameters must hold at least one member, got none.")
        weights = np.ones(size, np.float32) if weights is None else np.asarray(weights, np.float32)
        at_random = np.zeros(size, bool) if at_random is None else np.asarray(at_random, bool)
        stacked = jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *parameters)
        return cls(stacked, weights, at_random, policy)

    def require_fit(self, name: str, timestep: TimeStep) -> None:
        """Raise unless the policy takes the observations of a game and has a logit for each of its actions.

        Args:
          name: of the argument that holds the pool.
          timestep: `jax.ShapeDtypeStruct`s of the game's.

        Raises:
          ValueError: it does not.
        """
        expected = timestep.info["action_mask"].shape

        def logits_of_first(parameters: object, observation: object) -> jax.Array:
            return self.policy(jax.tree.map(lambda leaf: jnp.asarray(leaf)[0], parameters), observation)

        try:
            shape = jax.eval_shape(logits_of_first, self.parameters, timestep.observation).shape
        except Exception as error:  # of any kind, as user code raises it
            raise ValueError(f"{name} does not take the observations of the game: {error}") from error
        if shape not in (expected, ()):
            raise ValueError(f"{name} must return logits of shape {expected}, one for each action, got {shape}.")

    def draw(self, key: jax.Array, count: int) -> jax.Array:
        """Draw members by their weights: int32 (count,)."""
        sums = jnp.cumsum(jnp.asarray(self.weights))
        drawn = jax.random.uniform(key, (count,)) * sums[-1]
        return jnp.minimum(jnp.searchsorted(sums, drawn, side="right"), self.size - 1).astype(jnp.int32)

    def act(
        self, member: jax.Array | np.ndarray, observation: object, action_mask: jax.Array, key: jax.Array
    ) -> jax.Array:
        """Draw a legal action of one member, int32 ()."""
        if self.size == 1:  # the same weights in all environments, so that a batch is one product of matrices
            member = np.zeros((), np.int32)
        logits = self.policy(jax.tree.map(lambda leaf: jnp.asarray(leaf)[member], self.parameters), observation)
        logits = jnp.where(jnp.asarray(self.at_random)[member], 0.0, logits)
        return draw_legal(logits, action_mask, key)


def member_to_drop(numbers: Any) -> Any:
    """Return which member leaves a pool that is full: the one whose neighbors are nearest in time.

    The random player, the newest copy and, if more than two can stay, the first copy are kept. The others stay spread
    over the whole training.

    Args:
      numbers: int (n,), n >= 3, how many copies had been made when each member was added, in ascending order.
    """
    first = min(2, len(numbers) - 2)
    return first + (numbers[first + 1 :] - numbers[first - 1 : -2]).argmin()


def draw_legal(logits: jax.Array, action_mask: jax.Array, key: jax.Array) -> jax.Array:
    """Draw an action from the logits of legal actions, int32 ()."""
    logits = jnp.broadcast_to(logits, action_mask.shape)
    return jax.random.categorical(key, jnp.where(action_mask, logits, -jnp.inf)).astype(jnp.int32)


@struct
class SelfPlayState:
    """State of SelfPlay.

    Attributes:
      inner: the state of the game.
      seat: int32 (), the learner's number among the players.
      opponents: int32 (num_players,), which member of the pool plays each seat; at the learner's own, unused.
      action_mask: bool (num_actions,), the learner's legal actions.
      key: of the opponents' moves in this episode.
      moves: int32 (), how many moves all players together have made.
    """

    inner: Any
    seat: jax.Array
    opponents: jax.Array
    action_mask: jax.Array
    key: jax.Array
    moves: jax.Array


@environment
class SelfPlay(Wrapper[SelfPlayState]):
    """Wrapper that makes a game of two or more players an environment of one: opponents move inside `step`.

    `reset` draws the learner's seat, and a member of `opponent` for each other seat. `step` makes the learner's move
    and then the opponents' moves, until it is the learner's turn again or the game is over. The reward is the sum of
    the learner's rewards in all of these moves. `action_masks` returns the learner's legal actions.

    A game is an environment with a Discrete action space, an attribute `num_players`, and observations as the player to
    move sees them. Its `info` has `action_mask`, bool (num_actions,); `current_player`, int32 (), who moves next; and
    `rewards`, float (num_players,), of the last move. `jaxenvs.make("pgx/connect_four")` is one.

    Attributes:
      env: the game.
      opponent: the pool of opponents. `set_attr("opponent", ...)` and `replace(opponent=...)` change it, and compile
        nothing if only numbers change.
    """

    env: Environment[Any]
    opponent: Opponents = Opponents.random()

    def __check_init__(self) -> None:
        if not isinstance(self.opponent, Opponents):
            raise TypeError(f"opponent must be an Opponents, got {shown(self.opponent)}.")
        super().__check_init__()
        leaves, structure = jax.tree.flatten(self)
        kind = structure, tuple(map(np.shape, leaves))
        if kind in _CHECKED or any(map(is_traced, leaves)):
            return  # a new pool of the same shapes, which should take no time
        timestep = require_game("env", self.env)
        self.opponent.require_fit("opponent", timestep)
        _CHECKED.add(kind)

    @property
    def num_players(self) -> int:
        """The number of players of the game."""
        return int(self.env.parameter("num_players"))

    def reset(self, key: jax.Array) -> tuple[SelfPlayState, TimeStep]:
        game_key, seat_key, draw_key, key = jax.random.split(key, 4)
        seat = jax.random.randint(seat_key, (), 0, self.num_players, jnp.int32)
        opponents = self.opponent.draw(draw_key, self.num_players)
        inner, timestep = self.env.reset(game_key)
        mask = timestep.info["action_mask"]
        state = SelfPlayState(inner, seat, opponents, mask, key, jnp.zeros((), jnp.int32))
        return self._until_my_turn(state, timestep)

    def step(self, state: SelfPlayState, action: object) -> tuple[SelfPlayState, TimeStep]:
        inner, timestep = self.env.step(state.inner, action)
        return self._until_my_turn(dataclasses.replace(state, inner=inner, moves=state.moves + 1), timestep)

    def action_masks(self, state: SelfPlayState) -> jax.Array:
        """Return which actions are legal for the learner: bool (num_actions,)."""
        return state.action_mask

    def _until_my_turn(self, state: SelfPlayState, timestep: TimeStep) -> tuple[SelfPlayState, TimeStep]:
        """Let the opponents move until it is the learner's turn, or the game is over."""

        def is_theirs(carry: tuple[Any, jax.Array, TimeStep, jax.Array]) -> jax.Array:
            _, _, timestep, _ = carry
            theirs: jax.Array = ~timestep.done & (timestep.info[PLAYER] != state.seat)
            return theirs

        def move(carry: tuple[Any, jax.Array, TimeStep, jax.Array]) -> tuple[Any, jax.Array, TimeStep, jax.Array]:
            inner, moves, timestep, reward = carry
            member = state.opponents[timestep.info[PLAYER]]
            key = jax.random.fold_in(state.key, moves)
            action = self.opponent.act(member, timestep.observation, timestep.info["action_mask"], key)
            inner, timestep = self.env.step(inner, action)
            return inner, moves + 1, timestep, reward + timestep.info[REWARDS][state.seat]

        begun = state.inner, state.moves, timestep, timestep.info[REWARDS][state.seat]
        inner, moves, timestep, reward = jax.lax.while_loop(is_theirs, move, begun)
        mask = timestep.info["action_mask"]
        state = dataclasses.replace(state, inner=inner, moves=moves, action_mask=mask)
        return state, timestep.replace(reward=reward, info={})


def num_players_of(env: Environment[Any]) -> int:
    """Return how many players an environment has: its attribute `num_players`, or 1."""
    try:
        return int(env.parameter("num_players"))
    except AttributeError:
        return 1


def require_game(name: str, game: Environment[Any]) -> TimeStep:
    """Raise unless an environment is a game of two or more players. Return `jax.ShapeDtypeStruct`s of its TimeStep.

    Raises:
      TypeError, ValueError: it is not a game as SelfPlay takes it; the message says what is missing.
    """
    num_players = num_players_of(game)
    if num_players < 2:
        raise ValueError(f"{name} must be a game with num_players of at least 2, got {type(game).__name__}.")
    timestep: TimeStep = jax.eval_shape(game.reset, jax.eval_shape(lambda: jax.random.key(0)))[1]
    expected = {"action_mask": 1, PLAYER: 0, REWARDS: 1}
    found = {key: getattr(leaf, "ndim", None) for key, leaf in timestep.info.items() if key in expected}
    if found != expected or timestep.info[REWARDS].shape != (num_players,):
        raise ValueError(
            f"{name} must report action_mask (num_actions,), {PLAYER} () and {REWARDS} ({num_players},) in its info, "
            f"got {shown(dict(timestep.info))}."
        )
    return timestep
