"""Draw docs/environments/pictures/: our picture of a state next to the reference's picture, if there is one.

    python docs/pictures.py

It needs Pillow, pygame, minatar and seaborn.
"""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path

import gymnasium
import jax
import jax.numpy as jnp
import minatar.gym
import numpy as np
from PIL import Image

import jaxenvs

FOLDER = Path(__file__).parent / "environments" / "pictures"
SCALE, GAP, COLORS = 2, 6, 64  # shrunk by so much, grey pixels in between, colours of the file

# A state of each, as Gymnasium has it: numbers, in the order in which our states have them too.
STATES: dict[str, list[float]] = {
    "CartPole-v1": [0.6, 0.0, 0.15, 0.0],
    "MountainCar-v0": [-0.1, 0.02],
    "MountainCarContinuous-v0": [-0.9, 0.02],
    "Pendulum-v1": [2.2, 0.0],
    "Acrobot-v1": [0.9, 0.7, 0.0, 0.0],
    "FrozenLake-v1": [9],
    "CliffWalking-v1": [26],
    "Taxi-v4": [((2 * 5 + 2) * 5 + 0) * 4 + 1],
}
# Whose reference has no picture, or the same one, and the seed of a start.
ALONE = {"BitFlipping-v0": 0, "ArmReach-v0": 3, "BipedalWalker-v3": 0, "BipedalWalkerHardcore-v3": 0}
GAMES = {"Asterix": 20, "Breakout": 12, "Freeway": 30, "Seaquest": 30, "SpaceInvaders": 25}  # after this many steps


def reference(id: str, numbers: list[float]) -> np.ndarray:
    """Return Gymnasium's picture of a state."""
    env = gymnasium.make(id, render_mode="rgb_array").unwrapped
    env.reset(seed=0)
    if isinstance(env.observation_space, gymnasium.spaces.Discrete):
        (env.s,) = numbers
    else:
        env.state = np.array(numbers)
    return np.asarray(env.render())


def ours(id: str, numbers: list[float]) -> np.ndarray:
    """Return our picture of the same state."""
    env = jaxenvs.make(id).unwrapped
    state, _ = env.reset(jax.random.key(0))
    names = [field.name for field in dataclasses.fields(state)][: len(numbers)]
    return env.render(dataclasses.replace(state, **dict(zip(names, jnp.asarray(numbers), strict=True))))


def cards() -> tuple[np.ndarray, np.ndarray]:
    """Return both pictures of Blackjack, with hands that Gymnasium has dealt."""
    theirs = gymnasium.make("Blackjack-v1", render_mode="rgb_array").unwrapped
    theirs.reset(seed=3)
    env = jaxenvs.make("Blackjack-v1").unwrapped
    state, _ = env.reset(jax.random.key(0))
    total, has_ace, card = sum(theirs.player), 1 in theirs.player, theirs.dealer[0]
    seen = {"total": jnp.asarray(total), "has_ace": jnp.asarray(has_ace), "dealer_card": jnp.asarray(card)}
    return env.render(dataclasses.replace(state, **seen)), np.asarray(theirs.render())


def games() -> np.ndarray:
    """Return MinAtar's pictures: ours in the first row, and the reference's of the same observations in the second."""
    pairs = []
    for name, num_steps in GAMES.items():
        env = jaxenvs.make(f"MinAtar/{name}-v1")
        state, timestep = env.reset(jax.random.key(0))
        step = jax.jit(env.step)
        for action in np.random.default_rng(0).integers(env.action_space.n, size=num_steps):
            state, timestep = step(state, action)
        theirs = minatar.gym.BaseEnv(game=re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower(), render_mode="rgb_array")
        theirs.game.state = lambda seen=timestep.observation: np.asarray(seen)
        colors = np.round(255 * theirs.render()).astype(np.uint8)
        size = 120
        drawn = np.asarray(env.draw(state, size, size))
        pairs.append(np.concatenate([drawn, gap(GAP, size), np.kron(colors, np.ones((12, 12, 1), np.uint8))]))
    height = len(pairs[0])
    return np.concatenate([part for pair in pairs for part in (pair, gap(height, GAP))][:-1], axis=1)


def alone(id: str, seed: int) -> np.ndarray:
    """Return our picture of a start, at half size."""
    env = jaxenvs.make(id)
    height, width = env.render_size
    return np.asarray(env.draw(env.reset(jax.random.key(seed))[0], height // SCALE, width // SCALE))


def gap(height: int, width: int) -> np.ndarray:
    """Return the gap between two pictures."""
    return np.full((height, width, 3), 200, np.uint8)


def write(name: str, picture: np.ndarray) -> None:
    """Write a picture as a small file."""
    path = FOLDER / f"{name}.png"
    Image.fromarray(picture).quantize(COLORS, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"wrote {path.name}, {path.stat().st_size / 1000:.1f} kB")


def side_by_side(name: str, ours: np.ndarray, theirs: np.ndarray) -> None:
    """Put our picture on the left and the reference's on the right, at the same height."""
    left, right = (Image.fromarray(picture) for picture in (ours, theirs))
    height = min(left.height, right.height) // SCALE
    shrunk = [
        np.asarray(image.resize((image.width * height // image.height, height), Image.Resampling.BOX))
        for image in (left, right)
    ]
    write(name, np.concatenate([shrunk[0], gap(height, GAP), shrunk[1]], axis=1))


if __name__ == "__main__":
    os.environ["SDL_VIDEODRIVER"] = "dummy"
    FOLDER.mkdir(exist_ok=True)
    for id, numbers in STATES.items():
        side_by_side(id, ours(id, numbers), reference(id, numbers))
    side_by_side("Blackjack-v1", *cards())
    for id, seed in ALONE.items():
        write(id, alone(id, seed))
    write("MinAtar", games())
