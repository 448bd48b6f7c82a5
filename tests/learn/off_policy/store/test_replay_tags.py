"""Tags: what a replay store keeps of where episodes begin and end."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from jaxenvs.learn.off_policy.store import replay_tags

ARRAYS = {
    "numpy": (lambda values: np.asarray(values, np.int32), lambda values: np.asarray(values, bool)),
    "jax": (lambda values: jnp.asarray(values, jnp.int32), lambda values: jnp.asarray(values, bool)),
    "torch": (lambda values: torch.tensor(values, dtype=torch.int32), lambda values: torch.tensor(values)),
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_an_end_gives_back_what_it_was_made_of_as_int32(kind):
    integers, bools = ARRAYS[kind]
    rows = [0, 1, 77, replay_tags.MAX_ENDS - 1]
    cases = list(itertools.product(rows, [False, True], [False, True]))
    row, terminated, truncated = (list(column) for column in zip(*cases))
    tag = replay_tags.make_end(integers(row), bools(terminated), bools(truncated))
    assert "int32" in str(tag.dtype)
    assert np.asarray(replay_tags.is_end(tag)).all()
    assert np.asarray(replay_tags.end_row(tag)).tolist() == row
    assert np.asarray(replay_tags.terminated(tag)).tolist() == terminated
    assert np.asarray(replay_tags.truncated(tag)).tolist() == truncated


@pytest.mark.parametrize("kind", ARRAYS)
def test_ages_count_from_an_end_and_stop_at_the_greatest(kind):
    integers, _ = ARRAYS[kind]
    tag = integers([0, 41, replay_tags.MAX_AGE - 1, replay_tags.MAX_AGE, -1, -9])
    assert "int32" in str(replay_tags.next_age(tag).dtype)
    assert np.asarray(replay_tags.next_age(tag)).tolist() == [1, 42, replay_tags.MAX_AGE, replay_tags.MAX_AGE, 0, 0]
    assert not np.asarray(replay_tags.is_end(tag))[:4].any()
    assert not np.asarray(replay_tags.terminated(tag))[:4].any()
    assert not np.asarray(replay_tags.truncated(tag))[:4].any()


def test_a_slot_that_ends_an_episode_has_the_age_after_the_slot_before_it():
    tag, before = np.int32([5, -1, -1, 0]), np.int32([4, 6, -5, -1])
    assert replay_tags.age(tag, before).tolist() == [5, 7, 0, 0]
