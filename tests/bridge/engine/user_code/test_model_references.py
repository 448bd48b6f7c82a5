"""Through what the code of an environment may reach the model that learns from it."""

import collections
import contextvars
import copy
import enum
import functools
import importlib
import sys
import types

import gymnasium
import numpy as np
import pytest
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

import bridge
from bridge.engine.user_code import model_references
from bridge.engine.user_code.model_references import why_reached
from tests.bridge.algorithms.user_code.own_code_models import OFF_POLICY, HostCounter


class Names(enum.Enum):
    MODEL = "model"


class Number(int):
    pass


class Slots:
    __slots__ = ("inside",)


def with_slots(model):
    thing = Slots()
    thing.inside = model
    return thing


def with_attribute(thing, model):
    thing.model = model
    return thing


def in_object_array(model):
    array = np.empty((2, 1), object)
    array[1, 0] = {"it": model}
    return array


def in_context(model):
    variable = contextvars.ContextVar("variable")
    variable.set(model)
    return variable


def in_enum(model):
    Names.MODEL.extra = model
    return Names.MODEL


HOLDERS = {
    "a list": lambda model: [[model]],
    "a deque": lambda model: collections.deque([model]),
    "a dict's key": lambda model: {model: 1},
    "an array of objects": in_object_array,
    "a method of a list": lambda model: [model].index,
    "a method of the model": lambda model: model.predict,
    "a partial function": lambda model: functools.partial(print, model),
    "a closure": lambda model: lambda: model,
    "a default": lambda model: _default(model),
    "a slot": with_slots,
    "a member of an enumeration": in_enum,
    "a variable of the context": in_context,
    "a subclass of a number": lambda model: with_attribute(Number(3), model),
    "a named space": lambda model: types.SimpleNamespace(model=model),
    "its network": lambda model: model.actor,
    "its optimiser": lambda model: (model.actor.optimizer,),
    "a generator": lambda model: (each for each in [model]),
}


def _default(model):
    def function(it=model):
        return it

    return function


def make(env=None):
    return bridge.SAC("MlpPolicy", HostCounter() if env is None else env, **copy.deepcopy(OFF_POLICY))


@pytest.fixture(scope="module")
def model():
    return make()


@pytest.mark.parametrize("holder", HOLDERS)
def test_a_model_is_found_in(holder, model):
    env = model.get_env().envs[0].unwrapped
    assert why_reached(model.env, model) is None
    env.held = HOLDERS[holder](model)
    try:
        assert why_reached(model.env, model) is not None
    finally:
        del env.held
        vars(Names.MODEL).pop("extra", None)


def test_a_model_is_found_in_a_library_s_class(model, monkeypatch):
    monkeypatch.setattr(gymnasium.Env, "the_model", model, raising=False)
    assert "references a SAC" in why_reached(model.env, model)


def test_a_model_is_found_through_a_method_put_into_a_library_s_wrapper(model, monkeypatch):
    monkeypatch.setattr(gymnasium.Wrapper, "extra", lambda self: model, raising=False)
    assert "references a SAC" in why_reached(model.env, model)


PACKAGE = {
    "__init__": "",
    "holder": "model = None\n",
    "game": """
from tests.environments import Counter
from tests.bridge.algorithms.user_code.own_code_models import HostCounter

class Game(HostCounter):
    def step(self, action):
        from . import holder
        if holder.model is not None:
            holder.model.predict(action)
        return super().step(action)
""",
}


@pytest.mark.parametrize("is_installed", [False, True])
def test_a_model_is_found_in_a_module_that_is_imported_by_its_place(is_installed, tmp_path, monkeypatch):
    package = tmp_path / "somebodys_game"
    package.mkdir()
    for name, text in PACKAGE.items():
        (package / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    if is_installed:
        monkeypatch.setattr(model_references, "INSTALLED", (str(tmp_path),))
    model_references.is_installed.cache_clear()
    try:
        game = importlib.import_module("somebodys_game.game")
        holder = importlib.import_module("somebodys_game.holder")
        model = make(game.Game())
        assert why_reached(model.env, model) is None
        holder.model = model
        assert "references a SAC" in why_reached(model.env, model)
    finally:
        model_references.is_installed.cache_clear()
        for name in [name for name in sys.modules if name.startswith("somebodys_game")]:
            del sys.modules[name]


def test_environments_in_other_processes_are_elsewhere_unless_somebody_put_a_method_there(model):
    env = SubprocVecEnv([HostCounter])
    try:
        assert why_reached(env, model) is None
        env.step_wait = lambda: model
        assert "references a SAC" in why_reached(env, model)
    finally:
        del env.step_wait
        env.close()


class Usual(HostCounter):
    """Attributes that usual environments have: spaces, generators, tables, other libraries."""

    def __init__(self):
        super().__init__()
        import scipy.spatial

        self.tree = scipy.spatial.cKDTree(np.eye(3))
        self.table = {(row, column): [row, column] for row in range(20) for column in range(20)}
        self.history = collections.deque(maxlen=10)
        self.names = Names.MODEL
        self.scale = functools.partial(np.clip, a_min=0, a_max=1)

    def step(self, action):
        import scipy.spatial

        self.history.append(float(scipy.spatial.distance.euclidean([0], [1])))
        return super().step(action)


def test_a_usual_environment_does_not_reach_its_model():
    model = bridge.PPO("MlpPolicy", DummyVecEnv([lambda: gymnasium.wrappers.TimeLimit(Usual(), 9)] * 2), n_steps=8)
    assert why_reached(model.env, model) is None


@pytest.mark.parametrize("id_", ["CartPole-v1", "Taxi-v4", "LunarLander-v3", "Pendulum-v1", "Blackjack-v1"])
def test_gymnasium_s_environments_do_not_reach_their_model(id_):
    env = DummyVecEnv([lambda: gymnasium.make(id_)])
    env.reset()
    assert why_reached(env, types.SimpleNamespace()) is None
