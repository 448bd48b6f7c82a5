"""Ours beside Gymnasium's: the same environment inside, the same start, the same actions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import jax
import numpy as np

from jaxenvs import Environment
from jaxenvs.gym.env import GymnasiumEnv


def assert_equal_to(
    reference: Callable[[gymnasium.Env], gymnasium.Env],
    ours: Environment[Any],
    inside: Environment[Any],
    *,
    num_steps: int = 12,
    rtol: float = 0.0,
) -> None:
    """Spaces, observations, rewards and ends are those of Gymnasium's wrapper, over some episodes.

    Args:
      reference: puts the wrapper around a Gymnasium environment.
      ours: our wrapper around `inside`.
    """
    env, theirs = GymnasiumEnv(ours), reference(GymnasiumEnv(inside))
    assert env.observation_space == theirs.observation_space
    assert env.action_space == theirs.action_space
    actions = env.action_space
    actions.seed(0)
    assert_same(env.reset(seed=3)[0], theirs.reset(seed=3)[0], rtol)
    for _ in range(num_steps):
        action = actions.sample()
        came, expected = env.step(action), theirs.step(action)
        assert_same(came[:2], expected[:2], rtol)
        assert came[2:4] == expected[2:4]
        if came[2] or came[3]:
            assert_same(env.reset()[0], theirs.reset()[0], rtol)


def assert_same(came: Any, expected: Any, rtol: float) -> None:
    assert jax.tree.structure(came) == jax.tree.structure(expected)
    for ours, theirs in zip(jax.tree.leaves(came), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=rtol)
        assert np.asarray(ours).dtype == np.asarray(theirs).dtype
