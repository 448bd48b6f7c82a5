"""Compare how far bridge's DQN parts from stock SB3's, with the same draws, and SB3's from itself with other rounding.

    python -m benchmarks.rounding [timesteps] [repetitions]

MountainCar with RL Baselines3 Zoo's hyperparameters. SB3 takes the actions and the rows of the batches of bridge's
training. Then it does so again, and before each update, each weight is multiplied by a factor of 1 + 3e-8 * N(0, 1),
which is less than one rounding of float32. Distances are norms of the difference over the norm of SB3's weights.
"""

import copy
import sys
from typing import Any

import jax
import numpy as np
import stable_baselines3
import torch

import bridge
from bridge.app.tuned import TUNED
from jaxenvs.learn.off_policy.store.replay import Replay

ZOO = TUNED["dqn"]["MountainCar-v0"]
SETTINGS = {name: value for name, value in ZOO.items() if name not in ("n_timesteps", "n_envs")}
UPDATES = (500, 1500, 3000, 6000)


def record(method: str, what: Any) -> list[np.ndarray]:
    """Return the list to which each call of a compiled Replay's method adds a part of its arguments or result."""
    own, drawn = getattr(Replay, method), []

    def recorded(*given: Any) -> Any:
        result = own(*given)
        jax.debug.callback(lambda each: drawn.append(np.array(each)), what(given, result), ordered=True)
        return result

    setattr(Replay, method, recorded)
    return drawn


def make(package: Any) -> Any:
    env = bridge.make_vec_env("MountainCar-v0", 1, seed=0)
    return package.DQN("MlpPolicy", env, seed=0, device="cpu", **copy.deepcopy(SETTINGS))


def weights(model: Any) -> np.ndarray:
    return np.concatenate([part.detach().numpy().ravel().copy() for part in model.q_net.parameters()])


def repeat(timesteps: int, start: Any, drawn: Any, scale: float = 0.0, seed: int = 0) -> list[np.ndarray]:
    """Train SB3's DQN with the draws. Return its weights before each update, and at the end."""
    model, generator = make(stable_baselines3), torch.Generator().manual_seed(seed)
    model.set_parameters(start)
    actions, rows = map(iter, drawn)
    model._sample_action = lambda *_, **__: (next(actions),) * 2
    seen: list[np.ndarray] = []

    def sample(count: int, env: Any = None) -> Any:
        seen.append(weights(model))
        for part in model.q_net.parameters():
            part.data *= 1 + scale * torch.randn(part.shape, generator=generator)
        return model.replay_buffer._get_samples(next(rows), env)

    model.replay_buffer.sample = sample
    model.learn(timesteps)
    return [*seen, weights(model)]


def distance(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.linalg.norm(one - other) / np.linalg.norm(other))


def main(timesteps: int = 20_000, repetitions: int = 3) -> None:
    torch.set_num_threads(1)
    drawn = record("add", lambda given, _: given[2]), record("draw", lambda _, result: result[0])
    ours = make(bridge)
    start = copy.deepcopy(ours.get_parameters())
    ours.learn(timesteps)
    stock = repeat(timesteps, start, drawn)
    print(f"bridge from SB3, after {len(stock) - 1} updates: {distance(weights(ours), stock[-1]):.2g}")
    for seed in range(repetitions):
        found = list(map(distance, repeat(timesteps, start, drawn, 3e-8, seed), stock))
        along = ", ".join(f"{found[n]:.2g} after {n}" for n in UPDATES if n < len(found))
        print(f"SB3 from SB3 with other rounding, seed {seed}: {along}; at the end {found[-1]:.2g}", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
