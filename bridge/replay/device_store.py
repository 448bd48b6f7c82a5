"""Transfer of rows from SB3's arrays to a store on the device for compiled functions, and back.

The store holds an observation once: the observation after a slot is in the next row. Where SB3's next observation is
another one, at the end of an episode, after a reset by hand or because your code has written into the arrays, the slot
has a row in the store's side ring of ends.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jax import dtypes
from jax.sharding import Mesh

from bridge.replay import columns
from bridge.replay.columns import RowsLike, map_leaves
from jaxenvs.learn import Replay
from jaxenvs.learn.devices import layouts, place
from jaxenvs.learn.off_policy.store import replay_tags
from jaxenvs.learn.off_policy.store.regrouping import regroup
from jaxenvs.transformations import set_or_drop

# A larger store gets no more rows on the device than the training fills: NumPy's memory counts once it is written, a
# device's at once. A smaller one gets all rows, so that one compiled function serves trainings of any length.
SMALL_STORE = 2**26


def is_divided(replay: Replay) -> bool:
    """Return whether there is a store for each of several devices, with a leading axis of devices."""
    return replay.tag.ndim == 3


def divide(replay: Replay, mesh: Mesh) -> Replay:
    """Return a store on each device, for its environments, with the content of one store.

    The host holds one more copy meanwhile.
    """
    num_ends = replay.num_ends // mesh.size
    stores = regroup(jax.tree.map(lambda leaf: np.asarray(leaf)[None], replay), mesh.size, num_ends)
    divided: Replay = place(stores, layouts(mesh)[0], mesh)
    return divided


def _unite(stores: Replay) -> Replay:
    """Return one store with the content of all devices' stores and delete theirs."""
    united = regroup(jax.tree.map(np.asarray, stores), 1, stores.tag.size)
    for leaf in jax.tree.leaves(stores):
        leaf.delete()
    replay: Replay = jax.tree.map(lambda leaf: _put(leaf[0]), united)
    return replay


@functools.partial(jax.jit, donate_argnums=0)
def break_off(replay: Replay, left: jax.Array) -> Replay:
    """Return a store, which is donated, in which the next rows of some environments do not continue the newest row.

    Args:
      left: (num_envs,), bools.
    """
    newest = (replay.position - 1) % replay.capacity
    tag = replay.tag[newest]
    left = left & ~replay_tags.is_end(tag) & (replay.size > 0)
    end = (replay.num_ended + jnp.cumsum(left, dtype=jnp.int32) - 1) % replay.num_ends
    where = jnp.where(left, end, replay.num_ends)
    slot = newest * replay.num_envs + jnp.arange(replay.num_envs, dtype=jnp.int32)
    ended: Replay = dataclasses.replace(
        replay,
        tag=replay.tag.at[newest].set(jnp.where(left, replay_tags.make_end(end, 0, 0), tag)),
        end_observation=jax.tree.map(
            lambda to, last: set_or_drop(to, where, last), replay.end_observation, replay.last_observation
        ),
        end_slot=set_or_drop(replay.end_slot, where, slot),
        num_ended=replay.num_ended + left.sum(dtype=jnp.int32),
    )
    return ended


def to_device(rows: RowsLike, observation: Any, num_steps: int) -> Replay:
    """Return a store on the device with the content of SB3's arrays, which are taken from the object.

    The store has the shapes of the environments' spaces: a Discrete value is a number there, and an array of one number
    in SB3's arrays. If integers do not fit JAX's dtype, nothing is changed.

    Args:
      rows: the replay buffer.
      observation: where the environments continue, in the shape of SB3's arrays.
      num_steps: the most rows that will be written.
    """
    for name in ("observations", "next_observations", "actions"):
        for leaf in columns.leaves(getattr(rows, name)):
            _require_fits(name, leaf)
    oldest, size = rows.stored()
    num_envs, is_discrete = rows.n_envs, isinstance(rows.action_space, spaces.Discrete)
    tag, row, env_indices, ended = _tags(rows, observation, oldest, size)
    capacity = _num_rows(rows, size, num_steps)
    num_ends = capacity * num_envs  # as many as slots, so that no row is lost, however short episodes are
    shape = () if is_discrete else rows.actions.shape[2:]

    def empty(leaf: np.ndarray, space: Any) -> jax.Array:
        return jnp.zeros((num_envs, *space.shape), _dtype(leaf))

    if size == 0:

        def create() -> Replay:
            like = map_leaves(empty, rows.observations, rows.observation_space)
            return Replay.create(capacity, like, jnp.zeros((num_envs, *shape), _dtype(rows.actions)), num_ends)

        new: Replay = jax.jit(create)()  # one compiled function instead of one for each array
        return new

    # Each array is freed as soon as it was copied, and the large ones of the store come last.
    take, position = vars(rows).pop, rows.pos
    for name in ("dones", "timeouts"):
        take(name)
    following = take("next_observations")
    final = map_leaves(lambda leaf: leaf[row, env_indices], following)
    last = map_leaves(lambda leaf: leaf[(position - 1) % rows.buffer_size].copy(), following)
    del following
    end_slot = np.full(num_ends, -1, np.int32)
    end_slot[: len(row)] = row * num_envs + env_indices
    tag[row, env_indices] = replay_tags.make_end(np.arange(len(row), dtype=np.int32), *ended)

    def put(leaf: np.ndarray, space: Any, *lead: int) -> jax.Array:
        return _put(leaf[: lead[0]].reshape(*lead, *space.shape))

    def ends(leaf: np.ndarray, space: Any) -> jax.Array:
        filled = np.zeros((num_ends, *space.shape), leaf.dtype)
        filled[: len(row)] = leaf.reshape(-1, *space.shape)
        return _put(filled)

    given = take("observations"), rows.observation_space
    observations = map_leaves(lambda leaf, space: put(leaf, space, capacity, num_envs), *given)
    del given
    return Replay(
        observation=observations,
        action=_put(take("actions")[:capacity].reshape(capacity, num_envs, *shape)),
        reward=_put(take("rewards")[:capacity], float),
        tag=_put(tag[:capacity]),
        last_observation=map_leaves(lambda leaf, space: put(leaf, space, num_envs), last, rows.observation_space),
        end_observation=map_leaves(ends, final, rows.observation_space),
        end_slot=_put(end_slot),
        num_ended=_put(np.int32(len(row))),
        position=_put(np.int32(position)),
        size=_put(np.int32(size)),
    )


def _tags(rows: RowsLike, observation: Any, oldest: int, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, Any]:
    """Return tags without ends, and the slots with a row in the side ring, the oldest first.

    Returns:
      tag: int32 (buffer_size, n_envs); row, env_indices: (num,); and whether each slot is terminated and truncated.
    """
    # As if all other slots ended an episode.
    tag = np.full((rows.buffer_size, rows.n_envs), -1, np.int32)
    is_done = (rows.dones != 0) | (rows.timeouts != 0)
    found = []
    for now, numbers in columns.pieces(oldest, size, rows.buffer_size):
        tag[now] = 0
        after = np.arange(now.start + 1, now.stop + 1) % rows.buffer_size
        next_observation = columns.at(rows.next_observations, now)
        following = columns.at(rows.observations, after)
        if numbers.stop == size:
            columns.write(following, -1, observation)
        is_end = columns.differs(following, next_observation) | is_done[now]
        first = rows.num_added() - size + numbers.start
        resets = [number - first - 1 for number in rows.resets]
        is_end[[number for number in resets if 0 <= number < len(is_end)]] = True
        row, env_indices = is_end.nonzero()
        found.append((row + now.start, env_indices))
    row, env_indices = (np.concatenate([each[part] for each in found] or [np.zeros(0, int)]) for part in (0, 1))
    timeout = rows.timeouts[row, env_indices] != 0
    return tag, row, env_indices, (is_done[row, env_indices] & ~timeout, timeout)


def _num_rows(rows: RowsLike, size: int, num_steps: int) -> int:
    """Return the number of rows of the store on the device."""
    slot = [leaf[0, 0].nbytes for leaf in (*columns.leaves(rows.observations), rows.actions, rows.rewards)]
    if rows.buffer_size * rows.n_envs * (sum(slot) + 4) <= SMALL_STORE or rows.full:
        return rows.buffer_size
    # By doubling, because each number compiles its own function.
    return min(rows.buffer_size, 1 << (size + num_steps).bit_length())


def to_host(replay: Replay, rows: RowsLike) -> tuple[dict[str, Any], tuple[int, ...]]:
    """Return SB3's arrays with the content of a store on the device, which is deleted; and Rows.resets."""
    if is_divided(replay):
        replay = _unite(replay)
    num_envs, stored, position, size = replay.num_envs, replay.capacity, int(replay.position), int(replay.size)
    lead, is_full = (rows.buffer_size, num_envs), size == rows.buffer_size
    tag = np.array(replay.tag)
    tag[(position + np.arange(stored - size)) % stored] = 0  # what is not stored is marked as an end
    row, env_indices = replay_tags.is_end(tag).nonzero()
    ends = replay_tags.end_row(tag[row, env_indices])
    final = map_leaves(lambda leaf: np.asarray(leaf)[ends], replay.end_observation)
    for leaf in jax.tree.leaves((replay.end_observation, replay.end_slot)):
        leaf.delete()  # each array is freed as soon as it was copied

    def moved(leaf: jax.Array, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        array = np.zeros((*lead, *shape), dtype)
        array[:stored] = np.asarray(leaf).reshape(stored, num_envs, *shape)
        leaf.delete()
        return array

    def following(observation: np.ndarray, last: jax.Array, ended: np.ndarray) -> np.ndarray:
        after, shape = np.zeros_like(observation), observation.shape[2:]
        for here, _ in columns.pieces(0, size, rows.buffer_size):
            after[here] = observation[np.arange(here.start + 1, here.stop + 1) % rows.buffer_size]
        if size:
            after[(position - 1) % rows.buffer_size] = np.asarray(last).reshape(num_envs, *shape)
        after[row, env_indices] = ended.reshape(-1, *shape)
        return after

    action_dtype = rows._maybe_cast_dtype(rows.action_space.dtype)
    found = {"actions": moved(replay.action, (rows.action_dim,), action_dtype)}
    found["rewards"] = moved(replay.reward, (), np.float32)
    found["dones"] = moved(replay.tag, (), np.float32)
    found["dones"][:stored] = replay_tags.is_done(tag)
    found["timeouts"] = np.zeros(lead, np.float32)
    found["timeouts"][:stored] = replay_tags.truncated(tag) & ~replay_tags.terminated(tag)
    # In the order of the space, because JAX sorts the keys of a dict.
    given = rows.obs_shape, rows.observation_space, replay.observation
    found["observations"] = map_leaves(lambda shape, space, leaf: moved(leaf, shape, space.dtype), *given)
    found["next_observations"] = map_leaves(following, found["observations"], replay.last_observation, final)
    # If all environments were left, and not only in the last steps of episodes, they were reset by hand.
    resets = (replay_tags.is_end(tag).all(1) & ~replay_tags.is_done(tag).all(1)).nonzero()[0] + 1
    if is_full:  # `rows.Rows` counts anew, as if the buffer had gone round once
        resets = np.sort((resets - 1 - position) % stored + position + 1)
    return found, tuple(resets.tolist())


def _require_fits(name: str, array: np.ndarray) -> None:
    """Raise for integers that would wrap: without `jax_enable_x64`, JAX's have 32 bits."""
    dtype = _dtype(array)
    if array.dtype.kind not in "iu" or dtype == array.dtype or not array.size:
        return
    limits = np.iinfo(dtype)
    least, most = int(array.min()), int(array.max())
    if least < limits.min or most > limits.max:
        raise ValueError(
            f"{name} of the replay buffer must be between {limits.min} and {limits.max}, because compiled functions "
            f"store {np.dtype(dtype)}, got {least if least < limits.min else most}. Store smaller integers, set the "
            'environment variable JAX_ENABLE_X64=1, or construct the model with engine="torch".'
        )


def _put(array: Any, dtype: Any = None) -> jax.Array:
    """Return a JAX array in newly allocated memory, which may be donated.

    `jnp.array` alone temporarily holds one more copy of memory that is not aligned, and JAX 0.10's `device_put` shares
    memory that is, which is then not donated.
    """
    array = np.asarray(array, dtypes.canonicalize_dtype(dtype or array.dtype))
    put: jax.Array = jax.device_put(array, may_alias=False)
    if put.unsafe_buffer_pointer() == array.ctypes.data:
        put = jnp.copy(put)
    return put.block_until_ready()  # until then, JAX keeps the NumPy array


def _dtype(array: Any) -> Any:
    return dtypes.canonicalize_dtype(array.dtype)
