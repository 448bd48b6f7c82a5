"""Shapes and masses as Box2D has them: of LunarLander and BipedalWalker, read from its bodies."""

from __future__ import annotations

import numpy as np
import pytest

from jaxenvs.physics2d.shapes import box, mass, polygon

HULL = [(x / 30, y / 30) for x, y in ((-14, 17), (-17, 0), (-17, -10), (17, -10), (17, 0), (14, 17))]
WALKER = [(x / 30, y / 30) for x, y in ((-30, 9), (6, 9), (34, 1), (34, -8), (-30, -8))]


@pytest.mark.parametrize(
    ("shape", "density", "expected"),
    [
        (polygon(HULL), 5.0, (0.20761245, 1.2757043, 0.0, 0.1013072)),
        (box(2 / 30, 8 / 30), 1.0, (14.062498, 558.36383, 0.0, 0.0)),
        (polygon(WALKER), 5.0, (0.1844262, 0.5001513, -0.0200364, -0.0056466)),
        (box(4 / 30, 17 / 30), 1.0, (3.3088236, 29.291224, 0.0, 0.0)),
        (box(3.2 / 30, 17 / 30), 1.0, (4.1360292, 37.318802, 0.0, 0.0)),
    ],
    ids=["lander", "leg", "walker", "upper leg", "lower leg"],
)
def test_masses_are_those_of_the_reference(shape, density, expected):
    found = mass(shape, density)
    np.testing.assert_allclose(
        [found.inverse_mass, found.inverse_inertia, *found.center], np.float32(expected), rtol=1e-6, atol=1e-7
    )


def test_vertices_begin_at_the_lowest_of_the_right_most():
    """Points of contacts are numbered by them."""
    assert (30 * polygon(HULL).vertices).round().tolist() == [
        [17, -10],
        [17, 0],
        [14, 17],
        [-14, 17],
        [-17, 0],
        [-17, -10],
    ]


def test_points_inside_and_on_sides_are_no_vertices():
    square = [(0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0)]
    found = polygon([*square, (0.5, 0.5), (0.5, 0.0)])
    assert found.vertices.tolist() == [[1, 0], [1, 1], [0, 1], [0, 0]]
    assert found.normals.tolist() == [[1, 0], [0, 1], [-1, 0], [0, -1]]
    np.testing.assert_allclose(found.centroid, [0.5, 0.5])
