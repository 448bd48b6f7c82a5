"""The default size of an environment's picture: the aspect of the canvas that its `draw` paints on, in 600 x 400."""

from __future__ import annotations

import contextvars
import functools
from typing import Any

import jax

from jaxenvs.jax_names import is_traced

HEIGHT, WIDTH = 400, 600

_views: contextvars.ContextVar[list[tuple[Any, Any]] | None] = contextvars.ContextVar("views", default=None)
_sizes: dict[object, tuple[int, int]] = {}


def note_view(width: object, height: object) -> None:
    """Note the extent of a canvas, in units of the environment, for the `picture_size` that traces `draw` now."""
    views = _views.get()
    if views is not None:
        views.append((width, height))


def picture_size(env: Any) -> tuple[int, int]:
    """Return height and width of an environment's picture: circles of its canvas are circles of the picture.

    It is 400 x 600 for an environment that draws on no canvas, or on one whose extent depends on the state. `draw` is
    traced once for each class of environments, with the parameters that the first one has.
    """
    if any(map(is_traced, jax.tree.leaves(env))):
        return _traced_size(env)
    kind = type(env), jax.tree.structure(env)
    if kind not in _sizes:
        _sizes[kind] = _traced_size(env)
    return _sizes[kind]


@functools.partial(jax.jit, static_argnums=(2, 3))
def compiled_draw(env: Any, state: object, height: int, width: int) -> jax.Array:
    """Return what `env.draw` draws, compiled once for each class of environments and size."""
    picture: jax.Array = env.draw(state, height, width)
    return picture


def _traced_size(env: Any) -> tuple[int, int]:
    views: list[tuple[Any, Any]] = []
    token = _views.set(views)
    try:
        jax.eval_shape(lambda seed: env.draw(env.reset(jax.random.key(seed))[0], HEIGHT, WIDTH), 0)
    except Exception:  # `render` raises it too
        return HEIGHT, WIDTH
    finally:
        _views.reset(token)
    if not views or any(map(is_traced, views[0])):
        return HEIGHT, WIDTH
    width, height = (abs(float(extent)) for extent in views[0])
    if not (width and height):
        return HEIGHT, WIDTH
    pixels = min(WIDTH / width, HEIGHT / height)
    return 2 * round(pixels * height / 2), 2 * round(pixels * width / 2)  # videos need even sizes
