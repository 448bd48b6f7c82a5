"""BipedalWalker against Gymnasium's: single steps from the reference's states, its terrain, whole episodes."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("Box2D", reason="the reference needs gymnasium[box2d]")

import gymnasium
from gymnasium.envs.box2d.bipedal_walker import BipedalWalkerHeuristics

from jaxenvs.envs.box2d import terrain
from jaxenvs.envs.box2d.bipedal_walker import HULL, LOWER_LEGS, WORLD, BipedalWalker, BipedalWalkerState, _stand
from jaxenvs.physics2d import Pairs, WorldState
from tests.envs.box2d.walker import reference

LANES = 256  # of all programs here
NOTHING = {"key": -1, "count": 0, "id": 0, "impulse": 0}


def new_reference() -> Any:
    """A world outlives `reset`, and in a used one contacts may come in another order: a new one for each episode."""
    return gymnasium.make("BipedalWalker-v3", disable_env_checker=True).unwrapped


def world_of(env: Any) -> WorldState:
    """The reference's world as ours, in NumPy. What the listener heard of upper legs the reference does not keep."""
    bodies = [reference.body(body) for body in (env.hull, *env.legs)]
    impulses, limits = zip(*map(reference.joint, env.joints), strict=True)
    rows = []
    for pair in reversed(reference.contacts(env)):
        # Where there is no point, C++ has memory that nobody wrote, with NaN in it now and then.
        is_there = np.arange(2) < pair["count"]
        id, impulse = np.where(is_there, pair["ids"], 0), np.where(is_there[:, None], pair["impulse"], 0)
        rows.append({**pair, "key": pair["ground"] * len(bodies) + pair["body"], "id": id, "impulse": impulse})

    def table(name: str) -> np.ndarray:
        of_all = np.stack([body[name] for body in bodies])
        return of_all if of_all.shape[1] > 1 else of_all[:, 0]

    def pairs(name: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        column = np.full((WORLD.pairs, *shape), NOTHING[name], dtype)
        for i, pair in enumerate(rows):
            column[i] = pair[name]
        return column

    return WorldState(
        position=table("c"),
        angle=table("a"),
        velocity=table("v"),
        angular_velocity=table("w"),
        still_for=table("sleep"),
        joint_impulse=np.stack(impulses),
        joint_limit=np.array(limits, np.int32),
        fat_box=table("box"),
        pairs=Pairs(
            key=pairs("key", (), np.int32),
            count=pairs("count", (), np.int32),
            id=pairs("id", (2,), np.int32),
            impulse=pairs("impulse", (2, 2), np.float32),
        ),
        has_contact=np.array([getattr(body, "ground_contact", False) for body in (env.hull, *env.legs)]),
        has_touched=np.array([env.game_over, *4 * [False]]),
        awake=np.array(bool(bodies[HULL]["awake"][0])),
    )


def stacked(trees: list[Any]) -> Any:
    return jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *trees)


class Policy:
    """Random actions, or those of Gymnasium's heuristic."""

    def __init__(self, kind: str, seed: int):
        self.random, self.heuristic = np.random.default_rng(seed), BipedalWalkerHeuristics()
        self.kind = kind

    def __call__(self, observation: np.ndarray) -> np.ndarray:
        if self.kind == "random":
            return self.random.uniform(-1, 1, 4).astype(np.float32)
        return self.heuristic.step_heuristic(observation).astype(np.float32)


@functools.lru_cache
def steps(episodes: int) -> list[tuple[BipedalWalkerState, np.ndarray, WorldState, tuple[Any, ...]]]:
    """Steps of the reference, half of them with random actions: state, action, next world, what it returned."""
    found = []
    for kind in ("random", "heuristic"):
        for seed in range(episodes):
            env, policy = new_reference(), Policy(kind, seed)
            observation, _ = env.reset(seed=seed)
            heights = np.array(env.terrain_y, np.float32)
            for _ in range(400):
                before, action = world_of(env), policy(observation)
                observation, reward, terminated, _, _ = env.step(action)
                state = BipedalWalkerState(terrain=heights, world=before, clouds=np.uint32(0))
                found.append((state, action, world_of(env), (observation, reward, terminated)))
                if terminated:
                    break
    return found


@functools.cache
def step_all() -> Any:
    return jax.jit(jax.vmap(BipedalWalker().step))


TOLERANCES = {  # four times what was seen of LunarLander's, per kind of step
    "position": 4e-5,
    "angle": 8e-5,
    "velocity": 2.4e-3,
    "angular_velocity": 2e-3,
    "joint_impulse": 2e-3,
    "fat_box": 1e-4,
}


def assert_same_step(chosen: list[Any]) -> None:
    states, actions, worlds, returned = zip(*chosen, strict=True)
    state, timestep = step_all()(stacked(list(states)), jnp.asarray(np.stack(actions)))
    world, expected = jax.tree.map(np.asarray, state.world), jax.tree.map(np.asarray, stacked(list(worlds)))
    # What is discrete is the same: pairs and their order, points and their ids, limits, flags.
    is_there = np.arange(2) < expected.pairs.count[..., None]
    for got, wanted in (
        (world.pairs.key, expected.pairs.key),
        (world.pairs.count, expected.pairs.count),
        (world.pairs.id * is_there, expected.pairs.id * is_there),
        (world.joint_limit, expected.joint_limit),
        (world.has_contact[:, LOWER_LEGS], expected.has_contact[:, LOWER_LEGS]),
        (world.has_touched[:, HULL], expected.has_touched[:, HULL]),
        (timestep.terminated, [terminated for _, _, terminated in returned]),
    ):
        np.testing.assert_array_equal(got, wanted)
    for name, tolerance in TOLERANCES.items():
        np.testing.assert_allclose(getattr(world, name), getattr(expected, name), rtol=0, atol=tolerance, err_msg=name)
    # What several points along one leg carry is nearly indeterminate between them.
    there = is_there[..., None]
    np.testing.assert_allclose(world.pairs.impulse * there, expected.pairs.impulse * there, rtol=0, atol=2e-2)
    observations, rewards = [o for o, _, _ in returned], [r for _, r, _ in returned]
    np.testing.assert_allclose(timestep.observation, observations, rtol=0, atol=1e-3)
    np.testing.assert_allclose(timestep.reward, rewards, rtol=0, atol=1e-3)


def test_a_step_from_states_of_the_reference() -> None:
    found = steps(2)
    last = [step for step in found if step[3][2]]  # falls among them
    chosen = np.random.default_rng(0).choice(len(found), LANES - len(last), replace=False)
    assert last
    assert_same_step(last + [found[i] for i in chosen])


@pytest.mark.thorough
def test_a_step_from_thousands_of_states() -> None:
    found = steps(14)
    assert len(found) > 4000
    for start in range(0, len(found) - LANES + 1, LANES):
        assert_same_step(found[start : start + LANES])


class Heard:
    """A generator that keeps what it draws."""

    def __init__(self, seed: int):
        self.generator, self.drawn = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed))), []

    def uniform(self, low: float, high: float) -> float:
        self.drawn.append(self.generator.uniform(low, high))
        return self.drawn[-1]

    def integers(self, low: int, high: int) -> int:
        return int(self.generator.integers(low, high))


def start_both(seed: int) -> tuple[Any, np.ndarray, BipedalWalkerState]:
    """The reference after its reset, what it returned, and ours before the step that is part of it."""
    env = new_reference()
    env._np_random = heard = Heard(seed)
    observation, _ = env.reset()
    push = np.float32(heard.drawn[-1])  # clouds were drawn before it
    return env, observation, stand()(np.array(env.terrain_y, np.float32), push, np.uint32(0))


@functools.cache
def stand() -> Any:
    return jax.jit(_stand)


def test_starts_as_the_reference() -> None:
    _, observations, states = zip(*map(start_both, range(4)), strict=True)
    states = stacked([jax.tree.map(np.asarray, states[i % 4]) for i in range(LANES)])
    _, timestep = step_all()(states, jnp.zeros((LANES, 4)))
    np.testing.assert_allclose(timestep.observation[:4], observations, rtol=0, atol=1e-4)
    assert not timestep.terminated.any()


@pytest.mark.thorough
def test_whole_episodes_with_the_draws_of_the_reference() -> None:
    """With its actions, and never set right again.

    Nearly all that fall do so in the same step, with the same return. Who lies on the ground to the last step, under
    random actions, touches it a thousand times, and rounding parts such episodes: also the reference's from itself.
    With velocities changed by a millionth at each step, 92 % of 64 ended in the same step, 58 % with the same return;
    here 96 % and 64 % of 256.
    """
    kind, episodes = "random", []
    for seed in range(LANES):
        env, observation, state = start_both(seed)
        policy, actions, total, terminated = Policy(kind, seed), [], 0.0, False
        while not terminated and len(actions) < 1600:
            actions.append(policy(observation))
            observation, reward, terminated, _, _ = env.step(actions[-1])
            total += float(reward)
        episodes.append((jax.tree.map(np.asarray, state), np.array(actions), total, terminated))
    state, _ = step_all()(stacked([state for state, *_ in episodes]), jnp.zeros((LANES, 4)))
    lengths, totals = np.full(LANES, 1600), np.zeros(LANES)
    running = np.ones(LANES, bool)
    for t in range(1600):
        action = np.stack([actions[min(t, len(actions) - 1)] for _, actions, *_ in episodes])
        state, timestep = step_all()(state, jnp.asarray(action))
        totals += np.asarray(timestep.reward) * running
        lengths[running & np.asarray(timestep.terminated)] = t + 1
        running &= ~np.asarray(timestep.terminated)
        if not running.any():
            break
    same_end = lengths == [len(actions) for _, actions, *_ in episodes]
    same_return = np.abs(totals - [total for *_, total, _ in episodes]) < 1e-2
    fell = np.array([terminated for *_, terminated in episodes])
    assert same_end.mean() >= 0.93
    assert (same_end & same_return)[fell].mean() >= 0.87


@pytest.mark.thorough
def test_returns_of_a_heuristic_are_distributed_as_the_references() -> None:
    """In the loop: it walks, stumbles and falls as often there as here."""
    theirs = []
    for seed in range(LANES // 2):
        env, policy, total, terminated, t = new_reference(), Policy("heuristic", seed), 0.0, False, 0
        observation, _ = env.reset(seed=seed)
        while not terminated and t < 1600:
            observation, reward, terminated, _, _ = env.step(policy(observation))
            total, t = total + float(reward), t + 1
        theirs.append(total)
    keys = jax.random.split(jax.random.key(1), LANES)
    pushes = jax.random.uniform(jax.random.key(2), (LANES,), minval=-5.0, maxval=5.0)
    heights = jax.jit(jax.vmap(terrain.random_heights))(keys)
    state, timestep = step_all()(
        jax.jit(jax.vmap(_stand))(heights, pushes, jnp.zeros(LANES, jnp.uint32)), jnp.zeros((LANES, 4))
    )
    policies = [Policy("heuristic", lane) for lane in range(LANES)]
    running, ours = np.ones(LANES, bool), np.zeros(LANES)
    for _ in range(1600):
        observed = np.asarray(timestep.observation)
        action = np.stack([policy(seen) for policy, seen in zip(policies, observed, strict=True)])
        state, timestep = step_all()(state, jnp.asarray(action))
        ours += np.asarray(timestep.reward) * running
        running &= ~np.asarray(timestep.terminated)
    error = np.sqrt(np.var(ours) / len(ours) + np.var(theirs) / len(theirs))
    assert abs(ours.mean() - np.mean(theirs)) < 3 * error
    assert 0.8 < ours.std() / np.std(theirs) < 1.25


def test_terrain_of_the_draws_of_the_reference() -> None:
    """Its generator is heard out: what it returned is what our terrain is made of."""
    env = new_reference()
    env.reset(seed=3)
    heard = np.random.Generator(np.random.PCG64(np.random.SeedSequence(3)))
    begins, kicks, left = np.zeros(terrain.POINTS + 1, bool), np.zeros(terrain.POINTS, np.float32), terrain.START
    for point in range(terrain.POINTS):
        if not begins[point] and point > terrain.START:
            kicks[point] = heard.uniform(-1, 1) / 30
        left -= 1
        if left == 0:
            left = heard.integers(terrain.SHORTEST, terrain.LONGEST + 1)
            begins[point + 1] = True
    ours = jax.jit(terrain.heights)(begins[:-1], kicks)
    np.testing.assert_allclose(ours, env.terrain_y, rtol=0, atol=1e-5)


def test_terrain_of_our_draws_is_like_the_reference() -> None:
    """Stretches of 5 to 9 points, each of which begins level; slopes as spread as the reference's."""
    ours = np.asarray(jax.jit(jax.vmap(terrain.random_heights))(jax.random.split(jax.random.key(0), 64)))
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
