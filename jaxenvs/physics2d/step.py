"""One step (`b2World::Step`): pairs, the island, fat boxes, new pairs, impacts.

The code is written for one environment. `vmap` solves the joints of all environments in blocks; the rest runs for one
environment after the other, and each pays only for what it needs (kernels.py).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxenvs.physics2d import island
from jaxenvs.physics2d.collision import broad_phase
from jaxenvs.physics2d.collision.narrow_phase import Manifold, no_manifolds
from jaxenvs.physics2d.constants import FAT_MARGIN
from jaxenvs.physics2d.geometry import Frame, frame
from jaxenvs.physics2d.impacts import solve_impacts
from jaxenvs.physics2d.island import Motors, Moving, Solved, Task
from jaxenvs.physics2d.kernels import in_blocks, one_by_one
from jaxenvs.physics2d.listing import update_pairs
from jaxenvs.physics2d.world import World, WorldState
from jaxenvs.transformations import unchecked, varying


def start(world: World, origin: jax.typing.ArrayLike, angle: jax.typing.ArrayLike, edges: jax.Array) -> WorldState:
    """Return a WorldState at rest.

    Args:
      origin, angle: (B, 2) and (B,), of the frames of the bodies [m, rad].
      edges: (E, 4), from x, y to x, y [m].
    """
    bodies, joints = len(world.bodies), len(world.joints)
    origin, angle = jnp.asarray(origin, jnp.float32), jnp.asarray(angle, jnp.float32)
    at = jax.vmap(frame)(origin[:, 0], origin[:, 1], angle, jnp.zeros((bodies, 2), jnp.float32))
    x, y = at.place(world.center[:, 0], world.center[:, 1])
    boxes = jnp.stack([broad_phase.tight_box(v, at_one) for v, at_one in zip(world.vertices, _each(at, bodies))])
    fat = jnp.concatenate([boxes[:, :2] - FAT_MARGIN, boxes[:, 2:] + FAT_MARGIN], axis=1)
    found = broad_phase.candidates(world, fat, broad_phase.edge_boxes(edges), jnp.ones(bodies, bool))
    # `checkify` does not support the loop under `vmap`.
    pairs, _ = unchecked(broad_phase.add_pairs)(broad_phase.no_pairs(world), found)
    return WorldState(
        position=jnp.stack([x, y], axis=1),
        angle=angle,
        velocity=jnp.zeros((bodies, 2), jnp.float32),
        angular_velocity=jnp.zeros(bodies, jnp.float32),
        still_for=jnp.zeros(bodies, jnp.float32),
        joint_impulse=jnp.zeros((joints, 4), jnp.float32),
        joint_limit=jnp.zeros(joints, jnp.int32),
        fat_box=fat,
        pairs=pairs,
        has_contact=jnp.zeros(bodies, bool),
        has_touched=jnp.zeros(bodies, bool),
        awake=jnp.ones((), bool),
    )


def step(
    world: World,
    state: WorldState,
    edges: jax.Array,
    gravity: float | jax.Array,
    motors: Motors,
    force: jax.Array,
    torque: jax.Array,
) -> WorldState:
    """Return the state after a fiftieth of a second. If the state is asleep, wake it first, or do not step.

    Args:
      edges: (E, 4) [m].
      gravity: upwards [m/s²].
      motors: of the joints.
      force, torque: (B, 2) and (B,), on the centers of mass [N, N m].
    """
    edges = jnp.asarray(edges, jnp.float32)
    motors = _motors(world, motors)

    def look(state: WorldState, edges: jax.Array) -> Any:
        return jax.lax.cond(
            state.pairs.key[0] >= 0,
            lambda: update_pairs(world, state, edges),
            lambda: varying((state, no_manifolds(world.pairs)), state, edges),
        )

    state, manifolds = one_by_one(look)(state, edges)
    before = island.positions_of(state)
    state = island.accelerate(world, state, gravity, force, torque)
    solved = island.solve_in_the_air(world, state, motors)

    def solve(state: WorldState, motors: Motors, manifolds: Manifold, solved: Solved) -> Any:
        touches, given = jnp.any(state.pairs.count > 0), (state, motors, manifolds, solved)

        def go_on() -> tuple[Solved, jax.Array]:
            changed, impulse = jax.lax.cond(
                touches,
                lambda: varying(island.solve_on_the_ground(world, state, motors, manifolds), given),
                lambda: varying((solved, state.pairs.impulse), given),
            )
            rounds = jnp.where(touches, 0, 1)  # one round was done in the air
            return island.solve_positions(world, state.pairs, manifolds, changed, rounds), impulse

        return jax.lax.cond(touches | ~solved.is_solved, go_on, lambda: (solved, state.pairs.impulse))

    solved, impulse = one_by_one(solve)(state, motors, manifolds, solved)
    state = island.rest(state.replace(pairs=dataclasses.replace(state.pairs, impulse=impulse)), solved)

    state, has_left = _fat_boxes(world, state, before)
    found = broad_phase.candidates(world, state.fat_box, broad_phase.edge_boxes(edges), has_left)

    def finish(state: WorldState, before: jax.Array, edges: jax.Array, found: jax.Array) -> Any:
        return jax.lax.cond(
            (state.pairs.key[0] >= 0) | jnp.any(found),
            lambda: _add_and_stop(world, state, before, edges, found),
            lambda: state,
        )

    finished: WorldState = one_by_one(finish)(state, before, edges, found)
    return finished


def step_on_the_ground(
    world: World, state: WorldState, edges: jax.Array, gravity: float | jax.Array, motors: Motors
) -> WorldState:
    """Take a step without forces where bodies nearly always touch something: contacts are solved in blocks too."""
    still = np.zeros((len(world.bodies), 2), np.float32), np.zeros(len(world.bodies), np.float32)

    def begin(
        state: WorldState, edges: jax.Array, gravity: jax.Array, motors: Motors
    ) -> tuple[WorldState, Manifold, jax.Array, Task]:
        before = island.positions_of(state)
        state, manifolds = update_pairs(world, state, edges)
        state = island.accelerate(world, state, gravity, *still)
        return state, manifolds, before, island.prepare_on_the_ground(world, state, motors, manifolds)

    def finish(
        state: WorldState, edges: jax.Array, manifolds: Manifold, before: jax.Array, task: Task, moving: Moving
    ) -> WorldState:
        solved, impulse = island.finish_on_the_ground(world, state, task, moving)
        solved = island.solve_positions(world, state.pairs, manifolds, solved, 0)
        state = island.rest(state.replace(pairs=dataclasses.replace(state.pairs, impulse=impulse)), solved)
        state, has_left = _fat_boxes(world, state, before)
        found = broad_phase.candidates(world, state.fat_box, broad_phase.edge_boxes(edges), has_left)
        return _add_and_stop(world, state, before, edges, found)

    edges, gravity = jnp.asarray(edges, jnp.float32), jnp.asarray(gravity, jnp.float32)
    state, manifolds, before, task = one_by_one(begin)(state, edges, gravity, _motors(world, motors))
    iterate = in_blocks(
        lambda task: island.iterate_on_the_ground(world, task), batch_last=True, work=lambda task: task.number
    )
    moving = iterate(task)
    return one_by_one(finish)(state, edges, manifolds, before, task, moving)


def _add_and_stop(world: World, state: WorldState, before: jax.Array, edges: jax.Array, found: jax.Array) -> WorldState:
    """Finish a step: add new pairs, and solve impacts."""
    pairs, new = broad_phase.add_pairs(state.pairs, found)
    added = state.replace(pairs=pairs, awake=state.awake | (new > 0))
    stopped: WorldState = jax.lax.cond(
        added.awake & (pairs.key[0] >= 0), lambda: solve_impacts(world, added, before, edges), lambda: added
    )
    return stopped


def step_in_the_air(
    world: World, state: WorldState, gravity: float | jax.Array, motors: Motors, force: jax.Array, torque: jax.Array
) -> WorldState:
    """Take a step far from all edges: a smaller compiled function than `step`, which `jax.grad` can differentiate."""
    before = island.positions_of(state)
    state = island.accelerate(world, state, gravity, force, torque)
    solved = island.solve_in_the_air(world, state, _motors(world, motors))
    solved = one_by_one(
        lambda solved: island.solve_joint_positions(world, solved, 1),
        tangents=lambda solved: island.solve_joint_positions(world, solved, 1, has_gradient=True),
    )(solved)
    return _fat_boxes(world, island.rest(state, solved), before)[0]


def _motors(world: World, motors: Motors) -> Motors:
    return Motors(*(jnp.broadcast_to(jnp.asarray(x, jnp.float32), (len(world.joints),)) for x in motors))


def _fat_boxes(world: World, state: WorldState, before: jax.Array) -> tuple[WorldState, jax.Array]:
    """Return the state with the fat boxes (B, 4) after a motion, and which bodies have left theirs."""
    after = island.positions_of(state)
    boxes = [
        broad_phase.fat_box(world, body, state.fat_box[body], tuple(before[body]), tuple(after[body]))
        for body in range(len(world.bodies))
    ]
    return state.replace(fat_box=jnp.stack([fat for fat, _ in boxes])), jnp.stack([has_left for _, has_left in boxes])


def _each(tree: Frame, number: int) -> list[Frame]:
    return [jax.tree.map(lambda leaf, i=i: leaf[i], tree) for i in range(number)]
