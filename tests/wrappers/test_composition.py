"""Wrappers around wrappers, in everything that steps and trains."""

import jax
import numpy as np
import pytest

from bridge import A2C, JaxVecEnv, make_vec_env
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
    VectorEnv,
    check_env,
    learn,
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


def test_all_of_them_keep_the_contract():
    check_env(ALL, num_steps=12)


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


@pytest.mark.thorough  # they are environments as any: test_all_of_them_keep_the_contract
def test_pure_jax_trains_on_them():
    algorithm = learn.A2C(n_steps=8)
    training = learn.Training(VectorEnv(TRAINED, 4), learn.ActorCritic.of(TRAINED), algorithm, total_timesteps=128)
    metrics = jax.jit(learn.train)(jax.random.key(0), training).metrics
    assert metrics["episodes"].sum() > 0
    assert np.isfinite(metrics["policy_loss"]).all()


@pytest.mark.thorough  # which step in its VecEnv as any: test_a_parameter_is_reached_through_all_of_them
def test_stable_baselines3_trains_on_them_in_one_program():
    env = make_vec_env(CartPole, 4, seed=0, wrapper_class=lambda env: TRAINED)
    assert env.observation_space == TRAINED.observation_space
    A2C("MlpPolicy", env, n_steps=8, seed=0, engine="xla").learn(64)


@pytest.mark.parametrize("wrapper", [ClipAction, FlattenObservation, lambda env: FrameStack(env, 2)])
def test_what_is_no_environment_is_refused(wrapper):
    with pytest.raises(TypeError, match=r"env must be a jaxenvs\.Environment, got"):
        wrapper(CartPole)
