"""Transfer of a ring on the host to a store on the device for compiled functions, and back: there is only one copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jax.sharding import Mesh

from bridge.replay.store import columns
from bridge.replay.store.columns import map_leaves
from bridge.replay.store.ring import InMemory, Ring
from jaxenvs.learn import Replay
from jaxenvs.learn.devices import layouts, place
from jaxenvs.learn.off_policy.store import replay_tags
from jaxenvs.learn.off_policy.store.regrouping import regroup

# A larger store gets no more rows on the device than the training fills: NumPy's memory counts once it is written, a
# device's at once. A smaller one gets all rows, so that one compiled function serves trainings of any length.
SMALL_STORE = 2**26
# If all slots' final observations fit into this many bytes, the side ring has a row for each slot, however short
# episodes are.
SMALL_ENDS = 2**22


@jax.jit
def free_ends(replay: Replay) -> jax.Array:
    """Return how many more episodes may end in a store before it drops a row: see Replay.free_ends."""
    return jax.vmap(Replay.free_ends)(replay).min() if is_divided(replay) else replay.free_ends()


def is_divided(replay: Replay) -> bool:
    """Return whether there is a store for each of several devices, with a leading axis of devices."""
    return replay.tag.ndim == 3


def divide(replay: Replay, mesh: Mesh) -> Replay:
    """Return a store on each device, for its environments, with the content of one store.

    The host holds one more copy meanwhile.
    """
    # As if one store had the ends of all environments: no row is dropped.
    num_ends = min(replay.num_ends, replay.capacity * (replay.num_envs // mesh.size))
    stores = regroup(jax.tree.map(lambda leaf: np.asarray(leaf)[None], replay), mesh.size, num_ends)
    divided: Replay = place(stores, layouts(mesh)[0], mesh)
    return divided


def unite(stores: Replay) -> Replay:
    """Return one store with the content of all devices' stores and space for all their ends; delete theirs."""
    num_ends = min(len(stores.tag) * stores.num_ends, stores.tag.size)
    united = regroup(jax.tree.map(np.asarray, stores), 1, num_ends)
    for leaf in jax.tree.leaves(stores):
        leaf.delete()
    replay: Replay = jax.tree.map(lambda leaf: _put(leaf[0]), united)
    return replay


def to_device(ring: Ring, observation_space: Any, action_space: spaces.Space[Any], num_steps: int) -> Replay:
    """Return a store on the device with the content of a ring in memory, which cannot be used afterwards.

    The store has the shapes of the environments' spaces: a Discrete value is a number there, and an array of one number
    in the ring. If integers do not fit JAX's dtype, the ring is unchanged.

    Args:
      ring, observation_space, action_space: the ring, and the spaces of its environments.
      num_steps: the most rows that will be written.
    """
    for name in ("observation", "action", "last_observation", "end_observation"):
        for column in columns.leaves(getattr(ring, name)):
            _require_fits(name, column)
    ring.position %= ring.capacity
    ring.count_ages()
    capacity, num_envs = _rows(ring, num_steps), ring.num_envs
    shape = () if isinstance(action_space, spaces.Discrete) else ring.action.shape[2:]

    def as_given(tree: Any, put: Callable[[Any], jax.Array], *lead: int) -> Any:
        return map_leaves(lambda leaf, space: put(leaf.reshape(*lead, *space.shape)), tree, observation_space)

    def create() -> Replay:
        observation = as_given(ring.last_observation, lambda leaf: jnp.zeros(leaf.shape, _dtype(leaf)), num_envs)
        action = jnp.zeros((num_envs, *shape), _dtype(ring.action))
        return Replay.create(capacity, observation, action, _num_ends(ring, capacity, 0))

    if ring.size == 0:
        empty: Replay = jax.jit(create)()  # one compiled function instead of one for each array
        return empty
    rows = (ring.num_ended + np.arange(len(ring.end_slot))) % len(ring.end_slot)  # the oldest first
    rows = rows[ring.alive_ends(rows)]
    # In the order of their slots, because ends written by hand come in any order, and the device overwrites the oldest
    # first.
    row = (ring.end_slot[rows] // num_envs - ring.oldest) % ring.capacity
    rows = rows[np.argsort(row, kind="stable")][: np.count_nonzero(row < ring.size)]
    slots = ring.end_slot[rows]
    num_ends = _num_ends(ring, capacity, len(rows))
    tags = ring.tag[:capacity]
    tag, ended = tags.reshape(-1), tags.reshape(-1)[slots]
    tag[slots] = replay_tags.make_end(
        np.arange(len(rows), dtype=np.int32), replay_tags.terminated(ended), replay_tags.truncated(ended)
    )
    # As if all other slots ended an episode, so that the first stored slot begins one.
    tags[(ring.position + np.arange(capacity - ring.size)) % capacity] = -1

    def ends(column: np.ndarray, fill: int = 0) -> jax.Array:
        filled = np.full((num_ends, *column.shape[1:]), fill, _dtype(column))
        filled[: len(rows)] = column[rows]
        return _put(filled)

    num_all = len(ring.end_slot)
    replay = Replay(
        observation=as_given(_take(ring, "observation"), lambda leaf: _put(leaf[:capacity]), ring.capacity, num_envs),
        action=_put(ring.action[:capacity].reshape(capacity, num_envs, *shape)),
        reward=_put(ring.reward[:capacity].astype(float)),
        tag=_put(tags),
        last_observation=as_given(ring.last_observation, _put, num_envs),
        end_observation=as_given(_take(ring, "end_observation"), ends, num_all),
        end_slot=ends(ring.end_slot.astype(np.int32), -1),
        num_ended=_put(np.int32(len(rows))),
        position=_put(np.int32(ring.position)),
        size=_put(np.int32(ring.size)),
    )
    return replay


def _num_ends(ring: Ring, capacity: int, alive: int) -> int:
    """Return the number of rows of a store's side ring, of which `alive` are in use.

    It has a row for each slot if that takes little memory.
    """
    num_slots: int = capacity * ring.num_envs
    num_bytes: int = sum(leaf[0].nbytes for leaf in columns.leaves(ring.last_observation))
    if num_slots * num_bytes <= SMALL_ENDS:
        return num_slots
    num_ends: int = max(num_slots // 8, ring.num_envs)
    # By doubling, because each number compiles its own function.
    while num_ends < min(2 * (alive + ring.num_envs), num_slots):
        num_ends *= 2
    return min(num_ends, num_slots)


def _rows(ring: Ring, num_steps: int) -> int:
    """Return the number of rows of the store on the device."""
    slot = [leaf[0, 0] for leaf in (*columns.leaves(ring.observation), ring.action, ring.reward, ring.tag)]
    num_bytes: int = ring.num_slots * sum(each.nbytes for each in slot)
    if num_bytes <= SMALL_STORE or ring.size != ring.position:  # it has wrapped around, or has dropped rows
        return ring.capacity
    # By doubling, because each number compiles its own function.
    return min(ring.capacity, 1 << (ring.size + num_steps).bit_length())


def to_host(replay: Replay, obs_shape: Any, observation_space: Any, action_dtype: Any, capacity: int) -> Ring:
    """Return a ring of this capacity in memory with the content of a store on the device, which is deleted.

    In the ring, observations have the shapes `obs_shape`, such as (1,) for a Discrete space.
    """
    if is_divided(replay):
        replay = unite(replay)
    num_envs = replay.num_envs
    num_ended, num_ends, position, size = int(replay.num_ended), replay.num_ends, int(replay.position), int(replay.size)

    def taken(leaf: jax.Array, dtype: Any) -> np.ndarray:
        array = np.array(leaf, dtype)
        leaf.delete()
        return array

    def taken_rows(leaf: jax.Array, dtype: Any) -> np.ndarray:
        if len(leaf) == capacity:
            return taken(leaf, dtype)
        array = np.zeros((capacity, *leaf.shape[1:]), dtype)
        array[: len(leaf)] = leaf
        leaf.delete()
        return array

    def observations(tree: Any, *lead: int, take: Any = taken) -> Any:
        # In the order of the space, because JAX sorts the keys of a dict.
        return map_leaves(
            lambda shape, space, leaf: take(leaf, space.dtype).reshape(*lead, *shape),
            obs_shape,
            observation_space,
            tree,
        )

    tag = taken_rows(replay.tag, np.int32)
    tag[(position + np.arange(capacity - size)) % capacity] = 0  # a store on the device marks them as ends
    return Ring(
        observation=observations(replay.observation, capacity, num_envs, take=taken_rows),
        action=taken_rows(replay.action, action_dtype).reshape(capacity, num_envs, -1),
        reward=taken_rows(replay.reward, np.float32),
        tag=tag,
        last_observation=observations(replay.last_observation, num_envs),
        end_observation=observations(replay.end_observation, num_ends),
        end_slot=np.maximum(taken(replay.end_slot, np.int64), 0),
        storage=InMemory(),
        position=position,
        size=size,
        # Both write the next end into the row of this number modulo the number of rows.
        num_ended=num_ended if num_ended < num_ends else num_ends + num_ended % num_ends,
    )


def _require_fits(name: str, column: np.ndarray) -> None:
    """Raise for integers that would wrap: without `jax_enable_x64`, JAX's have 32 bits."""
    dtype = _dtype(column)
    if column.dtype.kind not in "iu" or dtype == column.dtype or not column.size:
        return
    limits = np.iinfo(dtype)
    least, most = int(column.min()), int(column.max())
    if least < limits.min or most > limits.max:
        raise ValueError(
            f"The {name} of the replay buffer must be between {limits.min} and {limits.max}, because compiled "
            f"functions store {np.dtype(dtype)}, got {least if least < limits.min else most}. Store smaller integers, "
            'set the environment variable JAX_ENABLE_X64=1, or construct the model with engine="torch".'
        )


def _take(ring: Ring, name: str) -> Any:
    """Return an attribute of a ring and remove it, so that its memory is freed as soon as it was copied."""
    tree = getattr(ring, name)
    setattr(ring, name, None)
    return tree


def _put(array: Any) -> jax.Array:
    """Return a JAX array in newly allocated memory, which may be donated.

    Not with `jnp.array`, which temporarily holds one more copy: as much memory again as the store takes.
    """
    put: jax.Array = jax.device_put(np.asarray(array, _dtype(array)), may_alias=False)
    return put


def _dtype(array: Any) -> Any:
    return jax.dtypes.canonicalize_dtype(array.dtype)
