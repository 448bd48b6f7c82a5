"""A replay store keeps its content when seeds continue with a larger store."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bridge.seeds.larger_store import in_larger_store
from jaxenvs.arrays import from_arrays, to_arrays
from jaxenvs.learn import Replay

ACTION = jnp.zeros((1,))


def filled(replay, times):
    """Add steps that each are an episode, whose last observation is 100 more than the first."""
    for time in times:
        now, yes, no = jnp.full((1, 1), float(time)), jnp.ones(1, bool), jnp.zeros(1, bool)
        replay = replay.add(now, ACTION, jnp.full(1, float(time)), yes, no, now + 1, now + 100)
    return replay


def larger(replay, capacity, num_ends=None):
    """Return the content in the store of a larger budget, as the only seed of a sweep."""
    arrays = {f".replay{name}": array[None] for name, array in to_arrays(replay).items()}
    whole = replay.episodes is not None
    state = SimpleNamespace(replay=Replay.create(capacity, jnp.zeros((1, 1)), ACTION, num_ends, whole))
    shapes = jax.tree.map(lambda leaf: jnp.zeros((1, *leaf.shape), leaf.dtype), state.replay)
    grown = in_larger_store(SimpleNamespace(replay=shapes), arrays | {".iteration": np.ones(1, np.int32)})
    return from_arrays(
        state.replay, {name.removeprefix(".replay"): array[0] for name, array in grown.items() if "replay" in name}
    )


def stored(replay):
    """First and last observations of what is stored, from the oldest on."""
    rows = (replay.position - replay.size + jnp.arange(replay.size)) % replay.capacity
    found = replay.transitions(rows, jnp.zeros_like(rows), 0.9)
    return [*zip(found.observation[:, 0].tolist(), found.next_observation[:, 0].tolist())]


def pairs(times):
    return [(float(time), float(time + 100)) for time in times]


def test_the_ends_of_episodes_are_kept_where_their_ring_had_wrapped():
    replay = filled(Replay.create(6, jnp.zeros((1, 1)), ACTION, num_ends=4), range(6))
    assert stored(replay) == pairs(range(2, 6))
    grown = larger(replay, 12, num_ends=8)
    assert stored(grown) == pairs(range(2, 6))
    assert stored(filled(grown, range(6, 10))) == pairs(range(2, 10))


def test_a_ring_that_had_not_wrapped_is_kept_as_it_was():
    grown = larger(filled(Replay.create(4, jnp.zeros((1, 1)), ACTION, num_ends=4), range(4)), 8, num_ends=8)
    assert stored(filled(grown, range(4, 8))) == pairs(range(8))


def with_episodes(replay, times):
    """Add steps of episodes of three steps each."""
    no = jnp.zeros(1, bool)
    for time in times:
        now, done = jnp.full((1, 1), float(time)), jnp.full(1, time % 3 == 2)
        replay = replay.add(now, ACTION, jnp.full(1, float(time)), done, no, now + 1, now + 100)
    return replay


@pytest.mark.parametrize("budget", [5, 6])  # within an episode, and after one
def test_whole_episodes_are_those_of_a_store_that_was_as_large_from_the_beginning(budget):
    begun = with_episodes(Replay.create(budget, jnp.zeros((1, 1)), ACTION, whole=True), range(budget))
    grown = with_episodes(larger(begun, 12), range(budget, 11))
    large = with_episodes(Replay.create(12, jnp.zeros((1, 1)), ACTION, whole=True), range(11))
    assert int(grown.episodes.count[0]) == 9
    for ours, expected in zip(jax.tree.leaves(grown), jax.tree.leaves(large), strict=True):
        np.testing.assert_array_equal(ours, expected)
