"""Pytrees as flat dicts of arrays, to a file and back."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxenvs import struct
from jaxenvs.arrays import from_arrays, to_arrays


@struct
class State:
    key: jax.Array
    params: dict
    host: np.ndarray
    step: int
    done: bool


STATE = State(
    key=jax.random.split(jax.random.key(3), 2),
    params={"w": jnp.ones((2, 3), jnp.bfloat16), "b/0": [jnp.zeros((), jnp.int8), jnp.arange(3.0)]},
    host=np.arange(2.0),
    step=2**40,
    done=True,
)


def through_a_file(arrays, path):
    np.savez(path, **arrays)
    with np.load(path) as file:
        return dict(file)


def test_what_was_taken_apart_is_put_together_bit_for_bit(tmp_path):
    arrays = through_a_file(to_arrays(STATE), tmp_path / "state.npz")
    assert sorted(arrays) == [
        ".done",
        ".host",
        ".key",
        ".params['b/0'][0]",
        ".params['b/0'][1]",
        ".params['w']",
        ".step",
    ]
    again = from_arrays(STATE, arrays)
    np.testing.assert_array_equal(jax.random.key_data(again.key), jax.random.key_data(STATE.key))
    assert jax.random.key_impl(again.key) == jax.random.key_impl(STATE.key)
    assert (again.step, again.done) == (2**40, True)
    assert type(again.host) is np.ndarray
    for old, new in zip(jax.tree.leaves(STATE.params), jax.tree.leaves(again.params), strict=True):
        assert old.dtype == new.dtype
        np.testing.assert_array_equal(old, new)


def test_shapes_alone_say_what_to_put_together():
    like = jax.eval_shape(lambda: {"key": jax.random.key(0), "x": jnp.zeros(2)})
    again = from_arrays(like, to_arrays({"key": jax.random.key(5), "x": jnp.ones(2)}))
    assert jax.random.uniform(again["key"]) == jax.random.uniform(jax.random.key(5))


def test_a_single_array_has_a_name(tmp_path):
    arrays = through_a_file(to_arrays(jnp.arange(3)), tmp_path / "array.npz")
    np.testing.assert_array_equal(from_arrays(jnp.zeros(3, int), arrays), np.arange(3))


def test_arrays_belong_to_the_caller():
    tree = {"x": np.zeros(2)}
    arrays = to_arrays(tree)
    arrays["['x']"][:] = 1
    again = from_arrays(tree, arrays)
    arrays["['x']"][:] = 2
    np.testing.assert_array_equal([tree["x"], again["x"]], [[0, 0], [1, 1]])


def test_all_that_does_not_fit_is_named_at_once():
    tree = {"a": jnp.zeros(2), "b": jnp.zeros(2), "n": 0}
    wrong = {"['a']": np.zeros(3, np.float32), "['n']": np.float32(0), "['z']": np.zeros(2)}
    with pytest.raises(ValueError, match="arrays must fit the given structure") as caught:
        from_arrays(tree, wrong)
    for part in (
        "['b'] is missing",
        "['z'] is not expected",
        "['a'] is float32[3], expected float32[2]",
        "['n'] is float32[], expected int64[]",
    ):
        assert part in str(caught.value)


def test_what_is_no_array_is_named():
    with pytest.raises(TypeError, match=r"tree\['x'\] must be an array or a number, got 'a'"):
        to_arrays({"x": "a"})
    with pytest.raises(TypeError, match="must be an array or a number, got a tracer"):
        jax.jit(to_arrays)(jnp.zeros(2))
