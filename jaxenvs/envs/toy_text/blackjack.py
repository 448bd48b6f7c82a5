"""Blackjack: come closer to 21 than the dealer, and not above it."""

from __future__ import annotations

import dataclasses
import functools

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from jaxenvs.drawing import scaled
from jaxenvs.environment import Environment, TimeStep, environment, static, struct
from jaxenvs.envs.toy_text.draws import UniformStream
from jaxenvs.envs.toy_text.pixel_art import (
    INK,
    RED,
    WHITE,
    box,
    painted,
    plain,
    text,
)

STICK, HIT = range(2)
DEALER_STANDS = 17  # at this sum or more, the dealer takes no more cards
MOST_DEALER_DRAWS = 10  # as with two aces, four aces, a six and five aces

SIZE = 96  # of the picture [pixels]
PLAYER_ROW, ACE_ROW = 48, 80  # above these rows of pixels are the dealer's card and the player's sum


@struct
class BlackjackState:
    """State of a Blackjack: the player's cards, and the dealer's.

    Attributes:
      total: int32, the player's cards, aces counted as 1.
      has_ace: bool, whether there is an ace among them.
      is_natural: bool, whether they are two, an ace and a ten.
      dealer_card: int32, the dealer's visible card, from 1 (an ace) to 10.
      dealer_sum: int32, the dealer's final sum. The cards come from an endless deck, so it does not depend on the
        player's actions, and is drawn at the start.
      dealer_is_natural: bool, whether that will be an ace and a ten.
      over: bool, the game is over: nothing changes any more, and nothing is earned.
      stream: of the cards that the player takes.
    """

    total: jax.Array
    has_ace: jax.Array
    is_natural: jax.Array
    dealer_card: jax.Array
    dealer_sum: jax.Array
    dealer_is_natural: jax.Array
    over: jax.Array
    stream: UniformStream


@environment
class Blackjack(Environment[BlackjackState]):
    """Stick (0) or hit (1) against a dealer who hits below 17, as Gymnasium's Blackjack-v1.

    Observation: Tuple(Discrete(32), Discrete(11), Discrete(2)): the player's sum, the dealer's visible card (1 is an
    ace), and whether an ace counts as 11. Reward, at the end: 1 for a win, 0 for a draw, -1 for a loss.
    Source: Sutton & Barto (2018), example 5.1; their rules are `sab`.

    Attributes:
      natural: whether a win with an ace and a ten as first cards pays 1.5; it has no effect with `sab`.
      sab: whether a player with such cards wins against a dealer without them.
    """

    natural: bool = static(default=False)
    sab: bool = static(default=False)

    render_fps = 4
    render_size = 384, 384

    @property
    def observation_space(self) -> gymnasium.spaces.Tuple[object]:
        return gymnasium.spaces.Tuple([gymnasium.spaces.Discrete(n) for n in (32, 11, 2)])

    @property
    def action_space(self) -> gymnasium.spaces.Discrete:
        return gymnasium.spaces.Discrete(2)

    def reset(self, key: jax.Array) -> tuple[BlackjackState, TimeStep]:
        deal_key, stream_key = jax.random.split(key)
        # Use three cards of each draw, equally likely to 1e-6: a draw costs more than the rest of a start.
        bits = jax.random.bits(deal_key, (5,), jnp.uint32)
        cards = _card((bits[:, None] // np.array([1, 13, 13**2], np.uint32) % 13).ravel().astype(jnp.int32))
        state = self._deal(cards[:2], cards[2:4], cards[4:], UniformStream.create(stream_key))
        return state, TimeStep.create(self._observe(state))

    def _deal(self, dealer: jax.Array, player: jax.Array, draws: jax.Array, stream: UniformStream) -> BlackjackState:
        """Start a game with these cards: the dealer's two, the player's two, and the cards that the dealer may take."""
        hidden, hidden_ace = dealer[0] + dealer[1], (dealer[0] == 1) | (dealer[1] == 1)
        for i in range(MOST_DEALER_DRAWS):  # not a scan: these few sums are one kernel
            hits = _best(hidden, hidden_ace) < DEALER_STANDS
            hidden, hidden_ace = jnp.where(hits, hidden + draws[i], hidden), hidden_ace | (hits & (draws[i] == 1))
        return BlackjackState(
            total=player[0] + player[1],
            has_ace=(player[0] == 1) | (player[1] == 1),
            is_natural=_is_natural(player),
            dealer_card=dealer[0],
            dealer_sum=_best(hidden, hidden_ace),
            dealer_is_natural=_is_natural(dealer),
            over=jnp.zeros((), bool),
            stream=stream,
        )

    def step(self, state: BlackjackState, action: jax.Array) -> tuple[BlackjackState, TimeStep]:
        stream, uniform = state.stream.next()
        card = _card((13 * uniform).astype(jnp.int32))
        hits = (action == HIT) & ~state.over
        state = dataclasses.replace(
            state,
            total=jnp.where(hits, state.total + card, state.total),
            has_ace=state.has_ace | (hits & (card == 1)),
            is_natural=state.is_natural & ~hits,
            stream=stream,
        )
        bust = state.total > 21
        reward = jnp.where(action == HIT, jnp.where(bust, -1.0, 0.0), self._payout(state))
        state, was_over = dataclasses.replace(state, over=state.over | (action != HIT) | bust), state.over
        return state, TimeStep.create(self._observe(state), jnp.where(was_over, 0.0, reward), state.over)

    def _payout(self, state: BlackjackState) -> jax.Array:
        """Return the reward for sticking."""
        dealer = jnp.where(state.dealer_sum > 21, 0, state.dealer_sum)
        reward = jnp.sign(_best(state.total, state.has_ace) - dealer).astype(float)
        if self.sab:
            return jnp.where(state.is_natural & ~state.dealer_is_natural, 1.0, reward)
        if self.natural:
            return jnp.where(state.is_natural & (reward == 1), 1.5, reward)
        return reward

    def draw(self, state: BlackjackState, height: int, width: int) -> jax.Array:
        best, card, usable_ace = self._observe(state)
        tables = scaled(_tables(), SIZE, width)
        row = np.arange(height) * SIZE // height
        which = jnp.where(row < PLAYER_ROW, card, jnp.where(row < ACE_ROW, best, usable_ace))
        return jnp.asarray(tables)[which, row]

    def _observe(self, state: BlackjackState) -> tuple[jax.Array, jax.Array, jax.Array]:
        best = _best(state.total, state.has_ace)
        return best.astype(int), state.dealer_card.astype(int), (best > state.total).astype(int)


def _card(rank: jax.Array) -> jax.Array:
    """Return the value of a card of rank 0 (an ace, 1) to 12 (a king, 10)."""
    return jnp.minimum(1 + rank, 10)


def _best(total: jax.Array, has_ace: jax.Array) -> jax.Array:
    """Return the sum of a hand, in which an ace counts as 11 if the sum stays at 21 or below."""
    return total + jnp.where(has_ace & (total <= 11), 10, 0)


def _is_natural(two: jax.Array) -> jax.Array:
    return (two[0] * two[1] == 10) & (two[0] + two[1] == 11)


@functools.cache
def _tables() -> np.ndarray:
    """Return pictures; number k shows the dealer's card k, the player's sum k and, if k is odd, a usable ace."""
    return np.stack([_table(number) for number in range(32)])


def _table(number: int) -> np.ndarray:
    table = plain(SIZE, SIZE, (196, 215, 158))
    table = painted(painted(table, text("DEALER", INK), 8, 10), text("PLAYER", INK), 52, 10)
    for left, colour in ((24, WHITE), (52, RED)):
        table = painted(table, box(28, 20, (146, 148, 160)), 18, left)
        table = painted(table, box(26, 18, colour), 19, left + 1)
    table = painted(table, box(20, 12, (178, 82, 76)), 22, 56)
    table = painted(table, box(18, 10, (200, 108, 100)), 23, 57)
    if 1 <= number <= 10:
        rank = "A" if number == 1 else str(number)
        table = painted(table, text(str(number), INK), 8, 38)
        table = painted(table, text(rank, INK), 21, 27)
        table = painted(table, text(rank, RED, 2), 29, 34 - 4 * len(rank) + 1)
    total = text(str(number), INK, 3)
    table = painted(table, total, 62, (SIZE - total.mask.shape[1]) // 2)
    return painted(table, text("USABLE ACE", INK), 84, 28) if number % 2 else table
