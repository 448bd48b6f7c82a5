"""Pixels: the picture of the state as the observation."""

from __future__ import annotations

from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.wrappers import GrayscaleObservation

import jaxenvs
from tests.environments import Counter

SIZE = (20, 30)


class Shows(gymnasium.Env[np.ndarray, int]):
    """An environment of Gymnasium whose first observation is a picture."""

    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, picture: np.ndarray) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 255, picture.shape, np.uint8)
        self._picture = picture

    def reset(self, **_: Any) -> tuple[np.ndarray, dict[str, Any]]:
        return self._picture, {}


def drawn(env: jaxenvs.Environment[Any], state: Any) -> jax.Array:
    return jax.jit(lambda state: env.draw(state, *SIZE))(state)


def pixels(**options: Any) -> jaxenvs.Pixels:
    return jaxenvs.Pixels(jaxenvs.make("CartPole-v1", max_episode_steps=3), **{"size": SIZE, **options})


@pytest.mark.thorough
@pytest.mark.parametrize("grayscale", [False, True])
def test_it_keeps_the_contract(grayscale: bool) -> None:
    env = pixels(grayscale=grayscale)
    jaxenvs.check_env(env)
    assert env.observation_space == gymnasium.spaces.Box(0, 255, (*SIZE, 1 if grayscale else 3), np.uint8)


def test_one_number_is_both_sides() -> None:
    assert pixels(size=9).observation_space.shape == (9, 9, 3)
    assert jaxenvs.Pixels(jaxenvs.CartPole()).observation_space.shape == (84, 84, 3)


@pytest.mark.thorough
def test_the_observation_is_the_picture_of_the_state() -> None:
    env = pixels()
    state, timestep = jax.jit(env.reset)(jax.random.key(0))
    np.testing.assert_array_equal(timestep.observation, drawn(env, state))
    _, timestep = jax.jit(env.step)(state, 1)
    inner, expected = jax.jit(env.env.step)(state, 1)
    np.testing.assert_array_equal(timestep.observation, drawn(env.env, inner))
    assert (timestep.reward, timestep.terminated) == (expected.reward, expected.terminated)
    assert env.render(state).shape == (400, 600, 3)


def test_gray_is_gymnasiums_luminance() -> None:
    env = pixels()
    _, timestep = jax.jit(env.reset)(jax.random.key(3))
    expected, _ = GrayscaleObservation(Shows(np.asarray(timestep.observation)), keep_dim=True).reset()
    gray = jax.jit(pixels(grayscale=True).reset)(jax.random.key(3))[1].observation
    assert gray.dtype == jnp.uint8
    assert np.unique(np.asarray(timestep.observation).reshape(-1, 3), axis=0).shape[0] > 10
    # Theirs is a sum of float64, which falls below the integer for eight of the 256 grays.
    assert (np.asarray(gray, int) - expected).min() >= 0
    assert (np.asarray(gray, int) - expected).max() <= 1
    assert (np.asarray(gray) == expected).mean() > 0.95


@pytest.mark.thorough
def test_the_final_observation_of_an_environment_is_the_picture_of_its_final_state() -> None:
    env, key = pixels(), jax.random.key(5)
    venv = jaxenvs.VectorEnv(env, 20)  # enough that only environments whose episodes ended are started
    state, _ = jax.jit(venv.reset)(key)
    step = jax.jit(venv.step)
    for _ in range(3):
        before = state.env_states
        state, timestep = step(state, jnp.ones(20, int))
    assert timestep.truncated.all()
    final, _ = jax.jit(jax.vmap(env.env.step))(before, jnp.ones(20, int))
    draw = jax.jit(jax.vmap(lambda state: env.draw(state, *SIZE)))
    np.testing.assert_array_equal(timestep.final_observation, draw(final))
    np.testing.assert_array_equal(timestep.observation, draw(state.env_states))
    assert (timestep.final_observation != timestep.observation).any()


@pytest.mark.parametrize("size", [0, (84,), (84, -1), 8.5, "84", (1, 2, 3)])
def test_what_is_no_size_is_refused(size: Any) -> None:
    with pytest.raises(ValueError, match=r"size must be a positive int or \(height, width\), got"):
        pixels(size=size)


def test_what_does_not_draw_is_refused() -> None:
    with pytest.raises(ValueError, match=r"define Counter\.draw\(state, height, width\)"):
        jaxenvs.Pixels(Counter())
    with pytest.raises(ValueError, match="grayscale must be a bool"):
        pixels(grayscale=1)
