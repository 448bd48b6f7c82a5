"""TransformObservation and TransformReward beside Gymnasium's."""

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium import spaces

from jaxenvs import TransformObservation, TransformReward, VectorEnv
from tests.environments import Counter
from tests.wrappers.against_gymnasium import assert_equal_to

INSIDE = Counter(length=4)


def double_first(observation):
    return 2 * observation[:1]


def negative(observation):
    return -observation


def plus_one(reward):
    return 2 * reward + 1


def test_observations_are_those_of_gymnasium():
    space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    ours = TransformObservation(INSIDE, double_first, observation_space=space)
    reference = gymnasium.wrappers.TransformObservation
    assert_equal_to(lambda env: reference(env, double_first, observation_space=space), ours, INSIDE)


def test_without_a_space_it_is_that_of_the_environment():
    ours = TransformObservation(INSIDE, negative)
    assert_equal_to(lambda env: gymnasium.wrappers.TransformObservation(env, negative, None), ours, INSIDE)


def test_rewards_are_those_of_gymnasium():
    assert_equal_to(
        lambda env: gymnasium.wrappers.TransformReward(env, plus_one), TransformReward(INSIDE, plus_one), INSIDE
    )


def test_a_new_episode_has_no_reward_of_its_own():
    assert TransformReward(INSIDE, plus_one).reset(jax.random.key(0))[1].reward == 0


def test_an_observation_that_is_not_of_the_space_is_named():
    with pytest.raises(ValueError, match=r"The observation must fit observation_space = Box.*\(2,\), float32\)"):
        VectorEnv(TransformObservation(INSIDE, double_first), 1)


def test_programs_are_shared_by_equal_spaces_and_the_same_function():
    def make(high):
        return TransformObservation(INSIDE, double_first, spaces.Box(0, high, (1,), np.float32))

    assert jax.tree.structure(make(9)) == jax.tree.structure(make(9).replace(length=7))
    assert jax.tree.structure(make(9)) != jax.tree.structure(make(8))


@pytest.mark.parametrize("wrap", [TransformObservation, TransformReward])
def test_what_is_no_function_is_refused(wrap):
    with pytest.raises(TypeError, match="func must be a function, got 3"):
        wrap(INSIDE, 3)


def test_a_space_that_is_none_is_refused():
    with pytest.raises(TypeError, match=r"observation_space must be a gymnasium.Space or None, got tuple"):
        TransformObservation(INSIDE, double_first, (1,))
