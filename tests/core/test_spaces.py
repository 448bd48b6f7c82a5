"""Spaces inside traced code: what is sampled is a member, membership and flattening agree with Gymnasium's."""

import inspect
from functools import partial
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Graph, MultiBinary, MultiDiscrete, Space, Text, Tuple
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxenvs import spaces

# Every example compiles: few of them, and no deadline.
examples = settings(max_examples=25, deadline=None, derandomize=True)
few_examples = settings(max_examples=6, deadline=None, derandomize=True)  # several compiled functions each

shapes = st.lists(st.integers(1, 3), min_size=0, max_size=2).map(tuple)
INTEGERS = (np.int8, np.uint8, np.int16, np.int32, np.uint32, np.int64)


@st.composite
def real_boxes(draw: Any) -> Box:
    shape, dtype = draw(shapes), draw(st.sampled_from([np.float16, np.float32, np.float64]))
    number = st.floats(-1e4, 1e4, allow_subnormal=False).filter(lambda x: x == 0 or abs(x) > 1e-3)
    low, high = np.zeros(shape, dtype), np.zeros(shape, dtype)
    for at in np.ndindex(shape):
        first = draw(number)
        low[at] = draw(st.sampled_from([first, -np.inf]))
        high[at] = draw(st.sampled_from([first + 1 + abs(draw(number)), np.inf]))
    return Box(low, high, dtype=dtype)


@st.composite
def integer_boxes(draw: Any) -> Box:
    shape, dtype = draw(shapes), draw(st.sampled_from(INTEGERS))
    reach = np.iinfo(np.int32 if dtype is np.int64 else dtype)
    low, high = np.zeros(shape, dtype), np.zeros(shape, dtype)
    for at in np.ndindex(shape):
        low[at] = draw(st.integers(reach.min, reach.max))
        high[at] = draw(st.integers(int(low[at]), reach.max))
    return Box(low, high, dtype=dtype)


@st.composite
def multi_discretes(draw: Any) -> MultiDiscrete:
    shape = draw(st.lists(st.integers(1, 3), min_size=1, max_size=2).map(tuple))
    nvec = np.array([draw(st.integers(1, 5)) for _ in np.ndindex(shape)]).reshape(shape)
    start = np.array([draw(st.integers(-5, 5)) for _ in np.ndindex(shape)]).reshape(shape)
    return MultiDiscrete(nvec, start=start, dtype=draw(st.sampled_from([np.int8, np.int64])))


leaves = st.one_of(
    real_boxes(),
    integer_boxes(),
    multi_discretes(),
    st.builds(Discrete, st.integers(1, 9), start=st.integers(-9, 9)),
    st.builds(MultiBinary, st.integers(1, 4) | st.lists(st.integers(1, 3), min_size=1, max_size=2)),
)
any_space = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3).map(Tuple)
        | st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=3).map(Dict)
    ),
    max_leaves=4,
)


def in_gymnasium(space: Space, value: Any) -> Any:
    """A value of ours as Gymnasium would have it: the dtypes of the space, 64 bits where it has them."""
    if isinstance(space, Dict):
        return {name: in_gymnasium(subspace, value[name]) for name, subspace in space.items()}
    if isinstance(space, Tuple):
        return tuple(in_gymnasium(subspace, part) for subspace, part in zip(space, value))
    return np.asarray(value, dtype=space.dtype)


def samples(space: Space, number: int = 200, seed: int = 0) -> Any:
    return jax.jit(jax.vmap(partial(spaces.sample, space)))(jax.random.split(jax.random.key(seed), number))


@pytest.mark.thorough
@given(any_space)
@few_examples
def test_a_sample_is_a_member(space: Space) -> None:
    batch = samples(space, 50)
    for i in range(50):
        value = jax.tree.map(lambda leaf, i=i: leaf[i], batch)
        assert space.contains(in_gymnasium(space, value)), (space, value)
    assert jax.jit(jax.vmap(partial(spaces.contains, space)))(batch).all()


@given(any_space)
@examples
def test_a_sample_has_the_dtypes_that_jax_gives_the_space(space: Space) -> None:
    traced = jax.eval_shape(partial(spaces.sample, space), jax.random.key(0))
    expected = jax.eval_shape(lambda: jax.tree.map(jnp.asarray, in_gymnasium(space, space.sample())))
    assert jax.tree.leaves(traced) == jax.tree.leaves(expected)


@pytest.mark.thorough
@given(any_space, st.integers(0, 2**31 - 1))
@examples
def test_flatten_agrees_with_gymnasium(space: Space, seed: int) -> None:
    space.seed(seed)
    value = space.sample()
    flat = jax.jit(partial(spaces.flatten, space))(jax.tree.map(jnp.asarray, value))
    assert flat.dtype == jnp.float32
    assert flat.shape == (gymnasium.spaces.flatdim(space),)
    # What JAX saw of a 64-bit value had been rounded to 32 bits.
    np.testing.assert_allclose(flat, np.asarray(gymnasium.spaces.flatten(space, value), np.float32), rtol=1e-6)


@pytest.mark.thorough
@given(leaves, st.data())
@few_examples
def test_contains_agrees_with_gymnasium_around_the_bounds(space: Space, data: st.DataObject) -> None:
    inside = np.asarray(samples(space, 1)[0])
    low, high = spaces.leaf_bounds(space)
    check = jax.jit(partial(spaces.contains, space))
    assert check(inside)
    if not inside.size:
        return
    at = data.draw(st.sampled_from(list(np.ndindex(inside.shape))))
    real = inside.dtype.kind == "f"
    limits = np.finfo(inside.dtype) if real else np.iinfo(inside.dtype)
    for value in (low[at], high[at], float(low[at]) - 1, float(high[at]) + 1, np.nan, np.inf, -np.inf):
        if not real and not limits.min <= value <= limits.max:
            continue  # no such integer: NaN, too, is none
        changed = inside.copy()
        with np.errstate(over="ignore"):
            changed[at] = value
        assert bool(check(changed)) == space.contains(changed.astype(space.dtype)), (space, changed)


# In older versions of Gymnasium every Discrete space has int64.
NARROW = [Discrete(3, start=250, dtype=np.uint8)] if "dtype" in inspect.signature(Discrete).parameters else []


COUNTABLE = [
    Discrete(5),
    Discrete(3, start=-1),
    *NARROW,
    MultiDiscrete([[2, 3], [1, 4]], start=[[0, -2], [7, 5]]),
    MultiBinary((2, 2)),
    Box(-2, 2, (2,), np.int8),
    Box(0, 255, (40,), np.uint8),
    Box(0, 1, (3,), np.bool_),
]


@pytest.mark.thorough
def test_every_value_is_drawn_equally_often() -> None:
    number = 20_000
    for space, drawn in zip(COUNTABLE, samples(Tuple(COUNTABLE), number)):
        drawn = np.asarray(drawn).reshape(number, -1).astype(int)
        low, high = (np.ravel(bound).astype(int) for bound in spaces.leaf_bounds(space))
        for column, first, last in zip(drawn.T, low, high):
            values, counts = np.unique(column, return_counts=True)
            np.testing.assert_array_equal(values, np.arange(first, last + 1), str(space))
            expected = number / (last - first + 1)
            assert np.abs(counts - expected).max() < 6 * np.sqrt(expected), space


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64])
def test_the_whole_range_of_32_bits_is_drawn(dtype: Any) -> None:
    reach = np.iinfo(np.int32 if dtype is np.int64 else dtype)
    drawn = np.asarray(samples(Box(reach.min, reach.max, (2,), dtype), 4000)).astype(np.float64)
    middle, spread = (reach.min + reach.max) / 2, reach.max - reach.min
    np.testing.assert_allclose(drawn.mean(0), middle, atol=0.03 * spread)
    np.testing.assert_allclose(drawn.std(0), spread / np.sqrt(12), rtol=0.05)


def test_a_box_has_the_distributions_of_gymnasium_element_by_element() -> None:
    space = Box(np.array([-1, 2, -np.inf, -np.inf], np.float32), np.array([3, np.inf, 5, np.inf], np.float32))
    drawn = np.asarray(samples(space, 40_000))
    np.testing.assert_allclose(drawn.mean(0), [1, 3, 4, 0], atol=0.03)
    np.testing.assert_allclose(drawn.std(0), [4 / np.sqrt(12), 1, 1, 1], atol=0.03)
    # The quartiles tell the four distributions apart.
    exponential = -np.log([0.75, 0.5, 0.25])
    expected = np.stack([[0, 1, 2], 2 + exponential, 5 - exponential[::-1], [-0.6745, 0, 0.6745]], axis=1)
    np.testing.assert_allclose(np.quantile(drawn, [0.25, 0.5, 0.75], axis=0), expected, atol=0.04)
    assert abs(np.corrcoef(drawn.T) - np.eye(4)).max() < 0.03


@pytest.mark.thorough
def test_an_integer_box_without_bounds_is_drawn_as_gymnasium_does() -> None:
    low, high = np.array([-np.inf, 5, -np.inf, 0]), np.array([np.inf, np.inf, 5, 9])
    space = Box(low, high, dtype=np.int32)
    drawn = np.asarray(samples(space, 20_000))
    space.seed(0)
    reference = np.stack([space.sample() for _ in range(20_000)])
    np.testing.assert_allclose(drawn.mean(0), reference.mean(0), atol=0.1)
    assert drawn[:, 1].min() == 5
    assert drawn[:, 2].max() == 5
    assert set(drawn[:, 3]) == set(range(10))


@pytest.mark.thorough
def test_under_x64_samples_have_64_bits(x64: None) -> None:
    assert spaces.sample(Discrete(2**40), jax.random.key(0)).dtype == jnp.int64
    assert spaces.sample(Box(-1, 1, dtype=np.float64), jax.random.key(0)).dtype == jnp.float64
    drawn = np.asarray(samples(Discrete(2**40), 100))
    assert drawn.max() > 2**39
    assert drawn.min() >= 0


def test_a_space_too_wide_for_32_bits_is_refused() -> None:
    for space in (Discrete(2**40), Box(2**40, 2**41, dtype=np.int64), Box(0.1, 0.1, dtype=np.float64)):
        with pytest.raises(ValueError, match="jax_enable_x64"):
            spaces.sample(space, jax.random.key(0))


def test_an_integer_too_large_for_jax_does_not_wrap_into_the_space() -> None:
    assert not spaces.contains(Discrete(5), 2**32 + 1)
    assert not spaces.contains(Discrete(5), np.int64(2**32 + 1))
    assert not spaces.contains(MultiDiscrete([5, 5]), np.array([1, 2**32 + 1]))
    assert not spaces.contains(Discrete(5), -1)
    assert not spaces.contains(Discrete(3, start=200), np.int8(127))  # the bounds do not fit into the value's dtype
    assert not spaces.contains(Box(0, 255, (), np.uint8), 300)


@pytest.mark.parametrize("function", [spaces.contains, spaces.flatten])
@pytest.mark.parametrize(
    ("space", "value", "error", "message"),
    [
        (Discrete(3), 1.0, TypeError, "Discrete.3., got float"),
        (MultiBinary(2), np.zeros(2), TypeError, "MultiBinary.2., got float"),
        (Box(0, 1, (2,)), np.zeros(3), ValueError, r"shape \(2,\).*got \(3,\)"),
        (Box(0, 1, (2,)), np.zeros(2, complex), TypeError, "float32.*got complex"),
        (Tuple([Discrete(2)]), (0, 1), ValueError, "length 1.*got 2"),
        (Tuple([Discrete(2)]), 0, TypeError, "tuple.*got int"),
        (Dict(a=Discrete(2)), {"b": 0}, ValueError, r"keys \['a'\], got \['b'\]"),
        (Dict(a=Discrete(2)), [0], TypeError, "dict.*got list"),
    ],
)
def test_what_cannot_be_a_member_is_refused_while_tracing(
    function: Any, space: Space, value: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        function(space, value)
    with pytest.raises(error, match="got"):
        jax.eval_shape(partial(function, space), value)


@pytest.mark.parametrize("space", [Text(3), Graph(Discrete(2), None), Tuple([Text(3)])], ids=str)
def test_an_unsupported_space_is_named(space: Space) -> None:
    for call in (
        lambda: spaces.sample(space, jax.random.key(0)),
        lambda: spaces.contains(space, ("a",)),
        lambda: spaces.flatten(space, ("a",)),
    ):
        with pytest.raises(TypeError, match=r"Box, Discrete, .*got (Text|Graph)"):
            call()
