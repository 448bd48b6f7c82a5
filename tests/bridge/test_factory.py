"""make_vec_env: which VecEnv it makes of what, and that it makes it as SB3's own does."""

import copy
import importlib.machinery
import inspect
import logging
import sys
import types

import chex
import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.envs.registration import EnvSpec
from gymnasium.wrappers import TimeLimit
from stable_baselines3.common import env_util
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor

import bridge.factory
import jaxenvs
from bridge import GymVecEnv, JaxVecEnv, ProcessVecEnv, SerialVecEnv, make_vec_env
from bridge.environment_ids import is_jax_id
from jaxenvs import CartPole, UnknownEnvironment
from tests.bridge.host_env.host_environments import Counting
from tests.environments import Counter


@pytest.fixture(autouse=True)
def say_everything(caplog):
    bridge.factory._say_once.cache_clear()
    caplog.set_level(logging.INFO, "jaxenvs.sb3")


@pytest.fixture
def counting(registries):
    gymnasium.register("Counting-v0", entry_point=Counting, max_episode_steps=4)
    return "Counting-v0"


@pytest.mark.parametrize(
    ("env_id", "kind"),
    [
        ("CartPole-v1", JaxVecEnv),
        (CartPole, JaxVecEnv),
        (CartPole(), JaxVecEnv),
        (lambda: Counter(), JaxVecEnv),
        ("Counting-v0", SerialVecEnv),
        (Counting, SerialVecEnv),
        (lambda: Counting(), SerialVecEnv),
    ],
)
def test_auto_takes_jax_for_what_jaxenvs_has_and_the_log_says_so_once(env_id, kind, caplog, counting):
    for _ in range(2):
        assert type(make_vec_env(env_id, 2)) is kind
    assert caplog.text.count(f"backend='{'jax' if kind is JaxVecEnv else 'serial'}'") == 1


def test_an_environment_that_a_factory_made_to_be_looked_at_is_used():
    made = []

    def make(**kwargs):
        made.append(Counting(**kwargs))
        return made[-1]

    venv = make_vec_env(make, 2, env_kwargs={"length": 3})
    assert [env.unwrapped for env in venv.envs] == made
    assert venv.get_attr("length") == [3, 3]


@pytest.mark.parametrize(
    ("arguments", "given"),
    [({"n_envs": 2}, "n_envs = 2"), ({"env_kwargs": {"length": 3}}, "env_kwargs = {'length': 3}")],
)
def test_an_environment_that_has_been_made_is_one_and_keeps_its_arguments(arguments, given):
    env = Counting()
    assert make_vec_env(env).envs[0].unwrapped is env
    with pytest.raises(ValueError, match=f"a function that makes the environment, for {given}, got .*: pass lambda"):
        make_vec_env(env, **arguments)


@pytest.mark.thorough
def test_auto_takes_jax_for_a_few_of_box2ds_worlds_too():
    assert type(make_vec_env("LunarLander-v3", 1)) is JaxVecEnv
    assert type(bridge.PPO("MlpPolicy", "LunarLander-v3", n_steps=8, batch_size=8).env) is JaxVecEnv


@pytest.mark.parametrize("backend", ["auto", "jax"])
def test_a_jax_environment_is_made_once(backend, monkeypatch):
    made = []

    def make(*args, **kwargs):
        made.append(jaxenvs.registry.make(*args, **kwargs))
        return made[-1]

    def wrap(env):
        wrapped.append(env)
        return env

    wrapped = []
    monkeypatch.setattr(jaxenvs, "make", make)
    make_vec_env("CartPole-v1", 2, wrapper_class=wrap, backend=backend)
    assert len(made) == len(wrapped) == 1
    make_vec_env(lambda: make("CartPole-v1"), 2, wrapper_class=wrap, backend=backend)
    assert len(made) == len(wrapped) == 2


def test_an_id_that_an_installed_envpool_has_is_hinted_at_once(caplog, monkeypatch, counting):
    envpool = types.ModuleType("envpool")
    envpool.__spec__ = importlib.machinery.ModuleSpec("envpool", None)
    envpool.list_all_envs = lambda: [counting, "Count-v5"]
    monkeypatch.setitem(sys.modules, "envpool", envpool)
    gymnasium.register("CountNoFrameskip-v4", entry_point=Counting)
    for _ in range(2):
        make_vec_env(counting)
        make_vec_env("CountNoFrameskip-v4")
    assert caplog.text.count('EnvPool also has Counting-v0, and steps it much faster: pass backend="native".') == 1
    assert (
        caplog.text.count('steps it much faster: call make_atari_env("CountNoFrameskip-v4", ..., backend="native")')
        == 1
    )


def test_envpool_is_not_asked_where_nobody_reads_the_hint(caplog, monkeypatch, counting):
    """To import it takes seconds."""
    monkeypatch.setattr(bridge.factory.envpool, "ids", lambda: pytest.fail("EnvPool was asked."))
    caplog.set_level(logging.WARNING, "jaxenvs.sb3")
    make_vec_env(counting)


@pytest.mark.parametrize("env_id", [CartPoleEnv, "CartPole-v1"], ids=["class", "id"])
def test_an_environment_that_jaxenvs_also_has_is_hinted_at(env_id, caplog):
    make_vec_env(env_id, 1, backend="serial")
    assert "jaxenvs also has CartPole-v1: make_vec_env('CartPole-v1')" in caplog.text
    make_vec_env(Counting, 1)
    assert caplog.text.count("jaxenvs also has") == 1


class Mine(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Box(-1, 1, (2,)), gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode=None):
        self.steps = 0

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(2, np.float32), 7.0, self.steps >= 10, False, {}


@pytest.mark.parametrize("env_id", ["CartPole-v1", "BitFlipping-v0", "MinAtar/Breakout-v1"])
def test_an_id_that_the_user_registered_with_gymnasium_is_the_users(env_id, monkeypatch):
    monkeypatch.setitem(gymnasium.registry, env_id, EnvSpec(env_id, Mine))
    monkeypatch.setattr(bridge.factory, "_say_once", lambda level, message: None)
    assert make_vec_env(env_id).observation_space.shape == (2,)
    model = bridge.PPO("MlpPolicy", env_id, n_steps=16, batch_size=16)
    assert model.observation_space.shape == (2,)
    assert list(bridge.evaluate(model, env_id, 2).returns) == [70, 70]
    assert type(make_vec_env(env_id, backend="jax")) is JaxVecEnv


def test_an_id_that_the_user_changed_in_gymnasium_is_the_users(monkeypatch):
    changed = copy.deepcopy(gymnasium.spec("CartPole-v1"))
    changed.max_episode_steps = 20
    monkeypatch.setitem(gymnasium.registry, "CartPole-v1", changed)
    assert make_vec_env("CartPole-v1").get_attr("_max_episode_steps") == [20]


def test_ids_as_gymnasium_has_them_are_those_of_jaxenvs():
    assert [env_id for env_id in jaxenvs.registered() if not is_jax_id(env_id)] == []
    assert not is_jax_id("Ant-v5")
    assert not is_jax_id("Nothing-v0")


def test_an_id_registered_with_jaxenvs_stays_that_of_jaxenvs(monkeypatch):
    monkeypatch.setitem(jaxenvs.registry._specs, "Both-v0", jaxenvs.Spec("Both-v0", CartPole))
    monkeypatch.setitem(gymnasium.registry, "Both-v0", EnvSpec("Both-v0", Mine))
    assert is_jax_id("Both-v0")


def test_arguments_stand_where_they_do_in_sb3():
    ours, theirs = (list(inspect.signature(make).parameters) for make in (make_vec_env, env_util.make_vec_env))
    assert ours == [*theirs, "backend", "opponent", "device"]


def with_limit(env, limit):
    return TimeLimit(env, limit)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("backend", "wrapper"),
    [("serial", None), ("serial", with_limit), ("process", with_limit)],
    ids=["serial", "serial, wrapped", "process, wrapped"],
)
def test_it_makes_what_sb3_makes(backend, wrapper, counting, tmp_path):
    arguments = {"n_envs": 2, "seed": 3, "env_kwargs": {"tells": True}, "monitor_kwargs": {"info_keywords": ("count",)}}
    if wrapper is not None:
        arguments |= {"wrapper_class": wrapper, "wrapper_kwargs": {"limit": 3}}
    one_process = {"envs_per_process": 2} if backend == "process" else {}
    ours = make_vec_env(
        counting, **arguments, monitor_dir=tmp_path / "ours", backend=backend, vec_env_kwargs=one_process
    )
    theirs = env_util.make_vec_env(counting, **arguments, monitor_dir=str(tmp_path / "theirs"))
    assert ours.render_mode == theirs.render_mode == "rgb_array"
    np.testing.assert_array_equal(ours.reset(), theirs.reset())
    assert ours.env_method("drawn_action") == theirs.env_method("drawn_action")
    for _ in range(8):
        mine, other = ours.step(np.ones(2, int)), theirs.step(np.ones(2, int))
        for info in (*mine[3], *other[3]):
            info.get("episode", {}).pop("t", None)
        chex.assert_trees_all_equal(mine, other)
    for venv in (ours, theirs):
        venv.close()
    logs = [(tmp_path / whose / "1.monitor.csv").read_text().splitlines()[1:] for whose in ("ours", "theirs")]
    names, *rows = [line.split(",") for line in logs[0]]
    assert names == ["r", "l", "t", "count"]
    assert len(rows) == (2 if wrapper is None else 0)  # a Monitor is inside, and has not seen what ended episodes
    assert [[r, length, count] for r, length, _, count in rows] == [
        [r, length, count] for r, length, _, count in (line.split(",") for line in logs[1][1:])
    ]


def test_a_process_knows_ids_that_only_this_one_registered_and_needs_no_monitor_to_count_episodes(counting):
    venv = make_vec_env(counting, 2, 0, backend="process", vec_env_kwargs={"envs_per_process": 2})
    assert isinstance(venv, ProcessVecEnv)
    venv.reset()
    infos = [venv.step(np.full(2, 3))[3] for _ in range(4)][-1]
    assert [info["episode"]["r"] for info in infos] == pytest.approx([1.2, 1.2])
    assert all(info["TimeLimit.truncated"] for info in infos)
    assert venv.env_method("modules") == [[], []]
    venv.close()


def test_seeds_go_on_with_start_index():
    a = make_vec_env(Counting, 2, seed=3, start_index=4)
    b = make_vec_env(Counting, 2, seed=7)
    np.testing.assert_array_equal(a.reset(), b.reset())


def test_vec_env_cls_is_given_what_sb3_gives_it():
    venv = make_vec_env("CartPole-v1", 2, 0, 0, None, None, None, DummyVecEnv)
    assert type(venv) is DummyVecEnv
    assert all(isinstance(env, Monitor) for env in venv.envs)
    assert venv._seeds == [0, 1]
    for arguments in ({"backend": "serial"}, {"env_id": CartPole()}):
        with pytest.raises(ValueError, match=r"vec_env_cls and .* cannot be combined"):
            make_vec_env(**{"env_id": "CartPole-v1", "vec_env_cls": DummyVecEnv} | arguments)


@pytest.mark.parametrize(
    ("env_id", "known", "message"),
    [
        ("HalfCheetah-v5", [], r"got 'HalfCheetah-v5'\. EnvPool is not installed: pip install .jaxenvs\[envpool\]"),
        ("HalfCheeta-v5", ["HalfCheetah-v5"], r"got 'HalfCheeta-v5'\. Did you mean HalfCheetah-v5\?"),
        ("PongNoFrameskip-v4", ["Pong-v5"], "For this name of a game, use make_atari_env"),
    ],
)
def test_an_id_that_nobody_has_for_native_says_what_would_help(monkeypatch, env_id, known, message):
    monkeypatch.setattr(bridge.factory.envpool, "ids", lambda: known)
    with pytest.raises(ValueError, match=message):
        make_vec_env(env_id, backend="native")


def test_native_takes_what_gymnasium_steps_at_once():
    venv = make_vec_env("CartPole-v1", 3, seed=0, backend="native", monitor_kwargs={"info_keywords": ()})
    assert isinstance(venv, VecMonitor)
    assert isinstance(venv.unwrapped, GymVecEnv)
    assert venv.reset().shape == (3, 4)
    venv.close()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            {"backend": "fast"},
            ValueError,
            "must be one of 'auto', 'jax', 'serial', 'process', 'ray', 'native', got",
        ),
        (
            {"env_id": "CartPol-v1"},
            UnknownEnvironment,
            "Did you mean CartPole-v1.*Gymnasium says: .*CartPol.*`CartPole`",
        ),
        ({"env_id": lambda: 5}, TypeError, "env_id must be an id of jaxenvs.registered.*got <function"),
        ({"env_id": CartPole(), "backend": "serial"}, TypeError, "env_id must be an id of Gymnasium, or a class or"),
        (
            {"env_id": lambda: 5, "backend": "serial"},
            TypeError,
            "env_id must make a Gymnasium environment with .*, got 5",
        ),
        ({"env_id": Counting, "backend": "jax"}, TypeError, "env_id must be an id of jaxenvs.registered"),
        ({"env_id": Counting, "backend": "native"}, TypeError, "an id of EnvPool or Gymnasium, for backend='native'"),
        ({"env_id": "GymV26Environment-v0", "backend": "native"}, ValueError, "vector_entry_point.*got 'GymV26"),
        ({"wrapper_class": TimeLimit}, TypeError, "must be a jaxenvs Wrapper.*environments: pass backend='serial'"),
        ({"wrapper_class": TimeLimit, "backend": "native"}, TypeError, "backend='native' accepts no wrapper_class"),
        (
            {"vec_env_kwargs": {"envs_per_process": 2}},
            TypeError,
            "backend='jax' accepts only 'devices' in vec_env_kwargs, got",
        ),
        (
            {"env_kwargs": {"gravity": np.ones(2)}},
            ValueError,
            r"'gravity'\] must be one value for all environments, got the shape \(2,\)",
        ),
        ({"vec_env_kwargs": 5}, TypeError, "vec_env_kwargs must be a dict, got int"),
        (
            {"vec_env_kwargs": {"start_method": "spawn"}, "backend": "process"},
            TypeError,
            "backend='process' accepts only 'envs_per_process', .* in vec_env_kwargs, got {'start_method': 'spawn'}",
        ),
        (
            {"vec_env_kwargs": {"a": 1}, "backend": "serial"},
            TypeError,
            "backend='serial' accepts no vec_env_kwargs, got",
        ),
    ],
)
def test_what_it_cannot_take_is_named(arguments, error, message):
    with pytest.raises(error, match=message):
        make_vec_env(**{"env_id": "CartPole-v1", "n_envs": 2} | arguments)
