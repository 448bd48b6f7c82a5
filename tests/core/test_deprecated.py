"""Former names keep working with a warning, and states that were saved under former names load."""

import copy
import dataclasses
import importlib
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxenvs
from jaxenvs import VectorEnv, VectorState, struct
from jaxenvs.arrays import from_arrays, to_arrays
from jaxenvs.deprecated import (
    REMOVED_IN,
    FormerName,
    accept_former_names,
    with_current_description,
    with_current_paths,
)
from tests.environments import Counter

VENV = VectorEnv(jax.vmap(lambda length: Counter(length=length))(jnp.array([3, 4])), 2, env_axis=0)


@pytest.fixture
def state():
    return VENV.reset(jax.random.key(0))[0]


@accept_former_names
@struct
class Renamed:
    current: int
    other: int = 0

    former = FormerName("current")

    def replace(self, **changes):
        return dataclasses.replace(self, **changes)


def warns_of(former, current):
    return pytest.warns(
        DeprecationWarning,
        match=f"^{former} is deprecated and will be removed in jaxenvs {REMOVED_IN}: use {current}.$",
    )


def test_former_names_of_a_vector_state_return_the_fields(state):
    with warns_of("VectorState.lanes", "VectorState.env_states") as found:
        assert state.lanes is state.env_states
    assert found[0].filename == __file__
    with warns_of("VectorState.lane_key", "VectorState.env_keys"):
        assert state.lane_key is state.env_keys


def test_replace_and_the_constructor_accept_former_names(state):
    keys = jax.random.split(jax.random.key(1), 2)
    with warns_of("VectorState.lane_key", "VectorState.env_keys") as found:
        assert state.replace(lane_key=keys).env_keys is keys
    assert found[0].filename == __file__
    with warns_of("VectorState.lanes", "VectorState.env_states"):
        assert state.replace(lanes="these", done="all") == dataclasses.replace(state, env_states="these", done="all")
    with warns_of("VectorState.lanes", "VectorState.env_states"):
        assert dataclasses.replace(state, lanes="these").env_states == "these"
    with warns_of("Renamed.former", "Renamed.current"):
        assert Renamed(former=5, other=6) == Renamed(5, 6)
    with pytest.raises(TypeError, match="unexpected keyword argument 'lane'"):
        state.replace(lane=None)


def test_the_former_name_of_env_at_returns_the_environment():
    with warns_of("VectorEnv.lane_env", "VectorEnv.env_at") as found:
        assert VENV.lane_env(1) == VENV.env_at(1) == Counter(length=4)
    assert found[0].filename == __file__
    with warns_of("VectorEnv.lane_env", "VectorEnv.env_at"):
        assert VENV.lane_env(lane=0).length == 3


def test_current_names_do_not_warn(state):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        state.replace(env_states=state.env_states, env_keys=state.env_keys)
        jax.tree.map(lambda leaf: leaf, state)
        copy.deepcopy(Renamed(5))
        jax.jit(VENV.step)(state, jnp.zeros(2, jnp.int32))


def test_former_names_are_no_leaves():
    assert jax.tree.leaves(Renamed(1, 2)) == [1, 2]
    names = [field.name for field in dataclasses.fields(VectorState)]
    assert names == ["env_states", "env_keys", "episode", "episode_return", "episode_length", "done"]


def test_an_object_that_was_pickled_under_the_former_name_loads():
    loaded = object.__new__(Renamed)
    loaded.__setstate__({"former": 5, "other": 6})  # what `pickle` calls
    assert loaded == Renamed(5, 6)


def test_arrays_that_were_saved_under_former_names_load(state):
    arrays = to_arrays({"venv": state})
    saved = {
        name.replace(".env_states", ".lanes").replace(".env_keys", ".lane_key"): array for name, array in arrays.items()
    }
    assert saved.keys() & arrays.keys() < arrays.keys()
    loaded = to_arrays(from_arrays(jax.eval_shape(lambda: {"venv": state}), saved))
    np.testing.assert_equal(loaded, arrays)


def test_only_the_names_of_our_own_fields_are_replaced():
    """A user's environment may have fields with any of the names."""
    expected = [".env_states.env_states", ".env_states.env_keys", ".env_states.lanes"]
    former = {".lanes.env_states": 1, ".lanes.env_keys": 2, ".lanes.lanes": 3, "value": 4}
    current = {**dict(zip(expected, (1, 2, 3))), "value": 4}
    assert with_current_paths(expected, former) == with_current_paths(expected, current) == current
    assert with_current_paths([".x"], former) == former


def test_the_description_of_an_adapter_is_brought_up_to_date():
    former = "TimeLimit(env=PgxEnvironment(foreign=Foreign(env=<Pgx>, state=None)))"
    assert with_current_description(former) == former.replace("foreign=Foreign(", "source=Source(")
    assert with_current_description("TimeLimit(env=CartPole())") == "TimeLimit(env=CartPole())"


def test_every_name_of_the_former_package_is_one_of_third_party():
    for name in jaxenvs.foreign.__all__:
        current = name.replace("Foreign", "ThirdParty")
        with warns_of(f"jaxenvs.foreign.{name}", f"jaxenvs.third_party.{current}") as found:
            value = getattr(jaxenvs.foreign, name)
        assert value is getattr(jaxenvs.third_party, current)
        assert found[0].filename == __file__
    assert len(jaxenvs.foreign.__all__) == len(jaxenvs.third_party.__all__)
    assert not hasattr(jaxenvs.foreign, "from_nobody")


def test_an_import_from_the_former_package_warns():
    with warns_of("jaxenvs.foreign.ids", "jaxenvs.third_party.ids"):
        from jaxenvs.foreign import ids
    assert ids is jaxenvs.third_party.ids


def test_modules_of_the_former_package_are_found():
    from jaxenvs.foreign import jumanji

    assert jumanji.__file__ == importlib.import_module("jaxenvs.third_party.jumanji").__file__
    assert issubclass(jumanji.JumanjiEnvironment, jaxenvs.third_party.ThirdPartyEnvironment)
