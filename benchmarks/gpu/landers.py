"""LunarLander's iterations on a GPU: in one kernel of Pallas and as `vmap` makes them, alone and in the whole world."""

from __future__ import annotations

import functools
import os
from typing import Any, Protocol
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

import jaxenvs
from benchmarks import common
from benchmarks.common import Side
from jaxenvs import physics2d
from jaxenvs.envs.box2d import lunar_lander
from jaxenvs.envs.box2d.lunar_lander import WORLD
from jaxenvs.physics2d import WorldState, island, listing, pallas_kernel

ENV_ID = "LunarLander-v3"
ROUNDS = 5
# m/s and rad/s: how a step with contacts answers to one unit in the last place of its velocities, as in the tests of
# parity. Few lanes may differ by more, as there.
TOLERANCE = 2.4e-3
MOST_BAD = 0.002


class Tables(Protocol):
    def add(self, table: str, rows: list[dict[str, Any]]) -> None: ...


def landers(tables: Tables, quick: bool) -> None:
    """The iterations alone, held to each other, then steps of the world.

    Raises:
      RuntimeError: the kernel's velocities are not those of the plain loop.
    """
    bad = 0.0
    for lanes in [4] if quick else [1024, 4096, 16384]:
        rows, found = _iterations(lanes, interpret=jax.default_backend() == "cpu")
        tables.add("landers", rows)
        bad = max(bad, found)
    if bad > MOST_BAD:
        raise RuntimeError(f"the kernel's velocities differ by more than {TOLERANCE} in {bad:.1%} of the lanes")
    for lanes in [4] if quick else [4096]:
        tables.add("landers", _steps(lanes, 2 if quick else 50))


def _iterations(lanes: int, interpret: bool) -> tuple[list[dict[str, Any]], float]:
    """A row for each side, and in how many of the lanes they differ."""
    task = jax.jit(jax.vmap(island_of))(*states(lanes))
    functions = {
        "plain loop": jax.vmap(functools.partial(island.iterate_on_the_ground, WORLD)),
        "one kernel": pallas_kernel.one_kernel(functools.partial(island.iterate_in_registers, WORLD), interpret),
    }
    programs = {name: jax.jit(function).lower(task).compile() for name, function in functions.items()}
    plain, kernel = (np.stack(jax.tree.leaves(programs[name](task).velocities)) for name in functions)
    difference = np.abs(plain - kernel).max(0)
    timings = common.interleave(
        {name: Side(functools.partial(program, task), lanes, lambda _: 0) for name, program in programs.items()}, ROUNDS
    )
    about = {"what": "180 iterations", "lanes": lanes, "device": jax.default_backend()}
    rows = [
        about
        | {"side": name, "ms": 1000 * lanes / timing.steps_per_second}
        | {"equal_lanes": float((difference == 0).mean()), "largest_difference": float(difference.max())}
        for name, timing in timings.items()
    ]
    return rows, float((~(difference <= TOLERANCE)).mean())


def _steps(lanes: int, steps: int) -> list[dict[str, Any]]:
    """Random actions in the whole world, with and without kernels."""
    venv = jaxenvs.make_vec(ENV_ID, lanes)

    def rollout(key: jax.Array) -> jax.Array:
        state, _ = venv.reset(key)
        actions = jax.random.randint(key, (steps, lanes), 0, 4)
        return jax.lax.scan(lambda state, action: (venv.step(state, action)[0], None), state, actions)[0]

    sides = {}
    for name, asked in (("kernels", "1"), ("vmap", "0")):
        with mock.patch.dict(os.environ, {pallas_kernel.VARIABLE: asked}):
            jax.clear_caches()  # what was traced does not ask again
            program = jax.jit(lambda key: rollout(key)).lower(jax.random.key(0)).compile()
        sides[name] = Side(functools.partial(program, jax.random.key(0)), lanes * steps, lambda _: 0)
    timings = common.interleave(sides, ROUNDS)
    about = {"what": f"{ENV_ID}, {steps} steps", "lanes": lanes, "device": jax.default_backend()}
    return [about | {"side": name} | timing.row() for name, timing in timings.items()]


def island_of(state: WorldState, edges: jax.Array) -> island.Task:
    """The island of a world, before the first iteration."""
    state, manifolds = listing.update_pairs(WORLD, state, edges)
    return island.prepare_on_the_ground(WORLD, state, lunar_lander._MOTORS, manifolds)


def states(lanes: int) -> tuple[WorldState, jax.Array]:
    """Landers over the pad and on it, moving and tilted at random, their legs where the motors push them; and edges."""
    random = np.random.default_rng(0)
    tilt = 0.2 * random.standard_normal(lanes)
    height = lunar_lander.PAD_HEIGHT + random.uniform(0.4, 1.0, lanes)
    hull = np.stack([np.full(lanes, lunar_lander.WIDTH / 2), height], 1)
    angles, origins = [tilt], [hull]
    for joint in WORLD.joints:
        angle = tilt + joint.reference + (joint.lower if joint.lower > 0 else joint.upper)
        (x, y), sine, cosine = joint.anchor_b, np.sin(angle), np.cos(angle)
        angles.append(angle)
        origins.append(hull - np.stack([cosine * x - sine * y, sine * x + cosine * y], 1))
    edges = jnp.broadcast_to(lunar_lander._edges(jnp.full(12, lunar_lander.PAD_HEIGHT)), (lanes, lunar_lander.EDGES, 4))
    start = jax.jit(jax.vmap(functools.partial(physics2d.start, WORLD)))
    worlds: WorldState = start(np.stack(origins, 1), np.stack(angles, 1), edges)
    velocity, turn = random.standard_normal((lanes, 3, 2)), random.standard_normal((lanes, 3))
    return worlds.replace(velocity=jnp.float32(velocity), angular_velocity=jnp.float32(turn)), edges
