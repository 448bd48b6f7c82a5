"""A replay store keeps its content when seeds continue with a larger store."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bridge.seeds.seed_sweep import in_larger_store
from jaxenvs.arrays import from_arrays, to_arrays
from jaxenvs.learn import Replay

ACTION = jnp.zeros((1,))


def larger(replay, capacity):
    """Return the content in the store of a larger budget, as the only seed of a sweep."""
    arrays = {f".replay{name}": array[None] for name, array in to_arrays(replay).items()}
    whole = replay.episodes is not None
    state = SimpleNamespace(replay=Replay.create(capacity, jnp.zeros((1, 1)), ACTION, whole))
    shapes = jax.tree.map(lambda leaf: jnp.zeros((1, *leaf.shape), leaf.dtype), state.replay)
    grown = in_larger_store(SimpleNamespace(replay=shapes), arrays | {".iteration": np.ones(1, np.int32)})
    return from_arrays(
        state.replay, {name.removeprefix(".replay"): array[0] for name, array in grown.items() if "replay" in name}
    )


def with_episodes(replay, times):
    """Add steps of episodes of three steps each."""
    no = jnp.zeros(1, bool)
    for time in times:
        now, done = jnp.full((1, 1), float(time)), jnp.full(1, time % 3 == 2)
        replay = replay.add(now, ACTION, jnp.full(1, float(time)), done, no, now + 1)
    return replay


@pytest.mark.thorough(but=["6"])
@pytest.mark.parametrize("budget", [5, 6])  # within an episode, and after one
def test_whole_episodes_are_those_of_a_store_that_was_as_large_from_the_beginning(budget):
    begun = with_episodes(Replay.create(budget, jnp.zeros((1, 1)), ACTION, whole=True), range(budget))
    grown = with_episodes(larger(begun, 12), range(budget, 11))
    large = with_episodes(Replay.create(12, jnp.zeros((1, 1)), ACTION, whole=True), range(11))
    assert int(grown.episodes.count[0]) == 9
    for ours, expected in zip(jax.tree.leaves(grown), jax.tree.leaves(large), strict=True):
        np.testing.assert_array_equal(ours, expected)
