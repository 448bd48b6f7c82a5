"""RescaleAction and ClipAction beside Gymnasium's."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxenvs import CartPole, ClipAction, Environment, Pendulum, RescaleAction, TimeStep, environment
from tests.environments import Counter
from tests.wrappers.against_gymnasium import assert_equal_to


@environment
class HalfOpen(Environment):
    """Observes the action that it got, from a Box with every kind of bounds."""

    low = np.float32([-2, -np.inf, 0, -np.inf])
    high = np.float32([6, 3, np.inf, np.inf])

    @property
    def observation_space(self):
        return spaces.Box(-np.inf, np.inf, (4,), np.float32)

    @property
    def action_space(self):
        return spaces.Box(self.low, self.high)

    def reset(self, key):
        return jnp.zeros(()), TimeStep.create(jnp.zeros(4))

    def step(self, state, action):
        return state, TimeStep.create(action)


PENDULUM = Pendulum()


@pytest.mark.parametrize(("least", "greatest"), [(-1, 1), (np.float32([0.5]), np.float32([0.75]))])
def test_rescaled_actions_do_what_they_do_in_gymnasium(least, greatest):
    assert_equal_to(
        lambda env: gymnasium.wrappers.RescaleAction(env, least, greatest),
        RescaleAction(PENDULUM, least, greatest),
        PENDULUM,
        rtol=1e-5,
    )


def test_unbounded_elements_are_shifted_alone():
    least = np.float32([-1, -np.inf, 5, -np.inf])
    greatest = np.float32([1, -7, np.inf, np.inf])
    assert_equal_to(
        lambda env: gymnasium.wrappers.RescaleAction(env, least, greatest),
        RescaleAction(HalfOpen(), least, greatest),
        HalfOpen(),
        rtol=1e-5,
    )


def test_clipped_actions_do_what_they_do_in_gymnasium():
    assert_equal_to(gymnasium.wrappers.ClipAction, ClipAction(HalfOpen()), HalfOpen())


def test_bounds_stay_those_that_the_wrapper_was_made_with():
    twice = RescaleAction(PENDULUM, -1, 1).replace(max_torque=4.0)
    assert twice.env.max_torque == 4.0
    assert twice.action_high == 2.0
    assert twice.replace(action_high=np.float32([4])).action_high == 4.0


def test_parameters_that_do_not_change_the_actions_may_be_traced():
    def torque_price(gravity):
        env = RescaleAction(Pendulum(gravity=gravity), -1.0, 1.0)
        state, _ = env.reset(jax.random.key(0))
        return env.step(state, jnp.ones(1))[1].observation[2]

    speeds = jax.jit(jax.vmap(torque_price))(jnp.array([0.0, 10.0]))
    assert speeds[0] != speeds[1]
    with pytest.raises(TypeError, match="ClipAction must be made outside of traced code, or with action_low and"):
        jax.jit(lambda torque: ClipAction(Pendulum(max_torque=torque)).action_high)(2.0)
    given = jax.jit(lambda torque: ClipAction(Pendulum(max_torque=torque), action_low=-torque, action_high=torque))
    assert given(3.0).action_high == 3.0


@pytest.mark.parametrize("wrap", [ClipAction, lambda env: RescaleAction(env, -1, 1)])
@pytest.mark.parametrize("env", [CartPole(), Counter(action_kind="multi_discrete")])
def test_actions_that_are_no_box_are_refused(wrap, env):
    with pytest.raises(
        TypeError, match=r"Action must wrap an environment whose action space is a Box, got (Multi)?Disc"
    ):
        wrap(env)


@pytest.mark.parametrize(
    ("bounds", "error", "message"),
    [
        ((1, -1), ValueError, r"min_action must be less than max_action, got 1.0 and -1.0"),
        ((1, 1), ValueError, r"min_action must be less than max_action"),
        ((-np.inf, 1), ValueError, r"min_action must be infinite exactly where the bound of env, \[-2.\], is infinite"),
        ((np.float32([-1, -1]), 1), ValueError, r"min_action must be a number or have shape \(1,\), got float32\[2\]"),
        (("low", 1), TypeError, r"RescaleAction.min_action must be a number"),
    ],
)
def test_bad_bounds_are_named(bounds, error, message):
    with pytest.raises(error, match=message):
        RescaleAction(PENDULUM, *bounds)
