"""Draws docs/environments/pictures/: our picture of a state beside the reference's. python docs/pictures.py

It needs pygame and Pillow.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image

import jaxenvs

FOLDER = Path(__file__).parent / "environments" / "pictures"
SCALE, GAP, COLORS = 2, 6, 64  # shrunk by so much, grey pixels in between, colours of the file

# A state of each, as Gymnasium has it.
STATES = {
    "CartPole-v1": [0.6, 0.0, 0.15, 0.0],
    "MountainCar-v0": [-0.1, 0.02],
    "MountainCarContinuous-v0": [-0.9, 0.02],
    "Pendulum-v1": [2.2, 0.0],
    "Acrobot-v1": [0.9, 0.7, 0.0, 0.0],
}


def reference(id: str, numbers: list[float]) -> np.ndarray:
    """Gymnasium's picture."""
    env = gymnasium.make(id, render_mode="rgb_array").unwrapped
    env.reset(seed=0)
    env.state = np.array(numbers)
    return np.asarray(env.render())


def ours(id: str, numbers: list[float]) -> np.ndarray:
    """Our picture of the same state."""
    env = jaxenvs.make(id).unwrapped
    state, _ = env.reset(jax.random.key(0))
    names = [field.name for field in dataclasses.fields(state)][: len(numbers)]
    return env.render(dataclasses.replace(state, **dict(zip(names, jnp.asarray(numbers), strict=True))))


if __name__ == "__main__":
    os.environ["SDL_VIDEODRIVER"] = "dummy"
    FOLDER.mkdir(exist_ok=True)
    for id, numbers in STATES.items():
        pair = [Image.fromarray(picture(id, numbers)).reduce(SCALE) for picture in (ours, reference)]
        gap = np.full((pair[0].height, GAP, 3), 200, np.uint8)
        both = Image.fromarray(np.concatenate([np.asarray(pair[0]), gap, np.asarray(pair[1])], axis=1))
        path = FOLDER / f"{id}.png"
        both.quantize(COLORS, dither=Image.Dither.NONE).save(path, optimize=True)
        print(f"wrote {path.name}, {path.stat().st_size / 1000:.1f} kB")
