"""Random histories of environments whose observations say where they are, for tests of replay buffers."""

import copy

import numpy as np
from gymnasium import spaces

ACTION = spaces.Box(-1, 1, (2,), np.float32)
OBSERVATIONS = {
    "vector": spaces.Box(-np.inf, np.inf, (3,), np.float32),
    "image": spaces.Box(0, 255, (2, 2, 1), np.uint8),
    "discrete": spaces.Discrete(200),
    "dict": spaces.Dict({"image": spaces.Box(0, 255, (2, 2, 1), np.uint8), "which": spaces.Discrete(200)}),
}


class History:
    """Episodes of several environments. Every element of an observation is the same number, `episode * 16 + step`."""

    def __init__(self, num_envs, space, seed, end_probability=0.2):
        self.num_envs, self.space = num_envs, space
        self.rng, self.end_probability = np.random.default_rng(seed), end_probability
        self.episode, self.step = np.arange(num_envs), np.zeros(num_envs, int)
        self.episodes = num_envs

    def observation(self, number):
        def of(space):
            number_of = number.reshape(-1, *[1] * len(space.shape))
            return np.broadcast_to(number_of, (self.num_envs, *space.shape)).astype(space.dtype)

        if isinstance(self.space, spaces.Dict):
            return {name: of(part) for name, part in self.space.items()}
        return of(self.space)

    @property
    def number(self):
        return (self.episode * 16 + self.step) % 200

    def reset(self, env_indices):
        """Begin new episodes, as if environments were reset by hand."""
        count = len(self.episode[env_indices])
        self.episode[env_indices] = self.episodes + np.arange(count)
        self.step[env_indices], self.episodes = 0, self.episodes + count

    def fill(self, steps, *buffers):
        """Add a number of steps to each buffer."""
        for _ in range(steps):
            transition = self.next()
            for buffer in buffers:
                buffer.add(*copy.deepcopy(transition))

    def next(self):
        """The arguments of an `add`."""
        before = self.observation(self.number)
        self.step += 1
        after = self.observation(self.number)
        done = (self.rng.random(self.num_envs) < self.end_probability) | (self.step == 16)
        timeout = done & (self.rng.random(self.num_envs) < 0.5)
        action = self.rng.uniform(-1, 1, (self.num_envs, 2)).astype(np.float32)
        reward = self.rng.normal(size=self.num_envs).astype(np.float32)
        infos = [{"TimeLimit.truncated": bool(is_timeout)} if is_timeout else {} for is_timeout in timeout]
        self.reset(np.flatnonzero(done))
        return before, after, action, reward, done, infos


class CountedArray:
    """An array that notes how many elements are read at once."""

    def __init__(self, array):
        self.array, self.read = array, []

    def __getattr__(self, name):
        return getattr(self.array, name)

    def reshape(self, *shape):
        return self

    def take(self, slots, axis, out, mode):
        self.read.append(np.size(slots))
        return self.array.reshape(-1).take(slots, mode=mode)
