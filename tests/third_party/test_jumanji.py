"""Environments of jumanji."""

import jax
import numpy as np
import pytest

import jaxenvs
from jaxenvs.third_party import from_jumanji
from tests.third_party.episodes import Shown, all_ids, assert_same_episodes

jumanji = pytest.importorskip("jumanji")
wrappers = pytest.importorskip("jumanji.wrappers")


@pytest.mark.thorough
@pytest.mark.parametrize("id", all_ids("jumanji", "Snake-v1", "TSP-v1"))
def test_it_keeps_the_contract(id):
    jaxenvs.check_env(jaxenvs.make(id))


@pytest.mark.thorough
@pytest.mark.usefixtures("x64")
def test_it_keeps_the_contract_with_64_bits():
    jaxenvs.check_env(jaxenvs.make("jumanji/Snake-v1"))


@pytest.mark.thorough
@pytest.mark.parametrize("id", all_ids("jumanji", "Snake-v1"))
def test_its_episodes_are_those_of_jumanji(id):
    env = jumanji.make(id.removeprefix("jumanji/"))

    def reset(key):
        state, timestep = env.reset(key)
        return state, by_name(timestep.observation)

    def step(state, action, key, number):
        state, timestep = env.step(state, action)
        last, ends = timestep.step_type == 2, timestep.discount == 0
        return state, Shown(by_name(timestep.observation), timestep.reward, last & ends, last & ~ends)

    assert_same_episodes(jaxenvs.make(id), reset, step)


def by_name(observation):
    """A NamedTuple as a dict, whose leaves JAX sorts by name; parts of a part are after the part's name."""
    if isinstance(observation, jax.Array | int):  # PacMan's reset says where the player is in Python's numbers
        return observation
    parts = observation._asdict() if hasattr(observation, "_asdict") else vars(observation)
    return {name: by_name(part) for name, part in parts.items()}


@pytest.mark.thorough
def test_a_limit_truncates_where_jumanji_says_so_and_terminates_elsewhere():
    """jumanji's own limits end an episode with a discount of 0."""
    env = jaxenvs.make("jumanji/Snake-v1", time_limit=2)
    state, _ = env.reset(jax.random.key(0))
    for action in (0, 0):
        state, timestep = env.step(state, action)
    assert env.observation_space.contains(jax.tree.map(np.asarray, timestep.observation))
    assert (bool(timestep.terminated), bool(timestep.truncated)) == (True, False)


@pytest.mark.thorough
def test_parts_of_parts_have_names_in_one_dict():
    env = jaxenvs.make("jumanji/BinPack-v2")
    assert {"ems/x1", "items/x_len", "action_mask"} <= set(env.observation_space.spaces)


def test_several_agents_are_refused():
    with pytest.raises(ValueError, match=r"The reward must be one number, got float32\[10\]"):
        jaxenvs.make("jumanji/Connector-v3")


@pytest.mark.thorough
def test_several_agents_are_one_in_jumanjis_own_wrapper():
    own = wrappers.MultiToSingleWrapper(jumanji.make("Connector-v3"))
    env = from_jumanji(own)
    state, theirs = own.reset(jax.random.key(0))
    ours, timestep = env.reset(jax.random.key(0))
    action = np.ones(env.action_space.shape, np.int32)
    (_, theirs), (_, timestep) = own.step(state, action), env.step(ours, action)
    assert timestep.reward == theirs.reward
    np.testing.assert_array_equal(timestep.observation["grid"], theirs.observation.grid)


@pytest.mark.parametrize("name", ["AutoResetWrapper", "VmapAutoResetWrapper", "VmapWrapper"])
def test_wrappers_that_reset_or_batch_are_refused(name):
    own = getattr(wrappers, name)(jumanji.make("Snake-v1"))
    with pytest.raises(ValueError, match=f"other than MultiToSingleWrapper, got {name} around"):
        from_jumanji(own)


@pytest.mark.thorough  # what adapting does, the other tests hold
def test_an_object_can_be_adapted_and_drawn():
    pytest.importorskip("matplotlib")
    env = from_jumanji(jumanji.make("Snake-v1", num_rows=5, num_cols=6))
    state, timestep = env.reset(jax.random.key(0))
    assert timestep.observation["grid"].shape == (5, 6, 5)
    picture = env.render(state)
    assert picture.shape == (*env.render_size, 3)
    assert np.ptp(picture) > 0
