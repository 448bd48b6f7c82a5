"""The loop of every training: iterate until a limit."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxenvs.learn import progress_bar
from jaxenvs.learn.progress_bar import Bar
from jaxenvs.transformations import varying


@dataclasses.dataclass(frozen=True)
class Loop:
    """Iteration of a training, and what it draws.

    Attributes:
      iterate: one iteration: from the carry, its number in this run, and its random draws, to the next carry and a
        record.
      draw: the random draws of an iteration, given its number in this run. They depend on the number alone, so that
        several iterations may draw at once. None: `iterate` gets None.
      num_at_once: how many iterations draw at once.
    """

    iterate: Callable[[Any, jax.Array, Any], tuple[Any, Any]]
    draw: Callable[[jax.Array], Any] | None = None
    num_at_once: int = 1


@dataclasses.dataclass(frozen=True)
class Limits:
    """Conditions under which a loop ends.

    Attributes:
      count: the largest number of iterations. An int is part of the compiled function, which has a gradient unless the
        loop draws; with an array, all counts share one compiled function. None: any number.
      can_continue: whether to continue from a carry. None: always.
      at_least_once: whether the first iteration takes place whatever `can_continue` returns.
    """

    count: int | jax.Array | None = None
    can_continue: Callable[[Any], Any] | None = None
    at_least_once: bool = False


def run(loop: Loop, carry: Any, limits: Limits, keep: int | None = None, bar: Bar | None = None) -> tuple[Any, Any]:
    """Iterate until a limit. However a training is split into runs, its bits are the same.

    Args:
      keep: how many iterations' records to allocate. None: records are not kept.
      bar: a progress bar that the loop moves. It needs `limits.count` alone, an int above 0, and records of metrics.

    Returns:
      The last carry, and the records, stacked; None if none are kept.
    """
    at_once, count = loop.num_at_once, limits.count
    carry = start = varying(carry, carry)
    if isinstance(count, int) and keep == count and loop.draw is None and limits.can_continue is None and bar is None:
        numbers = jnp.arange(count, dtype=jnp.int32)  # the same as below, but an iteration is traced once
        return jax.lax.scan(lambda carry, number: varying(loop.iterate(carry, number, None), start), carry, numbers)
    first = jnp.zeros((), jnp.int32)
    state: Any = carry, None
    if keep is not None:
        drawn = None if loop.draw is None else jax.eval_shape(loop.draw, first)
        state = carry, varying(zeros(jax.eval_shape(loop.iterate, carry, first, drawn)[1], max(keep, 1)), carry)

    def iterate(number: jax.Array, state: Any, drawn: Any = None) -> Any:
        carry, record = varying(loop.iterate(state[0], number, drawn), start)
        return carry, None if keep is None else put(state[1], number, record)

    def iterate_chunk(index: jax.Array, state: Any) -> Any:
        """Run the iterations that draw at once."""
        assert loop.draw is not None
        first = index * at_once
        end = first + at_once if count is None else jnp.minimum(first + at_once, count)
        all_drawn = jax.vmap(loop.draw)(first + jnp.arange(at_once, dtype=jnp.int32))

        def iterate_drawn(number: jax.Array, state: Any) -> Any:
            return iterate(number, state, jax.tree.map(lambda leaf: leaf[number - first], all_drawn))

        return _repeat(first, end, iterate_drawn, state, limits)

    body: Callable[[jax.Array, Any], Any] = iterate if loop.draw is None else iterate_chunk
    if bar is not None:
        assert isinstance(count, int)
        carry, records = progress_bar.fori_loop(count, body, state, bar, at_once)
    else:
        carry, records = _repeat(0, None if count is None else -(-count // at_once), body, state, limits)
    return carry, jax.tree.map(lambda rows: rows[:0], records) if keep == 0 else records


def _repeat(begin: Any, end: Any, body: Callable[[jax.Array, Any], Any], state: Any, limits: Limits) -> Any:
    """Run a loop like `jax.lax.fori_loop`, which may end earlier, and needs no upper bound."""
    if limits.can_continue is None:
        return jax.lax.fori_loop(begin, end, body, state)

    def can_continue(both: tuple[jax.Array, Any]) -> Any:
        number, (carry, _) = both
        assert limits.can_continue is not None
        is_more = limits.can_continue(carry)
        if limits.at_least_once:
            is_more |= number == 0
        return is_more if end is None else is_more & (number < end)

    both = jnp.asarray(begin, jnp.int32), state
    return jax.lax.while_loop(can_continue, lambda both: (both[0] + 1, body(*both)), both)[1]


def zeros(tree: Any, *lead: int) -> Any:
    """Return arrays of 0 for shapes, with further leading axes."""
    return jax.tree.map(lambda leaf: jnp.zeros((*lead, *leaf.shape), leaf.dtype), tree)


def put(rows: Any, number: jax.Array, row: Any) -> Any:
    """Return `rows` with the row at index `number` replaced by `row`."""
    return jax.tree.map(lambda many, one: many.at[number].set(one), rows, row)
