"""Long short-term memory (Hochreiter and Schmidhuber 1997), with PyTorch's names, layout and order of gates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxenvs.jax_names import optimization_barrier
from jaxenvs.learn.interfaces import Array, Memory, Recalled
from jaxenvs.learn.networks.actor_critic import times_transposed
from jaxenvs.transformations import varying

# Recurrent states of the critic: separate ones, those that the actor computes, or none.
CRITICS = ("own", "shared", "none")
# An update runs at most this many slots side by side through the layers, of at least that many rows each, because each
# step of one slot reads all weights. A slot processes sequences one after the other, and all slots wait for the
# longest. With the 128 rows that sb3-contrib learns from at once, two slots take a quarter less time of a core than
# four where sequences are long (9.1 instead of 12.5 ms), and no more where there are six sequences (8.8 and 9.5 ms).
MOST_SLOTS, ROWS_PER_SLOT = 16, 64

Carry = tuple[jax.Array, jax.Array, jax.Array]


def no_memory(num_envs: int, layers: int, size: int, dtype: jax.typing.DTypeLike) -> dict[str, Memory]:
    """Return the zero recurrent states before the first step."""
    zeros = jnp.zeros((num_envs, layers, size), dtype)
    return {name: (zeros, zeros) for name in ("pi", "vf")}


def remember(params: Mapping[str, jax.Array], pi: Any, vf: Any, seen: Recalled, critic: str) -> dict[str, Memory]:
    """Return the recurrent states after a step of each row.

    Args:
      params: including the parameters of `lstm_actor` and, with "own", of `lstm_critic`.
      pi, vf: the features that actor and critic see, (batch, inputs).
      critic: one of CRITICS.
    """
    of_actor = step(params, "lstm_actor", pi, seen.memory["pi"], seen.episode_start)
    if critic != "own":
        return {"pi": of_actor, "vf": of_actor}
    return {"pi": of_actor, "vf": step(params, "lstm_critic", vf, seen.memory["vf"], seen.episode_start)}


def latents(
    params: Mapping[str, jax.Array], pi: jax.Array, vf: jax.Array, seen: Recalled, critic: str
) -> tuple[jax.Array, jax.Array]:
    """Return the inputs of the layers behind the LSTMs, for the actor and for the critic.

    Args:
      vf: if the critic has no LSTM, the input of its layers.
    """
    if seen.begins is None:
        memory = remember(params, pi, vf, seen, critic)
        of_actor, of_critic = (memory[name][0][:, -1] for name in ("pi", "vf"))
    else:
        forgets = seen.episode_start[:, None, None] != 0
        first = jax.tree.map(lambda part: jnp.where(forgets, 0, part), seen.memory)
        of_actor = of_critic = sequences(params, "lstm_actor", pi, first["pi"], seen.begins)
        if critic == "own":
            of_critic = sequences(params, "lstm_critic", vf, first["vf"], seen.begins)
    if critic == "shared":
        of_critic = jax.lax.stop_gradient(of_actor)
    return of_actor, vf if critic == "none" else of_critic


def step(params: Mapping[str, jax.Array], name: str, x: jax.Array, memory: Memory, start: Array) -> Memory:
    """Run one step for each row of a batch, and return the new recurrent states. The output is the last hidden state.

    Args:
      params: with `{name}.weight_ih_l0` and so on.
      x: (batch, inputs).
      start: (batch,), not 0 where the recurrent state is reset first.
    """
    hidden, cell = (jnp.where(start[:, None, None] != 0, 0, part).astype(x.dtype) for part in memory)
    layers = []
    for layer in range(hidden.shape[1]):
        gates = _from_input(params, f"{name}.{{}}_l{layer}", x)
        gates += times_transposed(hidden[:, layer], params[f"{name}.weight_hh_l{layer}"])
        x, c, _ = _cell(gates, cell[:, layer])
        layers.append((x, c))
    hidden, cell = (jnp.stack(parts, axis=1) for parts in zip(*layers))
    return hidden, cell


def sequences(params: Mapping[str, jax.Array], name: str, x: jax.Array, memory: Memory, begins: Array) -> jax.Array:
    """Return the outputs for rows that are concatenated sequences: (rows, size), differentiable in the params and `x`.

    Args:
      x: (rows, inputs).
      memory: the recurrent states before each row; only the rows that begin a sequence are read.
      begins: bool (rows,), where sequences begin, the first row among them.
    """
    memory = jax.tree.map(jnp.asarray, memory)
    first, length = _side_by_side(begins)
    for layer in range(memory[0].shape[1]):
        gates = _from_input(params, f"{name}.{{}}_l{layer}", x)
        before = tuple(part[:, layer].astype(x.dtype) for part in memory)
        x = _layer(gates, params[f"{name}.weight_hh_l{layer}"], *before, begins, first, length)
    return x


def _from_input(params: Mapping[str, jax.Array], name: str, x: jax.Array) -> jax.Array:
    gates = times_transposed(x, params[name.format("weight_ih")])
    bias = name.format("bias_ih")
    return gates + (params[bias] + params[name.format("bias_hh")]) if bias in params else gates


def _cell(gates: jax.Array, cell: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the hidden state, the cell state, and the activated gates, concatenated.

    The barriers keep XLA from recomputing an intermediate value for each of its uses, three times in all.
    """
    i, f, g, o = jnp.split(gates, 4, axis=-1)
    acting = jnp.concatenate([jax.nn.sigmoid(i), jax.nn.sigmoid(f), jnp.tanh(g), jax.nn.sigmoid(o)], axis=-1)
    acting = optimization_barrier(acting)
    i, f, g, o = jnp.split(acting, 4, axis=-1)
    cell = optimization_barrier(f * cell + i * g)
    return o * jnp.tanh(cell), cell, acting


def _side_by_side(begins: Array) -> tuple[jax.Array, jax.Array]:
    """Return the first row of each slot, followed by the number of rows; and the number of rows of the longest slot.

    Sequences that begin in the same part of the rows go one after the other through one slot, and reset it.
    """
    size = begins.shape[0]
    num_slots = max(1, min(MOST_SLOTS, size // ROWS_PER_SLOT))
    parts = (jnp.arange(num_slots + 1, dtype=jnp.int32) * size + num_slots - 1) // num_slots
    # A slot begins with the first sequence that begins in its part, or where the next slot does.
    rows = jnp.arange(size, dtype=jnp.int32)
    next_begin = jax.lax.cummin(jnp.where(begins, rows, size), reverse=True)
    first = jnp.append(next_begin, jnp.int32(size))[parts]
    return first, jnp.max(first[1:] - first[:-1])


@jax.custom_vjp
def _layer(
    gates: jax.Array,
    weight: jax.Array,
    hidden: jax.Array,
    cell: jax.Array,
    begins: Array,
    first: jax.Array,
    length: jax.Array,
) -> jax.Array:
    """Return the hidden states after each row.

    JAX cannot differentiate a loop of unknown length. In a loop of known length, the gradient of the weights would be a
    sum of products over the steps; here it is one product in the end.

    Args:
      gates: (rows, 4 * size), the contribution of the input.
      hidden, cell: before each row where a sequence begins.
      first, length: as `_side_by_side` returns them.
    """
    return _forward(gates, weight, hidden, cell, begins, first, length)[:, : hidden.shape[1]]


def _forward(gates: Any, weight: Any, hidden: Any, cell: Any, begins: Any, first: Any, length: Any) -> jax.Array:
    """Return the hidden state, the cell state and the four gates after each row, (rows, 6 * size)."""
    rows_of_all, num_slots, size = hidden.shape[0], first.shape[0] - 1, hidden.shape[1]
    zeros = jnp.zeros((num_slots, size), gates.dtype)
    transposed = optimization_barrier(weight.T)

    def advance(time: jax.Array, carry: Carry) -> Carry:
        h, c, kept = carry
        rows = _rows(first, time, rows_of_all)
        new = begins[jnp.minimum(rows, rows_of_all - 1)][:, None]
        h, c = jnp.where(new, _take(hidden, rows), h), jnp.where(new, _take(cell, rows), c)
        h, c, acting = _cell(_take(gates, rows) + h @ transposed, c)
        return h, c, _write(kept, rows, jnp.concatenate([h, c, acting], axis=1))

    kept = jnp.zeros((rows_of_all + 1, 6 * size), gates.dtype)
    start = varying((zeros, zeros, kept), gates, weight, hidden, cell, first)
    _, _, kept = jax.lax.fori_loop(0, length, advance, start)
    kept_rows: jax.Array = kept[:-1]
    return kept_rows


def _rows(first: jax.Array, time: jax.Array, none: int) -> jax.Array:
    """Return the current row of each slot, or `none`, the index past all rows, where a slot has ended."""
    rows = first[:-1] + time
    return jnp.where(rows < first[1:], rows, none)


def _take(array: jax.Array, rows: jax.Array) -> jax.Array:
    """Take rows one by one, because a gather takes several times as long on a CPU. The index past the end takes any
    row.
    """
    nothing = jnp.zeros_like(rows[0])
    rows = jnp.minimum(rows, len(array) - 1)
    return jnp.concatenate([jax.lax.dynamic_slice(array, (row, nothing), (1, array.shape[1])) for row in rows])


def _write(kept: jax.Array, rows: jax.Array, values: jax.Array) -> jax.Array:
    """Write rows one by one, because a scatter is a slow loop on a CPU. The last row of `kept` is a dummy."""
    for slot in range(len(values)):
        kept = jax.lax.dynamic_update_slice(kept, values[slot : slot + 1], (rows[slot], jnp.zeros_like(rows[slot])))
    return kept


def _with_residuals(*arguments: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    _, weight, hidden, cell, begins, first, length = arguments
    kept = _forward(*arguments)
    return kept[:, : hidden.shape[1]], (weight, hidden, cell, begins, first, length, kept)


def _backward(residuals: tuple[jax.Array, ...], gradient: jax.Array) -> tuple[jax.Array | None, ...]:
    weight, hidden, cell, begins, first, length, kept = residuals
    after, cells, i, f, g, o = jnp.split(kept, 6, axis=1)
    before, cells_before = (
        jnp.where(begins[:, None], start, jnp.roll(each, 1, axis=0)) for start, each in ((hidden, after), (cell, cells))
    )
    tanh = jnp.tanh(cells)
    # Compute for all rows at once what does not depend on later rows: the derivatives of gates and cell.
    by_output, through_cell = tanh * o * (1 - o), o * (1 - tanh**2)
    by_cell = jnp.concatenate([g * i * (1 - i), cells_before * f * (1 - f), i * (1 - g**2)], axis=1)
    rows_of_all, size = hidden.shape
    zeros = jnp.zeros((first.shape[0] - 1, size), gradient.dtype)

    def go_back(step: jax.Array, carry: Carry) -> Carry:
        dh, dc, of_gates = carry
        rows = _rows(first, length - 1 - step, rows_of_all)
        there = (rows < rows_of_all)[:, None]
        dh = jnp.where(there, _take(gradient, rows) + dh, 0)
        dc = jnp.where(there, dc + dh * _take(through_cell, rows), 0)
        dc = optimization_barrier(dc)
        of_row = jnp.concatenate([jnp.tile(dc, 3) * _take(by_cell, rows), dh * _take(by_output, rows)], axis=1)
        of_row = optimization_barrier(of_row)
        goes_on = ~begins[jnp.minimum(rows, rows_of_all - 1)][:, None]
        dh, dc = jnp.where(goes_on, of_row @ weight, 0), jnp.where(goes_on, dc * _take(f, rows), 0)
        return dh, dc, _write(of_gates, rows, of_row)

    of_gates = jnp.zeros((rows_of_all + 1, 4 * size), gradient.dtype)
    start = varying((zeros, zeros, of_gates), gradient, kept, weight, first)
    of_gates = jax.lax.fori_loop(0, length, go_back, start)[2][:-1]
    return of_gates, of_gates.T @ before, None, None, None, None, None


_layer.defvjp(_with_residuals, _backward)
