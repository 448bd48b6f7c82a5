"""Train a recurrent model on an offline dataset: it learns how a pendulum moves, and sees only the angle.

The model has to remember how fast the pendulum turns. `sample_slices` returns pieces of episodes, each with the steps
before it (`burn_in`), which fill the memory.
Run it: python examples/offline_sequence_model.py
"""

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from jaxenvs.sb3 import ReplayBuffer

BURN_IN, SLICE_LEN = 4, 12
ANGLE = spaces.Box(-1, 1, (2,), np.float32)  # cosine and sine of the angle


def episodes(count):
    """Return a dataset of Pendulum-v1 with random actions, in the form of other datasets, such as Minari's."""
    env = gymnasium.make("Pendulum-v1")
    env.action_space.seed(0)
    for seed in range(count):
        observations, actions, rewards, truncated = [env.reset(seed=seed)[0][:2]], [], [], False
        while not truncated:
            actions.append(env.action_space.sample())
            observation, reward, _, truncated, _ = env.step(actions[-1])
            observations.append(observation[:2])
            rewards.append(reward)
        yield {"observations": np.array(observations), "actions": np.array(actions), "rewards": np.array(rewards)}


torch.manual_seed(0)
np.random.seed(0)  # noqa: NPY002  replay buffers use this generator, as in SB3
buffer = ReplayBuffer.from_episodes(episodes(50), ANGLE, spaces.Box(-2, 2, (1,), np.float32), device="cpu")
memory, head = torch.nn.GRU(3, 32, batch_first=True), torch.nn.Linear(32, 2)
optimizer = torch.optim.Adam([*memory.parameters(), *head.parameters()], lr=5e-3)
print(f"{buffer.size()} steps")

for update in range(401):
    slices = buffer.sample_slices(64, SLICE_LEN, burn_in=BURN_IN)
    hidden, _ = memory(torch.cat([slices.observations, slices.actions], dim=-1))
    moved = slices.next_observations - slices.observations
    # The model does not learn from the burn-in. At the beginning of an episode, part of it is masked anyway.
    error = (head(hidden) - moved)[:, BURN_IN:].square().mean()
    optimizer.zero_grad()
    error.backward()
    optimizer.step()
    if update % 100 == 0:
        share = error / moved[:, BURN_IN:].square().mean()
        print(f"update {update}: the model's error is {share:.1%} of the error of predicting no motion")
