"""Faults of XLA that single versions of jaxlib have: none is left with our options, nor in our compiled functions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxenvs
from jaxenvs import learn
from jaxenvs.compilation import compiler_options, faults, guarded_jit
from jaxenvs.compilation.faults import copies_in_loops, count_wrong_rows, count_wrong_sums
from jaxenvs.learn import training as training_module
from tests.compiled_patterns import shifted_updates
from tests.learn.on_devices import TRAININGS

pytestmark = pytest.mark.skipif(jax.default_backend() != "cpu", reason="the faults are in XLA for CPUs")

ROWS = np.stack([np.arange(2**15 + 1, dtype=np.float32) % 1000] + 2 * [np.zeros(2**15 + 1, np.float32)], axis=1)


def squared_norms(rows):
    return jax.vmap(lambda row: jnp.sum((jnp.eye(3) @ row) ** 2))(rows)


def shifted(array):
    array = array + 1
    return array.at[1:].set(array[:-1]).reshape(1, *array.shape)


@pytest.mark.parametrize("in_order", [True, False])
def test_matrix_products_and_sums_are_right_with_our_options(in_order):
    assert count_wrong_rows(compiler_options(in_order)) == 0
    assert count_wrong_sums(compiler_options(in_order)) == 0


@pytest.mark.parametrize("in_order", [True, False])
def test_updates_in_loops_copy_nothing_with_our_options(in_order):
    assert not copies_in_loops(compiler_options(in_order))


def test_the_remedy_for_shifts_is_right():
    def joined(array):
        array = array + 1
        return jnp.concatenate([array[:1], array[:-1]]).reshape(1, *array.shape)

    array = np.arange(128).reshape(8, 16)
    np.testing.assert_array_equal(jax.jit(joined)(array)[0], np.concatenate([array[:1], array[:-1]]) + 1)


def test_what_gymnasium_environments_run_is_guarded_too():
    np.testing.assert_array_equal(guarded_jit(squared_norms)(ROWS), ROWS[:, 0] ** 2)


def test_what_is_guarded_can_be_compiled_as_a_part_of_another_function():
    found = jax.jit(lambda rows: guarded_jit(squared_norms)(rows) + 1)(ROWS[:5])
    np.testing.assert_array_equal(found, ROWS[:5, 0] ** 2 + 1)


def test_trainings_over_a_mesh_are_guarded(monkeypatch):
    options = []
    make = jax.jit
    monkeypatch.setattr(jax, "jit", lambda *args, **kwargs: options.append(kwargs) or make(*args, **kwargs))
    monkeypatch.setattr(faults, "jaxlib_version", "0.10.2")
    training_module._advance_on_devices.compiled.cache_clear()
    training_module._advance_on_devices.compiled(None)
    assert options[-1]["compiler_options"] == faults.GUARDS["0.10.2"]


# --- The patterns in compiled functions -------------------------------------------------------------------------------


def text_of(function, *arguments, options=None):
    return jax.jit(function, compiler_options=options).lower(*arguments).compile().as_text()


def test_the_pattern_is_found():
    array = np.arange(128).reshape(8, 16)
    assert shifted_updates(text_of(shifted, array))
    assert not shifted_updates(text_of(lambda array: (array + 1).at[2:4].multiply(2).reshape(1, 8, 16), array))


def of_own_suites():
    """The ids of environments that jaxenvs implements; Box2D's compile for long, and `python -m
    tests.compiled_patterns` finds them in the cache."""
    found = [
        id for id in jaxenvs.registered() if type(jaxenvs.make(id).unwrapped).__module__.startswith("jaxenvs.envs")
    ]
    return [id for id in found if ".box2d." not in type(jaxenvs.make(id).unwrapped).__module__]


@pytest.mark.thorough(but=["CartPole-v1", "MinAtar/Asterix-v1"])
@pytest.mark.parametrize("env_id", of_own_suites())
def test_no_environment_computes_what_some_versions_compute_wrong(env_id):
    venv = jaxenvs.make_vec(env_id, 2**10)

    def two_steps(key, action):
        return venv.step(venv.step(venv.reset(key)[0], action)[0], action)

    space = venv.env.action_space
    text = text_of(two_steps, jax.random.key(0), np.zeros((2**10, *space.shape), space.dtype))
    assert not shifted_updates(text)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["PPO", "RecurrentPPO", "DQN", "SAC"])
def test_no_training_computes_what_some_versions_compute_wrong(name):
    training = TRAININGS[name]

    def some(state):
        return learn.advance(training, state, 2)

    text = text_of(some, jax.eval_shape(training.init, jax.random.key(0)), options=compiler_options())
    assert not shifted_updates(text)
