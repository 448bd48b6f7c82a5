"""Draw films of pretrained agents, the pictures of the gallery, and docs/agents.gif. docs/pictures.py calls it."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from PIL import Image, ImageDraw, ImageSequence

import jaxenvs
from docs.environment_pages import GALLERY, best_agent
from jaxenvs.environment import Environment, environment, static
from jaxenvs.picture_size import compiled_draw
from jaxenvs.sb3 import evaluate, load_pretrained, record
from jaxenvs.wrappers.bases import StatelessWrapper

AGENTS_GIF = Path(__file__).with_name("agents.gif")
LEAST_WIDTH = 400  # of a film [pixels]; smaller pictures are drawn so many times larger
SECONDS, MOST_SECONDS, MOST_EPISODES = 20, 30, 8  # of a film: as many whole episodes as fit, but at least one
TILE = 240, 360  # height and width of a picture of the gallery, and in agents.gif
COLORS = 64

SHOWN = (
    "LunarLander-v3",
    "CartPole-v1",
    "MountainCar-v0",
    "MinAtar/Breakout-v1",
    "MinAtar/SpaceInvaders-v1",
    "Taxi-v4",
)
COLUMNS, BORDER, BAR, FONT_SIZE = 3, 2, 32, 18
GREY, DARK, WHITE = (110, 118, 129), (36, 41, 47), (255, 255, 255)  # the border can be seen on white and on black
GIF_FRAMES, GIF_MS = 100, 100


@environment
class Sized(StatelessWrapper):
    """Wrapper that draws pictures of another size.

    Attributes:
      size: height and width of a picture [pixels].
    """

    env: Environment[Any]
    size: tuple[int, int] = static()

    def step(self, state: Any, action: Any) -> Any:
        return self.env.step(state, action)

    def render(self, state: Any) -> np.ndarray:
        return np.asarray(compiled_draw(self.env, state, *self.size))


def record_agent(folder: Path) -> None:
    """Write the film of an agent, and the picture of its environment in the gallery if it is the best agent there."""
    config = json.loads((folder / "config.json").read_text())
    model = load_pretrained(config["algorithm"], config["env_id"])
    env = model.get_env().unwrapped.venv.env_at(0)
    fps, (height, width) = env.render_fps, env.render_size
    length = evaluate(model, model.get_env(), 20, max_steps=MOST_SECONDS * fps).lengths.mean()
    episodes = min(max(int(SECONDS * fps / length), 1), MOST_EPISODES)
    scale = math.ceil(LEAST_WIDTH / width)
    env = Sized(env, (scale * height, scale * width))
    record(model, folder / "agent.mp4", env, episodes, max_steps=MOST_SECONDS * fps)
    print(f"wrote {folder.name}/agent.mp4, {(folder / 'agent.mp4').stat().st_size / 1000:.0f} kB", flush=True)
    if best_agent(config["env_id"]) == folder:
        pictures, _ = tiles(folder, episodes=1)
        write(GALLERY / f"{config['env_id'].rpartition('/')[2]}.png", pictures[(len(pictures) - 1) * 2 // 3])


def tiles(folder: Path, episodes: int) -> tuple[list[Image.Image], list[int]]:
    """Return pictures of an agent's episodes in the size of a tile, and for how many milliseconds each is shown."""
    config = json.loads((folder / "config.json").read_text())
    model = load_pretrained(config["algorithm"], config["env_id"])
    env = fitted(model.get_env().unwrapped.venv.env_at(0))
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary, "agent.gif")
        record(model, path, env, episodes, max_steps=MOST_SECONDS * env.render_fps)
        with Image.open(path) as film:
            frames = [(frame.convert("RGB"), frame.info["duration"]) for frame in ImageSequence.Iterator(film)]
    return [framed(picture) for picture, _ in frames], [duration for _, duration in frames]


def fitted(env: Environment[Any]) -> Sized:
    """Return the environment with pictures that fit into a tile."""
    scale = min(whole / part for whole, part in zip(TILE, env.render_size, strict=True))
    return Sized(env, tuple(round(scale * part) for part in env.render_size))


def draw_start(env_id: str) -> None:
    """Write the picture of an environment without an agent in the gallery: the start of an episode."""
    env = fitted(jaxenvs.make(env_id))
    picture = Image.fromarray(env.render(env.reset(jax.random.key(0))[0]))
    write(GALLERY / f"{env_id.rpartition('/')[2]}.png", framed(picture))


def framed(picture: Image.Image) -> Image.Image:
    """Center a picture on a tile: in the color of its corner if that is light, else in grey."""
    ground = picture.getpixel((0, 0))
    tile = Image.new("RGB", TILE[::-1], ground if min(ground) > 200 else DARK)
    tile.paste(picture, ((TILE[1] - picture.width) // 2, (TILE[0] - picture.height) // 2))
    return tile


def write(path: Path, picture: Image.Image) -> None:
    """Write a picture as a small PNG."""
    path.parent.mkdir(exist_ok=True)
    picture.quantize(COLORS, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"wrote {path.name}, {path.stat().st_size / 1000:.1f} kB", flush=True)


def draw_agents_gif() -> None:
    """Write docs/agents.gif: the agents of SHOWN side by side, each in a border, above its name."""
    times = GIF_MS * np.arange(GIF_FRAMES)
    films = []
    for env_id in SHOWN:
        pictures, durations = tiles(best_agent(env_id), MOST_EPISODES)
        ends = np.cumsum(durations)
        films.append([pictures[index] for index in np.searchsorted(ends, times % ends[-1], side="right")])
    sheets = []
    for frame in zip(*films, strict=True):
        named = list(zip(SHOWN, map(np.asarray, frame), strict=True))
        sheets.append(column([row(named[:COLUMNS]), row(named[COLUMNS:])]))
    save(sheets, [GIF_MS] * GIF_FRAMES, AGENTS_GIF)


def row(named: Sequence[tuple[str, np.ndarray]]) -> Image.Image:
    """Return pictures of the same height side by side, each in a border, above its name."""
    widths = [picture.shape[1] + BORDER for _, picture in named]
    height = named[0][1].shape[0]
    whole = Image.new("RGB", (sum(widths) + BORDER, height + BAR + 2 * BORDER), GREY)
    for x, (name, picture) in zip(np.cumsum([BORDER, *widths]), named, strict=False):
        bar = Image.new("RGB", (picture.shape[1], BAR), DARK)
        size = min(FONT_SIZE, int(1.7 * bar.width / len(name)))
        ImageDraw.Draw(bar).text((bar.width // 2, BAR // 2), name, WHITE, anchor="mm", font_size=size)
        whole.paste(Image.fromarray(picture), (int(x), BORDER))
        whole.paste(bar, (int(x), BORDER + height))
    return whole


def column(rows: Sequence[Image.Image]) -> Image.Image:
    """Return rows of the same size below each other, with one border in between."""
    height = rows[0].height - BORDER
    whole = Image.new("RGB", (rows[0].width, len(rows) * height + BORDER))
    for index, each in enumerate(rows):
        whole.paste(each, (0, index * height))
    return whole


def save(pictures: Sequence[Image.Image], durations: Sequence[int], path: Path) -> None:
    """Write the pictures as a GIF with one palette, so that still parts take no space."""
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
