"""Environments of craftax, which compile for long: most tests are left out unless asked for."""

import jax
import numpy as np
import pytest

import jaxenvs
from jaxenvs.third_party import from_craftax
from tests.third_party.episodes import Shown, all_ids, assert_same_episodes, keys_of
from tests.third_party.test_base import EpisodeWrapper

craftax_env = pytest.importorskip("craftax.craftax_env")

CLASSIC = "craftax/Craftax-Classic-Symbolic-v1"


@pytest.mark.parametrize("id", all_ids("craftax"))
def test_it_keeps_the_contract(id):
    jaxenvs.check_env(jaxenvs.make(id))


@pytest.mark.third_party
def test_its_episodes_are_those_of_craftax():
    env = craftax_env.make_craftax_env_from_name("Craftax-Classic-Symbolic-v1", auto_reset=False)
    params = env.default_params.replace(max_timesteps=40)

    def reset(key):
        return env.reset(keys_of(key, 0)[0], params)[::-1]

    def step(state, action, key, number):
        observation, state, reward, done, _ = env.step(keys_of(key, number)[1], state, action, params)
        limit = state.timestep >= params.max_timesteps
        dead = (state.player_health <= 0) | (state.map[tuple(state.player_position)] == 14)  # lava
        return state, Shown(observation, reward, done & (dead | ~limit), limit)

    shown = assert_same_episodes(jaxenvs.make(CLASSIC, max_timesteps=40), reset, step, num_steps=45, rtol=1e-6)
    assert shown.truncated[39:].all()
    assert not shown.truncated[:39].any()


def test_numbers_of_its_params_can_be_changed():
    env = jaxenvs.make(CLASSIC, max_timesteps=1, always_diamond=False)
    assert env.replace(cow_health=7).library_params.cow_health == 7
    assert env.library_params.always_diamond is False
    assert "always_diamond" not in env.parameter_names


def test_an_object_can_be_adapted():
    env = from_craftax(craftax_env.make_craftax_env_from_name("Craftax-Classic-Symbolic-v1", auto_reset=False))
    assert env.observation_space.shape == (1345,)
    assert env.action_space.n == 17


def test_wrappers_are_refused_and_not_dropped():
    env = craftax_env.make_craftax_env_from_name("Craftax-Classic-Symbolic-v1", auto_reset=False)
    with pytest.raises(ValueError, match="without wrappers, got EpisodeWrapper around CraftaxClassic"):
        from_craftax(EpisodeWrapper(env))


@pytest.mark.third_party
def test_its_picture_can_be_drawn_in_any_size():
    env = jaxenvs.make(CLASSIC)
    state, _ = jax.jit(env.reset)(jax.random.key(0))
    picture = env.render(state)
    assert picture.shape == (*env.render_size, 3)
    assert np.ptp(picture) > 0
