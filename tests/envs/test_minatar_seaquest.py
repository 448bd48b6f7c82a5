"""Seaquest of MinAtar: what hardly ever happens in a game that is played, in situations made for it."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxenvs.envs.minatar.game import FIRE, LEFT, NONE, RIGHT
from jaxenvs.envs.minatar.seaquest import NOWHERE, Seaquest, SeaquestDraws

SEAQUEST = Seaquest(minimal_actions=False)
# Nothing is sticky; what arrives, if anything does, comes from the left in the lowest row.
DRAWS = SeaquestDraws(
    sticky=jnp.float32(1),
    enemy_right=jnp.bool_(True),
    enemy_is_sub=jnp.bool_(False),
    enemy_row=jnp.int32(8),
    diver_right=jnp.bool_(True),
    diver_row=jnp.int32(8),
)
step_with = jax.jit(SEAQUEST.step_with)


def put(state: Any, **changes: Any) -> Any:
    """A state with some attributes changed, in their dtypes; a dict changes places of an array."""
    for name, value in changes.items():
        old = getattr(state, name)
        if isinstance(value, dict):
            new = old
            for index, one in value.items():
                new = new.at[index].set(one)
        else:
            new = jnp.broadcast_to(jnp.asarray(value, old.dtype), old.shape)
        state = dataclasses.replace(state, **{name: new})
    return state


@pytest.fixture(scope="module")
def started() -> Any:
    return jax.jit(SEAQUEST.reset)(jax.random.key(0))[0]


@pytest.mark.thorough
def test_a_bullet_takes_a_fish_before_a_submarine_and_the_oldest_of_them(started: Any) -> None:
    slots = {31: (False, 4), 0: (True, 0), 1: (False, 3), 30: (True, 1), 2: (False, 2)}  # submarine?, move timer
    state = put(
        started,
        y=4,
        x=2,
        faces_right=True,
        next_slot=3,
        enemy_x=dict.fromkeys(slots, 4),
        enemy_y=dict.fromkeys(slots, 4),
        enemies_go_right=True,
        is_sub={slot: sub for slot, (sub, _) in slots.items()},
        enemy_move_timer=9,
        enemy_shot_timer=9,
    )
    left = set(slots)
    for slot in (31, 1, 2, 30, 0):
        state = put(state, shot_timer=0, bullet_x=NOWHERE, y=4, x=2)
        for action in (FIRE, NONE):
            state, timestep = step_with(state, jnp.int32(action), DRAWS)
        assert timestep.reward == 1
        left.remove(slot)
        assert set(np.flatnonzero(np.asarray(state.enemy_x) != NOWHERE).tolist()) == left


@pytest.mark.thorough
def test_the_slot_of_the_next_enemy_is_empty() -> None:
    """Also of its bullet. In games that are as fast as they get, and that nothing ends."""

    @jax.jit
    def walk(keys: jax.Array, spawn_speed: jax.Array) -> Any:
        def step(states: Any, key: jax.Array) -> Any:
            states = put(states, spawn_speed=spawn_speed, move_speed=2, terminated=False, y=0, oxygen=200)
            states, _ = jax.vmap(SEAQUEST.step)(states, jax.random.randint(key, (64,), 0, 6))
            slot = states.next_slot[:, None]
            xs = jnp.take_along_axis(states.enemy_x, slot, 1), jnp.take_along_axis(states.enemy_bullet_x, slot, 1)
            return states, ((xs[0] == NOWHERE) & (xs[1] == NOWHERE)).all()

        states, _ = jax.vmap(SEAQUEST.reset)(jax.random.split(keys[0], 64))
        states, empty = jax.lax.scan(step, put(states, spawn_timer=0), keys)
        return empty.all(), (states.enemy_x != NOWHERE).sum(axis=1).max()

    keys = jax.random.split(jax.random.key(2), 120)
    for spawn_speed, most in [(1, 20), (2, 10), (5, 4)]:
        empty, enemies = walk(keys, jnp.int32(spawn_speed))
        assert empty
        assert enemies >= most


def test_right_and_left_face_the_submarine_also_at_the_wall(started: Any) -> None:
    back = SEAQUEST.channels.index("sub_back")
    for x, faces_right, action, behind in ((9, False, RIGHT, 8), (0, True, LEFT, 1)):
        _, timestep = step_with(put(started, x=x, y=3, faces_right=faces_right), jnp.int32(action), DRAWS)
        assert np.argwhere(timestep.observation[:, :, back]).tolist() == [[3, behind]]
