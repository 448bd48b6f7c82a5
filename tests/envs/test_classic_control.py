"""The classic control environments keep the contract, are differentiable, batched, drawn."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxenvs

# A parameter of each that its dynamics depend on; a mass where there is one.
PARAMETERS = {
    "Acrobot-v1": "link_mass_1",
    "CartPole-v1": "pole_mass",
    "MountainCar-v0": "gravity",
    "MountainCarContinuous-v0": "gravity",
    "Pendulum-v1": "mass",
}


def action_of(env: jaxenvs.Environment[Any]) -> jax.Array:
    """An action that does something."""
    space: Any = env.action_space
    return jnp.asarray(space.n - 1) if hasattr(space, "n") else jnp.asarray(0.5 * space.high)


@jax.jit
def last_observation(env: jaxenvs.Environment[Any], key: jax.Array, action: jax.Array) -> jax.Array:
    """Of 20 steps with the same action."""
    state, timestep = env.reset(key)
    (_, timestep), _ = jax.lax.scan(lambda carry, _: (env.step(carry[0], action), None), (state, timestep), length=20)
    return timestep.observation


@pytest.mark.thorough
@pytest.mark.parametrize(
    "env",
    [
        jaxenvs.CartPole(semi_implicit_euler=True, sutton_barto_reward=True),
        jaxenvs.Acrobot(dynamics="nips", torque_noise_max=0.5),
    ],
    ids=["CartPole", "Acrobot"],
)
def test_variants_keep_the_contract(env: jaxenvs.Environment[Any]) -> None:
    jaxenvs.check_env(env)


@pytest.mark.thorough
@pytest.mark.parametrize("id", PARAMETERS)
def test_far_past_the_end_is_no_nan(id: str) -> None:
    env = jaxenvs.make(id)

    @jax.jit
    def walk(key: jax.Array, action: jax.Array) -> Any:
        return jax.lax.scan(lambda state, _: env.step(state, action), env.reset(key)[0], length=3000)

    state, timestep = walk(jax.random.key(0), action_of(env))
    assert timestep.done[-1]
    for leaf in jax.tree.leaves((state, timestep)):
        assert not jnp.isnan(leaf).any()


@pytest.mark.thorough
@pytest.mark.parametrize(("id", "name"), PARAMETERS.items())
def test_gradient_with_respect_to_a_parameter(id: str, name: str, x64: None) -> None:
    """Finite, and the slope that two nearby parameters show; in the state, as observations are float32."""
    env = jaxenvs.make(id, max_episode_steps=-1)
    action = action_of(env)

    def outcome(value: jax.Array) -> jax.Array:
        changed = env.replace(**{name: value})
        state, _ = changed.reset(jax.random.key(0))
        state, _ = jax.lax.scan(lambda state, _: (changed.step(state, action)[0], None), state, length=3)
        return sum(leaf.sum() for leaf in jax.tree.leaves(state) if leaf.dtype != bool)

    value, nudge = jnp.asarray(env.parameter(name)), 1e-6
    gradient = jax.jit(jax.grad(outcome))(value)
    slope = (jax.jit(outcome)(value + nudge) - jax.jit(outcome)(value - nudge)) / (2 * nudge)
    assert gradient != 0
    np.testing.assert_allclose(gradient, slope, rtol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize(("id", "name"), PARAMETERS.items())
def test_batch_of_parameters_equals_the_loop(id: str, name: str) -> None:
    env = jaxenvs.make(id)
    values = env.parameter(name) * jnp.linspace(0.5, 1.5, 5)
    keys, action = jax.random.split(jax.random.key(0), 5), action_of(env)
    batch = jax.vmap(lambda value: env.replace(**{name: value}))(values)
    together = jax.vmap(last_observation, in_axes=(0, 0, None))(batch, keys, action)
    alone = [
        last_observation(env.replace(**{name: value}), key, action) for value, key in zip(values, keys, strict=True)
    ]
    np.testing.assert_allclose(together, jnp.stack(alone), rtol=1e-4, atol=1e-5)
    same_start = jax.vmap(last_observation, in_axes=(0, None, None))(batch, keys[0], action)
    assert len(np.unique(np.asarray(same_start), axis=0)) == 5


def test_acrobot_without_noise_holds_no_key() -> None:
    state, _ = jaxenvs.Acrobot().reset(jax.random.key(0))
    assert state.key is None
    assert len(jax.tree.leaves(state)) == 4


@pytest.mark.thorough
def test_acrobot_noise_is_its_key() -> None:
    """The same key gives the same noise, the next step another one; all of it lies within the bounds."""
    env, quiet, none = jaxenvs.Acrobot(torque_noise_max=0.5), jaxenvs.Acrobot(), jnp.asarray(1)
    first, again, other = (last_observation(env, jax.random.key(seed), none) for seed in (0, 0, 1))
    assert (first == again).all()
    assert (first != other).any()

    start, _ = env.reset(jax.random.key(0))
    still = dataclasses.replace(start, key=None)
    low, high = (quiet._swing(still, jnp.asarray(torque), None)[0].theta_2_dot for torque in (-0.5, 0.5))

    def pull(key: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        state, _ = env.step(dataclasses.replace(start, key=key), none)
        return state.key, state.theta_2_dot

    _, speeds = jax.lax.scan(pull, start.key, length=500)
    assert len(np.unique(speeds)) > 490
    # To a good approximation the speed is linear in the torque, which is uniform between the bounds.
    share = np.asarray((speeds - low) / (high - low))
    assert (np.abs(np.quantile(share, [0, 0.25, 0.5, 0.75, 1]) - [0, 0.25, 0.5, 0.75, 1]) < 0.07).all()
    assert share.min() >= -1e-5
    assert share.max() <= 1 + 1e-5


def test_acrobot_knows_two_dynamics() -> None:
    with pytest.raises(ValueError, match="dynamics must be 'book' or 'nips', got 'article'"):
        jaxenvs.Acrobot(dynamics="article")  # type: ignore[arg-type]
