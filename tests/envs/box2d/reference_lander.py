"""Gymnasium's LunarLander as our states, and whole episodes of it with every number that it drew."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import gymnasium
import jax.numpy as jnp
import numpy as np
from gymnasium.envs.box2d.lunar_lander import heuristic

from jaxenvs.envs.box2d.lunar_lander import WORLD, LunarLander, LunarLanderState, _edges
from jaxenvs.physics2d import WorldState
from tests.envs.box2d import reference_memory as memory

# What the reference is made with, and how it acts: (reference, observation, random) -> action.
KINDS: dict[str, tuple[dict[str, Any], Callable[[Any, np.ndarray, np.random.Generator], Any]]] = {
    "random": ({}, lambda env, observation, random: int(random.integers(4))),
    "heuristic": ({}, lambda env, observation, random: heuristic(env, observation)),
    "mixed": (
        {},
        lambda env, observation, random: (
            heuristic(env, observation) if random.random() < 0.8 else int(random.integers(4))
        ),
    ),
    "wind": ({"enable_wind": True}, lambda env, observation, random: heuristic(env, observation)),
    "continuous": (
        {"continuous": True},
        lambda env, observation, random: random.uniform(-1.2, 1.2, 2).astype(np.float32),
    ),
    "moon": ({"gravity": -1.62}, lambda env, observation, random: heuristic(env, observation)),
}


def ours(kind: str) -> LunarLander:
    return LunarLander(**KINDS[kind][0])


def world_of(env: Any) -> WorldState:
    """The state of the reference's world, in NumPy."""
    edges = {int(each.this): number for number, each in enumerate(env.moon.fixtures)}
    bodies, joints = [env.lander, *env.legs], [leg.joint for leg in env.legs]
    return memory.world_of(env, bodies, joints, lambda fixture: edges[int(fixture.this)], WORLD.pairs)


@dataclasses.dataclass
class Episode:
    """An episode of the reference: what it drew, did and showed. `worlds` has one more than there are steps."""

    kind: str
    heights: np.ndarray
    force: np.ndarray
    wind: np.ndarray
    noise: np.ndarray  # (T, 2)
    actions: np.ndarray
    observations: np.ndarray  # (T + 1, 8)
    rewards: np.ndarray
    terminated: bool
    worlds: list[WorldState]
    winds: np.ndarray  # (T + 1, 2)
    shapings: np.ndarray  # (T + 1,)


def play(kind: str, seed: int, steps: int = 1000, worlds: bool = False) -> Episode:
    """An episode of the reference.

    Args:
      worlds: whether to look at each of its worlds.
    """
    parameters, policy = KINDS[kind]
    env: Any = gymnasium.make("LunarLander-v3", disable_env_checker=True, **parameters).unwrapped
    observation, _ = env.reset(seed=seed)
    # The same generator draws the same numbers here, in the order in which the reference asks for them.
    draws = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed)))
    heights, force = draws.uniform(0, 400 / 30 / 2, 12), draws.uniform(-1000, 1000, 2)
    wind = draws.integers(-9999, 9999, 2) if env.enable_wind else np.zeros(2, np.int64)
    draws.uniform(-1, 1, 2)  # of the step that belongs to the start
    random = np.random.default_rng(seed + 10**6)
    look = (lambda: [world_of(env)]) if worlds else list
    seen, winds = look(), [_wind_of(env)]
    shapings, observations, actions, noise, rewards, terminated = [env.prev_shaping], [observation], [], [], [], False
    while len(actions) < steps and not terminated:
        actions.append(policy(env, observation, random))
        noise.append(draws.uniform(-1, 1, 2))
        observation, reward, terminated, _, _ = env.step(actions[-1])
        observations.append(observation)
        rewards.append(reward)
        shapings.append(env.prev_shaping)
        winds.append(_wind_of(env))
        seen += look()
    arrays = map(np.array, (noise, actions, observations, rewards))
    return Episode(kind, heights, force, wind, *arrays, terminated, seen, np.array(winds), np.array(shapings))


def _wind_of(env: Any) -> tuple[int, int]:
    return (env.wind_idx, env.torque_idx) if env.enable_wind else (0, 0)


def state_of(episode: Episode, step: int) -> LunarLanderState:
    """The state before a step, in NumPy."""
    return LunarLanderState(
        world=episode.worlds[step],
        edges=np.asarray(_edges(jnp.asarray(episode.heights, jnp.float32))),
        shaping=np.float32(episode.shapings[step]),
        wind=episode.winds[step].astype(np.int32),
        over=np.bool_(False),
        key=np.uint32(0),  # the noise is the reference's
    )
