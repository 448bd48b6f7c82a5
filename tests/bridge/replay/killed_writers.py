"""Kill writers of a memory-mapped buffer, again and again, and look at what they leave. `python killed_writers.py PATH`

A row is a number: so is its observation, reward and action. An episode ends after each number that 7 divides with the
environment's index as the remainder, and then its final observation is half a step further.
"""

import mmap
import os
import random
import signal
import struct
import sys
import time

import numpy as np
from gymnasium import spaces

from bridge import ReplayBuffer

CAPACITY, NUM_ENVS, KILLS = 200, 3, 25
SPACE = spaces.Box(-np.inf, np.inf, (1,), np.float64)


def open_buffer(path):
    return ReplayBuffer(CAPACITY * NUM_ENVS, SPACE, SPACE, device="cpu", n_envs=NUM_ENVS, storage="memmap", path=path)


def rows(first, count):
    """The arguments of an `extend`."""
    number = np.arange(first, first + count, dtype=float)[:, None].repeat(NUM_ENVS, 1)
    ends = number % 7 == np.arange(NUM_ENVS)
    return number, number, number, ends, ends & (number % 2 == 0), np.where(ends, number + 0.5, number + 1)


def write(path, first, shared):
    """Write rows for ever.

    `shared` holds the newest row flushed, how many were stored then, and how many came since; whether a flush runs; and
    how often rows were written.
    """
    buffer, rng = open_buffer(path), random.Random(first)
    number = first
    while True:
        count = rng.choice([1, 1, 1, 2, 30, 250])
        flushed, stored, since = struct.unpack("ddd", shared[:24])
        shared[:24] = struct.pack("ddd", flushed, stored, since + count)
        observation, action, reward, terminated, truncated, final = rows(number, count)
        if count == 1:
            infos = [{"TimeLimit.truncated": bool(flag)} for flag in (truncated & ~terminated)[0]]
            buffer.add(
                observation[0][:, None], final[0][:, None], action[0], reward[0], terminated[0] | truncated[0], infos
            )
        else:
            buffer.add_rollout(observation, action, reward, terminated, truncated, final)
        number += count
        shared[32:40] = struct.pack("d", struct.unpack("d", shared[32:40])[0] + 1)
        if rng.random() < 0.2:
            shared[24:25] = b"1"  # a flush that is interrupted may have come to its end
            buffer.flush()
            shared[:24] = struct.pack("ddd", number - 1, buffer.size(), 0)
            shared[24:25] = b"0"


def check(path, shared):
    """Look at what is there; returns the newest number."""
    buffer = open_buffer(path)
    flushed, stored, since = struct.unpack("ddd", shared[:24])
    oldest, size = buffer.stored()
    observation = np.roll(buffer.observations[..., 0], -oldest, axis=0)[:size]
    newest = observation[-1, 0] if size else -1
    if shared[24:25] == b"0":
        assert size >= min(stored, CAPACITY - since - CAPACITY // 64 - 1), (size, stored, since)
        assert not size or newest == flushed, (newest, flushed)
    if size:
        following = np.roll(buffer.next_observations[..., 0], -oldest, axis=0)[:size]
        ends = np.roll(buffer.dones, -oldest, axis=0)[:size]
        wanted = observation % 7 == np.arange(NUM_ENVS)
        assert (ends[:-1] >= wanted[:-1]).all()
        assert (following == np.where(wanted, observation + 0.5, observation + 1)).all()
        # Writers left episodes without an end: there the next number is another, and no slice goes on.
        samples = buffer.sample_slices(200, 2)
        assert (samples.observations[:, 1] == samples.next_observations[:, 0]).all()
        samples = buffer.sample(500)
        assert (samples.observations == samples.rewards).all()
        assert (samples.actions == samples.rewards).all()
    buffer.close()
    return newest


def main(path):
    rng, shared, wrapped = random.Random(0), mmap.mmap(-1, 40), 0
    open_buffer(path).close()
    shared[:25] = struct.pack("ddd", -1, 0, 0) + b"0"
    newest = -1
    for _ in range(KILLS):
        first = int(newest) + 1000
        shared[32:40] = struct.pack("d", 0)
        pid = os.fork()
        if pid == 0:
            write(path, first, shared)
        writes = rng.randrange(30)
        while struct.unpack("d", shared[32:40])[0] < writes:
            time.sleep(0.0005)
            assert os.waitpid(pid, os.WNOHANG) == (0, 0), "A writer failed."
        time.sleep(0.002 * rng.random())
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        newest = check(path, shared)
        buffer = open_buffer(path)
        wrapped += buffer.full
        shared[:25] = struct.pack("ddd", newest, buffer.size(), 0) + b"0"
        buffer.close()
    print(f"{KILLS} kills, {wrapped} of a full ring")


if __name__ == "__main__":
    main(sys.argv[1])
