"""The toy text environments keep the contract, end harmlessly, take any map, are drawn."""

from __future__ import annotations

import dataclasses
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxenvs
from jaxenvs.envs.toy_text.draws import UniformStream
from jaxenvs.envs.toy_text.frozen_lake import generate_random_map

VARIANTS = {
    "FrozenLake": jaxenvs.FrozenLake(desc=("SFS", "FHG"), is_slippery=False),
    "CliffWalking": jaxenvs.CliffWalking(is_slippery=True),
    "Taxi": jaxenvs.Taxi(is_rainy=True, fickle_passenger=True),
    "Blackjack": jaxenvs.Blackjack(natural=True),
}
all_variants = pytest.mark.parametrize("name", VARIANTS)


@jax.jit
def walk(env: Any, key: jax.Array, actions: jax.Array) -> Any:
    start = env.reset(key)
    return start, jax.lax.scan(env.step, start[0], actions)


@pytest.mark.thorough
@all_variants
def test_variants_keep_the_contract_in_float64(name: str, x64: None) -> None:
    jaxenvs.check_env(VARIANTS[name])


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["FrozenLake", "Taxi"])
def test_variants_keep_the_contract_in_float32(name: str) -> None:
    jaxenvs.check_env(VARIANTS[name])


@pytest.mark.thorough
@pytest.mark.parametrize("id", ["FrozenLake-v1", "Blackjack-v1"])
def test_past_the_end_nothing_happens(id: str) -> None:
    env = jaxenvs.make(id, max_episode_steps=-1)
    _, (_, seen) = walk(env, jax.random.key(0), jnp.ones(100, int))
    end = int(seen.terminated.argmax())
    assert seen.terminated[end:].all()
    assert not seen.reward[end + 1 :].any()
    for leaf in jax.tree.leaves(seen.observation):
        assert len(np.unique(leaf[end:])) == 1


def test_where_nothing_is_random_the_state_holds_no_key() -> None:
    for env in (jaxenvs.FrozenLake(is_slippery=False), jaxenvs.CliffWalking(), jaxenvs.Taxi(fickle_passenger=True)):
        state, _ = env.reset(jax.random.key(0))
        assert state.stream is None


def test_a_stream_is_uniform_and_independent() -> None:
    """Along one key, over keys, and from one number to the next."""

    def numbers(key: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda stream, _: stream.next(), UniformStream.create(key), length=100)[1]

    drawn = np.asarray(jax.jit(jax.vmap(numbers))(jax.random.split(jax.random.key(0), 200)))
    assert 0 <= drawn.min() < drawn.max() < 1
    for order in (drawn.ravel(), drawn[0], drawn[:, 0]):
        expected = (np.arange(len(order)) + 0.5) / len(order)
        assert np.abs(np.sort(order) - expected).max() < 1.6 / np.sqrt(len(order))  # Kolmogorov-Smirnov, 1 %
    pairs = np.corrcoef(drawn[:, :-1].ravel(), drawn[:, 1:].ravel())[0, 1], np.corrcoef(drawn[0], drawn[1])[0, 1]
    assert np.abs(pairs[0]) < 0.02
    assert np.abs(pairs[1]) < 0.3


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_a_stream_is_made_of_folded_in_keys(impl: str) -> None:
    stream = UniformStream.create(jax.random.key(5, impl=impl))
    for count in range(3):
        word = jax.random.key_data(jax.random.fold_in(stream.key, count))[0]
        stream, uniform = stream.next()
        assert uniform == int(word) // 256 / 2**24


@pytest.mark.thorough
def test_success_rate_is_data() -> None:
    """Environments may differ in it: one that never slips walks straight, one that always slips never does."""
    rates = jnp.array([0.0, 1.0])
    envs = jax.vmap(lambda rate: jaxenvs.FrozenLake(success_rate=rate, desc=("FFFFFFFF", "SFFFFFFF", "FFFFFFFF")))(
        rates
    )
    step = jax.vmap(lambda env, key: env.step(env.reset(key)[0], jnp.asarray(2)))
    _, timestep = step(envs, jax.random.split(jax.random.key(0), 2))
    assert timestep.observation[0] in (0, 16)
    assert timestep.observation[1] == 9
    np.testing.assert_allclose(timestep.info["prob"], [0.5, 1.0])


def test_a_map_is_any_sequence_of_rows() -> None:
    env = jaxenvs.make("FrozenLake-v1", desc=["SFF", "FFG"])
    assert env.unwrapped.desc == ("SFF", "FFG")
    assert env.observation_space == gymnasium.spaces.Discrete(6)


@pytest.mark.parametrize("desc", [(), "SFG", ("SFF", "FG"), ("FFF", "FFG"), ("SFX", "FFG"), (1, 2)])
def test_what_is_no_map_is_refused(desc: Any) -> None:
    with pytest.raises(ValueError, match="desc must be strings of equal length with the letters S, F, H and G"):
        jaxenvs.FrozenLake(desc=desc)


def test_other_wrong_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match="map_name must be one of '4x4', '8x8', got '5x5'"):
        jaxenvs.FrozenLake(map_name="5x5")
    with pytest.raises(ValueError, match=r"reward_schedule must hold three rewards, .*, got \(1, 0\)"):
        jaxenvs.FrozenLake(reward_schedule=(1, 0))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="p must be a finite number, above 0 and at most 1, got 0"):
        generate_random_map(p=0)
    with pytest.raises(ValueError, match=r"size must be an int from 2 to \d+, got 1"):
        generate_random_map(size=1)


def test_generated_maps_depend_on_the_seed() -> None:
    maps = {generate_random_map(seed=seed) for seed in range(5)}
    assert len(maps) == 5
    assert generate_random_map(size=3, p=1.0) == ("SFF", "FFF", "FFG")


# Pictures.


def test_walker_stands_where_he_is_and_is_not_seen_in_a_hole() -> None:
    env = jaxenvs.FrozenLake(is_slippery=False)
    state, _ = env.reset(jax.random.key(0))
    pictures = {
        position: env.render(dataclasses.replace(state, position=jnp.asarray(position, jnp.int32))).astype(int)
        for position in (0, 5, 10)
    }
    differs = (pictures[10] != pictures[5]).any(axis=-1).reshape(4, 64, 4, 64).any(axis=(1, 3))
    assert np.argwhere(differs).tolist() == [[2, 2]]
    differs = (pictures[10] != pictures[0]).any(axis=-1).reshape(4, 64, 4, 64).any(axis=(1, 3))
    assert np.argwhere(differs).tolist() == [[0, 0], [2, 2]]


@pytest.mark.thorough  # of some: test_picture_shows_the_state
def test_every_situation_of_the_taxi_has_a_picture_of_its_own() -> None:
    env = jaxenvs.Taxi()
    state, _ = env.reset(jax.random.key(0))
    situations = jnp.arange(500, dtype=jnp.int32)
    draw = jax.jit(jax.vmap(lambda s: env.draw(dataclasses.replace(state, situation=s), 112, 132)))
    assert len(np.unique(np.asarray(draw(situations)).reshape(500, -1), axis=0)) == 500


@pytest.mark.thorough
def test_blackjack_shows_what_is_observed_and_nothing_else() -> None:
    env = jaxenvs.Blackjack()

    @jax.jit
    @jax.vmap
    def start(key: jax.Array) -> Any:
        state, timestep = env.reset(key)
        return env.draw(state, 96, 96), jnp.stack(timestep.observation)

    pictures, observed = map(np.asarray, start(jax.random.split(jax.random.key(0), 200)))
    which_picture, which_observation = (
        np.unique(rows.reshape(200, -1), axis=0, return_inverse=True)[1] for rows in (pictures, observed)
    )
    pairs = len({*zip(which_picture.tolist(), which_observation.tolist(), strict=True)})
    assert pairs == which_picture.max() + 1 == which_observation.max() + 1 > 50
