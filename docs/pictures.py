"""Draw all pictures and films of the documentation, except plots.

    python docs/pictures.py [--only ppo-CartPole-v1 ...]

These are the films of the pretrained agents (docs/pretrained/), the pictures of the gallery, docs/agents.gif, and
docs/environments/pictures/: our picture of a state next to the reference's, if there is one. With --only, the films of
other agents do not change. It needs Pillow, moviepy, pygame, minatar and seaborn.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import sys
from pathlib import Path

import gymnasium
import jax
import jax.numpy as jnp
import minatar.gym
import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1]))
import jaxenvs
from docs import films
from docs.environment_pages import PRETRAINED, best_agent, environments

FOLDER = Path(__file__).parent / "environments" / "pictures"
SCALE, GAME_SIZE = 2, 160  # shrunk by so much; side of a game of MinAtar [pixels]

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


def games() -> Image.Image:
    """Return MinAtar's pictures: ours in the first row, and the reference's of the same observations in the second."""
    columns = []
    for name, num_steps in GAMES.items():
        env = jaxenvs.make(f"MinAtar/{name}-v1")
        state, timestep = env.reset(jax.random.key(0))
        step = jax.jit(env.step)
        for action in np.random.default_rng(0).integers(env.action_space.n, size=num_steps):
            state, timestep = step(state, action)
        theirs = minatar.gym.BaseEnv(game=re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower(), render_mode="rgb_array")
        theirs.game.state = lambda seen=timestep.observation: np.asarray(seen)
        colors = np.round(255 * theirs.render()).astype(np.uint8)
        drawn = np.asarray(env.draw(state, GAME_SIZE, GAME_SIZE))
        columns.append((name, drawn, np.kron(colors, np.ones((GAME_SIZE // 10, GAME_SIZE // 10, 1), np.uint8))))
    top = films.row([(f"{name}, jaxenvs", ours) for name, ours, _ in columns])
    return films.column([top, films.row([(f"{name}, MinAtar", theirs) for name, _, theirs in columns])])


def alone(id: str, seed: int) -> np.ndarray:
    """Return our picture of a start, at half size."""
    env = jaxenvs.make(id)
    height, width = env.render_size
    return np.asarray(env.draw(env.reset(jax.random.key(seed))[0], height // SCALE, width // SCALE))


def side_by_side(ours: np.ndarray, theirs: np.ndarray) -> Image.Image:
    """Return our picture on the left and the reference's on the right, at the same height, each above its name."""
    left, right = (Image.fromarray(picture) for picture in (ours, theirs))
    height = min(left.height, right.height) // SCALE
    shrunk = [
        np.asarray(image.resize((image.width * height // image.height, height), Image.Resampling.BOX))
        for image in (left, right)
    ]
    return films.row([("jaxenvs", shrunk[0]), ("Gymnasium", shrunk[1])])


def main() -> None:
    """Draw everything."""
    agents = {folder.name: folder for folder in sorted(PRETRAINED.iterdir())}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=agents, default=list(agents), metavar="NAME")
    for name in parser.parse_args().only:
        films.record_agent(agents[name])
    for env in environments():
        if env.is_first and best_agent(env.id) is None:
            films.draw_start(env.id)
    films.draw_agents_gif()
    os.environ["SDL_VIDEODRIVER"] = "dummy"
    FOLDER.mkdir(exist_ok=True)
    for id, numbers in STATES.items():
        films.write(FOLDER / f"{id}.png", side_by_side(ours(id, numbers), reference(id, numbers)))
    films.write(FOLDER / "Blackjack-v1.png", side_by_side(*cards()))
    for id, seed in ALONE.items():
        films.write(FOLDER / f"{id}.png", Image.fromarray(alone(id, seed)))
    films.write(FOLDER / "MinAtar.png", games())


if __name__ == "__main__":
    main()
