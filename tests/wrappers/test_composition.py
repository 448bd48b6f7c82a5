"""Wrappers around wrappers, in everything that steps and trains."""

import jax
import numpy as np
import pytest

from bridge import JaxVecEnv
from jaxenvs import (
    ActionRepeat,
    CartPole,
    ClipAction,
    FlattenObservation,
    FrameStack,
    Pendulum,
    RandomizedParameters,
    RescaleAction,
    StickyAction,
    TimeLimit,
    TransformObservation,
    TransformReward,
    check_env,
)


def scaled(number):
    return 0.5 * number


def wrapped(env):
    """`env` in one of each."""
    env = RescaleAction(ClipAction(TimeLimit(env, 20)), -np.inf, np.inf)
    env = StickyAction(ActionRepeat(env, 2), 0.1)
    env = TransformReward(TransformObservation(FrameStack(env, 2, "zero"), scaled), scaled)
    return RescaleAction(RandomizedParameters(FlattenObservation(env), {"mass": (0.5, 2.0)}), -np.inf, np.inf)


ALL = wrapped(Pendulum())
TRAINED = FlattenObservation(
    FrameStack(StickyAction(RandomizedParameters(TimeLimit(CartPole(), 20), {"gravity": (8, 12)}), 0.1), 2)
)


@pytest.mark.thorough
def test_all_of_them_keep_the_contract():
    check_env(ALL, num_steps=12)


@pytest.mark.thorough
def test_a_parameter_is_reached_through_all_of_them():
    assert ALL.replace(gravity=5.0, stack_size=3, max_speed=7.0).parameter("gravity") == 5.0
    assert ALL.parameter("max_steps") == 20
    venv = JaxVecEnv(TRAINED, 2, seed=0)
    venv.set_attr("max_steps", 3, indices=0)
    venv.reset()
    dones = [venv.step(np.zeros(2, int))[2] for _ in range(3)]
    np.testing.assert_array_equal(dones, [[False, False], [False, False], [True, False]])


def test_the_picture_is_that_of_the_environment_inside():
    state, _ = jax.jit(TRAINED.reset)(jax.random.key(0))
    inside = state.inner.inner.inner.inner
    np.testing.assert_array_equal(TRAINED.render(state), CartPole().render(inside))
    assert TRAINED.render_size == CartPole().render_size
    assert TRAINED.can_render


@pytest.mark.parametrize("wrapper", [ClipAction, FlattenObservation, lambda env: FrameStack(env, 2)])
def test_what_is_no_environment_is_refused(wrapper):
    with pytest.raises(TypeError, match=r"env must be a jaxenvs\.Environment, got"):
        wrapper(CartPole)
