"""BipedalWalker against Gymnasium's: single steps from the reference's states, its terrain, whole episodes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("Box2D", reason="the reference needs gymnasium[box2d]")

from jaxenvs.envs.box2d import terrain
from jaxenvs.envs.box2d.bipedal_walker import _stand
from tests.envs.box2d.reference_memory import stacked
from tests.envs.box2d.reference_walker import (
    NUM_ENVS,
    Policy,
    assert_same_episodes,
    assert_same_step,
    heard_draws,
    new_reference,
    start_both,
    step_all,
    steps,
)


@pytest.mark.thorough
def test_a_step_from_thousands_of_states() -> None:
    found = steps(14)
    assert len(found) > 4000
    assert any(terminated for *_, (_, _, terminated) in found)  # falls among them
    for start in range(0, len(found) - NUM_ENVS + 1, NUM_ENVS):
        assert_same_step(found[start : start + NUM_ENVS])


@pytest.mark.thorough
def test_starts_as_the_reference() -> None:
    _, observations, states = zip(*map(start_both, range(4)), strict=True)
    states = stacked([jax.tree.map(np.asarray, states[i % 4]) for i in range(NUM_ENVS)])
    _, timestep = step_all()(states, jnp.zeros((NUM_ENVS, 4)))
    np.testing.assert_allclose(timestep.observation[:4], observations, rtol=0, atol=1e-4)
    assert not timestep.terminated.any()


@pytest.mark.thorough
def test_whole_episodes_with_the_draws_of_the_reference() -> None:
    assert_same_episodes(1600)


@pytest.mark.thorough
def test_returns_of_a_heuristic_are_distributed_as_the_references() -> None:
    """In the loop: it walks, stumbles and falls as often there as here."""
    theirs = []
    for seed in range(NUM_ENVS // 2):
        env, policy, total, terminated, t = new_reference(), Policy("heuristic", seed), 0.0, False, 0
        observation, _ = env.reset(seed=seed)
        while not terminated and t < 1600:
            observation, reward, terminated, _, _ = env.step(policy(observation))
            total, t = total + float(reward), t + 1
        theirs.append(total)
    keys = jax.random.split(jax.random.key(1), NUM_ENVS)
    pushes = jax.random.uniform(jax.random.key(2), (NUM_ENVS,), minval=-5.0, maxval=5.0)
    heights = jax.jit(jax.vmap(random_heights))(keys)
    state, timestep = step_all()(
        jax.jit(jax.vmap(_stand))(heights, jnp.zeros((NUM_ENVS, 0, 4)), pushes, jnp.zeros(NUM_ENVS, jnp.uint32)),
        jnp.zeros((NUM_ENVS, 4)),
    )
    policies = [Policy("heuristic", i) for i in range(NUM_ENVS)]
    running, ours = np.ones(NUM_ENVS, bool), np.zeros(NUM_ENVS)
    for _ in range(1600):
        observed = np.asarray(timestep.observation)
        action = np.stack([policy(seen) for policy, seen in zip(policies, observed, strict=True)])
        state, timestep = step_all()(state, jnp.asarray(action))
        ours += np.asarray(timestep.reward) * running
        running &= ~np.asarray(timestep.terminated)
    error = np.sqrt(np.var(ours) / len(ours) + np.var(theirs) / len(theirs))
    assert abs(ours.mean() - np.mean(theirs)) < 3 * error
    assert 0.8 < ours.std() / np.std(theirs) < 1.25


def random_heights(key: jax.Array) -> jax.Array:
    return terrain.build(terrain.draw(key, hardcore=False)).heights


def test_terrain_of_the_draws_of_the_reference() -> None:
    """Its generator is heard out: what it returned is what our terrain is made of."""
    env = new_reference()
    env.reset(seed=3)
    ours = jax.jit(terrain.build)(heard_draws(3)).heights
    np.testing.assert_allclose(ours, env.terrain_y, rtol=0, atol=1e-5)


@pytest.mark.thorough
def test_terrain_of_our_draws_is_like_the_reference() -> None:
    """Stretches of 5 to 9 points, each of which begins level; slopes as spread as the reference's."""
    ours = np.asarray(jax.jit(jax.vmap(random_heights))(jax.random.split(jax.random.key(0), 64)))
    theirs = []
    for seed in range(16):
        env = new_reference()
        env.reset(seed=seed)
        theirs.append(env.terrain_y)
    theirs = np.array(theirs)
    assert (ours[:, : terrain.START + 1] == ours[0, 0]).all()
    level = np.diff(ours[:, terrain.START :], axis=1) == 0
    gaps = np.concatenate([np.diff(np.flatnonzero(row)) for row in level])
    assert set(gaps) == set(range(terrain.SHORTEST, terrain.LONGEST + 1))
    spread = np.diff(ours[:, 30:]).std() / np.diff(theirs[:, 30:]).std()
    assert 0.9 < spread < 1.1
