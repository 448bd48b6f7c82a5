"""A rollout of given actions, compiled, and the same one step after another through SB3's wrappers."""

import functools

import jax
import numpy as np
import pytest
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env.stacked_observations import StackedObservations

from bridge.vec_env.compiled_functions import Outputs
from bridge.vec_env.infos import ended_infos, update_reset_infos
from bridge.wrappers.wrapped_env import WrappedEnv, in_dtypes_of, step_wrappers

# What differs between two wrappers that are alike, or is theirs for good.
OWN = {"venv", "class_attributes", "t_start", "results_writer"}


@functools.partial(jax.jit, static_argnums=(0, 1))
def compiled_steps(types, packing, venv, packed_state, states, actions):
    def advance(carry, action):
        env_state, timestep = venv.step(carry[0], action)
        states, timestep, outputs = step_wrappers(types, carry[1], timestep, action)
        return (env_state, states), (Outputs.of(timestep), outputs)

    start = packing.unpack(packed_state), states
    (env_state, states), stacked = jax.lax.scan(advance, start, actions)
    return packing.pack(env_state), states, stacked


def compiled(env, last_obs, actions):
    """Return the results of each step: observations, rewards, dones, and infos of ended episodes by environment."""
    wrapped_env = WrappedEnv.of(env)
    base, actions = wrapped_env.base, np.asarray(actions, wrapped_env.base.action_dtype)
    packed, *rest = compiled_steps(
        wrapped_env.types, base.compiled.state, base.venv, base.packed_state, wrapped_env.state(), actions
    )
    states, (steps, outputs) = jax.tree.map(np.asarray, rest)
    for first, later in zip(jax.tree.leaves(wrapped_env.observation(last_obs)), jax.tree.leaves(steps.observation)):
        assert (first.shape, first.dtype) == (later.shape[1:], later.dtype)

    wrapped_env.check(outputs)
    base.write_back(packed)
    wrapped_env.write_back(states)
    at = steps.done.nonzero()
    given = steps._replace(final_observation=in_dtypes_of(last_obs, steps.final_observation))
    infos = ended_infos(given, at, base.t_start)
    wrapped_env.infos(infos, *at, outputs)
    update_reset_infos(base.reset_infos, steps.info, at)
    observation = in_dtypes_of(last_obs, steps.observation)
    results = [
        (jax.tree.map(lambda leaf, i=i: leaf[i], observation), steps.reward[i], steps.done[i], {})
        for i in range(len(actions))
    ]
    for info, i, index in zip(infos, *at, strict=True):
        results[i][3][index] = info
    return results


def stepped(env, actions):
    results = []
    for action in actions:
        observation, rewards, dones, infos = env.step(action)
        results.append((observation, rewards, dones, {index: infos[index] for index in dones.nonzero()[0].tolist()}))
    return results


def assert_close(ours, theirs):
    """Equal up to rounding: VecNormalize computes in float64, a rollout in float32."""
    assert type(ours) is type(theirs)
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys()
        for name in ours.keys() - {"t"}:
            assert_close(ours[name], theirs[name])
    elif isinstance(ours, list | tuple):
        for mine, other in zip(ours, theirs, strict=True):
            assert_close(mine, other)
    elif isinstance(ours, RunningMeanStd | StackedObservations):
        assert_close(vars(ours), vars(theirs))
    elif isinstance(ours, np.ndarray):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=2e-5)
    else:
        assert ours == (pytest.approx(theirs, rel=1e-4) if isinstance(ours, float | np.floating) else theirs)


def assert_wrappers_close(ours, theirs):
    """Two chains of wrappers stand at the same place."""
    while hasattr(ours, "venv") and hasattr(ours, "class_attributes"):
        assert type(ours) is type(theirs)
        mine, other = ({k: v for k, v in vars(env).items() if k not in OWN} for env in (ours, theirs))
        assert_close(mine, other)
        ours, theirs = ours.venv, theirs.venv
    assert_close(ours.reset_infos, theirs.reset_infos)


def assert_same_rollout(wrap, base, actions, by_hand=3):
    """Check that a compiled rollout does the same as single steps, in environments that `wrap` makes of `base`.

    Single steps by hand afterwards do the same, too.
    """
    ours, theirs = wrap(base()), wrap(base())
    ours.seed(0)
    theirs.seed(0)
    last_obs = jax.tree.map(np.array, ours.reset())
    assert_close(last_obs, jax.tree.map(np.array, theirs.reset()))
    actions, later = actions[:-by_hand], actions[-by_hand:]
    rollout = compiled(ours, last_obs, actions)
    assert_close(rollout, stepped(theirs, actions))
    assert any(done.any() for _, _, done, _ in rollout)
    assert_wrappers_close(ours, theirs)
    assert_close(stepped(ours, later), stepped(theirs, later))
    assert_wrappers_close(ours, theirs)
