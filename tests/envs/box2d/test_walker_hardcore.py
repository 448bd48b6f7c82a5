"""BipedalWalkerHardcore against Gymnasium's: its obstacles, single steps among them, whole episodes; its picture."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("Box2D", reason="the reference needs gymnasium[box2d]")

import jaxenvs
from jaxenvs.envs.box2d import obstacles, terrain
from jaxenvs.envs.box2d.bipedal_walker import HARDCORE, BipedalWalker
from tests.envs.box2d.reference_memory import stacked
from tests.envs.box2d.reference_walker import (
    NUM_ENVS,
    Policy,
    Step,
    assert_same_episodes,
    assert_same_step,
    boxes_of,
    compare,
    heard_draws,
    new_reference,
    state_of,
    step_of,
    steps,
)


def test_an_id_makes_it() -> None:
    assert jaxenvs.make("BipedalWalkerHardcore-v3").unwrapped == BipedalWalker(hardcore=True)


# --- Terrain ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def references() -> list[Any]:
    """References after the resets of seeds 0 to 15."""
    envs = [new_reference(hardcore=True) for _ in range(16)]
    for seed, env in enumerate(envs):
        env.reset(seed=seed)
    return envs


@pytest.mark.thorough
def test_obstacles_of_the_draws_of_the_reference(references: list[Any]) -> None:
    made = [heard_draws(seed, hardcore=True) for seed in range(8)]
    heights, boxes = jax.jit(jax.vmap(heights_and_boxes))(stacked(made))
    np.testing.assert_allclose(heights, [env.terrain_y for env in references[:8]], rtol=0, atol=1e-5)
    np.testing.assert_allclose(boxes, [boxes_of(env) for env in references[:8]], rtol=0, atol=2e-5)


def heights_and_boxes(draws: terrain.Draws) -> tuple[jax.Array, jax.Array]:
    made = terrain.build(draws)
    return made.heights, obstacles.boxes(made)


@pytest.mark.thorough
def test_obstacles_of_our_draws_are_as_many_as_the_references(references: list[Any]) -> None:
    made = jax.jit(jax.vmap(lambda key: terrain.build(terrain.draw(key, True))))(
        jax.random.split(jax.random.key(0), 64)
    )
    ours = np.asarray(jax.vmap(obstacles.boxes)(made))[..., 0] < obstacles.NOWHERE
    theirs = [len(env.terrain) - terrain.POINTS + 1 for env in references]
    assert abs(ours.sum(1).mean() - np.mean(theirs)) < 1.5
    kinds = np.bincount(np.asarray(made.kind).ravel(), minlength=4)[1:]
    assert kinds.min() > 0.85 * kinds.max()


def test_the_most_boxes_find_place() -> None:
    """Of all ways to follow obstacle on obstacle with the shortest grass between, the one with most boxes."""
    most = {point: 0 for point in range(terrain.POINTS, terrain.POINTS + 40)}
    for point in reversed(range(terrain.START, terrain.POINTS)):
        of_kinds = ((1, 1), (1, 2), (3, 12), (4, 16), (2, 5), (2, 6))
        most[point] = max(number + most[point + length + terrain.SHORTEST] for number, length in of_kinds)
    assert most[terrain.START] == obstacles.BOXES


@pytest.mark.thorough
def test_rays_end_at_boxes_that_they_enter() -> None:
    ahead = [2.0, -9.0, 3.0, 9.0]
    around = [-1.0, -1.0, 1.0, 1.0]  # a ray that begins in a box does not end there
    rays = np.asarray(obstacles.lidar(jnp.array([ahead, around, [50.0, 0.0, 51.0, 1.0]]), jnp.zeros(2)))
    angles = 0.15 * np.arange(terrain.RAYS)
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(rays, np.minimum(2 / np.sin(angles) / terrain.RANGE, 1), rtol=1e-5)
    below = obstacles.lidar(jnp.array([[-1.0, -3.0, 1.0, -2.0]]), jnp.zeros(2))
    np.testing.assert_allclose(below[0], 2 / terrain.RANGE, rtol=1e-6)  # straight down, along no side


# --- Steps ------------------------------------------------------------------------------------------------------------


def drop(env: Any, x: float, y: float, random: np.random.Generator) -> None:
    """Put the walker on a place, or a little above or too low, and throw it."""
    dx, up = x - env.hull.position[0], y - terrain.LEVEL + random.uniform(-0.2, 0.6)
    velocity = random.uniform(-3, 3, 2).tolist()
    for body in (env.hull, *env.legs):
        body.transform = (float(body.position[0] + dx), float(body.position[1] + up)), body.angle
        body.linearVelocity = velocity
    env.game_over = False
    env.step(np.zeros(4))  # which forgets the pairs of where it was


def steps_among_obstacles(seeds: int, each: int) -> list[Step]:
    """The first steps after the walker was dropped at either side of each box, with random actions."""
    found = []
    for seed in range(seeds):
        random, policy = np.random.default_rng(seed), Policy("random", seed)
        for side in (0, 2):
            env = new_reference(hardcore=True)
            env.reset(seed=seed)
            for box in boxes_of(env):
                if 5 < box[side] < 85:
                    drop(env, box[side], box[3], random)
                    for _ in range(each):
                        if env.world.contactCount > HARDCORE.pairs:
                            break  # torn out of a box, a walker is faster than any that walks
                        found.append(step_of(env, policy(np.zeros(24))))
    return found


def touches_a_box(step: Step) -> bool:
    pairs = step[2].pairs
    return bool(((pairs.key >= 0) & (pairs.key < 5 * obstacles.BOXES) & (pairs.count > 0)).any())


@pytest.mark.thorough  # it compiles for long; of the lander: test_lunar_lander_parity.py
def test_a_step_from_states_of_the_reference() -> None:
    found = steps_among_obstacles(2, 30)
    touching = [step for step in found if touches_a_box(step)]
    assert len(touching) > NUM_ENVS
    random = np.random.default_rng(0)
    chosen = [touching[i] for i in random.choice(len(touching), NUM_ENVS * 3 // 4, replace=False)]
    chosen += [found[i] for i in random.choice(len(found), NUM_ENVS // 4, replace=False)]
    assert_same_step(chosen, hardcore=True)


@pytest.mark.thorough
def test_a_step_from_thousands_of_states() -> None:
    found = steps_among_obstacles(6, 40) + steps(4, hardcore=True)
    assert len(found) > 10_000
    assert sum(map(touches_a_box, found)) > 3000
    near = [compare(found[i : i + NUM_ENVS], hardcore=True) for i in range(0, len(found) - NUM_ENVS + 1, NUM_ENVS)]
    # Of 13,900 twelve were not: who is torn out of a box is now and then moved by a round of positions more, or less.
    assert np.mean(near) > 0.998


@pytest.mark.thorough
def test_whole_episodes_with_the_draws_of_the_reference() -> None:
    assert_same_episodes(500, hardcore=True)


# --- Picture ----------------------------------------------------------------------------------------------------------


@pytest.mark.thorough  # LunarLander's picture shows how it is drawn
def test_picture_shows_the_walker_the_ground_and_the_boxes_that_are_near() -> None:
    env = new_reference(hardcore=True)
    env.reset(seed=1)
    state = jax.tree.map(jnp.asarray, state_of(env))
    picture = np.asarray(jax.jit(BipedalWalker(hardcore=True).draw, static_argnums=(1, 2))(state, 80, 120))
    left = env.hull.position[0] - 4
    assert tuple(picture[int(80 - 6 * env.hull.position[1]), 24]) == (127, 51, 229)
    assert tuple(picture[-1, 24]) == (102, 153, 76)
    seen = 0
    for box in boxes_of(env):
        x, y = (box[0] + box[2]) / 2 - left, (box[1] + box[3]) / 2
        if 0.5 < x < 19.5:
            seen += 1
            assert tuple(picture[int(80 - 6 * y), int(6 * x)]) == (255, 255, 255)
    assert seen > 0
