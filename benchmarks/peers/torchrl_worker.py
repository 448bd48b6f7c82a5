"""TorchRL's SliceSampler over a tensor storage, in the environment of torchrl-requirements.txt."""

from __future__ import annotations

import importlib.metadata
import statistics
import time
from typing import Any

import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.data.replay_buffers.samplers import SliceSampler

from benchmarks.peers.worker import answer

CHUNK = 1_000_000


class Slices:
    """Slices of a buffer whose episodes are all of one length."""

    def make(
        self, stored: int, capacity: int, episode: int, num_slices: int, slice_len: int, cache: bool
    ) -> dict[str, Any]:
        """Fill a buffer of one byte an observation, and as little else as the sampler needs."""
        self.buffer: Any = None  # before the next one takes its memory
        sampler = SliceSampler(num_slices=num_slices, end_key=("next", "done"), cache_values=cache, strict_length=True)
        self.buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(capacity), sampler=sampler, batch_size=num_slices * slice_len
        )
        done = (torch.arange(CHUNK) % episode == episode - 1)[:, None]
        observation = torch.zeros(CHUNK, 1, dtype=torch.uint8)
        self.steps = TensorDict({"observation": observation, "next": TensorDict({"done": done}, [CHUNK])}, [CHUNK])
        for _ in range(stored // CHUNK):
            self.buffer.extend(self.steps)
        return {"versions": {name: importlib.metadata.version(name) for name in ("torchrl", "tensordict", "torch")}}

    def run(self, writes: int, rounds: int) -> dict[str, Any]:
        """The median time of a sample, with so many steps written before each, after two that are not counted."""
        seconds = []
        for _ in range(rounds + 2):
            start = time.perf_counter()
            if writes:
                self.buffer.extend(self.steps[:writes])
            self.buffer.sample()
            seconds.append(time.perf_counter() - start)
        return {"seconds": statistics.median(seconds[2:])}


if __name__ == "__main__":
    slices = Slices()
    answer({"make": slices.make, "run": slices.run})
