"""The scalar specification of BipedalWalker is the reference: the same bits over whole episodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("Box2D", reason="the reference needs gymnasium[box2d]")
pytest.importorskip("numba", reason="the scalar specification is compiled by Numba")

import gymnasium
from gymnasium.envs.box2d.bipedal_walker import BipedalWalkerHeuristics

from tests.envs.box2d.walker import reference
from tests.envs.box2d.walker.environment import Walker


def new_reference(hardcore: bool) -> Any:
    """A world outlives `reset`, and in a used one contacts may come in another order: a new one for each episode."""
    return gymnasium.make("BipedalWalker-v3", hardcore=hardcore, disable_env_checker=True).unwrapped


def assert_same_bits(env: Any, walker: Walker) -> None:
    world = walker.world
    for b, body in enumerate([env.hull, *env.legs]):
        for name, value in reference.body(body).items():
            np.testing.assert_array_equal(np.atleast_1d(world.bodies[b][name]), value, f"{name} of body {b}")
    for j, joint in enumerate(env.joints):
        impulse, limit = reference.joint(joint)
        np.testing.assert_array_equal([*world.joints[j]["impulse"], world.joints[j]["motor"]], impulse)
        assert world.joints[j]["limit"] == limit
    expected = reference.contacts(env)
    mine = world.contacts[: world.n_contacts[0]]
    assert [(c["body"], c["ground"], c["touching"], c["count"]) for c in mine] == [
        (c["body"], c["ground"], c["touching"], c["count"]) for c in expected
    ]
    for contact, other in zip(mine, expected, strict=True):
        for name in ("ids", "local", "impulse"):
            np.testing.assert_array_equal(contact[name][: contact["count"]], other[name][: contact["count"]], name)
        assert contact["count"] == 0 or contact["kind"] == other["kind"]


def episode(kind: str, hardcore: bool, seed: int, steps: int) -> tuple[int, int]:
    """Hold an episode against the reference, step by step. Returns its length and how many impacts were solved."""
    env, walker = new_reference(hardcore), Walker(hardcore)
    expected, _ = env.reset(seed=seed)
    observation = walker.reset(np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed))))
    random, heuristic = np.random.default_rng(seed + 10**6), BipedalWalkerHeuristics()
    terminated, impacts = False, 0
    for t in range(steps):
        np.testing.assert_array_equal(observation, expected)
        assert_same_bits(env, walker)
        if terminated:
            return t, impacts
        action = random.uniform(-1, 1, 4).astype(np.float32)
        if kind == "heuristic" or (kind == "mixed" and random.random() < 0.8):
            action = heuristic.step_heuristic(expected)
        expected, expected_reward, expected_terminated, _, _ = env.step(action)
        observation, reward, terminated = walker.step(action)
        assert (reward, terminated) == (expected_reward, expected_terminated)
        impacts += walker.world.counts[5]
    return steps, impacts


@pytest.mark.thorough
@pytest.mark.parametrize("hardcore", [False, True])
@pytest.mark.parametrize("kind", ["random", "heuristic", "mixed"])
def test_whole_episodes_in_the_same_bits(kind: str, hardcore: bool) -> None:
    lengths, impacts = zip(*(episode(kind, hardcore, seed, 1600) for seed in range(10)), strict=True)
    assert min(lengths) > 20
    assert sum(impacts) > 10  # continuous collision was part of it
