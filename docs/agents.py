"""Train and record an agent on each environment: docs/environments/films/, and docs/agents.gif with some of them.

    python docs/agents.py [--only CartPole-v1 Taxi-v4 ...]

All of them take about twenty minutes. With --only, the other recordings do not change. --only without an environment
only creates docs/agents.gif again, which every run does. It needs Pillow.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from PIL import Image, ImageSequence
from stable_baselines3.common.vec_env import VecNormalize

import jaxenvs
from bridge.app.hyperparameters import to_schedule
from bridge.app.tuned import TUNED
from bridge.app.tuned import read as read_settings
from jaxenvs.sb3 import PPO, evaluate, make_vec_env

README_FILM = Path(__file__).with_name("agents.gif")
FOLDER = Path(__file__).parent / "environments" / "films"

MOST_STEPS = 1_000_000  # of the Zoo's budgets, some of which are for the last per cent
MOST_FRAMES, MOST_FPS, WIDTH, COLORS = 110, 20, 192, 64
EPISODES, HELD_SECONDS = 8, 1.0  # in a film at most; how long the last picture of each is shown
MOST_EVALUATED = 5000  # of an episode, as some have no limit

# RL-Zoo's settings, and ours where it has none.
OURS = read_settings(Path(__file__).with_name("videos.toml"))["ppo"]
SETTINGS: dict[str, dict[str, Any]] = {
    env_id: settings for env_id, settings in (TUNED["ppo"] | OURS).items() if env_id in jaxenvs.registered()
}
IN_README = (
    ("CartPole-v1", "Acrobot-v1", "Pendulum-v1", "Taxi-v4"),
    ("MinAtar/Breakout-v1", "MinAtar/SpaceInvaders-v1", "MinAtar/Seaquest-v1", "LunarLander-v3"),
)
README_SIZE, README_FRAMES, README_MS = (160, 120), 80, 100


def environment(env_id: str) -> jaxenvs.Environment[Any]:
    """An environment on which an agent is trained and recorded."""
    if env_id.startswith("CliffWalking"):  # has no limit, and who does not know it yet walks for ever
        return jaxenvs.FlattenObservation(jaxenvs.make(env_id, max_episode_steps=200))
    env = jaxenvs.make(env_id)
    is_table = SETTINGS[env_id].get("policy_kwargs", {}).get("net_arch") == []
    return jaxenvs.FlattenObservation(env) if is_table else env


def train(env_id: str, env: jaxenvs.Environment[Any]) -> PPO:
    """Train an agent on the task."""
    settings = dict(SETTINGS[env_id])
    num_envs, total = settings.pop("n_envs"), settings.pop("n_timesteps")
    total = min(total, MOST_STEPS) if env_id in TUNED["ppo"] else total
    venv = make_vec_env(env, num_envs, seed=0)
    if normalize := settings.pop("normalize", False):
        venv = VecNormalize(venv, gamma=settings.get("gamma", 0.99), **(normalize if normalize is not True else {}))
    settings = {name: to_schedule(value) for name, value in settings.items()}
    return PPO("MlpPolicy", venv, seed=0, **settings).learn(total)


def play(model: PPO, env: jaxenvs.Environment[Any]) -> list[Any]:
    """Return the states of successive episodes. The last state of each is repeated for a moment."""
    normalize, states, length = model.get_vec_normalize_env(), [], MOST_FRAMES * pace(env)
    reset, step = jax.jit(env.reset), jax.jit(env.step)
    for episode in range(EPISODES):
        state, timestep = reset(jax.random.key(episode))
        states.append(state)
        while not timestep.done and len(states) < length:
            seen = np.asarray(timestep.observation)[None]
            seen = seen if normalize is None else normalize.normalize_obs(seen)
            action = model.predict(seen, deterministic=True)[0][0]
            state, timestep = step(state, jax.numpy.asarray(action))
            states.append(state)
        states += [state] * math.ceil(HELD_SECONDS * env.render_fps)
        if len(states) >= length:
            break
    return states[:length]


def film(states: list[Any], env: jaxenvs.Environment[Any], path: Path) -> None:
    """Record states as a GIF in real time, unless that needs more pictures per second than a small file can hold."""
    every = pace(env)
    height, width = env.render_size
    jaxenvs.gif(env, states[::every], path, fps=env.render_fps / every, size=(2 * WIDTH * height // width, 2 * WIDTH))
    pictures, durations = read(path)
    save([picture.reduce(2) for picture in pictures], durations, path)


def pace(env: jaxenvs.Environment[Any]) -> int:
    """Return n, if every n-th state is shown."""
    return math.ceil(env.render_fps / MOST_FPS)


def read(path: Path) -> tuple[list[Image.Image], list[int]]:
    """Return the pictures of a recording, and for how many milliseconds each is shown."""
    with Image.open(path) as whole:
        return zip(*((one.convert("RGB"), one.info["duration"]) for one in ImageSequence.Iterator(whole)), strict=True)


def save(pictures: Sequence[Image.Image], durations: Sequence[int], path: Path) -> None:
    """Write the pictures with one palette, so that still parts take no space."""
    pixels = np.stack([np.asarray(picture) for picture in pictures])
    numbers, of_pixel, counts = np.unique(pixels @ [1 << 16, 1 << 8, 1], return_inverse=True, return_counts=True)
    colors = np.stack([numbers >> 16, numbers >> 8 & 255, numbers & 255], axis=1).astype(np.uint8)
    areas = colors[np.argsort(-counts)][: COLORS // 2]  # exactly; the rest is edges, which may be a shade off
    edges = Image.fromarray(colors[None]).quantize(COLORS // 2).getpalette()
    palette = np.concatenate([areas, np.reshape(edges, (-1, 3))])
    # Pillow's own search for the nearest is not exact: white would be another white.
    nearest = np.array([np.square(palette - color.astype(int)).sum(1).argmin() for color in colors], np.uint8)
    indices = nearest[of_pixel].reshape(pixels.shape[:-1])
    images = [Image.fromarray(each) for each in indices]
    for image in images:
        image.putpalette(palette.astype(np.uint8).tobytes())
    first, *others = images
    first.save(path, save_all=True, append_images=others, duration=list(durations), loop=0, optimize=True)
    print(f"wrote {path.name}, {path.stat().st_size / 1000:.0f} kB", flush=True)


def path_of(env_id: str) -> Path:
    """Return the path of its recording."""
    return FOLDER / f"{env_id.rpartition('/')[2]}.gif"


def put_together() -> None:
    """Create docs/agents.gif from the stored recordings."""
    rows = []
    for ids in IN_README:
        tiles = []
        for env_id in ids:
            pictures, durations = read(path_of(env_id))
            shown_until = np.cumsum(durations)
            times = README_MS * np.arange(README_FRAMES) % shown_until[-1]
            tiles.append([framed(pictures[index]) for index in np.searchsorted(shown_until, times, side="right")])
        rows.append([np.concatenate(row, axis=1) for row in zip(*tiles, strict=True)])
    pictures = [Image.fromarray(np.concatenate(both)) for both in zip(*rows, strict=True)]
    save(pictures, [README_MS] * README_FRAMES, README_FILM)


def framed(picture: Image.Image) -> np.ndarray:
    """Scale a picture to a tile of the README's recording, on a background in the color of its corner."""
    ground = picture.getpixel((0, 0))
    picture.thumbnail(README_SIZE, Image.Resampling.LANCZOS)
    tile = Image.new("RGB", README_SIZE, ground)
    tile.paste(picture, tuple((whole - part) // 2 for whole, part in zip(README_SIZE, picture.size, strict=True)))
    return np.asarray(tile)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=SETTINGS, default=list(SETTINGS), metavar="ID")
    FOLDER.mkdir(exist_ok=True)
    for env_id in parser.parse_args().only:
        started, env = time.process_time(), environment(env_id)
        model = train(env_id, env)
        result = evaluate(model, env, n_episodes=100, max_steps=MOST_EVALUATED)
        print(
            f"{env_id}: {result} after {model.num_timesteps:,} steps, {time.process_time() - started:.0f} s", flush=True
        )
        film(play(model, env), env, path_of(env_id))
    if all(path_of(env_id).exists() for ids in IN_README for env_id in ids):
        put_together()
