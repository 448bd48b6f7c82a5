"""Views: array-likes that compute only the rows that are read, and store what is written into them."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin


class View(NDArrayOperatorsMixin):
    """Array-like with the shape and dtype of an array that is stored in another form.

    Indexing follows NumPy: integers, slices and `...` return a view, which reads and writes the stored data; an index
    array returns a copy. NumPy's functions and methods get a read-only copy of the whole array, so that no write is
    lost without an error.
    """

    def __init__(self, outline: np.ndarray) -> None:
        """Store the shape and dtype: `outline` is an array of them that takes no memory."""
        self._outline = outline

    def _read(self, index: Any) -> Any:
        """Return what `array[index]` would return; its memory may be the buffer's."""
        raise NotImplementedError

    def __setitem__(self, index: Any, values: Any) -> None:
        raise NotImplementedError

    def __getitem__(self, index: Any) -> Any:
        if not all(_is_basic(key) for key in (index if isinstance(index, tuple) else (index,))):
            return self._read(index)
        part = self._outline[index]  # raises the IndexError of an array
        return _Part(self, index, part) if isinstance(part, np.ndarray) and part.ndim else self._read(index)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        array: np.ndarray = np.asarray(self._read(...), dtype)
        if copy:
            return array.copy()
        array = array.view()
        array.flags.writeable = False
        return array

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: tuple[Any, ...] = (), **kwargs: Any) -> Any:
        inputs = tuple(np.asarray(each) if isinstance(each, View) else each for each in inputs)
        if not any(isinstance(each, View) for each in out):
            return getattr(ufunc, method)(*inputs, **kwargs, **({"out": out} if out else {}))
        # Computed as into an array, so that invalid casts raise, and then written.
        arrays = tuple(np.array(each) if isinstance(each, View) else each for each in out)
        getattr(ufunc, method)(*inputs, out=arrays, **kwargs)
        for each, array in zip(out, arrays):
            if isinstance(each, View):
                each[...] = array
        return out[0] if len(out) == 1 else out

    def __getattr__(self, name: str) -> Any:
        # Shape, dtype and sizes need no data.
        if name in ("shape", "dtype", "ndim", "size", "nbytes", "itemsize"):
            return getattr(self._outline, name)
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(np.asarray(self), name)

    def __len__(self) -> int:
        return len(self._outline)

    def __iter__(self) -> Any:
        return (self[row] for row in range(len(self)))

    def __contains__(self, value: Any) -> bool:
        return value in np.asarray(self)

    def __bool__(self) -> bool:
        return bool(np.asarray(self))

    def __int__(self) -> int:
        return int(np.asarray(self))

    def __float__(self) -> float:
        return float(np.asarray(self))

    def __repr__(self) -> str:
        return repr(np.asarray(self))

    def __dlpack__(self, **kwargs: Any) -> Any:
        # PyTorch uses it to make a tensor at once, and not row by row. A copy, because tensors are writable.
        return np.array(self).__dlpack__(**kwargs)

    def __dlpack_device__(self) -> Any:
        return np.empty(0).__dlpack_device__()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return np.array(self).__reduce_ex__(protocol)


class _Part(View):
    """View of a part of another view."""

    def __init__(self, whole: View, index: Any, outline: np.ndarray) -> None:
        super().__init__(outline)
        self._whole, self._index = whole, index

    def _read(self, index: Any) -> Any:
        return self._whole._read(self._index)[index]

    def __setitem__(self, index: Any, values: Any) -> None:
        part = np.array(self._whole._read(self._index))
        part[index] = values
        self._whole[self._index] = part


class SlotView(View):
    """View of values that are computed for slots, and written slot by slot."""

    def __init__(
        self, outline: np.ndarray, read: Callable[[np.ndarray], np.ndarray], write: Callable[[np.ndarray, Any], None]
    ) -> None:
        """Show the values (num, *shape) that `read` returns; `write` takes slots, each once, and their values."""
        super().__init__(outline)
        self._read_slots, self._write_slots = read, write

    def _block(self, index: Any) -> tuple[np.ndarray, np.ndarray, tuple[Any, ...]]:
        """Return slots, their values, and the index that selects from these what `index` selects."""
        slots, lead, index = locate(index, *self._outline.shape[:2])
        return slots, self._read_slots(slots).reshape(*lead, *self._outline.shape[2:]), index

    def _read(self, index: Any) -> Any:
        _, block, index = self._block(index)
        return block[index]

    def __setitem__(self, index: Any, values: Any) -> None:
        slots, block, index = self._block(index)
        block[index] = values
        self._write_slots(slots, block.reshape(-1, *self._outline.shape[2:]))


class ColumnView(View):
    """View of an array that calls a function with the affected slots before it is written."""

    def __init__(self, column: Callable[[], np.ndarray], before: Callable[[np.ndarray], None]) -> None:
        """Show the array that `column` returns; call `before` with the slots, each once, that are written next."""
        array = column()
        super().__init__(outline(array.shape, array.dtype))
        self._column, self._before = column, before

    def _read(self, index: Any) -> Any:
        return self._column()[index]

    def __setitem__(self, index: Any, values: Any) -> None:
        slots, _, _ = locate(index, *self._outline.shape[:2])
        self._before(slots)
        self._column()[index] = values


class Views(dict[str, View]):
    """Views of the parts of Dict observations. Setting an item writes an array into the part of this name."""

    def __setitem__(self, name: str, values: Any) -> None:
        replace(name, self[name], values)

    update = MutableMapping.update  # calls the method above

    def __reduce__(self) -> Any:
        return dict, (dict(self),)


def outline(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return an array of zeros of a shape and dtype that takes no memory."""
    return np.broadcast_to(np.zeros((), dtype), shape)


def replace(name: str, array: Any, values: Any) -> None:
    """Write `values` over the whole content of a view or array."""
    if tuple(np.shape(values)) != tuple(array.shape):
        raise ValueError(f"{name} must have the shape {tuple(array.shape)}, got {tuple(np.shape(values))}.")
    array[...] = values


def locate(index: Any, capacity: int, num_envs: int) -> tuple[np.ndarray, tuple[int, ...], tuple[Any, ...]]:
    """Find the slots that an index of (capacity, num_envs, *shape) selects, and possibly more.

    Returns:
      slots, (num,), row * num_envs + environment, each once; the leading axes of an array of these slots alone, instead
        of (capacity, num_envs); and the index of that array that selects the same.
    """
    keys = index if isinstance(index, tuple) else (index,)
    first, second = (*keys, None, None)[:2]
    if _is_integers(first) and _is_integers(second):
        slots, one = _unique(_within(first, capacity, 0) * num_envs + _within(second, num_envs, 1))
        return slots, (len(slots),), (one, *keys[2:])
    rest = keys[1:]
    if _is_integers(first):
        rows, first = _unique(_within(first, capacity, 0))
    elif isinstance(first, slice):
        rows, first = np.arange(*first.indices(capacity)), slice(None)
    else:
        rows, first, rest = np.arange(capacity), first, keys[1:]
    slots = (rows[:, None] * num_envs + np.arange(num_envs)).reshape(-1)
    return slots, (len(rows), num_envs), (first, *rest) if keys else ()


def _unique(numbers: np.ndarray) -> tuple[np.ndarray, Any]:
    """Return each number once, and indices into them; an int for a single number, which drops an axis, as in NumPy."""
    if numbers.ndim == 0:
        return numbers.reshape(1), 0
    unique, inverse = np.unique(numbers, return_inverse=True)
    return unique, inverse.reshape(numbers.shape)


def _within(key: Any, size: int, axis: int) -> np.ndarray:
    numbers: np.ndarray = np.asarray(key, np.int64)
    out = (numbers < -size) | (numbers >= size)
    if out.any():
        raise IndexError(f"index {numbers[out][0]} is out of bounds for axis {axis} with size {size}")
    return numbers % size


def _is_basic(key: Any) -> bool:
    """Return whether NumPy returns a view for this key."""
    return key is None or key is ... or (isinstance(key, (int, np.integer, slice)) and not isinstance(key, bool))


def _is_integers(key: Any) -> bool:
    if key is None or isinstance(key, (bool, slice, tuple)) or key is ...:
        return False
    return np.asarray(key).dtype.kind in "iu"
