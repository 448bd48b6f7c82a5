"""The games of MinAtar are random, and drawn as they should be; minatar/test_parity holds how they are played."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxenvs
from jaxenvs.envs.minatar.game import COLORS, Game, below

NAMES = ["Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders"]
each_game = pytest.mark.parametrize("name", NAMES)
NUM_ENVS, NUM_STEPS = 16, 1000


def make(name: str, version: int = 1, **parameters: Any) -> Game[Any, Any]:
    env = jaxenvs.make(f"MinAtar/{name}-v{version}", **parameters)
    assert isinstance(env, Game)
    return env


@jax.jit
def walk(env: Game[Any, Any], keys: jax.Array) -> Any:
    """Random steps from each key, past every end: actions, states and timesteps, leading axes (keys, steps)."""

    def episode(key: jax.Array) -> Any:
        def step(state: Any, action: jax.Array) -> Any:
            state, timestep = env.step(state, action)
            return state, (state, timestep)

        actions = jax.random.randint(jax.random.fold_in(key, 1), (NUM_STEPS,), 0, len(env.minimal_action_set))
        return actions, *jax.lax.scan(step, env.reset(key)[0], actions)[1]

    return jax.vmap(episode)(keys)


@pytest.fixture(scope="module")
def keys() -> jax.Array:
    return jax.random.split(jax.random.key(0), NUM_ENVS)


def equal(tree: Any, other: Any) -> bool:
    return all(bool((a == b).all()) for a, b in zip(jax.tree.leaves(tree), jax.tree.leaves(other), strict=True))


@pytest.mark.thorough
@each_game
def test_minimal_action_is_one_of_the_six(name: str) -> None:
    all_six, minimal = make(name, 0), make(name, 1)
    assert all_six.action_space == jaxenvs.make("MinAtar/Seaquest-v1").action_space  # which has a use for all
    assert minimal.action_space.n == len(minimal.minimal_action_set)
    state, _ = minimal.reset(jax.random.key(0))
    step_minimal, step_six = jax.jit(minimal.step), jax.jit(all_six.step)
    for index, action in enumerate(minimal.minimal_action_set):
        after, _ = step_minimal(state, jnp.asarray(index))
        assert after.last_action == action
        assert equal(after, step_six(state, jnp.asarray(action))[0])


@pytest.mark.thorough
@pytest.mark.parametrize("name", NAMES)
def test_actions_stick_as_often_as_told(name: str, keys: jax.Array) -> None:
    env = make(name)
    for chance in (0.0, 0.1, 1.0):
        actions, state, _ = walk(env.replace(sticky_action_prob=chance), keys)
        chosen, played = np.asarray(env.minimal_action_set)[np.asarray(actions)], np.asarray(state.last_action)
        before = np.pad(played[:, :-1], ((0, 0), (1, 0)))  # an episode begins with "nothing" remembered
        assert ((played == chosen) | (played == before)).all()
        tells = chosen != before
        assert (played == before)[tells].mean() == pytest.approx(chance, abs=0.015 if chance == 0.1 else 0)


@pytest.mark.thorough(but=["Breakout"])  # of what all have from `Game`
@each_game
def test_any_kind_of_key_will_do(name: str) -> None:
    env, key = make(name), jax.random.key(0, impl="rbg")
    state, _ = jax.eval_shape(env.reset, key)
    after, _ = jax.eval_shape(env.step, state, 0)
    assert after.key.dtype == state.key.dtype == key.dtype


@partial(jax.jit, static_argnums=0)
def draw_often(env: Game[Any, Any], key: jax.Array) -> Any:
    """The random numbers of 20,000 steps, one after the other."""
    return jax.lax.scan(lambda key, _: env.draw_randomness(key), key, length=20_000)[1]


@each_game
def test_random_numbers_of_a_step_are_independent(name: str) -> None:
    """Of each other, and of those of the step before."""
    draws = jax.tree.leaves(draw_often(make(name), jax.random.key(0)))
    columns = np.concatenate([np.asarray(leaf, float).reshape(len(leaf), -1) for leaf in draws], axis=1)
    both = np.concatenate([columns[:-1], columns[1:]], axis=1)
    correlation = np.corrcoef(both, rowvar=False)
    np.testing.assert_allclose(correlation, np.eye(both.shape[1]), atol=5 / np.sqrt(len(both)))


def test_random_numbers_have_the_rules_distributions() -> None:
    def shares(values: Any) -> Any:
        return np.unique(np.asarray(values), return_counts=True)[1] / np.size(values)

    asterix, breakout, freeway = (draw_often(make(name), jax.random.key(1)) for name in NAMES[:3])
    np.testing.assert_allclose(np.quantile(asterix.slot, np.linspace(0, 1, 11)), np.linspace(0, 1, 11), atol=0.02)
    np.testing.assert_allclose(shares(asterix.gold), [2 / 3, 1 / 3], atol=0.02)
    np.testing.assert_allclose(shares(asterix.right), 1 / 2, atol=0.02)
    np.testing.assert_allclose(shares(breakout.side), 1 / 2, atol=0.02)
    assert set(np.unique(freeway.speeds)) == set(range(-5, 6)) - {0}
    for speeds in np.asarray(freeway.speeds).T:
        np.testing.assert_allclose(shares(speeds), 1 / 10, atol=0.02)
    np.testing.assert_allclose(shares(below(jax.random.bits(jax.random.key(0), (20_000,)), 7)), 1 / 7, atol=0.02)


@pytest.mark.thorough
@each_game
def test_picture_shows_the_observation(name: str, keys: jax.Array) -> None:
    """Black where no channel is set; elsewhere a colour a channel, that of the last."""
    env = make(name)
    _, state, timestep = walk(env, keys)
    states = jax.tree.map(lambda leaf: leaf[:, 20], state)
    pictures = np.asarray(jax.vmap(lambda state: env.draw(state, 30, 40))(states))
    observation = np.asarray(timestep.observation[:, 20])
    colours: dict[int, set[tuple[int, ...]]] = {}
    for picture, channels in zip(pictures, observation, strict=True):
        for row, column in np.ndindex(10, 10):
            tile = picture[3 * row : 3 * row + 3, 4 * column : 4 * column + 4].reshape(-1, 3)
            shown = 1 + int(np.flatnonzero(channels[row, column]).max(initial=-1))
            colours.setdefault(shown, set()).update(tuple(pixel) for pixel in tile)
    assert colours[0] == {(0, 0, 0)}
    assert all(len(colour) == 1 for colour in colours.values())
    assert len(set().union(*colours.values())) == len(colours) > 2
    one = env.render(jax.tree.map(lambda leaf: leaf[0], states))
    assert one.shape == (400, 400, 3)
    assert (one[20::40, 20::40] == pictures[0][1::3, 2::4]).all()


@each_game
def test_each_channel_stands_out_from_the_ground_and_from_the_others(name: str) -> None:
    """WCAG 2 asks for a contrast of 3 to 1. With the reference's colors, the player has 1.2 to 1.8 on black."""
    linear = [((np.array(COLORS[channel]) / 255 + 0.055) / 1.055) ** 2.4 for channel in make(name).channels]
    assert all(color @ (0.2126, 0.7152, 0.0722) + 0.05 >= 3 * 0.05 for color in linear)
    pairs = itertools.combinations([np.array(COLORS[channel]) for channel in make(name).channels], 2)
    assert min(np.abs(first - second).max() for first, second in pairs) >= 30


@pytest.mark.thorough
@pytest.mark.parametrize("name", NAMES)
def test_leaves_of_a_start_share_no_buffer(name: str) -> None:
    """A state that was made outside of a compiled function could otherwise not be donated to it."""
    state, timestep = make(name).reset(jax.random.key(0))
    leaves = [leaf for leaf in jax.tree.leaves((state, timestep.observation)) if leaf.dtype != state.key.dtype]
    assert len({leaf.unsafe_buffer_pointer() for leaf in leaves}) == len(leaves)
