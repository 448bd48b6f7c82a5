"""Whole games of Blackjack beside Gymnasium's, with the reference's cards, and how likely cards are."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxenvs
from jaxenvs.envs.toy_text.blackjack import MOST_DEALER_DRAWS
from tests.envs.test_toy_text_parity import Case, Recorded, given, play_ours, start_all

pytestmark = pytest.mark.skipif("Taxi-v4" not in gymnasium.registry, reason="Gymnasium is older than 1.3")

RULES = [Case("Blackjack-v1", {"natural": natural, "sab": sab}) for natural in (False, True) for sab in (False, True)]
MOST_HITS = 12


class Shoe(Recorded):
    """A generator that writes down cards, and every third game deals the player an ace and a ten."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.cards: list[int] = []

    def choice(self, options: Any) -> Any:
        drawn = super().choice(options)
        if isinstance(drawn, str):  # of the picture
            return drawn
        if len(self.cards) in (2, 3) and self._generator.random() < 0.5:
            drawn = 10 if self.cards[2:] == [1] else 1
        self.cards.append(drawn)
        return drawn


def play_blackjack(env: Any, seed: int) -> tuple[list[int], list[int], list[Any]]:
    """The cards that were dealt at first, all others, and the steps of a game."""
    random, shoe = np.random.default_rng(seed), Shoe(seed)
    env.np_random = shoe
    seen, steps, done = [env.reset()[0]], [], False
    while not done:
        action = int(random.random() < 0.6)
        observation, reward, done, _, info = env.step(action)
        assert info == {}
        seen.append(observation)
        steps.append((action, reward, done))
    return shoe.cards[:4], shoe.cards[4:], [seen, steps]


def as_number(card: int) -> float:
    """A uniform number that is drawn as this card."""
    return (card - 0.5) / 13


@pytest.mark.thorough
@pytest.mark.parametrize("case", RULES, ids=str)
def test_whole_games_of_blackjack(case: Case) -> None:
    reference: Any = case.reference().unwrapped
    games = [play_blackjack(reference, seed) for seed in range(400)]
    dealt = np.array([first for first, _, _ in games])
    draws, numbers = np.ones((len(games), MOST_DEALER_DRAWS), np.int32), np.zeros((len(games), MOST_HITS))
    actions = np.zeros((len(games), MOST_HITS), int)
    for i, (_, later, (_, steps)) in enumerate(games):
        taken = [action for action, _, _ in steps]
        hits = sum(taken)
        numbers[i, :hits] = [as_number(card) for card in later[:hits]]
        draws[i, : len(later) - hits] = later[hits:]
        actions[i, : len(taken)] = taken
    env: Any = case.ours()

    @jax.jit
    @jax.vmap
    def deal(cards: jax.Array, draws: jax.Array, stream: Any) -> Any:
        state = env._deal(cards[:2], cards[2:], draws, stream)
        return state, env._observe(state)

    state, first = deal(jnp.asarray(dealt, jnp.int32), jnp.asarray(draws), given(numbers))
    observed = np.stack(first, axis=-1)
    got = play_ours(env, state, jnp.asarray(actions))
    after = np.stack(got.observation, axis=-1)
    rewards = set()
    for i, (_, _, (seen, steps)) in enumerate(games):
        _, reward, done = zip(*steps, strict=True)
        assert tuple(observed[i]) == seen[0]
        np.testing.assert_array_equal(after[i, : len(steps)], seen[1:])
        np.testing.assert_array_equal(got.reward[i, : len(steps)], reward)
        np.testing.assert_array_equal(got.terminated[i, : len(steps)], done)
        rewards.add(reward[-1])
    assert rewards == ({-1, 0, 1, 1.5} if case.parameters["natural"] and not case.parameters["sab"] else {-1, 0, 1})


def test_the_dealer_never_needs_more_cards_than_are_drawn() -> None:
    @functools.cache
    def draws(total: int, has_ace: bool) -> int:
        if total + 10 * (has_ace and total <= 11) >= 17:
            return 0
        return 1 + max(draws(total + card, has_ace or card == 1) for card in range(1, 11))

    hands = [draws(a + b, 1 in (a, b)) for a in range(1, 11) for b in range(1, 11)]
    assert max(hands) == MOST_DEALER_DRAWS


@pytest.mark.thorough
def test_cards_are_as_likely_as_in_the_reference() -> None:
    """At the start, in the dealer's hand to its end, and of a hit: to five standard deviations."""
    deck = np.array([0, *[1] * 9, 4]) / 13

    @functools.cache
    def ends(total: int, has_ace: bool) -> np.ndarray:
        best = total + 10 * (has_ace and total <= 11)
        if best >= 17:
            return np.eye(27)[best]
        return sum(deck[card] * ends(total + card, has_ace or card == 1) for card in range(1, 11))

    num, env = 50_000, jaxenvs.make("Blackjack-v1")
    state, _ = start_all(env, jax.random.split(jax.random.key(0), num))
    after, _ = jax.jit(jax.vmap(env.step, in_axes=(0, None)))(state, jnp.asarray(1))
    totals = np.convolve(deck, deck)
    for values, expected in (
        (state.dealer_card, deck),
        (after.total - state.total, deck),
        (state.total, totals),
        (state.dealer_sum, sum(totals_of for totals_of in _dealer_ends(deck, ends))),
        (state.is_natural, [1 - 8 / 169, 8 / 169]),
        (state.dealer_is_natural, [1 - 8 / 169, 8 / 169]),
    ):
        expected = np.asarray(expected)
        share = np.bincount(np.asarray(values, int), minlength=len(expected)) / num
        assert (np.abs(share - expected) <= 5 * np.sqrt(expected * (1 - expected) / num) + 1e-12).all()


def _dealer_ends(deck: np.ndarray, ends: Any) -> list[np.ndarray]:
    cards = range(1, 11)
    return [deck[a] * deck[b] * ends(a + b, 1 in (a, b)) for a in cards for b in cards]
