"""ActionMasker, and which actions are legal in a batch of environments."""

import jax
import numpy as np
import pytest

import jaxenvs
from jaxenvs.wrappers.action_masker import action_masks, require_action_masks, with_action_masks
from tests.environments import Counter
from tests.masked_environments import MASKS, Locks, LocksWithMethod


@pytest.mark.parametrize("tells", ["info", "observation"])
def test_it_keeps_what_the_environment_told_last(tells):
    env = jaxenvs.ActionMasker(Locks(tells=tells))
    state, timestep = env.reset(jax.random.key(0))
    for _ in range(3):
        given = timestep.info if tells == "info" else timestep.observation
        np.testing.assert_array_equal(env.action_masks(state), given["action_mask"])
        np.testing.assert_array_equal(
            env.action_masks(state), MASKS["discrete"][(state.inner.start + state.inner.count) % 3]
        )
        state, timestep = env.step(state, 0)


@pytest.mark.thorough
def test_masks_of_many_are_those_of_each_after_its_reset_and_within_wrappers():
    venv = with_action_masks(jaxenvs.VectorEnv(jaxenvs.TimeLimit(LocksWithMethod(length=9), 2), 5))
    state, _ = venv.reset(jax.random.key(0))
    for _ in range(4):  # beyond an auto-reset
        inner = state.env_states.inner
        expected = np.array(MASKS["discrete"])[(inner.start + inner.count) % 3]
        np.testing.assert_array_equal(action_masks(venv, state), expected)
        state, _ = venv.step(state, np.zeros(5, int))
    assert len(set(map(tuple, expected))) > 1


def test_environments_are_wrapped_only_where_a_mask_is_told_that_fits_their_actions():
    assert isinstance(with_action_masks(jaxenvs.VectorEnv(Locks(), 2)).env, jaxenvs.ActionMasker)
    for env in (LocksWithMethod(), jaxenvs.make("Taxi-v4"), Counter(action_kind="box"), jaxenvs.CartPole()):
        venv = jaxenvs.VectorEnv(env, 2)
        assert with_action_masks(venv) is venv


def test_environments_that_tell_nothing_are_refused():
    with pytest.raises(ValueError, match=r"CartPole has no action masks.*action_masks\(state\) or an info"):
        require_action_masks(jaxenvs.make_vec("CartPole-v1", 2))
