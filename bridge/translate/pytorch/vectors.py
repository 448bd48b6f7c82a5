"""Tensors as one vector: their memory itself, as PyTorch, NumPy and JAX see it, wherever that is possible.

    memory   [ weight ......... | bias .. | weight ...................... | bias ]     each begins at 64 bytes
              ^ tensor's storage ^          ^ tensor's storage

Every tensor keeps a separate storage, so that pickles, copies and `torch.save` have its numbers and no others. A
tensor whose memory other objects refer to, or that a user has given other memory, stays where it lies: its numbers are
copied from there and to there.
"""

from __future__ import annotations

import concurrent.futures
import itertools
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch

from bridge.translate.pytorch.modules import aligned
from jaxenvs.learn.interfaces import Array

# What refers to the storage of a tensor that nothing else shares: the tensor, and the object that asks.
ALONE = 2
# From this many numbers on, parts are copied side by side: one core does not use all of the memory's bandwidth.
LONG = 2**20
_POOL = concurrent.futures.ThreadPoolExecutor(4)  # begins threads when it is used
# The memory of all vectors, by address. It lives as long as a tensor in it.
_MEMORY: weakref.WeakValueDictionary[int, np.ndarray] = weakref.WeakValueDictionary()


class Vector:
    """Tensors as one vector, (length,).

    Args:
      tensors: of one dtype.
      moves: whether `move` may move them. Tensors of float32 are then laid out as `aligned` does, others end to end.
    """

    def __init__(self, tensors: Iterable[torch.Tensor], moves: bool = True) -> None:
        self.tensors, self._moves = list(tensors), moves
        self.sizes = [tensor.numel() for tensor in self.tensors]
        dtype = self.tensors[0].dtype
        is_plain = moves and all(tensor.dtype is torch.float32 for tensor in self.tensors)
        starts = aligned(self.sizes) if is_plain else [*itertools.accumulate(self.sizes, initial=0)][:-1]
        self._slices = [slice(start, start + size) for start, size in zip(starts, self.sizes)]
        self._starts, self.length = np.array(starts), self._slices[-1].stop
        # The numbers of tensors that are not all in one memory.
        self._copy: np.ndarray | None = None
        self._is_there = False  # at the last `read`
        self._addresses: list[int] = []
        memory = _MEMORY.get(self.tensors[0].data_ptr())
        if memory is not None and memory.dtype == np.float32 and memory.shape == (self.length,):
            self._memory = memory
            self._addresses = self._addresses_in(memory)
        if not self.is_in_place():
            # Allocated by PyTorch, as NumPy's memory is not aligned.
            self._memory = torch.zeros(self.length, dtype=dtype).numpy()
            self._addresses = self._addresses_in(self._memory) if is_plain else []

    def _addresses_in(self, memory: np.ndarray) -> list[int]:
        return [memory.ctypes.data + each.start * memory.itemsize for each in self._slices]

    def move(self) -> None:
        """Move the tensors into one memory, if their memory is theirs alone."""
        if self.is_in_place() or not self._addresses or not all(map(is_alone, self.tensors)):
            return
        _MEMORY[self._memory.ctypes.data] = self._memory
        for tensor, part in zip(self.tensors, self._slices):
            self._memory[part] = tensor.detach().numpy().reshape(-1)
            tensor.data = torch.from_numpy(self._memory[part]).view(tensor.shape)

    def is_in_place(self) -> bool:
        """Return whether all tensors lie in this memory."""
        tensors = self.tensors
        is_there = [tensor.data_ptr() for tensor in tensors] == self._addresses
        return is_there and all([tensor.is_contiguous() for tensor in tensors])

    def read(self, split: bool = False) -> Any:
        """Return the vector: the memory of the tensors, or a copy that is valid until the next call.

        Args:
          split: return a tuple of its parts instead, unless it has one part or does not move.
        """
        return self.as_parts(self._read(), split)

    def as_parts(self, vector: np.ndarray, split: bool) -> np.ndarray | tuple[np.ndarray, ...]:
        """Return a vector, or the tuple of its parts, as `read` does."""
        return tuple(self.parts(vector)) if split and self._moves and len(self.tensors) > 1 else vector

    def _read(self) -> np.ndarray:
        self._is_there = self.is_in_place()
        if self._is_there:
            return self._memory
        if self._copy is None:
            self._copy = np.zeros_like(self._memory)
        # In one call, because each transfer from a GPU waits for all others.
        joined = torch.cat([tensor.detach().reshape(-1) for tensor in self.tensors]).cpu().numpy()
        for part, numbers in zip(self._slices, np.split(joined, np.cumsum(self.sizes[:-1]))):
            self._copy[part] = numbers
        return self._copy

    def write(self, vector: Array | tuple[Array, ...], as_read: bool = False) -> None:
        """Write a vector, or the tuple of its parts, into the tensors.

        Args:
          as_read: whether no code has run since the last `read` that could have moved the tensors.

        Raises:
          ValueError: the vector has another length. Nothing has changed.
        """
        self.require_length(vector)
        if self._is_there if as_read else self.is_in_place():
            self._put(self._memory, vector)
            return
        # Copied first, because torch warns of read-only arrays, such as JAX's.
        copy = np.zeros_like(self._memory)
        self._put(copy, vector)
        whole = torch.from_numpy(copy).to(self.tensors[0].device)
        with torch.no_grad():
            # In one call, because each call takes longer than its copy.
            parts = [whole[part].view_as(tensor) for part, tensor in zip(self._slices, self.tensors)]
            torch._foreach_copy_(self.tensors, parts)

    def _put(self, memory: np.ndarray, vector: Array | tuple[Array, ...]) -> None:
        if isinstance(vector, tuple):
            self._map(np.copyto, self.parts(memory), vector)
        else:
            np.copyto(memory, vector)

    def _map(self, function: Callable[..., object], *arguments: Iterable[object]) -> list[Any]:
        return [*(_POOL.map if self.length >= LONG else map)(function, *arguments)]

    def num_nan(self, vector: Array | tuple[Array, ...]) -> int:
        """Return how many numbers of a vector, or of the tuple of its parts, are NaN."""
        # The sum is NaN if any number is, and computing it takes a third of the time.
        total = sum(self._map(np.sum, vector)) if isinstance(vector, tuple) else vector.sum()
        parts = vector if isinstance(vector, tuple) else self.parts(vector)
        return sum(int(np.isnan(part).sum()) for part in parts) if np.isnan(total) else 0

    def require_length(self, vector: Array | tuple[Array, ...]) -> None:
        """Raise a ValueError if a vector, or the tuple of its parts, has another length."""
        if isinstance(vector, tuple):
            if (sizes := [part.size for part in vector]) != self.sizes:
                raise ValueError(f"The parts must have {self.sizes} numbers, got {sizes}.")
        elif vector.shape != (self.length,):
            raise ValueError(f"The vector must have {self.length} numbers, got the shape {vector.shape}.")

    def first_of_each(self, vector: np.ndarray) -> list[float]:
        """Return the first number of each tensor in a vector."""
        firsts: list[float] = vector[self._starts].tolist()
        return firsts

    def parts(self, vector: Array) -> list[Any]:
        """Return the parts of a vector that belong to the tensors, which leaves out the gaps."""
        return [vector[part] for part in self._slices]


def is_alone(tensor: torch.Tensor) -> bool:
    """Return whether PyTorch allocated the memory of a tensor for it, and nothing else refers to it.

    Others would be an earlier `state_dict`, a tied parameter, an array. Memory of a file, of another process or of
    NumPy was not allocated by PyTorch.
    """
    if tensor.device.type != "cpu" or not tensor.is_contiguous() or type(tensor.data) is not torch.Tensor:
        return False
    storage, count = tensor.untyped_storage(), getattr(torch._C, "_storage_Use_Count", None)
    if count is None or storage.is_shared() or storage.nbytes() != tensor.numel() * tensor.element_size():
        return False
    # Only memory that PyTorch allocated can be resized.
    is_pytorchs = storage.resizable() or any(
        0 <= storage.data_ptr() - memory.ctypes.data < memory.nbytes for memory in _MEMORY.values()
    )
    return is_pytorchs and count(storage._cdata) == ALONE


def flatten(lists: Iterable[Sequence[torch.Tensor]]) -> None:
    """Give the tensors of each list one memory, as far as `Vector.move` may."""
    for tensors in lists:
        if tensors:
            Vector(tensors).move()
