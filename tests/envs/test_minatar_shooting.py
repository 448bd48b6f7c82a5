"""SpaceInvaders and Seaquest of MinAtar: what is theirs alone, each in a situation made for it."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxenvs.envs.minatar.game import DOWN, FIRE, LEFT, NONE, RIGHT, UP, Draws
from jaxenvs.envs.minatar.seaquest import NOWHERE, Seaquest, SeaquestDraws, SeaquestState
from jaxenvs.envs.minatar.space_invaders import BLOCK, SpaceInvaders, SpaceInvadersState

INVADERS, SEAQUEST = SpaceInvaders(minimal_actions=False), Seaquest(minimal_actions=False)
NOT_STICKY = jnp.float32(1)


@jax.jit
def step_with(env: Any, state: Any, action: jax.Array, draws: Any) -> Any:
    return env.step_with(state, action, draws)


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


def invade(state: SpaceInvadersState, *actions: int, env: SpaceInvaders = INVADERS) -> tuple[SpaceInvadersState, Any]:
    """The state after some steps, and the last TimeStep."""
    for action in actions:
        state, timestep = step_with(env, state, jnp.int32(action), Draws(sticky=NOT_STICKY))
    return state, timestep


def dive(
    state: SeaquestState,
    *actions: int,
    env: Seaquest = SEAQUEST,
    enemy: tuple[bool, bool, int] = (True, False, 8),
    diver: tuple[bool, int] = (True, 8),
) -> tuple[SeaquestState, Any]:
    """The same; `enemy` (right, submarine, row) and `diver` (right, row) are what arrives if one does."""
    draws = SeaquestDraws(
        sticky=NOT_STICKY,
        enemy_right=jnp.bool_(enemy[0]),
        enemy_is_sub=jnp.bool_(enemy[1]),
        enemy_row=jnp.int32(enemy[2]),
        diver_right=jnp.bool_(diver[0]),
        diver_row=jnp.int32(diver[1]),
    )
    for action in actions:
        state, timestep = step_with(env, state, jnp.int32(action), draws)
    return state, timestep


@pytest.fixture(scope="module")
def invaders() -> SpaceInvadersState:
    state: SpaceInvadersState = jax.jit(INVADERS.reset)(jax.random.key(0))[0]
    return state


@pytest.fixture(scope="module")
def seaquest() -> SeaquestState:
    state: SeaquestState = jax.jit(SEAQUEST.reset)(jax.random.key(0))[0]
    return state


def channel(timestep: Any, env: Any, name: str) -> list[tuple[int, int]]:
    """The cells that are set in one channel."""
    shown = np.asarray(timestep.observation)[:, :, env.channels.index(name)]
    return [(int(row), int(column)) for row, column in np.argwhere(shown)]


def test_invaders_shots_are_five_steps_apart(invaders: SpaceInvadersState) -> None:
    _, timestep = invade(invaders, *[FIRE] * 5)
    assert channel(timestep, INVADERS, "friendly_bullet") == [(4, 5)]
    _, timestep = invade(invaders, *[FIRE] * 6)
    assert channel(timestep, INVADERS, "friendly_bullet") == [(8, 5)]  # the first has hit the alien in row 3
    _, timestep = invade(put(invaders, aliens=1), *[FIRE] * 6)
    assert channel(timestep, INVADERS, "friendly_bullet") == [(3, 5), (8, 5)]


def test_invaders_bullet_takes_one_alien(invaders: SpaceInvadersState) -> None:
    state, timestep = invade(invaders, FIRE, *[NONE] * 4)
    assert (int(timestep.reward), len(channel(timestep, INVADERS, "alien"))) == (0, 24)
    _, timestep = invade(state, NONE)
    assert (int(timestep.reward), len(channel(timestep, INVADERS, "alien"))) == (1, 23)
    assert not channel(timestep, INVADERS, "friendly_bullet")


@pytest.mark.parametrize("ramping", [True, False])
@pytest.mark.parametrize(("interval", "faster"), [(12, 11), (6, 6)])
def test_invaders_next_block_comes_faster(
    invaders: SpaceInvadersState, ramping: bool, interval: int, faster: int
) -> None:
    last = put(invaders, aliens=1, top=3, left=7, direction=1, move_interval=interval)
    last = put(last, bullet_rows={0: 4}, bullet_columns={0: 7})
    state, timestep = invade(last, NONE, env=SpaceInvaders(minimal_actions=False, difficulty_ramping=ramping))
    assert timestep.reward == 1
    assert state.aliens == BLOCK
    assert state.move_interval == (faster if ramping else interval)
    assert channel(timestep, INVADERS, "alien_right") == [(row, column) for row in range(4) for column in range(2, 8)]


def test_invaders_fewer_move_more_often(invaders: SpaceInvadersState) -> None:
    state, _ = invade(put(invaders, aliens=0b111, move_timer=0), NONE)
    assert (int(state.left), int(state.move_timer)) == (1, 2)


def test_invaders_turn_and_go_down_at_the_edge(invaders: SpaceInvadersState) -> None:
    """Where the outermost alien that is left stands, not the block."""
    _, timestep = invade(put(invaders, aliens=0b010010, left=-1, move_timer=0), NONE)
    assert channel(timestep, INVADERS, "alien_right") == [(1, 0), (1, 3)]
    assert not timestep.terminated
    _, timestep = invade(put(invaders, aliens=1, top=9, left=0, cannon=9, move_timer=0), NONE)
    assert timestep.terminated
    assert channel(timestep, INVADERS, "alien") == [(0, 0)]


def test_invaders_nearest_column_shoots_from_its_lowest_alien(invaders: SpaceInvadersState) -> None:
    aliens = sum(1 << 6 * row + column for row, column in [(0, 1), (2, 1), (3, 3), (1, 3)])  # columns 3 and 5
    for cannon, cell in [(4, (2, 3)), (5, (3, 5)), (0, (2, 3))]:
        _, timestep = invade(put(invaders, aliens=aliens, cannon=cannon, enemy_shot_timer=0), NONE)
        assert channel(timestep, INVADERS, "enemy_bullet") == [cell]


def test_invaders_bullet_ends_the_game_where_the_cannon_moves(invaders: SpaceInvadersState) -> None:
    above = put(invaders, enemy_bullet_row=8, enemy_bullet_column=4)
    assert invade(above, LEFT)[1].terminated
    assert not invade(above, NONE)[1].terminated
    assert not invade(above, NONE, LEFT)[1].terminated  # it was in row 9 before


def test_seaquest_oxygen_lasts_200_steps(seaquest: SeaquestState) -> None:
    # No enemies: the spawn timer never gets to 0.
    state, timestep = dive(put(seaquest, spawn_timer=1000, diver_timer=1000), DOWN, *[NONE] * 199)
    assert not timestep.terminated
    assert not channel(timestep, SEAQUEST, "oxygen_gauge")
    assert dive(state, NONE)[1].terminated


def test_seaquest_surfacing_needs_a_diver(seaquest: SeaquestState) -> None:
    below = put(seaquest, y=1, at_surface=False, oxygen=50)
    _, timestep = dive(below, UP)
    assert timestep.terminated
    state, timestep = dive(put(below, divers=3), UP)
    assert not timestep.terminated
    assert (int(timestep.reward), int(state.oxygen), int(state.divers)) == (0, 200, 2)
    assert channel(timestep, SEAQUEST, "diver_gauge") == [(9, 7), (9, 8)]
    state, _ = dive(state, NONE, NONE)
    assert (int(state.oxygen), int(state.divers)) == (200, 2)


def test_seaquest_six_divers_are_worth_the_oxygen(seaquest: SeaquestState) -> None:
    state, timestep = dive(put(seaquest, y=1, at_surface=False, oxygen=139, divers=6), UP)
    assert (int(timestep.reward), int(state.oxygen), int(state.divers)) == (6, 200, -1)
    assert not channel(timestep, SEAQUEST, "diver_gauge")
    assert not dive(state, DOWN, UP)[1].terminated


def test_seaquest_surfacing_makes_it_harder(seaquest: SeaquestState) -> None:
    def after(times: int, env: Seaquest) -> list[int]:
        state = seaquest
        for _ in range(times):
            state, _ = dive(put(state, y=1, at_surface=False, divers=1, spawn_timer=9), UP, env=env)
        return [int(state.spawn_speed), int(state.move_speed), int(state.ramp_index)]

    assert after(1, SEAQUEST) == [19, 5, 1]
    assert after(2, SEAQUEST) == [18, 4, 2]
    assert after(21, SEAQUEST) == [1, 2, 19]
    assert after(3, Seaquest(minimal_actions=False, difficulty_ramping=False)) == [20, 5, 0]


def test_seaquest_bullet_takes_a_fish_before_a_submarine_and_the_oldest_of_them(seaquest: SeaquestState) -> None:
    slots = {31: (False, 4), 0: (True, 0), 1: (False, 3), 30: (True, 1), 2: (False, 2)}  # submarine?, move timer
    state = put(
        put(seaquest, y=4, x=2, faces_right=True, next_slot=3),
        enemy_x=dict.fromkeys(slots, 4),
        enemy_y=dict.fromkeys(slots, 4),
        enemies_go_right=True,
        is_sub={slot: sub for slot, (sub, _) in slots.items()},
        enemy_move_timer=9,
        enemy_shot_timer=9,
    )
    left = set(slots)
    for slot in (31, 1, 2, 30, 0):
        state, timestep = dive(put(state, shot_timer=0, bullet_x=NOWHERE, y=4, x=2), FIRE, NONE)
        assert timestep.reward == 1
        left.remove(slot)
        assert set(np.flatnonzero(np.asarray(state.enemy_x) != NOWHERE).tolist()) == left


def test_seaquest_enemy_does_not_arrive_against_others(seaquest: SeaquestState) -> None:
    state = put(seaquest, spawn_timer=0, enemy_x={0: 5}, enemy_y={0: 3}, enemies_go_right={0: True}, next_slot=1)
    for right, row, arrives in [(False, 3, False), (True, 3, True), (False, 4, True)]:
        after, timestep = dive(put(state, enemy_move_timer=5), NONE, enemy=(right, True, row))
        cells = [(3, 5), (row, 0 if right else 9)] if arrives else [(3, 5)]
        enemies = channel(timestep, SEAQUEST, "enemy_fish") + channel(timestep, SEAQUEST, "enemy_sub")
        assert sorted(enemies) == sorted(cells)
        assert after.spawn_timer == 19


def test_seaquest_submarine_shoots_every_eleven_steps(seaquest: SeaquestState) -> None:
    state = put(seaquest, spawn_timer=0, spawn_speed=1000)
    shots, before = [], NOWHERE
    for number in range(34):
        state, _ = dive(state, NONE, enemy=(False, True, 5))
        bullet = int(state.enemy_bullet_x[0])
        if bullet not in (NOWHERE, before - 1):  # where no bullet has been flying to
            shots.append(number)
        before = bullet
    assert shots == [10, 21, 32]


def test_seaquest_newest_diver_comes_aboard_where_there_is_room_for_one(seaquest: SeaquestState) -> None:
    state = put(seaquest, y=4, divers=5, diver_x=5, diver_y=4, divers_go_right={0: True}, diver_timer=20)
    after, timestep = dive(state, NONE)
    assert after.divers == 6
    assert np.asarray(after.diver_x).tolist() == [NOWHERE, 5]
    assert len(channel(timestep, SEAQUEST, "diver_gauge")) == 6


def test_seaquest_diver_is_met_where_it_moves(seaquest: SeaquestState) -> None:
    beside = put(seaquest, y=4, diver_x={0: 4}, diver_y={0: 4}, divers_go_right={0: True})
    assert dive(put(beside, diver_timer=25), NONE)[0].divers == 1
    assert dive(put(beside, diver_timer=24), NONE)[0].divers == 0


def test_seaquest_slot_of_the_next_enemy_is_empty() -> None:
    """Also of its bullet. In games that are as fast as they get, and that nothing ends."""

    @jax.jit
    def walk(keys: jax.Array, spawn_speed: jax.Array) -> Any:
        def step(lanes: Any, key: jax.Array) -> Any:
            lanes = put(lanes, spawn_speed=spawn_speed, move_speed=2, terminated=False, y=0, oxygen=200)
            lanes, _ = jax.vmap(SEAQUEST.step)(lanes, jax.random.randint(key, (64,), 0, 6))
            slot = lanes.next_slot[:, None]
            xs = jnp.take_along_axis(lanes.enemy_x, slot, 1), jnp.take_along_axis(lanes.enemy_bullet_x, slot, 1)
            return lanes, ((xs[0] == NOWHERE) & (xs[1] == NOWHERE)).all()

        lanes, _ = jax.vmap(SEAQUEST.reset)(jax.random.split(keys[0], 64))
        lanes, empty = jax.lax.scan(step, put(lanes, spawn_timer=0), keys)
        return empty.all(), (lanes.enemy_x != NOWHERE).sum(axis=1).max()

    keys = jax.random.split(jax.random.key(2), 120)
    for spawn_speed, most in [(1, 20), (2, 10), (5, 4)]:
        empty, enemies = walk(keys, jnp.int32(spawn_speed))
        assert empty
        assert enemies >= most


def test_right_and_left_face_the_submarine_also_at_the_wall(seaquest: SeaquestState) -> None:
    _, timestep = dive(put(seaquest, x=9, y=3), RIGHT)
    assert (channel(timestep, SEAQUEST, "sub_front"), channel(timestep, SEAQUEST, "sub_back")) == ([(3, 9)], [(3, 8)])
    _, timestep = dive(put(seaquest, x=0, y=3, faces_right=True), LEFT)
    assert (channel(timestep, SEAQUEST, "sub_front"), channel(timestep, SEAQUEST, "sub_back")) == ([(3, 0)], [(3, 1)])
