"""FlattenObservation beside Gymnasium's."""

import inspect

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxenvs import Environment, FlattenObservation, TimeStep, VectorEnv, check_env, environment
from tests.environments import Counter
from tests.wrappers.against_gymnasium import assert_equal_to

# Older versions of Gymnasium always sort.
UNSORTED = {"sort_keys": False} if "sort_keys" in inspect.signature(spaces.Dict).parameters else {}


@environment
class Mixed(Environment):
    """Observes its number of steps in spaces that are awkward: nested, out of order, not from 0 on."""

    limit: float = 8.0

    @property
    def observation_space(self):
        parts = {"z": spaces.MultiDiscrete([3, 4], start=[5, -2]), "a": spaces.Discrete(9, start=-1)}
        return spaces.Tuple((spaces.Dict(parts, **UNSORTED), spaces.Box(0, self.limit, (2, 2), np.float32)))

    @property
    def action_space(self):
        return spaces.Discrete(2)

    def reset(self, key):
        return jnp.zeros((), jnp.int32), TimeStep.create(self._observe(jnp.zeros((), jnp.int32)))

    def step(self, state, action):
        state = jnp.minimum(state + action, 7)
        return state, TimeStep.create(self._observe(state), state, state >= 7)

    def _observe(self, count):
        z = jnp.stack([5 + count % 3, -2 + count % 4])
        return {"z": z, "a": count - 1}, jnp.full((2, 2), count, jnp.float32)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["tuple", "discrete", "multi_discrete", "multi_binary", "image"])
def test_observations_are_those_of_gymnasium(kind):
    inside = Counter(observation_kind=kind)
    assert_equal_to(gymnasium.wrappers.FlattenObservation, FlattenObservation(inside), inside)


def test_nested_spaces_in_their_own_order_and_from_their_own_start():
    assert_equal_to(gymnasium.wrappers.FlattenObservation, FlattenObservation(Mixed()), Mixed())


def test_in_traced_code_the_bounds_of_a_box_may_be_traced():
    @jax.jit
    def start(limit):
        _, timestep = VectorEnv(FlattenObservation(Mixed(limit=limit)), 2).reset(jax.random.key(0))
        return timestep.observation

    assert start(3.0).shape == (2, 20)


@pytest.mark.thorough
def test_double_precision_keeps_its_digits(x64):
    check_env(FlattenObservation(Counter(observation_kind="tuple")), num_steps=6)
    key = jax.random.key(0)
    _, timestep = FlattenObservation(Counter(observation_kind="tuple")).reset(key)
    assert timestep.observation.dtype == jnp.float64


@environment
class Corridor(Environment):
    """Observes where it is, of `length` places, which is a number and so no part of the compiled function."""

    length: int = 5

    @property
    def observation_space(self):
        return spaces.Discrete(int(self.length))

    @property
    def action_space(self):
        return spaces.Discrete(2)

    def reset(self, key):
        return jnp.asarray(self.length - 1), TimeStep.create(jnp.asarray(self.length - 1))

    def step(self, state, action):
        return state, TimeStep.create(state)


def test_the_size_of_a_space_is_that_of_each_environment_and_not_that_of_the_first():
    for length in (5, 7, 5):
        env = FlattenObservation(Corridor(length=length))
        _, timestep = jax.jit(VectorEnv(env, 2).reset)(jax.random.key(0))
        np.testing.assert_array_equal(timestep.observation, [np.eye(length)[-1]] * 2)
        check_env(env.replace(length=length + 1), num_steps=2)


def test_a_size_that_is_traced_is_refused():
    with pytest.raises(ValueError, match=r"made outside of traced code, because the size .* of Corridor depends"):
        jax.jit(lambda length: FlattenObservation(Corridor(length=length)).reset(jax.random.key(0))[1].observation)(5)
    corridors = Corridor(length=np.array([5, 7]))
    with pytest.raises(TypeError, match=r"env.length. Mark a parameter that chooses .* a shape as static"):
        VectorEnv(FlattenObservation(corridors), 2, env_axis=0).reset(jax.random.key(0))


@pytest.mark.thorough
def test_environments_may_differ_in_parameters_on_which_no_size_depends():
    mixed = Mixed(limit=np.array([3.0, 5.0]))
    _, timestep = VectorEnv(FlattenObservation(mixed), 2, env_axis=0).reset(jax.random.key(0))
    assert timestep.observation.shape == (2, 20)
