"""Keywords of Gymnasium's environments and of SB3's make_vec_env: JAX environments take them, or the error says how."""

import functools
import inspect
import logging
import re

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import load_env_creator
from gymnasium.wrappers import FlattenObservation, TimeAwareObservation
from stable_baselines3.common import env_util

import bridge.factory
import jaxenvs
from bridge import JaxVecEnv, SerialVecEnv, make_vec_env

# A value that is not the default, of each keyword of each environment of Gymnasium that jaxenvs has too.
VALUES = {
    "render_mode": "rgb_array",
    "max_episode_steps": 7,
    "disable_env_checker": True,
    "sutton_barto_reward": True,
    "goal_velocity": 0.01,
    "g": 9.0,
    "continuous": True,
    "gravity": -5.0,
    "enable_wind": True,
    "wind_power": 10.0,
    "turbulence_power": 1.0,
    "hardcore": True,
    "desc": ["SFF", "FHG"],
    "map_name": "8x8",
    "is_slippery": False,
    "success_rate": 0.5,
    "reward_schedule": (2, -1, 0),
    "is_rainy": True,
    "fickle_passenger": True,
    "rainy_probability": 0.6,
    "fickle_probability": 0.2,
    "natural": True,
    "sab": False,
}
# What JAX environments name otherwise, or have not as a parameter.
OURS = {"g": "gravity", "max_episode_steps": "max_steps", "disable_env_checker": None}


def from_gymnasium():
    """The ids of jaxenvs that Gymnasium has too."""
    specs = {env_id: gymnasium.registry.get(env_id) for env_id in jaxenvs.registered()}
    return {name: spec for name, spec in specs.items() if spec and spec.entry_point.startswith("gymnasium.")}


def keywords():
    """Each id with all keywords of `gymnasium.make` and of its entry point, of which two may exclude each other."""
    for env_id, spec in from_gymnasium().items():
        own = inspect.signature(load_env_creator(spec.entry_point)).parameters
        kwargs = {keyword: VALUES[keyword] for keyword in (*own, "max_episode_steps", "disable_env_checker")}
        either = [{"desc": None}, {"map_name": None}] if "desc" in kwargs else [{}]
        yield from ((env_id, kwargs | neither) for neither in either)


@pytest.fixture(autouse=True)
def say_everything(caplog):
    bridge.factory._say_once.cache_clear()
    caplog.set_level(logging.INFO, "jaxenvs.sb3")


@pytest.mark.parametrize(("env_id", "kwargs"), list(keywords()))
def test_keywords_of_gymnasium_make_the_jax_environment_with_sb3s_spaces(env_id, kwargs):
    if "Lander" in env_id or "Walker" in env_id:
        pytest.importorskip("Box2D")
    ours = make_vec_env(env_id, 1, env_kwargs=kwargs)
    theirs = env_util.make_vec_env(env_id, 1, env_kwargs=kwargs)
    assert type(ours) is JaxVecEnv
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    assert ours.render_mode == theirs.render_mode == "rgb_array"
    assert ours.get_attr("spec", 0)[0].max_episode_steps == theirs.get_attr("spec")[0].max_episode_steps
    for keyword, expected in kwargs.items():
        if (name := OURS.get(keyword, keyword)) is not None and expected is not None:
            assert ours.get_attr(name, 0)[0] == (tuple(expected) if keyword == "desc" else expected)


def rewards_and_observations(env, actions):
    found = [(env.reset(), np.zeros(1))]
    found += [env.step(np.array([action]))[:2] for action in actions]
    return [np.asarray(part) for pair in found for part in pair]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("env_id", "kwargs"),
    [
        ("FrozenLake-v1", {"desc": ["SFF", "FHG"], "is_slippery": False, "reward_schedule": (2, -1, 0)}),
        ("FrozenLake-v1", {"desc": [list("SFH"), list("FFG")], "map_name": None, "is_slippery": False}),
        ("FrozenLake-v1", {"desc": np.array([["S", "F"], ["F", "G"]], "S1"), "is_slippery": False}),
        ("FrozenLake-v1", {"map_name": "8x8", "is_slippery": False, "max_episode_steps": 5}),
        ("FrozenLake8x8-v1", {"map_name": "4x4", "is_slippery": False, "render_mode": None}),
        ("CliffWalkingSlippery-v1", {"is_slippery": False}),
    ],
)
def test_a_table_is_that_of_gymnasium_with_these_keywords(env_id, kwargs):
    if not kwargs.keys() <= {keyword for name, known in keywords() if name == env_id for keyword in known}:
        pytest.skip("an older Gymnasium has not all of them")
    actions = [2, 1, 1, 2, 0, 3, 2, 1, 2, 2, 1, 1]
    ours, theirs = make_vec_env(env_id, 1, 0, env_kwargs=kwargs), env_util.make_vec_env(env_id, 1, 0, env_kwargs=kwargs)
    assert type(ours) is JaxVecEnv
    for mine, other in zip(*(rewards_and_observations(env, actions) for env in (ours, theirs)), strict=True):
        np.testing.assert_array_equal(mine, other)


def test_gravity_of_pendulum_pulls_by_the_name_of_gymnasium():
    ours = make_vec_env("Pendulum-v1", 1, 0, env_kwargs={"g": 3.0})
    theirs = env_util.make_vec_env("Pendulum-v1", 1, env_kwargs={"g": 3.0})
    cos, sin, theta_dot = ours.reset()[0]
    theirs.reset()
    theirs.envs[0].unwrapped.state = np.array([np.arctan2(sin, cos), theta_dot])
    for _ in range(10):
        (mine, *_), (other, *_) = (env.step(np.ones((1, 1), np.float32)) for env in (ours, theirs))
        np.testing.assert_allclose(mine, other, atol=1e-4)


def test_a_translated_keyword_works_where_jax_is_asked_for():
    assert make_vec_env("Pendulum-v1", env_kwargs={"g": 3.0}, backend="jax").get_attr("gravity") == [3.0]
    for cartpole in (jaxenvs.CartPole, jaxenvs.CartPole()):
        env = make_vec_env(cartpole, env_kwargs={"render_mode": "rgb_array", "gravity": 5.0})
        assert env.get_attr("gravity") == [5.0]
        env.reset()
        assert env.render().shape == (400, 600, 3)
    with pytest.raises(ValueError, match="render_mode must be None or 'rgb_array' for JAX environments, got 'human'"):
        make_vec_env("CartPole-v1", env_kwargs={"render_mode": "human"}, backend="jax")


def wrapped(env):
    return TimeAwareObservation(env)


# What JAX environments do not do, and what the error says.
OF_GYMNASIUM = {
    "a window": ({"env_kwargs": {"render_mode": "human"}}, "render_mode must be None or 'rgb_array'"),
    "a text": ({"env_id": "FrozenLake-v1", "env_kwargs": {"render_mode": "ansi"}}, "got 'ansi'"),
    "random maps": ({"env_id": "FrozenLake-v1", "env_kwargs": {"map_name": None}}, "map_name must be one of"),
    "a number as a bool": ({"env_id": "FrozenLake-v1", "env_kwargs": {"is_slippery": 0}}, "is_slippery must be a bool"),
    "a wrapper": ({"wrapper_class": TimeAwareObservation}, "wrapper_class must be a jaxenvs Wrapper, or return one"),
    "a function that wraps": ({"wrapper_class": wrapped}, "gymnasium.Env"),
    "a wrapper with arguments": (
        {"wrapper_class": TimeAwareObservation, "wrapper_kwargs": {"flatten": True}},
        "wrapper_class must be",
    ),
    "an environment of jaxenvs alone": (
        {"env_id": "BitFlipping-v0", "wrapper_class": FlattenObservation, "env_kwargs": {"n_bits": 3}},
        "wrapper_class must be",
    ),
    "a monitor that is strict": ({"monitor_kwargs": {"allow_early_resets": False}}, "got allow_early_resets=False"),
    "a monitor of resets": ({"monitor_kwargs": {"reset_keywords": ("low",)}}, "got reset_keywords=('low',)"),
}


@pytest.mark.parametrize(("arguments", "reason"), OF_GYMNASIUM.values(), ids=OF_GYMNASIUM)
def test_what_a_jax_environment_has_not_is_an_error_that_names_the_call_for_gymnasiums(arguments, reason, monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    arguments = {"env_id": "CartPole-v1", "n_envs": 2} | arguments
    with pytest.raises((TypeError, ValueError, AssertionError), match=re.escape(reason)) as caught:
        make_vec_env(**arguments)
    (note,) = caught.value.__notes__
    env_id = re.match(r"make_vec_env\('(.*)', \.\.\., backend='serial'\) makes Gymnasium's environment", note)[1]
    ours = make_vec_env(**arguments | {"env_id": env_id}, backend="serial")
    assert type(ours) is SerialVecEnv
    if env_id in from_gymnasium():
        theirs = env_util.make_vec_env(**arguments)
        assert ours.observation_space == theirs.observation_space
        assert ours.render_mode == theirs.render_mode


def test_a_wrapper_of_jaxenvs_stays_in_the_program():
    by_function = {"wrapper_class": functools.partial(jaxenvs.ActionRepeat, num_repeats=2)}
    by_class = {"wrapper_class": jaxenvs.ActionRepeat, "wrapper_kwargs": {"num_repeats": 2}}
    for arguments in (by_function, by_class):
        assert type(make_vec_env("CartPole-v1", **arguments)) is JaxVecEnv


def test_what_monitor_does_anyway_is_no_reason(tmp_path):
    monitor_kwargs = {"allow_early_resets": True, "reset_keywords": (), "override_existing": True}
    for backend in ("auto", "native"):
        make_vec_env("CartPole-v1", 2, monitor_kwargs=monitor_kwargs, backend=backend)
    assert type(make_vec_env("CartPole-v1", 2, monitor_kwargs=monitor_kwargs)) is JaxVecEnv
    make_vec_env("CartPole-v1", 2, monitor_dir=str(tmp_path), monitor_kwargs=monitor_kwargs)
    assert (tmp_path / "monitor.csv").exists()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"env_kwargs": {"gravitation": 5.0}}, TypeError, "CartPole has no parameter 'gravitation'. Did you mean"),
        ({"env_kwargs": {"g": 5.0}}, TypeError, "CartPole has no parameter 'g'"),
        (
            {"env_id": "Pendulum-v1", "env_kwargs": {"g": 5.0, "gravity": 5.0}},
            TypeError,
            "env_kwargs sets one parameter under two names: g, gravity",
        ),
        ({"wrapper_class": lambda env: env.no_such_name}, AttributeError, "no_such_name"),
        ({"monitor_kwargs": {"info_keyword": ("x",)}}, TypeError, "monitor_kwargs accepts only .* got info_keyword="),
        (
            {"monitor_kwargs": {"filename": "x"}},
            TypeError,
            "monitor_kwargs must not contain 'filename': pass monitor_dir",
        ),
    ],
)
def test_what_no_jax_environment_takes_is_an_error(arguments, error, message):
    with pytest.raises(error, match=message):
        make_vec_env(**{"env_id": "CartPole-v1"} | arguments)
