"""check_env: does an environment keep the contract? The one line of test that a new environment needs."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxenvs.environment import Environment, TimeStep


def check_env(env: Environment[Any], num_steps: int = 200, seed: int = 0) -> None:
    """Raise where `env` breaks the contract of `Environment`; return None where it keeps it.

    Checked are: the spaces; that `reset` and `step` return the same structure, shapes, dtypes and weak types (so
    that they are a legal scan carry); that observations lie in their space up to the end of the episode; that the
    flags are bool () and the reward a float (); that stepping past the end gives no NaN; and that `env` is a
    pytree whose parameters can be traced, under `jit`, `vmap` and `scan`.

    Args:
      num_steps: how long to walk, with random actions, without ever resetting.
      seed: of the episodes and of the actions.

    Raises:
      TypeError, ValueError: the contract is broken; the message names the part, what came and what was expected.
    """
    if not isinstance(env, Environment):
        raise TypeError(f"env must be a jaxenvs.Environment, got {type(env).__name__}.")
    key = jax.random.key(seed)
    state, timestep = env.reset(key)
    if not isinstance(timestep, TimeStep):
        raise TypeError(f"reset must return (state, TimeStep), got {type(timestep).__name__} in place of the TimeStep.")
    action = jax.tree.map(jnp.asarray, env.action_space.sample())
    _require_same("step", (state, timestep), jax.eval_shape(env.step, state, action))
    for name, dtype in (("reward", jnp.result_type(float)), ("terminated", bool), ("truncated", bool)):
        value = getattr(timestep, name)
        if jnp.shape(value) != () or jnp.result_type(value) != dtype:
            raise TypeError(
                f"{name} must be {jnp.dtype(dtype)} with shape (), got {jnp.result_type(value)} {jnp.shape(value)}. "
                "TimeStep.create sees to that."
            )
    if bool(timestep.done) or float(timestep.reward) != 0.0:
        raise ValueError(f"reset must return reward 0 and no flag set, got {timestep}.")

    # The parameters go in as data: what works here works under vmap, grad and set_attr too.
    @jax.jit
    def walk(env: Environment[Any], keys: jax.Array, actions: Any) -> Any:
        def episode(key: jax.Array) -> Any:
            return jax.lax.scan(lambda carry, action: (env.step(carry[0], action), carry[1]), env.reset(key), actions)

        return jax.vmap(episode)(keys)

    env.action_space.seed(seed)
    samples = [env.action_space.sample() for _ in range(num_steps)]
    actions = jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *samples)
    last, seen = walk(env, jax.random.split(key, NUM_EPISODES), actions)
    for path, leaf in jax.tree_util.tree_leaves_with_path(last):
        if jnp.issubdtype(leaf.dtype, jnp.floating) and bool(jnp.isnan(leaf).any()):
            raise ValueError(f"NaN in {jax.tree_util.keystr(path)} after {num_steps} steps; the end must be harmless.")
    seen = jax.tree.map(np.asarray, seen)  # seen[i] is what step i found, before it stepped
    for episode, done in enumerate(seen.done):
        length = int(done.argmax()) + 1 if done.any() else num_steps
        for step in range(length):
            _require_in_space(env, jax.tree.map(lambda leaf, at=(episode, step): leaf[at], seen.observation), step)


NUM_EPISODES = 4


def _describe(leaf: Any) -> str:
    aval = jax.typeof(leaf) if not isinstance(leaf, jax.ShapeDtypeStruct) else leaf
    return f"{aval.dtype}{list(aval.shape)}" + (" (weak)" if getattr(aval, "weak_type", False) else "")


def _require_same(function: str, from_reset: Any, from_step: Any) -> None:
    before, after = (
        {jax.tree_util.keystr(path): _describe(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}
        for tree in (from_reset, from_step)
    )
    for path in before.keys() | after.keys():
        if before.get(path) != after.get(path):
            raise TypeError(
                f"reset and {function} must return the same structure and dtypes: (state, timestep){path} is "
                f"{before.get(path, 'absent')} from reset and {after.get(path, 'absent')} from {function}."
            )


def _require_in_space(env: Environment[Any], observation: Any, step: int) -> None:
    space = env.observation_space
    if not space.contains(observation):
        got = jax.tree.map(lambda leaf: f"{leaf.dtype}{list(leaf.shape)} {leaf}", observation)
        raise ValueError(f"The observation of step {step} must lie in {space}, got {got}.")
