"""Each element of a batch gets the result that it gets alone, however elements are batched."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxenvs.physics2d.kernels import BLOCK, in_blocks, once, one_by_one, one_kernel


def collatz(start: jax.Array, unused: jax.Array, limit: jax.Array) -> dict[str, Any]:
    """Count steps to 1: loops whose lengths differ between elements, a branch, an argument that nothing uses."""

    def go_on(carry: Any) -> Any:
        number, steps = carry
        return jax.lax.cond(number % 2 == 0, lambda: number // 2, lambda: 3 * number + 1), steps + 1

    number, steps = jax.lax.while_loop(lambda carry: (carry[0] > 1) & (carry[1] < limit), go_on, (start, jnp.int32(0)))
    return {"steps": steps, "path": jnp.stack([start, number])}


def truth(start: int, limit: int) -> int:
    steps = 0
    while start > 1 and steps < limit:
        start, steps = start // 2 if start % 2 == 0 else 3 * start + 1, steps + 1
    return steps


def in_sorted_blocks(function: Any) -> Any:
    return in_blocks(function, work=lambda start, unused, limit: -start)


@pytest.mark.parametrize("batched", [in_blocks, in_sorted_blocks, one_by_one])
@pytest.mark.parametrize("number", [1, 5, BLOCK, BLOCK + 3, 2 * BLOCK])
def test_elements_do_not_see_each_other(batched: Any, number: int) -> None:
    starts = np.arange(1, number + 1, dtype=np.int32)
    found = jax.jit(jax.vmap(batched(collatz), (0, None, None)))(starts, jnp.zeros(3), jnp.int32(100))
    np.testing.assert_array_equal(found["steps"], [truth(int(start), 100) for start in starts])
    np.testing.assert_array_equal(found["path"][:, 0], starts)


@pytest.mark.parametrize("batched", [in_blocks, one_by_one])
def test_batches_of_batches_and_none(batched: Any) -> None:
    starts = np.arange(1, 13, dtype=np.int32).reshape(3, 4)
    limits = np.array([2, 5, 100], np.int32)
    function = batched(collatz)
    over_starts = jax.vmap(function, (0, None, None))
    found = jax.jit(jax.vmap(over_starts, (0, None, 0)))(starts, jnp.zeros(3), limits)
    expected = [[truth(int(start), int(limit)) for start in row] for row, limit in zip(starts, limits, strict=True)]
    np.testing.assert_array_equal(found["steps"], expected)
    assert jax.jit(function)(jnp.int32(27), jnp.zeros(3), jnp.int32(1000))["steps"] == 111


def test_what_is_computed_once_is_not_computed_again() -> None:
    """Three outputs of one sum: XLA would put the sum into the kernel of each."""

    def outputs(function: Any) -> str:
        def compute(x: jax.Array, y: jax.Array) -> Any:
            total = function(x, y)
            return total * 2, total * 3, total - 7

        return jax.jit(compute).lower(jnp.ones(1000), jnp.ones(1000)).compile().as_text()

    assert outputs(once(lambda x, y: jnp.tanh(x) + y)).count(" call(") == 1
    assert outputs(lambda x, y: jnp.tanh(x) + y).count(" call(") == 0


def test_loops_become_one_kernel() -> None:
    """XLA still reads what we tell it: else all works, slowly."""
    text = jax.jit(jax.vmap(one_by_one(collatz), (0, None, None))).lower(
        jnp.ones(4, jnp.int32), jnp.zeros(3), jnp.int32(5)
    )
    entry = text.compile().as_text().split("ENTRY")[1]
    assert 'xla_cpu_small_call="true"' in entry
    assert " while(" not in entry
    assert one_kernel(lambda x: x + 1)(jnp.float32(1)) == 2
