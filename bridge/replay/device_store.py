"""Moves of rows between SB3's arrays on the host and a store on the device for compiled functions.

The store has the same arrays, with the shapes of the environments' spaces and JAX's dtypes: a Discrete value is a
number there, and an array of one number in SB3's arrays. On a CPU, an array of the same dtype moves without a copy,
because SB3's array then lies in the memory of JAX's.
"""

from __future__ import annotations

import weakref
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from jax import dtypes
from jax.sharding import Mesh
from stable_baselines3.common import buffers

from bridge.replay import columns
from bridge.replay.columns import map_leaves
from jaxenvs.learn import Replay
from jaxenvs.learn.devices import layouts, place

# A larger store gets no more rows on the device than the training fills: NumPy's memory counts once it is written, a
# device's at once. A smaller one gets all rows, so that one compiled function serves trainings of any length.
SMALL_STORE = 2**26


def to_device(rows: buffers.ReplayBuffer, num_steps: int, mesh: Mesh | None) -> Replay:
    """Return a store on the device with the content of SB3's arrays, which are taken from the object.

    If integers do not fit JAX's dtype, nothing is changed.

    Args:
      rows: the replay buffer.
      num_steps: the most rows that will be written.
      mesh: devices, each of which gets the rows of its environments.
    """
    for name in ("observations", "next_observations", "actions"):
        for leaf in columns.leaves(getattr(rows, name)):
            _require_fits(name, leaf)
    lead, space = (_num_rows(rows, num_steps), rows.n_envs), cast(Any, rows.observation_space)
    of_action = () if isinstance(rows.action_space, spaces.Discrete) else rows.actions.shape[2:]
    if not rows.size():

        def create() -> Replay:
            def empty(leaf: np.ndarray, shape: tuple[int, ...]) -> jax.Array:
                return jnp.zeros((rows.n_envs, *shape), dtypes.canonicalize_dtype(leaf.dtype))

            like = map_leaves(lambda leaf, space: empty(leaf, space.shape), rows.observations, space)
            return Replay.create(lead[0], like, empty(rows.actions, of_action))

        replay: Replay = jax.jit(create)()  # one compiled function instead of one for each array
    else:
        # Each array is freed as soon as it was copied.
        timeouts = vars(rows).pop("timeouts") != 0
        dones = (vars(rows).pop("dones") != 0) | timeouts
        flags = {"terminated": dones & ~timeouts, "truncated": timeouts}
        del dones, timeouts

        def observations(name: str) -> Any:
            if not isinstance(rows.obs_shape, dict):
                return _put(vars(rows), name, (*lead, *space.shape))
            parts = dict(vars(rows).pop(name))
            return {key: _put(parts, key, (*lead, *space[key].shape)) for key in tuple(parts)}

        replay = Replay(
            terminated=_put(flags, "terminated", lead),
            truncated=_put(flags, "truncated", lead),
            reward=_put(vars(rows), "rewards", lead, float),
            action=_put(vars(rows), "actions", (*lead, *of_action)),
            next_observation=observations("next_observations"),
            observation=observations("observations"),
            position=jnp.int32(rows.pos),
            size=jnp.int32(rows.size()),
        )
    placed: Replay = replay if mesh is None else place(replay, replay.layout(*layouts(mesh)), mesh)
    return placed


def _num_rows(rows: buffers.ReplayBuffer, num_steps: int) -> int:
    """Return the number of rows of the store on the device."""
    arrays = (*columns.leaves(rows.observations), *columns.leaves(rows.next_observations), rows.actions, rows.rewards)
    if rows.full or sum(leaf.nbytes for leaf in arrays) <= SMALL_STORE:
        return rows.buffer_size
    # By doubling, because each number compiles its own function.
    return min(rows.buffer_size, 1 << (rows.size() + num_steps).bit_length())


def to_host(replay: Replay, rows: buffers.ReplayBuffer) -> dict[str, Any]:
    """Return SB3's arrays with the content of a store on the device, which is deleted or lives in them."""
    # Rows after the stored ones are not written, because NumPy's memory counts once it is written.
    num_rows = rows.buffer_size if replay.capacity == rows.buffer_size else rows.size()

    def moved(leaf: jax.Array, shape: tuple[int, ...], dtype: npt.DTypeLike | None) -> np.ndarray:
        """Return the array of SB3's; each array of the store is freed as soon as it was copied."""
        shape = rows.buffer_size, rows.n_envs, *shape
        is_on_a_cpu = [each.platform for each in leaf.devices()] == ["cpu"]
        if leaf.dtype == dtype and len(leaf) == shape[0] and is_on_a_cpu:
            return np.asarray(_Memory(leaf, shape))
        array = np.zeros(shape, dtype)
        array[:num_rows] = np.asarray(leaf).reshape(len(leaf), *shape[1:])[:num_rows]
        leaf.delete()
        return array

    def observations(tree: object) -> Any:
        # In the order of the space, because JAX sorts the keys of a dict.
        return map_leaves(lambda shape, space, leaf: moved(leaf, shape, space.dtype), *given, tree)

    given = rows.obs_shape, rows.observation_space
    found = {
        "rewards": moved(replay.reward, (), np.float32),
        "actions": moved(replay.action, (rows.action_dim,), rows._maybe_cast_dtype(rows.action_space.dtype)),
        "next_observations": observations(replay.next_observation),
        "observations": observations(replay.observation),
        "timeouts": moved(replay.truncated, (), np.float32),
        "dones": moved(replay.terminated, (), np.float32),
    }
    found["timeouts"][found["dones"] != 0] = 0
    found["dones"] += found["timeouts"]
    return found


class _Memory:
    """Memory of a JAX array on a CPU for a NumPy array, which keeps it."""

    def __init__(self, array: jax.Array, shape: tuple[int, ...]) -> None:
        self.array = array.block_until_ready()
        pointer = array.unsafe_buffer_pointer(), False
        self.__array_interface__ = {"version": 3, "data": pointer, "shape": shape, "typestr": array.dtype.str}


def _put(arrays: dict[str, Any], name: str, shape: tuple[int, ...], dtype: npt.DTypeLike | None = None) -> jax.Array:
    """Take an array out of a dict, and return its first rows as a JAX array whose memory may be donated."""
    array: np.ndarray | None = arrays.pop(name)
    assert array is not None
    memory, reference = array.base, weakref.ref(array)
    if isinstance(memory, _Memory) and memory.array.shape == shape:
        array = None
        if (array := reference()) is None:  # no other code can read or write it
            return memory.array
    array = np.asarray(array[: shape[0]].reshape(shape), dtypes.canonicalize_dtype(dtype or array.dtype))
    # `jnp.array` alone temporarily holds one more copy of memory that is not aligned, and JAX 0.10's `device_put`
    # shares memory that is, which is then not donated.
    put: jax.Array = jax.device_put(array, may_alias=False)
    if put.unsafe_buffer_pointer() == array.ctypes.data:
        put = jnp.copy(put)
    return put.block_until_ready()  # until then, JAX keeps the NumPy array


def _require_fits(name: str, array: np.ndarray) -> None:
    """Raise for integers that would wrap: without `jax_enable_x64`, JAX's have 32 bits."""
    dtype = dtypes.canonicalize_dtype(array.dtype)
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
