"""The loop of every training: iterate until a limit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from jaxenvs.learn import progress_bar
from jaxenvs.learn.progress_bar import Bar
from jaxenvs.transformations import varying

T = TypeVar("T")


def run(
    iterate: Callable[[T, jax.Array, Any], tuple[T, Any]],
    carry: T,
    count: int | jax.Array | None,
    keep: int | None = None,
    *,
    draw: Callable[[jax.Array], Any] | None = None,
    num_at_once: int = 1,
    can_continue: Callable[[jax.Array, T], jax.Array] | None = None,
    bar: Bar | None = None,
) -> tuple[T, Any]:
    """Iterate until a limit. However a training is split into runs, its bits are the same.

    Args:
      iterate: one iteration: from the carry, its number in this run, and its random draws, to the next carry and a
        record.
      count: the largest number of iterations. An int is part of the compiled function, which has a gradient unless the
        loop draws; with an array, all counts share one compiled function. None: any number.
      keep: how many iterations' records to allocate. None: records are not kept.
      draw: returns the random draws of an iteration, given its number in this run. They depend on the number alone, so
        that several iterations, `num_at_once`, may draw at once. None: `iterate` gets None.
      can_continue: returns whether an iteration takes place, given its number and the carry. None: always.
      bar: a progress bar that the loop moves. It needs `count` alone, an int above 0, and records of metrics.

    Returns:
      The last carry, and the records, stacked; None if none are kept.
    """
    carry = start = varying(carry, carry)
    if isinstance(count, int) and keep == count and draw is None and can_continue is None and bar is None:
        numbers = jnp.arange(count, dtype=jnp.int32)  # the same as below, but an iteration is traced once
        return jax.lax.scan(lambda carry, number: varying(iterate(carry, number, None), start), carry, numbers)
    first = jnp.zeros((), jnp.int32)
    state: Any = carry, None
    if keep is not None:
        drawn = None if draw is None else jax.eval_shape(draw, first)
        state = carry, varying(zeros(jax.eval_shape(iterate, carry, first, drawn)[1], max(keep, 1)), carry)

    def iterate_and_keep(number: jax.Array, state: Any, drawn: Any = None) -> Any:
        carry, record = varying(iterate(state[0], number, drawn), start)
        return carry, None if keep is None else put(state[1], number, record)

    def iterate_chunk(index: jax.Array, state: Any) -> Any:
        """Run the iterations that draw at once."""
        assert draw is not None
        first = index * num_at_once
        end = first + num_at_once if count is None else jnp.minimum(first + num_at_once, count)
        all_drawn = jax.vmap(draw)(first + jnp.arange(num_at_once, dtype=jnp.int32))

        def iterate_drawn(number: jax.Array, state: Any) -> Any:
            return iterate_and_keep(number, state, jax.tree.map(lambda leaf: leaf[number - first], all_drawn))

        return _repeat(first, end, iterate_drawn, state, can_continue)

    body: Callable[[jax.Array, Any], Any] = iterate_and_keep if draw is None else iterate_chunk
    if bar is not None:
        assert isinstance(count, int)
        carry, records = progress_bar.fori_loop(count, body, state, bar, num_at_once)
    else:
        end = None if count is None else -(-count // num_at_once)
        carry, records = _repeat(0, end, body, state, can_continue)
    return carry, jax.tree.map(lambda rows: rows[:0], records) if keep == 0 else records


def _repeat(
    begin: int | jax.Array,
    end: int | jax.Array | None,
    body: Callable[[jax.Array, T], T],
    state: T,
    can_continue: Callable[[jax.Array, Any], jax.Array] | None,
) -> T:
    """Run a loop like `jax.lax.fori_loop`, which may end earlier, and needs no upper bound."""
    if can_continue is None:
        state = jax.lax.fori_loop(begin, end, body, state)
        return state

    def is_more_to_do(both: tuple[jax.Array, Any]) -> jax.Array:
        number, (carry, _) = both
        is_more = can_continue(number, carry)
        return is_more if end is None else is_more & (number < end)

    both = jnp.asarray(begin, jnp.int32), state
    state = jax.lax.while_loop(is_more_to_do, lambda both: (both[0] + 1, body(*both)), both)[1]
    return state


def zeros(tree: Any, *lead: int) -> Any:
    """Return arrays of 0 for shapes, with further leading axes."""
    return jax.tree.map(lambda leaf: jnp.zeros((*lead, *leaf.shape), leaf.dtype), tree)


def put(rows: Any, number: jax.Array, row: Any) -> Any:
    """Return `rows` with the row at index `number` replaced by `row`."""
    return jax.tree.map(lambda many, one: many.at[number].set(one), rows, row)
