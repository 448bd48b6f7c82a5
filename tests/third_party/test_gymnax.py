"""Environments of gymnax."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxenvs
from jaxenvs.third_party import from_gymnax
from tests.third_party.episodes import Shown, all_ids, assert_same_episodes, assert_saturates, keys_of

gymnax = pytest.importorskip("gymnax")
pytest.importorskip("gymnax.wrappers.purerl")

CHEAP = ("Breakout-MinAtar", "Catch-bsuite", "FrozenLake-misc", "MemoryChain-bsuite", "MetaMaze-misc")


@pytest.mark.parametrize("id", all_ids("gymnax", *CHEAP))
def test_it_keeps_the_contract(id):
    jaxenvs.check_env(jaxenvs.make(id))


@pytest.mark.usefixtures("x64")
def test_it_keeps_the_contract_with_64_bits():
    jaxenvs.check_env(jaxenvs.make("gymnax/Breakout-MinAtar"))


@pytest.mark.parametrize("id", all_ids("gymnax", "Breakout-MinAtar", "Catch-bsuite"))
def test_its_episodes_are_those_of_gymnax(id):
    env, params = gymnax.make(id.removeprefix("gymnax/"))

    def reset(key):
        return env.reset_env(keys_of(key, 0)[0], params)[::-1]

    def step(state, action, key, number):
        step_key = keys_of(key, number)[1]
        observation, state, reward, terminated, _ = env.step_env(step_key, state, action, params)
        return state, Shown(observation, reward, terminated, env.is_truncated(state, params))

    shown = assert_same_episodes(jaxenvs.make(id), reset, step, rtol=1e-6)
    assert any(np.ptp(leaf.astype(float), axis=0).any() for leaf in jax.tree.leaves(shown[:2]))  # something happens


def test_its_own_limit_truncates_and_does_not_terminate():
    env = jaxenvs.make("gymnax/Catch-bsuite", max_steps_in_episode=3)
    state, _ = env.reset(jax.random.key(0))
    for _ in range(3):
        state, timestep = env.step(state, 1)
    assert bool(timestep.truncated)
    assert not bool(timestep.terminated)


def test_numbers_of_its_params_can_be_changed():
    env = jaxenvs.make("gymnax/CartPole-v1", gravity=5.0)
    assert env.parameter("gravity") == 5.0
    assert env.replace(gravity=1.0).library_params.gravity == 1.0
    narrow = env.replace(x_threshold=1.0)
    assert narrow.observation_space.high[0] == 2.0
    states, _ = jax.vmap(lambda gravity: env.replace(gravity=gravity).step(env.reset(jax.random.key(0))[0], 1))(
        jnp.array([0.0, 100.0])
    )
    assert states.inner.theta_dot[0] != states.inner.theta_dot[1]
    with pytest.raises(AttributeError, match=r"has no parameter 'gravty'\. Did you mean 'gravity'"):
        env.replace(gravty=1.0)
    with pytest.raises(TypeError, match=r"CartPole has no parameter 'gravty'"):
        jaxenvs.make("gymnax/CartPole-v1", gravty=1.0)


def test_constants_of_its_params_are_given_to_make():
    env = jaxenvs.make("gymnax/DeepSea-bsuite", deterministic=False, unscaled_move_cost=0.5, size=4)
    assert env.library_params.deterministic is False
    assert env.parameter("unscaled_move_cost") == 0.5
    assert env.observation_space.shape == (4, 4)
    assert "max_steps_in_episode" not in env.parameter_names


def test_environments_of_an_id_share_programs():
    one, other = jaxenvs.make("gymnax/Pong-misc"), jaxenvs.make("gymnax/Pong-misc")
    assert one == other
    assert jax.tree.structure(one) == jax.tree.structure(other)


def test_an_object_can_be_adapted_with_params_of_its_own():
    env, params = gymnax.make("CartPole-v1")
    assert from_gymnax(env, params.replace(gravity=1.0)).parameter("gravity") == 1.0
    assert from_gymnax(env).parameter("gravity") == params.gravity


@pytest.mark.parametrize("id", ["MountainCarContinuous-v0", "Pendulum-v1"])  # what else has a Box does not clip
def test_actions_saturate_at_their_bounds(id):
    assert_saturates(jaxenvs.make(f"gymnax/{id}"))


@pytest.mark.parametrize("wrapper", ["FlattenObservationWrapper", "LogWrapper"])
def test_wrappers_are_refused_and_not_dropped(wrapper):
    env, params = gymnax.make("Pendulum-v1")
    with pytest.raises(ValueError, match=f"without wrappers, got {wrapper} around Pendulum"):
        from_gymnax(getattr(gymnax.wrappers.purerl, wrapper)(env), params)


def test_grids_have_a_picture():
    env = jaxenvs.make("gymnax/Catch-bsuite")
    state, timestep = env.reset(jax.random.key(0))
    picture = env.draw(state, 20, 10)
    assert picture.dtype == np.uint8
    assert ((picture[::2, ::2] > 0).any(-1) == (timestep.observation > 0)).all()
    assert not jaxenvs.make("gymnax/CartPole-v1").can_render
