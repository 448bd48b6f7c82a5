"""Shapes on a canvas, and the pictures of classic control beside Gymnasium's."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxenvs
from jaxenvs.drawing import BLACK, WHITE, Canvas, background, draw_tiles

HEIGHT, WIDTH = 21, 33
LEFT, RIGHT, BOTTOM, TOP = WORLD = (-2.0, 4.0, -1.0, 2.0)  # pixels of 0.18 by 0.14
FINE = 8  # points along each side of a pixel, of which the truth is counted
RED, BLUE = (255, 0, 0), (0, 0, 255)

Inside = Callable[[np.ndarray, np.ndarray], np.ndarray]


def near(*points: tuple[float, float], distance: float) -> Inside:
    """Whether a point is nearer than this to the line through some points."""

    def inside(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        distances = []
        for start, end in itertools.pairwise(points):
            dx, dy = end[0] - start[0], end[1] - start[1]
            share = np.clip(((x - start[0]) * dx + (y - start[1]) * dy) / (dx**2 + dy**2), 0, 1)
            distances.append(np.hypot(x - start[0] - share * dx, y - start[1] - share * dy))
        return np.min(distances, 0) < distance

    return inside


def between(*points: tuple[float, float]) -> Inside:
    """Whether a point is inside the convex polygon of these points, in clockwise order."""

    def inside(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        edges = itertools.pairwise([*points, points[0]])
        return np.all([(x - x0) * (y1 - y0) - (y - y0) * (x1 - x0) > 0 for (x0, y0), (x1, y1) in edges], axis=0)

    return inside


def turned(x: float, y: float, at: tuple[float, float], angle: float) -> tuple[float, float]:
    return at[0] + np.cos(angle) * x - np.sin(angle) * y, at[1] + np.sin(angle) * x + np.cos(angle) * y


def wave(x: Any) -> Any:
    return 0.5 + 0.6 * (jnp.sin(2 * x) if isinstance(x, jax.Array) else np.sin(2 * x))


BOX = [(-0.5, -0.2), (-0.5, 0.4), (1.0, 0.4), (1.0, -0.2)]
TRIANGLE = [(-1.0, -0.4), (0.5, 1.4), (2.75, -0.4)]
SLIVER = [(-1.0, 0.0), (-1.0, 0.04), (3.0, 1.1)]
ZIGZAG = [(-1.0, 0.0), (1.0, 1.5), (3.0, 0.0)]
CURVE = [(x, wave(x)) for x in np.linspace(-2.2, 4.2, 100)]
MOVED: dict[str, Any] = {"at": (1.1, 0.3), "angle": 0.7}

SHAPES: dict[str, tuple[Callable[[Canvas], Canvas], Inside]] = {
    "circle": (lambda c: c.circle((0.7, 0.4), 0.9, BLACK), lambda x, y: np.hypot(x - 0.7, y - 0.4) < 0.9),
    "small circle": (lambda c: c.circle((0.7, 0.4), 0.06, BLACK), lambda x, y: np.hypot(x - 0.7, y - 0.4) < 0.06),
    "ring": (
        lambda c: c.ring((0.7, 0.4), 0.9, BLACK, width=0.3),
        lambda x, y: np.abs(np.hypot(x - 0.7, y - 0.4) - 0.9) < 0.15,
    ),
    "rod": (lambda c: c.rod((-1.0, 0.0), (2.5, 1.0), BLACK, 0.4), near((-1.0, 0.0), (2.5, 1.0), distance=0.2)),
    "thin rod": (lambda c: c.rod((-1.0, 0.0), (2.5, 1.0), BLACK, 0.05), near((-1.0, 0.0), (2.5, 1.0), distance=0.025)),
    "line": (lambda c: c.line(ZIGZAG, BLACK, 0.3), near(*ZIGZAG, distance=0.15)),
    "box": (
        lambda c: c.box(-1.31, 0.52, 0.17, 1.03, BLACK),
        lambda x, y: (x > -1.31) & (x < 0.52) & (y > 0.17) & (y < 1.03),
    ),
    "turned box": (
        lambda c: c.box(-0.5, 1.0, -0.2, 0.4, BLACK, **MOVED),
        between(*(turned(x, y, **MOVED) for x, y in BOX)),
    ),
    "polygon": (lambda c: c.polygon(TRIANGLE, BLACK), between(*TRIANGLE)),
    "polygon, counter-clockwise": (lambda c: c.polygon(TRIANGLE[::-1], BLACK), between(*TRIANGLE)),
    "thin polygon": (lambda c: c.polygon(SLIVER, BLACK), between(*SLIVER)),
    "turned polygon": (lambda c: c.polygon(BOX, BLACK, **MOVED), between(*(turned(x, y, **MOVED) for x, y in BOX))),
    "graph": (lambda c: c.graph(wave, BLACK, width=0.2), near(*CURVE, distance=0.1)),
    "area": (lambda c: c.area(wave, BLACK), lambda x, y: y < wave(x)),
}


def blank(height: int = HEIGHT, width: int = WIDTH) -> Canvas:
    return Canvas.blank(height, width, *WORLD)


def counted(inside: Inside) -> np.ndarray:
    """The share of each pixel inside a shape, by counting points."""
    x = LEFT + (np.arange(FINE * WIDTH) + 0.5) * (RIGHT - LEFT) / (FINE * WIDTH)
    y = TOP - (np.arange(FINE * HEIGHT) + 0.5) * (TOP - BOTTOM) / (FINE * HEIGHT)
    return inside(*np.meshgrid(x, y)).reshape(HEIGHT, FINE, WIDTH, FINE).mean((1, 3))


@pytest.fixture(scope="module")
def painted() -> dict[str, np.ndarray]:
    """The share of each pixel that is painted, of all shapes, in one compiled function."""
    pictures = jax.jit(lambda: {name: paint(blank()).picture() for name, (paint, _) in SHAPES.items()})()
    return {name: 1 - np.asarray(picture, float) / 255 for name, picture in pictures.items()}


@pytest.mark.parametrize("name", SHAPES)
def test_a_pixel_takes_as_much_of_the_color_as_the_shape_covers(name: str, painted: dict[str, np.ndarray]) -> None:
    truth, found = counted(SHAPES[name][1]), painted[name]
    assert (found[..., 0] == found[..., 1]).all()
    found = found[..., 0]
    assert found.sum() == pytest.approx(truth.sum(), rel=0.02, abs=0.25)
    at_edges = (truth > 0) & (truth < 1)
    assert np.abs(found - truth)[~at_edges].max() < 0.1
    assert np.abs(found - truth)[at_edges].mean() < 0.05


@pytest.mark.thorough
def test_shapes_cover_those_before_them() -> None:
    canvas = blank().box(-1.0, 1.0, -1.0, 1.0, RED).circle((1.0, 0.5), 0.5, BLUE)
    picture = np.asarray(canvas.picture())
    row = HEIGHT // 2
    assert tuple(picture[row, 10]) == RED
    assert tuple(picture[row, 16]) == BLUE
    assert tuple(picture[0, 0]) == WHITE


@pytest.mark.thorough
@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 9), (7, 2)])
def test_pictures_have_any_size(height: int, width: int) -> None:
    canvas = Canvas.blank(height, width, 0.0, 1.0, 0.0, 1.0, (10, 20, 30)).box(0.0, 1.0, 0.0, 0.5, BLACK)
    picture = np.asarray(canvas.picture())
    assert picture.shape == (height, width, 3)
    assert picture.dtype == np.uint8
    np.testing.assert_allclose(picture.mean((0, 1)), [5, 10, 15], atol=0.5)  # the lower half is black


def scene(x: Any, color: Any = RED) -> jax.Array:
    canvas = background(lambda: blank().graph(wave, BLACK, 0.1))
    return canvas.rod((x, 0.0), (1.0, x), color, 0.3).box(-0.3, 0.3, -0.1, 0.1, BLUE, (x, 1.0), x).picture()


def differ_by(ours: Any, theirs: Any) -> int:
    return int(np.abs(np.asarray(ours, int) - np.asarray(theirs, int)).max())


@pytest.mark.thorough
def test_a_batch_is_the_loop_and_compiling_changes_nothing() -> None:
    """But for what rounding may do to a byte: XLA rounds a product and a sum once or twice."""
    places = jnp.linspace(-1.5, 3.5, 5)
    together, compiled = jax.jit(jax.vmap(scene))(places), jax.jit(scene)
    for place, picture in zip(places, together, strict=True):
        assert differ_by(picture, compiled(place)) <= 1
    assert differ_by(together[0], scene(places[0])) <= 1
    assert differ_by(together[0], together[1]) == 255


@pytest.mark.thorough
def test_pictures_are_the_same_with_x64(x64: None) -> None:
    with jax.enable_x64(False):
        expected = jax.jit(scene)(0.7)
    assert differ_by(jax.jit(scene)(jnp.asarray(0.7)), expected) <= 1


def test_what_is_put_on_a_part_is_what_would_be_on_the_whole() -> None:
    """In its middle, at edges and corners, and out of the picture; a shape as wide as the part, and a larger part."""

    def picture(center: jax.Array, share: float | None) -> jax.Array:
        canvas = Canvas.blank(HEIGHT, WIDTH, *WORLD).circle((1.0, 0.5), 0.9, BLUE)
        part = canvas if share is None else canvas.part(center, (share, 2 * share))
        part = part.circle(center, 0.5, RED).box(-0.3, 0.3, -0.3, 0.3, BLACK, center, 0.7)
        return (part if share is None else canvas.put(part)).picture()

    x, y = np.meshgrid(np.linspace(LEFT - 2, RIGHT + 2, 23), np.linspace(BOTTOM - 2, TOP + 2, 19))
    centers = jnp.asarray(np.stack([x, y], -1).reshape(-1, 2), jnp.float32)
    whole, *parts = (
        np.asarray(jax.jit(jax.vmap(functools.partial(picture, share=share)))(centers)) for share in (None, 1 / 6, 2.0)
    )
    assert len(np.unique(whole, axis=0)) > 100
    for part in parts:
        np.testing.assert_allclose(part, whole, rtol=0, atol=1)  # another compiled function may round differently


@pytest.mark.thorough
def test_a_background_is_made_once_for_a_batch() -> None:
    """A background is painted while tracing if its arguments are numbers, else in the compiled function.

    There, it is painted for each picture only if its arguments differ between environments.
    """

    def paint(level: Any) -> Canvas:
        return blank().box(LEFT, RIGHT, BOTTOM, level, BLACK)

    def picture(x: Any, level: Any) -> jax.Array:
        canvas = background(paint, level)
        shapes.append((isinstance(canvas.plane, jax.core.Tracer), jnp.shape(canvas.plane)))
        return canvas.circle((x, 0.0), 0.5, RED).picture()

    shapes: list[Any] = []
    places = jnp.linspace(-1.0, 3.0, 4)
    of_numbers = jax.jit(jax.vmap(lambda x: picture(x, 0.5)))(places)
    assert shapes[0][0] is False
    batch = jax.vmap(picture, in_axes=(0, None))
    traced = jax.jit(batch)(places, 0.5)
    assert shapes[1][0] is True
    by_env = jax.jit(jax.vmap(picture))(places, jnp.full(4, 0.5))
    assert differ_by(of_numbers, traced) <= 1
    assert differ_by(of_numbers, by_env) <= 1
    branch = next(each for each in jax.make_jaxpr(batch)(places, 0.5).eqns if each.primitive.name == "cond")
    assert (HEIGHT, 3 * WIDTH) in [out.aval.shape for out in branch.outvars]


def test_tiles_are_scaled_to_the_nearest_pixel() -> None:
    grid = jnp.array([[0, 1], [1, 0]])
    picture = np.asarray(draw_tiles(grid, np.array([RED, BLUE], np.uint8), 4, 6))
    expected = np.array([[0, 0, 0, 1, 1, 1]] * 2 + [[1, 1, 1, 0, 0, 0]] * 2)
    np.testing.assert_array_equal(picture, np.array([RED, BLUE])[expected])


# --- Classic control ------------------------------------------------------------------------------------------------

STATES = 30
# From the state of Gymnasium's environment to our fields, and where it may be.
REACH: dict[str, tuple[tuple[str, ...], list[float]]] = {
    "CartPole-v1": (("x", "x_dot", "theta", "theta_dot"), [2.6, 0.0, 0.4, 0.0]),
    "MountainCar-v0": (("position", "velocity"), [0.9, 0.0]),
    "MountainCarContinuous-v0": (("position", "velocity"), [0.9, 0.0]),
    "Pendulum-v1": (("theta", "theta_dot"), [7.0, 0.0]),
    "Acrobot-v1": (("theta_1", "theta_2", "theta_1_dot", "theta_2_dot"), [3.1, 3.1, 0.0, 0.0]),
}


def shrunk(picture: np.ndarray) -> np.ndarray:
    """A quarter of the size, by means, as that is what a small picture should show."""
    height, width, _ = picture.shape
    return picture.reshape(height // 4, 4, width // 4, 4, 3).mean((1, 3))


@pytest.mark.thorough(but=["Acrobot-v1"])
@pytest.mark.parametrize("id", REACH)
def test_a_picture_is_gymnasiums(id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mean differences of shrunk pictures, of 255: below 0.5, where pictures of other states differ by more than 1."""
    pytest.importorskip("pygame", reason="Gymnasium draws with pygame")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    names, reach = REACH[id]
    numbers = np.random.default_rng(0).uniform(-1, 1, (STATES, len(reach))) * reach
    if "position" in names:
        numbers[:, 0] -= 0.3
    reference = gymnasium.make(id, render_mode="rgb_array").unwrapped
    reference.reset(seed=0)
    theirs = []
    for row in numbers:
        reference.state = row  # type: ignore[attr-defined]
        theirs.append(shrunk(np.asarray(reference.render())))

    env = jaxenvs.make(id).unwrapped
    height, width = env.render_size
    state, _ = jax.eval_shape(env.reset, jax.random.key(0))
    rest = {
        field.name: jnp.zeros((STATES, *getattr(state, field.name).shape), getattr(state, field.name).dtype)
        for field in dataclasses.fields(state)
        if getattr(state, field.name) is not None and field.name not in names
    }
    columns = {name: jnp.asarray(column, jnp.float32) for name, column in zip(names, numbers.T, strict=True)}
    states = dataclasses.replace(state, **rest, **columns)
    draw = functools.partial(env.draw, height=height // 4, width=width // 4)
    ours = np.asarray(jax.jit(jax.vmap(draw))(states), float)

    assert np.asarray(reference.render()).shape == (height, width, 3)
    assert np.abs(ours - theirs).mean((1, 2, 3)).max() < 0.5
    assert np.abs(ours - np.roll(theirs, 1, axis=0)).mean() > 1


@pytest.mark.thorough
@pytest.mark.parametrize("id", REACH)
def test_a_picture_has_any_size_and_environments_may_have_different_parameters(id: str) -> None:
    env = jaxenvs.make(id).unwrapped
    parameter = {"CartPole-v1": "half_length", "Pendulum-v1": "length", "Acrobot-v1": "link_length_1"}
    name = parameter.get(id, "goal_position")
    state, _ = jax.jit(env.reset)(jax.random.key(0))
    values = jnp.asarray([1.0, 0.6]) * env.parameter(name)
    pictures = jax.jit(jax.vmap(lambda value: env.replace(**{name: value}).draw(state, 61, 87)))(values)
    assert pictures.shape == (2, 61, 87, 3)
    assert differ_by(pictures[0], jax.jit(lambda: env.draw(state, 61, 87))()) <= 1
    if id != "Pendulum-v1":  # which is drawn in lengths of its rod
        assert differ_by(pictures[0], pictures[1]) > 20
