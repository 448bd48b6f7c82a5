"""One environment as Gymnasium's."""

import warnings
from typing import Any

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env

import jaxenvs
from jaxenvs import CartPole, TimeLimit, VectorEnv
from jaxenvs.gym import GymnasiumEnv, GymnasiumVectorEnv
from jaxenvs.gym import env as env_module
from jaxenvs.gym import vector_env as vector_env_module
from tests.gym.lottery import Lottery, assert_same, warnings_of

OURS = jaxenvs.registered()  # when the tests are collected, before any of them registers more
each_environment = pytest.mark.parametrize("id", OURS)


def ours_of(id: str) -> gymnasium.Env:
    return theirs_of(id if "/" in id else f"jaxenvs/{id}")


def is_gymnasiums(id: str) -> bool:
    return "/" not in id and id in gymnasium.registry


def theirs_of(id: str) -> gymnasium.Env:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that v0 is out of date
        return gymnasium.make(id)


@pytest.mark.thorough
@each_environment
@pytest.mark.filterwarnings("ignore")
def test_gymnasiums_checker_finds_no_more_than_in_gymnasiums_own(id: str) -> None:
    found = warnings_of(lambda: check_env(ours_of(id).unwrapped))
    own = theirs_of(id).unwrapped if is_gymnasiums(id) else None
    assert found <= (warnings_of(lambda: check_env(own, skip_render_check=True)) if own else set())


@pytest.mark.thorough
@each_environment
def test_the_checker_of_stable_baselines3_finds_no_more_than_in_gymnasiums_own(id: str) -> None:
    checker = pytest.importorskip("stable_baselines3.common.env_checker")
    ours = ours_of(id)
    if hasattr(ours.unwrapped, "compute_reward"):
        ours = ours.unwrapped  # Gymnasium's wrappers do not have it
    found = warnings_of(lambda: checker.check_env(ours, warn=True, skip_render_check=False))
    if id.startswith("MinAtar/"):
        own = pytest.importorskip("minatar.gym").BaseEnv("breakout")  # whose kind of observation all have
    else:
        # The rewards of Gymnasium's walkers are NumPy's, which the checker refuses.
        own = theirs_of(id) if is_gymnasiums(id) and not id.startswith("BipedalWalker") else None
    assert found <= (warnings_of(lambda: checker.check_env(own, warn=True)) if own else set())


@pytest.mark.filterwarnings("ignore:.*A Box observation space")
def test_an_environment_with_every_kind_of_space_passes_the_checker() -> None:
    check_env(GymnasiumEnv(Lottery()), skip_render_check=True)


def test_a_reset_without_seed_goes_on_to_the_next_episode_of_the_seed() -> None:
    env = GymnasiumEnv(CartPole())
    for seed in (3, 2**32 + 3):
        observations = [env.reset(seed=seed)[0], env.reset()[0], env.reset()[0]]
        for episode, observation in enumerate(observations):
            _, timestep = CartPole().reset(jax.random.fold_in(jax.random.key(3), episode))
            np.testing.assert_array_equal(observation, timestep.observation)


def test_a_seed_may_be_an_integer_of_numpy() -> None:
    for view in (GymnasiumEnv(CartPole()), GymnasiumVectorEnv(VectorEnv(CartPole(), 3))):
        assert_same(view.reset(seed=5), view.reset(seed=np.int64(5)))  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", [-1, 1.5, "5", True, np.int64(-1)])
def test_a_seed_that_is_none_is_refused(seed: Any) -> None:
    with pytest.raises(ValueError, match="seed must be a non-negative int, got"):
        GymnasiumEnv(CartPole()).reset(seed=seed)


def test_options_of_a_reset_are_refused() -> None:
    env = GymnasiumEnv(CartPole())
    with pytest.raises(
        ValueError, match=r"options must be None or empty, because reset has no options, got {'low': 0.1}"
    ):
        env.reset(options={"low": 0.1})
    env.reset(options={})


def test_without_a_seed_the_random_generator_of_the_environment_chooses_one() -> None:
    first, second = GymnasiumEnv(CartPole()), GymnasiumEnv(CartPole())
    first.np_random, second.np_random = np.random.default_rng(5), np.random.default_rng(5)
    np.testing.assert_array_equal(first.reset()[0], second.reset()[0])
    other = GymnasiumEnv(CartPole()).reset()[0]
    assert (other != GymnasiumEnv(CartPole()).reset()[0]).any()


def test_what_a_step_returns_is_numpys_and_pythons_and_belongs_to_the_caller() -> None:
    env = GymnasiumEnv(Lottery())
    env.reset(seed=0)
    observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
    assert env.observation_space.contains(observation)
    assert type(observation["place"]) is np.int64
    assert type(reward) is float
    assert type(terminated) is bool
    assert type(truncated) is bool
    assert type(info["left"]) is np.int32
    assert type(info["nested"]["even"]) is bool
    observation["image"][:] = 0  # writable
    info["nested"]["noise"][:] = 0


def test_under_x64_the_dtypes_are_still_those_of_the_space(x64: None) -> None:
    env = GymnasiumEnv(CartPole())
    observation, _ = env.reset(seed=0)
    assert env.state.x.dtype == np.float64
    assert observation.dtype == env.step(1)[0].dtype == np.float32


class TestWrongActions:
    @pytest.mark.parametrize("action", [2, -1, 0.0, [0], None, "left", 2**40])
    def test_to_cartpole(self, action: Any) -> None:
        env = GymnasiumEnv(CartPole())
        env.reset(seed=0)
        before = env.state
        with pytest.raises(
            ValueError, match=r"action must be a member of Discrete\(2\), got .*No environment was stepped"
        ):
            env.step(action)
        assert env.state is before

    @pytest.mark.parametrize(
        ("change", "name"),
        [
            ({"go": 4}, r"action\['go'\]"),
            ({"push": np.array([0.0, np.nan], np.float32)}, r"action\['push'\]"),
            ({"push": [[0], [0, 1]]}, r"action\['push'\]"),
            ({"bits": [0, 3]}, r"action\['bits'\]"),
            ({"else": 0}, "action"),
        ],
    )
    def test_are_named_where_they_are_nested(self, change: dict[str, Any], name: str) -> None:
        env = GymnasiumEnv(Lottery())
        env.reset(seed=0)
        with pytest.raises(ValueError, match=f"^{name} must be"):
            env.step({**env.action_space.sample(), **change})

    def test_to_a_vector_step_no_environment(self) -> None:
        venv = GymnasiumVectorEnv(VectorEnv(CartPole(), 3))
        venv.reset(seed=0)
        with pytest.raises(ValueError, match=r"actions must be a member of .*got \[0, 1\]"):
            venv.step([0, 1])
        with pytest.raises(ValueError, match="actions must be"):
            venv.step([0, 1, 2])
        reference = GymnasiumVectorEnv(VectorEnv(CartPole(), 3))
        reference.reset(seed=0)
        np.testing.assert_array_equal(venv.step([0, 1, 0])[0], reference.step([0, 1, 0])[0])


def test_a_real_action_outside_of_its_bounds_is_left_to_the_environment() -> None:
    steps = []
    for torque in (5.0, 2.0):  # which the pendulum takes for 2, its greatest
        env = gymnasium.make("jaxenvs/Pendulum-v1")
        env.reset(seed=0)
        steps.append(env.step(np.array([torque]))[:2])
    np.testing.assert_array_equal(steps[0][0], steps[1][0])
    assert steps[0][1] == steps[1][1]


def test_step_and_render_before_reset_are_refused() -> None:
    for env in (
        GymnasiumEnv(CartPole(), "rgb_array"),
        GymnasiumVectorEnv(VectorEnv(CartPole(), 1), "rgb_array"),
    ):
        with pytest.raises(ResetNeeded, match="step was called before reset"):
            env.step(0)
        with pytest.raises(ResetNeeded, match="render was called before reset"):
            env.render()


@pytest.mark.parametrize("view", [GymnasiumEnv, lambda env, mode: GymnasiumVectorEnv(VectorEnv(env, 2), mode)])
def test_a_render_mode_that_there_is_not_is_refused(view: Any) -> None:
    with pytest.raises(ValueError, match="render_mode must be None or \"rgb_array\", got 'human'"):
        view(CartPole(), "human")
    with pytest.raises(ValueError, match="None, because Lottery cannot be drawn, got 'rgb_array'"):
        view(TimeLimit(Lottery(), 3), "rgb_array")
    assert view(Lottery(), None).metadata["render_modes"] == []


def test_what_is_no_environment_is_refused() -> None:
    with pytest.raises(TypeError, match=r"must be a .*Environment, got VectorEnv"):
        GymnasiumEnv(VectorEnv(CartPole(), 1))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"must be a .*VectorEnv, got CartPole"):
        GymnasiumVectorEnv(CartPole())  # type: ignore[arg-type]


def test_pictures_are_those_of_the_environments() -> None:
    venv = GymnasiumVectorEnv(VectorEnv(CartPole(), 2), "rgb_array")
    venv.reset(seed=7)
    env = GymnasiumEnv(CartPole(), "rgb_array")
    for index, picture in enumerate(venv.render() or ()):
        env.reset(seed=7 + index)
        np.testing.assert_array_equal(picture, env.render())
    assert index == 1


class TestParameters:
    def test_one_that_is_set_counts_from_the_next_step_on_and_compiles_nothing(self) -> None:
        env, other = (gymnasium.make("jaxenvs/CartPole-v1") for _ in range(2))
        compiled = set()
        for each in (env, other):  # which share compiled functions
            each.reset(seed=0)
            each.step(1)
            compiled.add(_num_compiled(env_module))
        env.unwrapped.gravity = 500  # an int where a float was
        for _ in range(2):  # gravity changes speeds, and these what is seen
            observation, expected = (each.step(1)[0] for each in (env, other))
        assert (observation != expected).any()
        assert env.unwrapped.env == CartPole(gravity=500.0)
        assert env.get_wrapper_attr("gravity") == env.unwrapped.gravity == 500.0
        assert compiled == {_num_compiled(env_module)}

    def test_they_are_found_through_wrappers_and_set_where_they_are(self) -> None:
        env = gymnasium.make("jaxenvs/CartPole-v1")
        env.set_wrapper_attr("gravity", 3.0)
        assert env.unwrapped.env.gravity == 3.0
        ours = GymnasiumEnv(TimeLimit(CartPole(), 5))
        ours.max_steps, ours.gravity = 7, 3.0
        assert ours.env == TimeLimit(CartPole(gravity=3.0), 7)

    def test_one_that_is_static_or_does_not_fit_is_refused(self) -> None:
        env = GymnasiumEnv(CartPole())
        with pytest.raises(ValueError, match="semi_implicit_euler is static"):
            env.semi_implicit_euler = True
        with pytest.raises(ValueError, match=r"gravity must be float32 with shape \(\), got 'low'"):
            env.gravity = "low"
        with pytest.raises(AttributeError, match="'GymnasiumEnv' object has no attribute 'gravty'"):
            env.gravty  # noqa: B018
        with pytest.raises(ValueError, match="env must have the action space"):
            GymnasiumEnv(jaxenvs.Pendulum()).max_torque = 4.0
        assert env.env == CartPole()

    def test_another_environment_may_take_the_place_of_the_present_one(self) -> None:
        env = GymnasiumEnv(CartPole())
        env.reset(seed=0)
        env.env = env.env.replace(gravity=500.0)
        expected = GymnasiumEnv(CartPole(gravity=500.0))
        expected.reset(seed=0)
        for _ in range(2):
            np.testing.assert_array_equal(env.step(1)[0], expected.step(1)[0])
        env.env = TimeLimit(CartPole(), 5)
        with pytest.raises(ResetNeeded):
            env.step(1)

    def test_those_of_a_vector_are_those_of_all_environments(self) -> None:
        venv = GymnasiumVectorEnv(VectorEnv(CartPole(), 3))
        other = GymnasiumVectorEnv(VectorEnv(CartPole(), 3))
        compiled = set()
        for each in (venv, other):
            each.reset()
            each.reset(seed=0)
            each.step(np.ones(3, int))
            compiled.add(_num_compiled(vector_env_module))
        venv.gravity = 500.0
        assert venv.gravity == 500.0
        for _ in range(2):
            observation, expected = (each.step(np.ones(3, int))[0] for each in (venv, other))
        assert (observation != expected).any(1).all()
        assert compiled == {_num_compiled(vector_env_module)}
        venv.venv = VectorEnv(CartPole(), 3)
        assert venv.gravity == CartPole().gravity
        with pytest.raises(ValueError, match="venv must have num_envs = 3 and auto-reset"):
            venv.venv = VectorEnv(CartPole(), 4)


def _num_compiled(module: Any) -> int:
    names = {"_reset", "_restart", "_step"} & vars(module).keys()
    return sum(getattr(module, name).compiled(None)._cache_size() for name in names)
