"""The games of MinAtar keep the contract, are random where they should be and nowhere else, batched, drawn."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxenvs
from jaxenvs.envs.minatar.game import NONE, Game

NAMES = ["Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders"]
each_game = pytest.mark.parametrize("name", NAMES)
NUM_LANES = 16


def make(name: str, version: int = 1) -> Game[Any, Any]:
    env = jaxenvs.make(f"MinAtar/{name}-v{version}")
    assert isinstance(env, Game)
    return env


@partial(jax.jit, static_argnums=2)
def walk(env: Game[Any, Any], keys: jax.Array, num_steps: int) -> Any:
    """From each key, `num_steps` random steps past every end: states, timesteps, actions, one after the other."""

    def episode(key: jax.Array) -> Any:
        def step(state: Any, action: jax.Array) -> Any:
            state, timestep = env.step(state, action)
            return state, (state, timestep)

        actions = jax.random.randint(jax.random.fold_in(key, 1), (num_steps,), 0, len(env.minimal_action_set))
        return *jax.lax.scan(step, env.reset(key)[0], actions)[1], actions

    return jax.vmap(episode)(keys)


@pytest.fixture(scope="module")
def walks() -> dict[str, Any]:
    """Of each game, 1000 random steps from 16 keys. Tests share them, and the programs."""
    keys = jax.random.split(jax.random.key(0), NUM_LANES)
    return {name: walk(make(name), keys, 1000) for name in NAMES}


@each_game
def test_keeps_the_contract_in_float32(name: str) -> None:
    jaxenvs.check_env(make(name))


@each_game
def test_keeps_the_contract_in_float64(name: str, x64: None) -> None:
    jaxenvs.check_env(make(name))


@each_game
def test_all_six_actions_and_the_minimal_ones_play_the_same_game(name: str) -> None:
    """Action i of v1 is action `minimal_action_set[i]` of v0."""
    all_six, minimal = make(name, 0), make(name, 1)
    assert all_six.action_space.n == 6
    assert minimal.action_space.n == len(minimal.minimal_action_set)
    state, _ = minimal.reset(jax.random.key(0))
    for index, action in enumerate(minimal.minimal_action_set):
        for ours, theirs in zip(*(jax.tree.leaves(env.step(state, jnp.asarray(number)))
                                  for env, number in ((minimal, index), (all_six, action))), strict=True):
            assert (ours == theirs).all()
