"""Whole episodes of MinAtar's games and of ours, with the same actions and the same random numbers."""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxenvs
from tests.envs.minatar.players import seaquest_greedy
from tests.envs.minatar.reference import NAMES, Record, Recorder, References, Script, any_draws, load

NUM_ENVS = 20
ROWS = 500  # of one run of the compiled function: the quick tests make one, the slow ones as many as it takes
CASES = [(game, True) for game in NAMES] + [(game, False) for game in ("Asterix", "Seaquest", "SpaceInvaders")]


@functools.cache
def environment(game: str, ramping: bool) -> Any:
    return jaxenvs.make(f"MinAtar/{game}-v0", difficulty_ramping=ramping).unwrapped


@functools.cache
def replay(game: str, ramping: bool) -> Callable[..., Any]:
    """Return a function that replays a record: the states, and observations, rewards and ends (ROWS, NUM_ENVS, ...)."""
    env = environment(game, ramping)
    key = jax.random.key(0)

    def row(states: Any, given: Any) -> Any:
        reset, actions, draws = given
        stepped, timesteps = jax.vmap(env.step_with)(states, actions, draws)
        started = jax.vmap(env.reset_with, in_axes=(None, 0))(key, draws)
        states = jax.tree.map(lambda new, old: jax.vmap(jnp.where)(reset, new, old), started, stepped)
        return states, (jax.vmap(env.observe)(states), timesteps.reward, timesteps.terminated, timesteps.truncated)

    return jax.jit(lambda states, record: jax.lax.scan(row, states, record))


def as_draws(env: Any, draws: dict[str, np.ndarray]) -> Any:
    struct = jax.eval_shape(env.draw_randomness, jax.random.key(0))[1]
    dtypes = {field.name: getattr(struct, field.name).dtype for field in dataclasses.fields(struct)}
    assert dtypes.keys() == draws.keys()
    return type(struct)(**{name: np.asarray(draws[name], dtype) for name, dtype in dtypes.items()})


def compare(game: str, ramping: bool, steps: int, episodes: int, **settings: Any) -> collections.Counter[str]:
    """Plays until there have been so many of each; says what has been seen."""
    references = References(game, ramping, num_envs=NUM_ENVS, seed=int(ramping), **settings)
    env = environment(game, ramping)
    first = as_draws(env, any_draws(game, np.random.default_rng(0), (NUM_ENVS,)))
    states = jax.vmap(env.reset_with, in_axes=(None, 0))(jax.random.key(0), first)
    while references.seen["steps"] < steps or references.seen["episodes"] < episodes:
        record = references.play(ROWS)
        states, ours = replay(game, ramping)(states, (record.reset, record.actions, as_draws(env, record.draws)))
        assert_equal(record, *map(np.asarray, ours))
    return references.seen


def assert_equal(record: Record, observations: Any, rewards: Any, terminated: Any, truncated: Any) -> None:
    step = ~record.reset
    differs = (observations != record.observations).any((2, 3, 4))
    differs |= step & ((rewards != record.rewards) | (terminated != record.terminated) | truncated)
    if differs.any():
        row, i = np.argwhere(differs)[0]
        what = "a reset" if record.reset[row, i] else f"action {record.actions[row, i]}"
        cells = np.argwhere(observations[row, i] != record.observations[row, i])
        raise AssertionError(
            f"row {row} of environment {i}, {what}: "
            f"reward {rewards[row, i]}, the reference's {record.rewards[row, i]}; "
            f"terminated {terminated[row, i]}, {record.terminated[row, i]}; "
            f"(row, column, channel) of the cells that differ: {cells.tolist()}"
        )


# What has to be seen in one run of the compiled function, of the games in which much hardly ever happens.
SEEN_IN_ONE_RUN: dict[tuple[str, bool], dict[str, int]] = {
    ("Breakout", True): {"bricks filled up": 2, "bricks filled up at the end": 1, "passes a brick": 50},
    ("Seaquest", True): {
        "most fish and submarines": 20,
        "most divers on board": 6,
        "fewer than no divers on board": 100,
        "ramp": 19,
        "out of oxygen": 1,
    },
    ("Seaquest", False): {"most divers on board": 6, "fewer than no divers on board": 100},
    ("SpaceInvaders", True): {"ramp": 2, "waves": 3, "landings": 1},
    ("SpaceInvaders", False): {"waves": 3, "landings": 1},
}


@pytest.mark.thorough(but=["Freeway-True", "SpaceInvaders-False"])
@pytest.mark.parametrize(
    ("game", "ramping"),
    CASES,
)
def test_plays_as_the_reference_plays(game: str, ramping: bool) -> None:
    seen = compare(game, ramping, steps=1, episodes=0)
    for what, number in SEEN_IN_ONE_RUN.get((game, ramping), {}).items():
        assert seen[what] >= number, what


@pytest.mark.thorough
def test_seaquest_holds_as_many_enemies_and_bullets_as_there_can_be() -> None:
    seen = compare(
        "Seaquest",
        True,
        steps=1,
        episodes=0,
        shares_at_random=(0.0, 0.02),
        recorder=functools.partial(Recorder, scale=0.4),
    )
    assert (seen["most fish and submarines"], seen["most enemy bullets"]) == (29, 8)


def test_seaquest_picks_up_the_newer_of_two_divers_where_there_is_room_for_one() -> None:
    seen = compare(
        "Seaquest",
        True,
        steps=1,
        episodes=0,
        shares_at_random=(0.0,),
        players=(seaquest_greedy,),
        recorder=functools.partial(Recorder, rows=1),
    )
    assert seen["two divers, room for one"] > 0


def test_a_submarine_of_seaquest_that_is_shot_as_it_shoots_leaves_a_bullet() -> None:
    # Two things that meet only if the submarine's moves change their pace, once the player surfaces a second time.
    enemy_below, enemy, diver = (0.1, 0.1, 8), (0.1, 0.1, 1), (0.9, 1)
    numbers = [*enemy_below, *diver, *enemy_below, *enemy, *diver, *enemy_below]
    right, picks_up, waits, surfaces_late = [3] * 4, [4, 2], [0] * 28, [4, 0, 0, 0, 0, 2]
    shoots = [1, 1, *[0] * 7, 4, 0, 5]
    actions = [*right, *waits[1:], *picks_up, *waits, *surfaces_late, *shoots]

    def player() -> Callable[[Any, int], int]:
        script = iter(actions)
        return lambda game, action: next(script, 0)

    players = tuple(player() for _ in range(NUM_ENVS))
    settings = {"players": players, "shares_at_random": (0.0,), "recorder": lambda seed: Script(numbers)}
    assert compare("Seaquest", True, steps=1, episodes=0, **settings)["submarines shot as they shoot"] == NUM_ENVS


# What has to be seen at least once, and how much of it, in a comparison worth its name.
SEEN: dict[str, dict[str, int]] = {
    "Asterix": {"most entities": 7, "ramp": 9},
    "Breakout": {"bricks filled up": 4, "bricks filled up at the end": 1, "passes a brick": 100},
    "Freeway": {"crossings": 1000},
    "Seaquest": {
        "most fish and submarines": 20,
        "most enemy bullets": 5,
        "most friendly bullets": 2,
        "most divers": 2,
        "ramp": 19,
        "most divers on board": 6,
        "fewer than no divers on board": 100,
        "out of oxygen": 1,
    },
    "SpaceInvaders": {"ramp": 2, "waves": 10, "landings": 5},
}
WITHOUT_RAMPING = {"ramp": 0, "most entities": 4, "most fish and submarines": 3, "most enemy bullets": 2}


@pytest.mark.slow
@pytest.mark.thorough  # one run of each: test_plays_as_the_reference_plays
@pytest.mark.parametrize(("game", "ramping"), CASES)
def test_plays_two_hundred_episodes_as_the_reference_plays(game: str, ramping: bool) -> None:
    seen = compare(game, ramping, steps=100_000, episodes=200)
    for what, number in SEEN[game].items():
        assert seen[what] >= (number if ramping else WITHOUT_RAMPING.get(what, number)), what
    assert ramping or seen["ramp"] == 0


@pytest.mark.parametrize("game", NAMES)
def test_ids_and_spaces_are_those_of_the_reference(game: str) -> None:
    reference = load().Environment(NAMES[game])
    for version, actions in enumerate((list(range(6)), reference.minimal_action_set())):
        env: Any = jaxenvs.make(f"MinAtar/{game}-v{version}")
        assert env.action_space.n == len(actions)
        assert env.observation_space.shape == tuple(reference.state_shape())
        assert env.observation_space.dtype == bool
        assert list(env.unwrapped.minimal_action_set) == reference.minimal_action_set()
