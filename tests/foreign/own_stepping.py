"""Whole episodes of a library's own functions beside ours, from the same keys, under the same actions."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import jaxenvs
from jaxenvs.foreign import ForeignEnvironment


def assert_equal_to_own_stepping(
    env: ForeignEnvironment,
    reset: Callable[[jax.Array], Any],
    step: Callable[[Any, Any, jax.Array], Any],
    view: Callable[[Any], Any],
    num_steps: int,
    num_episodes: int = 8,
    rtol: float = 0,
) -> np.ndarray:
    """Never resets, on either side.

    Args:
      reset, step, view: the library's: from a key to a state; from a state, an action and a key to the next; from a
        state to (observation, reward, terminated, truncated).
      rtol: of floats; 0 for the same bits.

    Returns:
      bool, shape (num_episodes,): which episodes ended.
    """
    keys = jax.random.split(jax.random.key(0), num_episodes)
    sampled = jax.random.split(jax.random.key(1), num_steps)
    actions = jax.vmap(lambda key: jaxenvs.spaces.sample(env.action_space, key))(sampled)

    @jax.jit
    @jax.vmap
    def own(key: jax.Array) -> Any:
        key, step_key = jax.random.split(key) if env.step_wants_key else (key, key)

        def next_step(state: Any, at: Any) -> Any:
            state = step(state, at[1], jax.random.fold_in(step_key, at[0]))
            return state, view(state)

        state = reset(key)
        return view(state)[0], jax.lax.scan(next_step, state, (np.arange(num_steps), actions))[1]

    @jax.jit
    @jax.vmap
    def ours(key: jax.Array) -> Any:
        def next_step(state: Any, action: Any) -> Any:
            state, timestep = env.step(state, action)
            return state, (timestep.observation, timestep.reward, timestep.terminated, timestep.truncated)

        state, timestep = env.reset(key)
        return timestep.observation, jax.lax.scan(next_step, state, actions)[1]

    expected, got = own(keys), ours(keys)
    for path, leaf in jax.tree_util.tree_leaves_with_path(got):
        wanted = dict(jax.tree_util.tree_leaves_with_path(expected))[path]
        np.testing.assert_allclose(
            np.asarray(leaf, np.float64), np.asarray(wanted, np.float64), rtol, rtol, err_msg=str(path)
        )
    return np.asarray((got[1][2] | got[1][3]).any(axis=1))
