"""What all adapters share, on libraries made up for it: no other library is needed here."""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

import jaxenvs
from jaxenvs import TimeStep, environment
from jaxenvs.third_party import ThirdPartyEnvironment
from jaxenvs.third_party.adapter import adapt, box, ravelled
from jaxenvs.third_party.library import entry_points, refuse_wrappers, shared


@environment
class Sloppy(ThirdPartyEnvironment):
    """Of Python's numbers at reset, integers for rewards, floats for flags, and what is no array in the info."""

    step_wants_key = True

    def _reset(self, key):
        return {"time": 0, "total": 0}, {"position": 0.0, "grid": np.zeros(3, bool)}

    def _step(self, inner, action, key):
        inner = {"time": inner["time"] + 1, "total": inner["total"] + self.params["gain"] * action}
        info = {"draw": jax.random.uniform(key), "key": key, "name": "sloppy", "inside": {"key": key, "number": 1}}
        observation = {"position": inner["total"], "grid": jnp.ones(3, bool)}
        return inner, TimeStep(observation, action, jnp.float32(inner["time"] > 2), False, info)


def sloppy(cls=Sloppy, gain=0.5):
    space = spaces.Dict(
        {"position": box(-np.inf, np.finfo(np.float32).max, (), np.float32), "grid": box(0, 1, (3,), bool)}
    )
    return adapt(cls, object(), observation_space=space, action_space=spaces.Discrete(2), params={"gain": gain})


@pytest.mark.thorough
@pytest.mark.parametrize("enable_x64", [False, True])
def test_what_a_library_returns_is_brought_under_the_contract(enable_x64):
    with jax.enable_x64(enable_x64):
        jaxenvs.check_env(sloppy(), num_steps=5)


def test_an_info_has_zeros_at_reset_and_neither_keys_nor_what_is_no_array():
    env = sloppy()
    state, timestep = env.reset(jax.random.key(0))
    assert timestep.info == {"draw": 0, "inside": {"number": 0}}
    _, timestep = env.step(state, 1)
    assert timestep.info["inside"] == {"number": 1}


def test_steps_draw_from_keys_of_their_own():
    env = sloppy()
    state, _ = env.reset(jax.random.key(0))
    draws = []
    for _ in range(3):
        state, timestep = env.step(state, 1)
        draws.append(float(timestep.info["draw"]))
    assert len(set(draws)) == 3
    step_key = jax.random.split(jax.random.key(0))[1]
    assert draws[2] == jax.random.uniform(jax.random.fold_in(step_key, 2))


def test_numbers_among_observations_have_an_axis_and_no_bound_where_the_library_writes_the_largest_float():
    env = sloppy()
    assert env.observation_space["position"] == spaces.Box(-np.inf, np.inf, (1,), np.float32)
    assert env.observation_space["grid"] == spaces.MultiBinary(3)
    assert ravelled(spaces.Box(0, 1, (2, 3))) == spaces.Box(0, 1, (2, 3))


def test_parameters_are_data():
    env = sloppy()
    assert env.parameter("gain") == 0.5
    state, _ = env.reset(jax.random.key(0))
    totals = jax.vmap(lambda gain: env.replace(gain=gain).step(state, 1)[0].inner["total"])(jnp.arange(3.0))
    assert totals.tolist() == [0, 1, 2]
    with pytest.raises(AttributeError, match=r"Sloppy has no parameter 'gian'\. Did you mean 'gain'\? It has: gain"):
        env.replace(gian=1.0)
    with pytest.raises(TypeError, match=r"Sloppy\.gain must be a real number or an array of real numbers, got 'much'"):
        env.replace(gain="much")
    with pytest.raises(ValueError, match=r"Sloppy\.gain must not be NaN"):
        env.replace(gain=float("nan"))


@pytest.mark.thorough
def test_a_parameter_of_some_environments_is_changed_by_set_attr():
    bridge = pytest.importorskip("bridge")
    venv = bridge.JaxVecEnv(sloppy(), 3, seed=0)
    venv.reset()
    venv.set_attr("gain", 2.0, indices=[1])
    assert venv.get_attr("gain") == [0.5, 2.0, 0.5]
    observation = venv.step(np.ones(3, int))[0]
    assert observation["position"].ravel().tolist() == [0.5, 2.0, 0.5]
    with pytest.raises(AttributeError, match="has no parameter 'gian'"):
        venv.set_attr("gian", 1.0)


@environment
class Growing(Sloppy):
    def _step(self, inner, action, key):
        inner, timestep = super()._step(inner, action, key)
        return inner, timestep.replace(observation=timestep.observation | {"grid": jnp.ones(4, bool)})


@environment
class Named(Sloppy):
    def _reset(self, key):
        inner, observation = super()._reset(key)
        return inner | {"name": "sloppy"}, observation


@environment
class Team(Sloppy):
    def _step(self, inner, action, key):
        inner, timestep = super()._step(inner, action, key)
        return inner, timestep.replace(reward=jnp.zeros(3))


def test_an_error_names_the_leaf():
    env = sloppy(Growing)
    with pytest.raises(ValueError, match=r"observation of step\['grid'\] must have shape \(3,\), got \(4,\)"):
        env.step(env.reset(jax.random.key(0))[0], 1)
    with pytest.raises(TypeError, match=r"state of reset must hold arrays, got \['name'\] = 'sloppy'"):
        sloppy(Named)
    with pytest.raises(ValueError, match=r"The reward must be one number, got float32\[3\]"):
        sloppy(Team)


def test_what_is_built_of_the_same_arguments_is_shared():
    build = shared(lambda name, **arguments: sloppy())
    assert build("one") == build("one")
    assert build("one") != build("two")
    assert build("one", size=1) != build("one", size=True)
    assert build("one", size=[1]) != build("one", size=[1])  # not hashable


def test_entry_points_make_what_the_library_has_and_name_the_nearest_otherwise():
    make, ids = entry_points("mine", lambda: ["two", "one"], lambda name, **arguments: (name, arguments))
    assert ids() == ["one", "two"]
    assert make("one", size=1) == ("one", {"size": 1})
    with pytest.raises(jaxenvs.UnknownEnvironment, match=r"mine has no environment 'twe'\. Did you mean mine/two"):
        make("twe")
    with pytest.raises(jaxenvs.UnknownEnvironment, match=r"`jaxenvs list mine` lists its environments\."):
        make("quux")


@pytest.mark.parametrize("library", ["brax", "craftax", "gymnax", "jumanji"])
def test_an_absent_library_is_answered_with_what_to_install(library, monkeypatch):
    real = importlib.import_module

    def absent(name, *args):
        if name.partition(".")[0] == library:
            raise ModuleNotFoundError(f"No module named {library!r}", name=library)
        return real(name, *args)

    monkeypatch.setattr(importlib, "import_module", absent)
    for call in (lambda: jaxenvs.make(f"{library}/anything"), lambda: jaxenvs.third_party.ids(library)):
        with pytest.raises(ImportError, match=rf'pip install "jaxenvs\[{library}\]"'):
            call()


class Bare:
    """What every library's environment has."""

    num_players = 1

    def reset(self):
        pass

    def step(self):
        pass


class EpisodeWrapper(Bare):
    """In the style of the libraries, with the name of a wrapper that one of them has."""

    def __init__(self, inner):
        self.inner = inner


@pytest.mark.parametrize("library", jaxenvs.registry.LIBRARIES)
def test_every_adapter_refuses_a_wrapper_that_it_does_not_know(library):
    adapt_object = getattr(jaxenvs.third_party, f"from_{library}")
    params = [None] * (library == "xminigrid")
    message = (
        rf"env must be an environment of {library} without wrappers.*, got EpisodeWrapper around Bare\. Adapt the "
    )
    with pytest.raises(ValueError, match=message):
        adapt_object(EpisodeWrapper(Bare()), *params)


def test_a_wrapper_that_is_followed_may_be_around_no_other():
    known = [f"{__name__}.EpisodeWrapper"]
    refuse_wrappers(Bare(), "mine")
    refuse_wrappers(EpisodeWrapper(EpisodeWrapper(Bare())), "mine", known)
    unknown = type("Unknown", (EpisodeWrapper,), {})(Bare())
    message = "without wrappers other than EpisodeWrapper, got Unknown around Bare"
    with pytest.raises(ValueError, match=message):
        refuse_wrappers(EpisodeWrapper(unknown), "mine", known)


def test_ids_of_our_own_come_before_those_of_a_library(monkeypatch):
    monkeypatch.setitem(jaxenvs.registry.LIBRARIES, "Mine", None)
    assert jaxenvs.spec("Mine/one").entry_point == "jaxenvs.third_party.Mine:make"
    monkeypatch.setitem(jaxenvs.registry._specs, "Mine/one", jaxenvs.Spec("Mine/one", Sloppy))
    assert jaxenvs.spec("Mine/one").entry_point is Sloppy
