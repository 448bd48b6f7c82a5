"""Films of environments: GIFs, written with Pillow."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxenvs.arguments import image_size, number
from jaxenvs.environment import Environment, require_environment
from jaxenvs.files import replacing, require_folder_of
from jaxenvs.picture_size import compiled_draw

REAL_TIME_FPS = 30
LEAST_FPS = 0.002  # GIFs store at most 65,535/100 s
MOST_FPS = 50  # GIFs count in 1/100 s, and viewers show one of them, or none, as ten


def gif(
    env: Environment[Any],
    states: object,
    path: str | os.PathLike[str],
    fps: float | None = None,
    size: int | tuple[int, int] | None = None,
) -> None:
    """Write a film of states as a GIF, which repeats forever.

    Args:
      env: an environment with a picture.
      states: some of its states, in order: a list; or a pytree with a leading axis of time, as `jax.lax.scan` stacks
        states.
      path: the file, which is either written completely or left unchanged.
      fps: pictures per second, one of each state; up to 50. If not given, the film runs in real time, with up to 30
        pictures per second, and shows only every n-th state if needed.
      size: height and width in pixels, or one number for both; if not given, `env.render_size`.

    Raises:
      ImportError: Pillow is not installed.
      NotImplementedError: the environment has no picture.
      TypeError, ValueError: an argument has the wrong type or value.
      OSError: the file cannot be written.
    """
    require_environment("env", env)
    if os.path.splitext(path)[1].lower() != ".gif":
        raise ValueError(f"path must end with .gif, got {os.fspath(path)!r}.")
    length = _length(states)
    every, fps = real_time(env) if fps is None else (1, number("fps", fps, least=LEAST_FPS, most=MOST_FPS))
    times = [*range(0, length - 1, every), length - 1]
    size = None if size is None else image_size("size", size)
    write_gif((_picture(env, states, time, size) for time in times), fps, path)


def real_time(env: Environment[Any]) -> tuple[int, float]:
    """Return n, where a GIF in real time shows every n-th state, and its number of pictures per second."""
    every = -(-env.render_fps // REAL_TIME_FPS)
    return every, env.render_fps / every


def write_gif(frames: Iterator[np.ndarray], fps: float, path: str | os.PathLike[str]) -> None:
    """Write pictures, uint8 (height, width, 3), as a GIF which repeats forever. They are read one by one.

    Raises:
      ImportError: Pillow is not installed.
      OSError: the file cannot be written.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("A GIF needs Pillow: pip install pillow") from error
    require_folder_of(path)
    images = (Image.fromarray(frame) for frame in frames)
    duration = 10 * round(100 / fps)  # the duration that a GIF can store; Pillow would cut 59.999 to 50
    with replacing(path) as unfinished:
        next(images).save(unfinished, "GIF", save_all=True, append_images=images, duration=duration, loop=0)


def _length(states: object) -> int:
    shapes = {jnp.shape(leaf) for leaf in jax.tree.leaves(states)}
    lengths = {len(states)} if isinstance(states, list) else {shape[0] if shape else 0 for shape in shapes}
    if len(lengths) != 1 or lengths == {0}:
        got = "an empty list" if isinstance(states, list) else f"leaves of shapes {sorted(shapes)}"
        raise ValueError(
            f"states must be a list of states, or a pytree with one leading axis of time, and not be empty, got {got}."
        )
    return lengths.pop()


def _picture(env: Environment[Any], states: object, time: int, size: tuple[int, int] | None) -> np.ndarray:
    state = states[time] if isinstance(states, list) else jax.tree.map(lambda leaf: leaf[time], states)
    if size is None:
        return env.render(state)
    return np.asarray(compiled_draw(env, state, *size))
