"""Environments as pytrees, and TimeLimit."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxenvs
from jaxenvs import CartPole, Environment, TimeLimit, TimeStep, VectorEnv, check_env, environment, static, struct
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


def test_an_assignment_is_answered_with_replace():
    env = TimeLimit(CartPole(), 10)
    state, timestep = env.reset(jax.random.key(0))
    for value, field, said in (
        (env, "max_steps", r"TimeLimit\.max_steps: env\.replace\(max_steps=...\) makes a changed copy"),
        (state.inner, "x", r"CartPoleState\.x: state\.replace\(x=...\)"),
        (timestep, "reward", r"TimeStep\.reward: "),
    ):
        with pytest.raises(dataclasses.FrozenInstanceError, match=said):
            setattr(value, field, jnp.ones(()))
    assert state.inner.replace(x=jnp.ones(())).x == 1
    assert state.inner.x != 1


def test_a_state_may_have_a_replace_of_its_own():
    @struct
    class State:
        x: float

        def replace(self):
            return "mine"

    assert State(1.0).replace() == "mine"


@pytest.mark.parametrize("env", [CartPole(), TimeLimit(CartPole(), 10)], ids=["alone", "wrapped"])
def test_a_seed_in_the_place_of_a_key_is_named(env):
    for seed in (0, np.int64(7), jnp.int32(7)):
        with pytest.raises(TypeError, match=r"key must be a typed key, such as jax\.random\.key\(0\), got "):
            env.reset(seed)
    for key in (jax.random.key(0), jax.random.PRNGKey(0)):
        env.reset(key=key)


def test_calls_as_gymnasium_has_them_say_how_these_are_called():
    env = TimeLimit(CartPole(), 10)
    for call in (env.reset, lambda: env.reset(seed=0)):
        with pytest.raises(
            TypeError, match=r"TimeLimit\.reset: .*`state, timestep = env\.reset\(key\)`.*gymnasium\.make"
        ):
            call()
    with pytest.raises(TypeError, match=r"TimeLimit\.step: missing .* 'action'.*= env\.step\(state, action\)`"):
        env.step(0)


def test_a_key_may_have_another_name_and_methods_may_be_static():
    @environment
    class Named(Environment):
        def reset(self, rng):
            return rng, None

        @staticmethod
        def step(state, action):
            return state, action

    assert Named().step(1, 2) == (1, 2)
    with pytest.raises(TypeError, match="key must be a typed key"):
        Named().reset(0)


def test_errors_inside_of_methods_stay_as_they_are():
    @environment
    class Failing(Environment):
        def step(self, state, action):
            raise TypeError("of the method")

    with pytest.raises(TypeError, match=r"^of the method$"):
        Failing().step(0, 0)


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


# --- What is refused when an environment is made --------------------------------------------------------------------


class Tensor:
    """Has a shape and a dtype that are not NumPy's, as torch's."""

    shape, dtype = (), "torch.float32"

    def __repr__(self):
        return "Tensor"


@pytest.mark.parametrize("value", ["abc", None, [], [1.0], True, 1j, np.array("a"), Tensor()], ids=repr)
@pytest.mark.parametrize("make", [CartPole, CartPole().replace, lambda **values: jaxenvs.make("CartPole-v1", **values)])
def test_a_parameter_that_is_no_number_is_named(make, value):
    with pytest.raises(TypeError, match=r"CartPole\.gravity must be a real number or an array of real numbers, got "):
        make(gravity=value)


def test_a_parameter_that_is_nan_or_too_large_for_jax_is_named():
    with pytest.raises(ValueError, match=r"CartPole\.gravity must not be NaN"):
        CartPole(gravity=float("nan"))
    with pytest.raises(ValueError, match=r"CartPole\.gravity must fit into int32, got 1099511627776"):
        CartPole(gravity=2**40)
    assert CartPole(gravity=float("inf")).gravity == float("inf")


def test_traced_parameters_arrays_and_axes_pass():
    heavy = jax.jit(lambda gravity: CartPole(gravity=gravity).gravity)(3.0)
    assert heavy == 3.0
    assert CartPole(gravity=np.ones(3)).gravity.shape == (3,)
    axes = jax.tree.map(lambda _: 0, TimeLimit(CartPole(), 5))  # as in_axes of vmap: no TimeLimit of 0 steps
    assert axes.max_steps == axes.env.gravity == 0
    assert jax.tree.map(lambda _: None, VectorEnv(CartPole(), 2)).env.gravity is None


def test_a_bool_without_a_default_is_answered_with_static():
    @environment
    class Bad(Environment):
        hard: bool

    with pytest.raises(TypeError, match=r"Bad.hard must be .* static: hard = static\(\), got True"):
        Bad(True)


def test_a_static_field_that_is_not_hashable_is_named():
    @environment
    class Maze(Environment):
        walls: tuple = static()

    with pytest.raises(TypeError, match=r"Maze.walls must be hashable, such as .* tuple, got \[1, 2\]"):
        Maze([1, 2])


def test_a_forgotten_decorator_is_named():
    class Forgotten(Environment):
        gravity: float = 9.8

    class Heavy(CartPole):
        pass

    with pytest.raises(TypeError, match="Forgotten takes no parameters: decorate the class with @environment"):
        Forgotten(gravity=5.0)
    for env in (Forgotten(), Heavy()):
        for make in (lambda env=env: VectorEnv(env, 2), lambda env=env: TimeLimit(env, 2)):
            with pytest.raises(TypeError, match=r"decorate the class (Forgotten|Heavy) with @environment"):
                make()
    with pytest.raises(TypeError, match=r"@environment must decorate a subclass of jaxenvs\.Environment, got dict"):
        environment(dict)


def test_what_an_environment_computes_after_init_is_there_in_traced_code():
    @environment
    class Derived(Environment):
        mass: float = 2.0

        def __post_init__(self):
            object.__setattr__(self, "double", 2 * self.mass)

    assert jax.jit(lambda env: env.double)(Derived(3.0)) == 6.0


def test_what_is_no_array_in_a_time_step_is_named():
    with pytest.raises(TypeError, match=r"info\['name'\] must be an array, got 'left'"):
        TimeStep.create(0.0, info={"name": "left"})
    with pytest.raises(TypeError, match="reward must be an array, got None"):
        TimeStep.create(0.0, None)
    with pytest.raises(TypeError, match="info must be a dict of arrays, got list"):
        TimeStep.create(0.0, info=[1])
