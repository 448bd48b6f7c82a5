"""The replay store against a list of all that ever happened."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxenvs.learn import Replay

CAPACITY, NUM_ENVS, GAMMA = 7, 2, 0.5
ALL_SLOTS = jnp.meshgrid(jnp.arange(CAPACITY), jnp.arange(NUM_ENVS), indexing="ij")
EMPTY = Replay.create(CAPACITY, {"x": jnp.zeros((NUM_ENVS, 2))}, jnp.zeros(NUM_ENVS, jnp.int32))
add = jax.jit(lambda replay, step: replay.add(**step))


@functools.partial(jax.jit, static_argnums=1)
def everything(replay, n_steps):
    """The transitions of all slots, (CAPACITY, NUM_ENVS, ...), those that are not stored too."""
    rows, env_indices = (slots.reshape(-1).astype(jnp.int32) for slots in ALL_SLOTS)
    transitions = replay.transitions(rows, env_indices, GAMMA, n_steps)
    return jax.tree.map(lambda leaf: leaf.reshape(CAPACITY, NUM_ENVS, *leaf.shape[1:]), transitions)


def history(rng, num_steps, end_rate):
    """Steps whose every number is another."""
    numbers = iter(range(1, 10**6))
    now = np.array([next(numbers) for _ in range(NUM_ENVS)])
    for _ in range(num_steps):
        terminated, truncated = rng.random((2, NUM_ENVS)) < end_rate
        final = np.array([next(numbers) for _ in range(NUM_ENVS)])
        following = np.where(terminated | truncated, [next(numbers) for _ in range(NUM_ENVS)], final)
        yield {
            "observation": {"x": np.stack([now, -now], 1).astype(np.float32)},
            "action": now.astype(np.int32),
            "reward": rng.normal(size=NUM_ENVS).astype(np.float32),
            "terminated": terminated,
            "truncated": truncated,
            "next_observation": {"x": np.stack([final, -final], 1).astype(np.float32)},
        }
        now = following


def expected(steps, number, index, n_steps):
    """Reward, next observation and discount of what began at a step."""
    total, factor = 0.0, 1.0
    for step in steps[number : number + n_steps]:
        total += factor * step["reward"][index]
        factor *= GAMMA
        if step["terminated"][index] or step["truncated"][index]:
            break
    return total, step["next_observation"]["x"][index], 0.0 if step["terminated"][index] else factor


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 40), st.sampled_from([0.05, 0.3, 0.7]))
def test_every_stored_slot_is_what_happened(seed, num_steps, end_rate):
    replay, steps = EMPTY, []
    for step in history(np.random.default_rng(seed), num_steps, end_rate):
        replay = add(replay, step)
        steps.append(step)
    first = max(num_steps - CAPACITY, 0)
    assert (int(replay.size), int(replay.position)) == (num_steps - first, num_steps % CAPACITY)
    for n_steps in (1, 3):
        transitions = jax.tree.map(np.asarray, everything(replay, n_steps))
        for number in range(first, num_steps):
            row = number % CAPACITY
            np.testing.assert_array_equal(transitions.observation["x"][row], steps[number]["observation"]["x"])
            np.testing.assert_array_equal(transitions.action[row], steps[number]["action"])
            for index in range(NUM_ENVS):
                reward, following, discount = expected(steps, number, index, n_steps)
                np.testing.assert_allclose(transitions.reward[row, index], reward, rtol=1e-5, atol=1e-6)
                np.testing.assert_array_equal(transitions.next_observation["x"][row, index], following)
                assert transitions.discount[row, index] == discount


@pytest.mark.thorough
def test_slots_are_drawn_uniformly_from_those_that_are_stored():
    replay = EMPTY
    for step in history(np.random.default_rng(0), 10, 0.0):
        replay = add(replay, step)
    rows, env_indices = replay.draw(jax.random.bits(jax.random.key(0), (14_000,)))
    counts = np.bincount(rows * NUM_ENVS + env_indices, minlength=CAPACITY * NUM_ENVS)
    assert ((counts - 1000) ** 2 / 1000).sum() < 34.5  # 99.9 % of the chi-square distribution with 13 degrees
    short = EMPTY
    for step in list(history(np.random.default_rng(0), 2, 0.0)):
        short = add(short, step)
    assert set(np.asarray(short.draw(jax.random.bits(jax.random.key(0), (99,)))[0])) == {0, 1}


@pytest.mark.parametrize("capacity", [0, 2**31])
def test_a_store_that_cannot_be_is_refused(capacity):
    with pytest.raises(ValueError, match=f"capacity must be .* got {capacity}"):
        Replay.create(capacity, jnp.zeros((NUM_ENVS, 2)), jnp.zeros(NUM_ENVS))
