"""Environments as pytrees, TimeLimit, and check_env."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from gymnasium import spaces

from jaxenvs import CartPole, Environment, TimeLimit, TimeStep, check_env, environment, static, struct
from tests.environments import Counter


def test_numeric_fields_are_leaves_and_static_ones_structure():
    assert jax.tree.leaves(CartPole(gravity=5.0))[0] == 5.0
    assert jax.tree.structure(CartPole()) == jax.tree.structure(CartPole(gravity=5.0))
    assert jax.tree.structure(CartPole()) != jax.tree.structure(CartPole(semi_implicit_euler=True))


def test_derived_quantities_follow_their_parameters():
    assert CartPole(pole_mass=0.5).total_mass == 1.5
    assert CartPole().replace(pole_mass=0.5, half_length=2.0).pole_mass_length == 1.0


@pytest.mark.parametrize("value", [True, "text", None, len])
def test_a_field_that_cannot_be_traced_must_be_static(value):
    with pytest.raises(TypeError, match=r"Bad.option = .* is not a number.*option = static\(default="):

        @environment
        class Bad(Environment):
            option: object = value

    @environment
    class Good(Environment):
        option: object = static(default=value)

    assert jax.tree.leaves(Good()) == []


def test_an_environment_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        CartPole().gravity = 5.0


def test_replace_reaches_through_wrappers_and_names_what_is_missing():
    env = TimeLimit(CartPole(), 10).replace(gravity=5.0, max_steps=7)
    assert env == TimeLimit(CartPole(gravity=5.0), 7)
    assert env.parameter("gravity") == 5.0
    assert env.unwrapped == CartPole(gravity=5.0)
    with pytest.raises(AttributeError, match=r"CartPole has no parameter 'gravty'. Did you mean 'gravity'\? It has:"):
        env.replace(gravty=1.0)


def test_methods_that_are_missing_say_so():
    class Empty(Environment):
        pass

    for call, missing in (
        (lambda: Empty().reset(jax.random.key(0)), "reset"),
        (lambda: Empty().step(None, 0), "step"),
        (lambda: Empty().observation_space, "observation_space"),
        (lambda: Empty().action_space, "action_space"),
        (lambda: Empty().render(None), "has no picture yet"),
    ):
        with pytest.raises(NotImplementedError, match=f"Empty .*{missing}"):
            call()


def test_time_step_has_the_same_types_whatever_it_is_made_from():
    first = TimeStep.create(jnp.zeros(2, jnp.float32))
    other = TimeStep.create(jnp.zeros(2, jnp.float32) * 1.0, 3, jnp.ones((), jnp.int32), True, {})
    assert jax.tree.map(jax.typeof, first) == jax.tree.map(jax.typeof, other)
    assert bool(other.done)
    assert not bool(first.done)


def test_time_limit_truncates_at_its_step_and_after_it():
    env = TimeLimit(Counter(length=100), 3)
    state, timestep = env.reset(jax.random.key(0))
    truncated = []
    for _ in range(5):
        state, timestep = env.step(state, jnp.int32(0))
        truncated.append(bool(timestep.truncated))
    assert truncated == [False, False, True, True, True]
    assert not timestep.terminated


def test_time_limit_sets_both_flags_where_both_are_true():
    env = TimeLimit(Counter(length=3), 3)
    state, _ = env.reset(jax.random.key(0))
    for _ in range(3):
        state, timestep = env.step(state, jnp.int32(0))
    assert bool(timestep.terminated) and bool(timestep.truncated)  # noqa: PT018


def test_nested_time_limits_stop_at_the_shorter():
    env = TimeLimit(TimeLimit(Counter(length=100), 2), 5)
    check_env(env, num_steps=8)
    state, _ = env.reset(jax.random.key(0))
    for _ in range(2):
        state, timestep = env.step(state, jnp.int32(0))
    assert bool(timestep.truncated)


# --- check_env ------------------------------------------------------------------------------------------------------


@struct
class State:
    x: jax.Array


class Walk(Environment):
    """A correct environment that each test below breaks in one place."""

    observation_space = spaces.Box(-100.0, 100.0, (1,))
    action_space = spaces.Discrete(2)

    def first(self):
        return jnp.zeros(1)

    def next(self, x, action):
        return jnp.clip(x + 2.0 * action - 1.0, -99, 99)

    def reset(self, key):
        x = self.first()
        return State(x), TimeStep.create(x)

    def step(self, state, action):
        x = self.next(state.x, action)
        return State(x), TimeStep.create(x, 1.0, x[0] > 5)


def test_check_env_passes_what_is_right():
    check_env(environment(Walk)())
    check_env(Counter(observation_kind="dict", action_kind="box"))


def broken(**methods):
    return environment(type("Broken", (Walk,), methods))()


@pytest.mark.parametrize(
    ("env", "error", "message"),
    [
        (broken(first=lambda self: jnp.zeros(1, jnp.int32)), TypeError, r"int32\[1\] from reset and float32\[1\]"),
        (broken(first=lambda self: jnp.full(1, 200.0)), ValueError, "observation of step 0 must lie in Box"),
        (broken(next=lambda self, x, action: x + 150.0), ValueError, "observation of step 1 must lie in Box"),
        (broken(next=lambda self, x, action: jnp.log(-jnp.abs(x) - 1)), ValueError, "NaN|must lie in"),
        (
            broken(reset=lambda self, key: (State(jnp.zeros(1)), TimeStep.create(jnp.zeros(1), 1.0))),
            ValueError,
            "reset must return reward 0",
        ),
        (
            broken(reset=lambda self, key: (State(jnp.zeros(1)), jnp.zeros(1))),
            TypeError,
            r"reset must return \(state, TimeStep\), got",
        ),
        (
            broken(
                step=lambda self, state, action: (
                    state,
                    TimeStep(state.x, jnp.zeros(1), jnp.zeros((), bool), jnp.zeros((), bool), {}),
                )
            ),
            TypeError,
            r"reward is float32\[\] from reset and float32\[1\] from step",
        ),
    ],
    ids=["dtype", "first observation", "observation", "nan", "first reward", "no timestep", "reward shape"],
)
def test_check_env_names_what_is_wrong(env, error, message):
    with pytest.raises(error, match=message):
        check_env(env)


def test_check_env_wants_an_environment():
    with pytest.raises(TypeError, match=r"env must be a jaxenvs\.Environment, got str"):
        check_env("CartPole-v1")
