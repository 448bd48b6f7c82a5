"""Environments of other libraries, stepped as those libraries step them: without any reset, and with their own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

# From (state, action, key) to (state, (observation, reward, done)), of one lane.
Step = Callable[[Any, Any, jax.Array], tuple[Any, Any]]


@dataclasses.dataclass(frozen=True)
class Own:
    """A library's environment.

    Attributes:
      reset: from a key to a state, of one lane.
      step: never resets.
      step_and_reset: the library's own way to go on after the end; None where it has none.
    """

    reset: Callable[[jax.Array], Any]
    step: Step
    step_and_reset: Step | None


def gymnax(name: str) -> Own:
    import gymnax

    env, params = gymnax.make(name)

    def step(state: Any, action: Any, key: jax.Array) -> Any:
        observation, state, reward, terminated, _ = env.step_env(key, state, action, params)
        return state, (observation, reward, terminated | env.is_truncated(state, params))

    def step_and_reset(state: Any, action: Any, key: jax.Array) -> Any:
        observation, state, reward, terminated, truncated, _ = env.step(key, state, action, params)
        return state, (observation, reward, terminated | truncated)

    return Own(lambda key: env.reset_env(key, params)[1], step, step_and_reset)


def craftax(name: str) -> Own:
    from craftax.craftax_env import make_craftax_env_from_name

    env, resetting = (make_craftax_env_from_name(name, auto_reset=auto_reset) for auto_reset in (False, True))
    params = env.default_params

    def stepping(env: Any) -> Step:
        def step(state: Any, action: Any, key: jax.Array) -> Any:
            observation, state, reward, done, _ = env.step(key, state, action, params)
            return state, (observation, reward, done)

        return step

    return Own(lambda key: env.reset(key, params)[1], stepping(env), stepping(resetting))


def brax(name: str) -> Own:
    from brax import envs

    env = envs.get_environment(name)
    resetting = envs.training.AutoResetWrapper(env)

    def reset(key: jax.Array) -> Any:
        return resetting.reset(key)

    def stepping(env: Any) -> Step:
        def step(state: Any, action: Any, key: jax.Array) -> Any:
            # Its steps write into these, of what they were given.
            state = env.step(state.replace(info=dict(state.info), metrics=dict(state.metrics)), action)
            return state, (state.obs, state.reward, state.done)

        return step

    return Own(reset, stepping(env), stepping(resetting))


def jumanji(name: str) -> Own:
    import jumanji
    from jumanji.wrappers import AutoResetWrapper

    env = jumanji.make(name)
    resetting = AutoResetWrapper(env)

    def stepping(env: Any) -> Step:
        def step(state: Any, action: Any, key: jax.Array) -> Any:
            state, timestep = env.step(state, action)
            return state, (timestep.observation, timestep.reward, timestep.last())

        return step

    return Own(lambda key: env.reset(key)[0], stepping(env), stepping(resetting))


def navix(name: str) -> Own:
    import navix

    env = navix.make(name)

    def stepping(function: Callable[[Any, Any], Any]) -> Step:
        def step(state: Any, action: Any, key: jax.Array) -> Any:
            state = function(state, action)
            return state, (state.observation, state.reward, state.step_type != 0)

        return step

    return Own(env.reset, stepping(env._step), stepping(env.step))


def pgx(name: str) -> Own:
    import pgx
    from pgx.experimental import auto_reset

    env = pgx.make(name)
    resetting = auto_reset(env.step, env.init)

    def stepping(function: Callable[[Any, Any, jax.Array], Any]) -> Step:
        def step(state: Any, action: Any, key: jax.Array) -> Any:
            state = function(state, action, key)
            return state, (state.observation, state.rewards[0], state.terminated)

        return step

    return Own(env.init, stepping(env.step), stepping(resetting))


def playground(name: str) -> Own:
    from mujoco_playground import registry, wrapper

    env = registry.load(name, config_overrides={"impl": "jax"})
    resetting = wrapper.BraxAutoResetWrapper(_OfBatches(env))

    def first(tree: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf[0], tree)

    def batch(tree: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf[None], tree)

    def step(state: Any, action: Any, key: jax.Array) -> Any:
        # Its steps write into the dicts of what they were given.
        state = env.step(jax.tree.map(lambda leaf: leaf, state), action)
        return state, (state.obs, state.reward, state.done)

    def step_and_reset(state: Any, action: Any, key: jax.Array) -> Any:
        state = first(resetting.step(batch(state), action[None]))
        return state, (state.obs, state.reward, state.done)

    # With keys of the old kind: it takes the last axis for theirs.
    return Own(lambda key: first(resetting.reset(jax.random.key_data(key)[None])), step, step_and_reset)


class _OfBatches:
    """What Playground's resets take: they look at a whole batch, here of one lane."""

    def __init__(self, env: Any) -> None:
        self.reset, self.step = jax.vmap(env.reset), jax.vmap(env.step)


def xminigrid(name: str) -> Own:
    import xminigrid
    from xminigrid.wrappers import GymAutoResetWrapper

    env, params = xminigrid.make(name)
    resetting = GymAutoResetWrapper(env)

    def stepping(env: Any) -> Step:
        def step(state: Any, action: Any, key: jax.Array) -> Any:
            state = env.step(params, state, action)
            return state, (state.observation, state.reward, state.last())

        return step

    return Own(lambda key: env.reset(params, key), stepping(env), stepping(resetting))


LIBRARIES: dict[str, Callable[[str], Own]] = {
    function.__name__: function for function in (brax, craftax, gymnax, jumanji, navix, pgx, playground, xminigrid)
}


def lanes(own: Own, num_envs: int, resetting: bool) -> tuple[Callable[[], Any], Callable[[Any, Any], Any]]:
    """A start and a step of many lanes, with one key for each lane and step."""
    one = own.step_and_reset if resetting else own.step
    if one is None:
        raise ValueError("The library has no reset of its own.")

    @jax.jit
    def start() -> Any:
        key, reset_key = jax.random.split(jax.random.key(0))
        state = jax.vmap(own.reset)(jax.random.split(reset_key, num_envs))
        return key, jax.tree.map(jnp.asarray, state)

    def step(carry: Any, action: Any) -> Any:
        key, state = carry
        key, step_key = jax.random.split(key)
        state, outputs = jax.vmap(one)(state, action, jax.random.split(step_key, num_envs))
        return (key, state), outputs

    return start, step
