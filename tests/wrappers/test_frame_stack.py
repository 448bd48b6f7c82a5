"""FrameStack beside Gymnasium's FrameStackObservation and SB3's VecFrameStack."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.vec_env.stacked_observations import StackedObservations

from jaxenvs import Environment, FrameStack, TimeStep, VectorEnv, check_env, environment
from jaxenvs.gym.env import GymnasiumEnv
from tests.environments import Counter
from tests.wrappers.against_gymnasium import assert_equal_to


@pytest.mark.parametrize("padding_type", ["reset", "zero"])
def test_frames_are_those_of_gymnasium(padding_type):
    inside = Counter(observation_kind="dict")
    assert_equal_to(
        lambda env: gymnasium.wrappers.FrameStackObservation(env, 3, padding_type=padding_type),
        FrameStack(inside, 3, padding_type),
        inside,
    )


@environment
class Thermometer(Environment):
    """Observes a temperature [K] from `low` on, and what is never above zero."""

    low: float = 270.0

    @property
    def observation_space(self):
        return spaces.Dict(air=spaces.Box(self.low, 400, (1,)), ice=spaces.Box(-20, -1, (2,)))

    @property
    def action_space(self):
        return spaces.Discrete(2)

    def reset(self, key):
        return jnp.float32(300), TimeStep.create({"air": jnp.full(1, 300.0), "ice": jnp.full(2, -5.0)})

    def step(self, state, action):
        return state, TimeStep.create({"air": jnp.full(1, state), "ice": jnp.full(2, -5.0)})


@pytest.mark.thorough
@pytest.mark.parametrize("channels_order", [None, "last"])
def test_where_zero_is_outside_of_the_space_the_padding_is_the_nearest_that_is_not(channels_order):
    check_env(FrameStack(Thermometer(), 3, "zero", channels_order), num_steps=2)
    if channels_order is None:
        assert_equal_to(
            lambda env: gymnasium.wrappers.FrameStackObservation(env, 3, padding_type="zero"),
            FrameStack(Thermometer(), 3, "zero"),
            Thermometer(),
            num_steps=2,
        )


def test_padding_that_would_depend_on_what_is_traced_is_refused():
    def start(low):
        return FrameStack(Thermometer(low=low), 2, "zero").reset(jax.random.key(0))[1].observation

    with pytest.raises(ValueError, match="made outside of traced code, because the observation bounds"):
        jax.jit(start)(270.0)
    outside = FrameStack(Thermometer(), 2, "zero")
    replaced = jax.jit(lambda low: outside.replace(low=low).reset(jax.random.key(0))[1].observation)(200.0)
    np.testing.assert_array_equal(replaced["air"], [[270], [300]])  # as when it was made


@pytest.mark.thorough
@pytest.mark.parametrize(("channels_order", "axis"), [("first", 0), ("last", -1)])
def test_frames_along_an_axis_that_is_there_are_in_the_order_of_sb3(channels_order, axis):
    inside = Counter(observation_kind="boxes")
    env = FrameStack(inside, 3, channels_order=channels_order)
    assert (
        env.observation_space
        == StackedObservations(1, 3, inside.observation_space, channels_order).stacked_observation_space
    )
    along, apart = GymnasiumEnv(env), GymnasiumEnv(FrameStack(inside, 3))
    along.reset(seed=0)
    apart.reset(seed=0)
    for _ in range(2):
        came, frames = along.step(0)[0], apart.step(0)[0]
    for name in frames:
        np.testing.assert_array_equal(came[name], np.concatenate(frames[name], axis))


@pytest.mark.thorough
def test_the_last_observation_of_an_episode_has_its_own_frames_and_the_first_none_of_before():
    venv = VectorEnv(FrameStack(Counter(length=2), 3), 2)
    state, _ = venv.reset(jax.random.key(0))
    for _ in range(2):
        state, timestep = jax.jit(venv.step)(state, np.zeros(2, int))
    np.testing.assert_array_equal(timestep.final_observation[:, :, 0], [[0, 1, 2]] * 2)
    np.testing.assert_array_equal(timestep.observation[:, :, 0], [[0, 0, 0]] * 2)


def test_frames_with_channels_are_an_image_for_sb3():
    space = FrameStack(Counter(observation_kind="image"), 4, channels_order="last").observation_space
    assert is_image_space(space, check_channels=True)
    assert space.shape == (36, 36, 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"stack_size": 0}, "stack_size must be a positive int, got 0"),
        ({"stack_size": 2, "padding_type": "ones"}, "padding_type must be one of 'reset', 'zero', got 'ones'"),
        ({"stack_size": 2, "channels_order": "middle"}, "channels_order must be one of None, 'first', 'last'"),
    ],
)
def test_a_bad_argument_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        FrameStack(Counter(), **arguments)


def test_what_has_no_channels_cannot_be_stacked_along_them():
    with pytest.raises(ValueError, match=r"channels_order must be None for Discrete\(1000\)"):
        VectorEnv(FrameStack(Counter(observation_kind="dict"), 2, channels_order="last"), 1)
