"""Environments as Gymnasium sees them: alone, side by side, and by id."""

import json
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import jaxenvs
from jaxenvs import CartPole, Environment, TimeLimit, TimeStep, VectorEnv, environment, static, struct
from jaxenvs.gym import GymnasiumEnv, GymnasiumVectorEnv

OURS = jaxenvs.registered()  # when the tests are collected, before any of them registers more


@struct
class LotteryState:
    key: jax.Array
    left: jax.Array
    place: jax.Array


@environment
class Lottery(Environment[LotteryState]):
    """Walk until the luck of the start runs out: every kind of space, and an info of every kind."""

    bonus: float = 0.5

    @property
    def observation_space(self) -> spaces.Dict:
        return spaces.Dict(
            place=spaces.Discrete(10, start=-2),
            image=spaces.Box(0, 255, (2, 2), np.uint8),
            pair=spaces.Tuple([spaces.MultiBinary(3), spaces.Box(-np.inf, np.inf, (2,), np.float64)]),
        )

    @property
    def action_space(self) -> spaces.Dict:
        return spaces.Dict(
            go=spaces.Discrete(3, start=1), push=spaces.Box(-1, 1, (2,)), bits=spaces.MultiDiscrete([2, 3])
        )

    def reset(self, key: jax.Array) -> tuple[LotteryState, TimeStep]:
        left = jax.random.randint(key, (), 1, 6)
        return self._show(LotteryState(key=key, left=left, place=jnp.zeros((), jnp.int32)), 0.0)

    def step(self, state: LotteryState, action: Any) -> tuple[LotteryState, TimeStep]:
        reward = self.bonus * action["go"] + action["push"].sum() + action["bits"][1]
        place = jnp.clip(state.place + action["go"] - 2, -2, 7).astype(jnp.int32)
        return self._show(LotteryState(key=jax.random.split(state.key)[0], left=state.left - 1, place=place), reward)

    def _show(self, state: LotteryState, reward: Any) -> tuple[LotteryState, TimeStep]:
        noise = jax.random.uniform(state.key, (2,))
        observation = {
            "place": state.place,
            "image": (noise[:, None] * jnp.array([255, 100])).astype(jnp.uint8),
            "pair": ((noise[0] > jnp.array([0.2, 0.5, 0.8])).astype(jnp.int8), noise),
        }
        nested = {"even": state.left % 2 == 0, "noise": noise}
        info = {"left": state.left, "luck": noise[1], "nested": nested, "both": (noise, state.left)}
        return state, TimeStep.create(observation, reward, state.left <= 0, info=info)


def assert_same(first: Any, second: Any, where: str = "", tolerance: float = 0.0) -> None:
    """The same types, structures, dtypes and, without a tolerance, bits."""
    assert type(first) is type(second), where
    if isinstance(first, dict):
        assert first.keys() == second.keys(), where
        for key in first:
            assert_same(first[key], second[key], f"{where}[{key!r}]", tolerance)
    elif isinstance(first, tuple) or (isinstance(first, np.ndarray) and first.dtype == object):
        assert len(first) == len(second), where
        for i, (one, other) in enumerate(zip(first, second)):
            assert_same(one, other, f"{where}[{i}]", tolerance)
    elif isinstance(first, np.ndarray):
        assert first.dtype == second.dtype, where
        np.testing.assert_allclose(first, second, rtol=0, atol=tolerance, err_msg=where)
    else:
        assert first == second, where


def warnings_of(check: Callable[[], None]) -> set[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check()
    return {str(warning.message) for warning in caught}


def ours_of(id: str) -> gymnasium.Env:
    return theirs_of(id if "/" in id else f"jaxenvs/{id}")


def is_gymnasiums(id: str) -> bool:
    return "/" not in id and id in gymnasium.registry


def theirs_of(id: str) -> gymnasium.Env:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that v0 is out of date
        return gymnasium.make(id)


# --- One environment ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("id", OURS)
@pytest.mark.filterwarnings("ignore")
def test_gymnasiums_checker_finds_no_more_than_in_gymnasiums_own(id: str) -> None:
    found = warnings_of(lambda: check_env(ours_of(id).unwrapped))
    own = theirs_of(id).unwrapped if is_gymnasiums(id) else None
    assert found <= (warnings_of(lambda: check_env(own, skip_render_check=True)) if own else set())


@pytest.mark.parametrize("id", OURS)
def test_the_checker_of_stable_baselines3_finds_no_more_than_in_gymnasiums_own(id: str) -> None:
    checker = pytest.importorskip("stable_baselines3.common.env_checker")
    found = warnings_of(lambda: checker.check_env(ours_of(id), warn=True, skip_render_check=False))
    if id.startswith("MinAtar/"):
        own = pytest.importorskip("minatar.gym").BaseEnv("breakout")  # whose kind of observation all have
    else:
        own = theirs_of(id) if is_gymnasiums(id) else None
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
    with pytest.raises(ValueError, match=r"options must be None or empty, as there are none, got {'low': 0.1}"):
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
        with pytest.raises(ValueError, match=r"action must be a member of Discrete\(2\), got .*Nothing was stepped"):
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

    def test_to_a_vector_step_no_lane(self) -> None:
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
    first, second = gymnasium.make("jaxenvs/Pendulum-v1"), gymnasium.make("Pendulum-v1")
    first.reset(seed=0)
    second.reset(seed=0)
    first.step(np.array([5.0]))
    second.step(np.array([5.0]))


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
    with pytest.raises(ValueError, match="None, because Lottery has no picture, got 'rgb_array'"):
        view(TimeLimit(Lottery(), 3), "rgb_array")
    assert view(Lottery(), None).metadata["render_modes"] == []


def test_what_is_no_environment_is_refused() -> None:
    with pytest.raises(TypeError, match=r"must be a .*Environment, got VectorEnv"):
        GymnasiumEnv(VectorEnv(CartPole(), 1))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"must be a .*VectorEnv, got CartPole"):
        GymnasiumVectorEnv(CartPole())  # type: ignore[arg-type]


def test_pictures_are_those_of_the_lanes() -> None:
    venv = GymnasiumVectorEnv(VectorEnv(CartPole(), 2), "rgb_array")
    venv.reset(seed=7)
    env = GymnasiumEnv(CartPole(), "rgb_array")
    for lane, picture in enumerate(venv.render() or ()):
        env.reset(seed=7 + lane)
        np.testing.assert_array_equal(picture, env.render())
    assert lane == 1


class Traces(list[str]):
    """Counts, and is equal to no other, so that no test sees the compiled programs of another."""

    __hash__ = object.__hash__
    __eq__ = object.__eq__


@environment
class Counted(CartPole):
    traces: Any = static(default=None)

    def reset(self, key: jax.Array) -> Any:
        self.traces.append("reset")
        return super().reset(key)

    def step(self, state: Any, action: Any) -> Any:
        self.traces.append("step")
        return super().step(state, action)


@pytest.mark.parametrize(
    "view", [GymnasiumEnv, lambda env: GymnasiumVectorEnv(VectorEnv(env, 2))], ids=["Env", "VectorEnv"]
)
def test_objects_of_one_structure_share_their_programs(view: Any) -> None:
    traces = Traces()

    def use(env: Any) -> None:
        env.reset(seed=1)
        env.reset()
        for _ in range(3):
            env.step(np.zeros(env.action_space.shape, int))

    use(view(Counted(traces=traces)))
    once = len(traces)
    use(view(Counted(traces=traces, gravity=5.0)))
    assert 2 <= len(traces) == once


def test_parameters_are_data_of_the_shared_programs() -> None:
    light, heavy = GymnasiumEnv(CartPole()), GymnasiumEnv(CartPole(gravity=50.0))
    for env in (light, heavy):
        env.reset(seed=0)
        env.step(1)
    assert (light.step(1)[0] != heavy.step(1)[0]).any()


# --- Many environments ----------------------------------------------------------------------------------------------


def both(env: Environment[Any], num_envs: int, mode: AutoresetMode) -> Iterator[gymnasium.vector.VectorEnv]:
    yield SyncVectorEnv([lambda: GymnasiumEnv(env)] * num_envs, autoreset_mode=mode)
    yield GymnasiumVectorEnv(VectorEnv(env, num_envs, mode))


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize(
    # XLA rounds the dynamics of one cart and of a row of them differently.
    ("env", "tolerance"),
    [(TimeLimit(CartPole(), 7), 1e-5), (TimeLimit(Lottery(), 4), 0.0)],
    ids=["CartPole", "Lottery"],
)
@pytest.mark.parametrize("num_envs", [3, 20])  # with 20 lanes, resets are searched for
def test_a_vector_is_what_a_sync_vector_of_its_lanes_is(
    env: Environment[Any], tolerance: float, mode: AutoresetMode, num_envs: int
) -> None:
    sync, venv = both(env, num_envs, mode)
    assert venv.observation_space == sync.observation_space
    assert venv.action_space == sync.action_space
    assert venv.single_observation_space == sync.single_observation_space
    assert venv.single_action_space == sync.single_action_space
    assert venv.metadata["autoreset_mode"] is sync.metadata["autoreset_mode"]
    assert_same(sync.reset(seed=11), venv.reset(seed=11), "reset")
    venv.action_space.seed(0)
    ends = 0
    for step in range(30):
        actions = venv.action_space.sample()
        expected, found = sync.step(actions), venv.step(actions)
        assert_same(expected, found, f"step {step}", tolerance)
        done = found[2] | found[3]
        ends += done.sum()
        if mode is AutoresetMode.DISABLED and done.any():
            some = done.copy()
            if done.sum() > 1 and step % 2:  # the rest in a second call
                some[done.argmax()] = False
                assert_same(
                    *(v.reset(options={"reset_mask": done & ~some}) for v in (sync, venv)), f"mask {step}", tolerance
                )
            assert_same(
                *(v.reset(options={"reset_mask": some.copy()}) for v in (sync, venv)), f"mask {step}", tolerance
            )
        if step == 20:
            assert_same(*(v.reset() for v in (sync, venv)), "reset without seed", tolerance)
    assert ends > num_envs


@pytest.mark.parametrize(
    ("seed", "mask"),
    [([5, None, 7], None), ([5, None, 7], [True, True, False]), (9, [False, True, True]), (None, [True, False, False])],
)
def test_seeds_and_masks_mean_what_they_mean_to_a_sync_vector(seed: Any, mask: Any) -> None:
    sync, venv = both(Lottery(), 3, AutoresetMode.DISABLED)
    for vector in (sync, venv):
        vector.reset(seed=[1, 2, 3])
        vector.reset()
    options = [None if mask is None else {"reset_mask": np.array(mask)} for _ in range(2)]
    assert_same(sync.reset(seed=seed, options=options[0]), venv.reset(seed=seed, options=options[1]))
    assert_same(sync.reset(), venv.reset())
    if mask is not None:
        assert "reset_mask" in options[1]  # the caller's dict is the caller's


def test_a_first_reset_without_seed_seeds_every_lane_for_itself() -> None:
    vectors = [GymnasiumVectorEnv(VectorEnv(CartPole(), 3)) for _ in range(2)]
    first, second = (vector.reset()[0] for vector in vectors)
    assert len(np.unique(np.concatenate([first, second]), axis=0)) == 6
    for vector in vectors:
        vector.np_random = np.random.default_rng(1)
    fresh = [GymnasiumVectorEnv(VectorEnv(CartPole(), 3)) for _ in range(2)]
    for vector in fresh:
        vector.np_random = np.random.default_rng(1)
    assert_same(*(vector.reset(seed=[4, None, None]) for vector in fresh))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"seed": [1, 2]}, ValueError, "num_envs = 3.*got 2"),
        ({"seed": -1}, ValueError, "got -1"),
        ({"seed": 1.5}, ValueError, "seed must be a non-negative int, got 1.5"),
        ({"options": {"low": 0.1}}, ValueError, r"options must hold nothing but reset_mask, got \['low'\]"),
        ({"options": [0]}, TypeError, "options must be a dict, got list"),
        ({"seed": [0, 1, 1.5]}, ValueError, "got 1.5"),
        ({"options": {"reset_mask": [True] * 3}}, TypeError, "array of bool, got list"),
        ({"options": {"reset_mask": np.ones(3)}}, TypeError, "got float64"),
        ({"options": {"reset_mask": np.ones(2, bool)}}, ValueError, r"shape \(3,\)"),
        ({"options": {"reset_mask": np.zeros(3, bool)}}, ValueError, "somewhere True"),
    ],
)
def test_a_wrong_reset_resets_nothing(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    venv, reference = (GymnasiumVectorEnv(VectorEnv(CartPole(), 3)) for _ in range(2))
    venv.reset(seed=0)
    reference.reset(seed=0)
    with pytest.raises(error, match=message):
        venv.reset(**arguments)
    assert_same(reference.reset(), venv.reset())


def test_a_mask_in_the_first_reset_is_refused() -> None:
    with pytest.raises(ResetNeeded, match="before all lanes were reset"):
        GymnasiumVectorEnv(VectorEnv(CartPole(), 2)).reset(options={"reset_mask": np.array([True, False])})


def test_without_autoreset_a_lane_that_ended_must_be_reset() -> None:
    venv = GymnasiumVectorEnv(VectorEnv(TimeLimit(CartPole(), 1), 2, AutoresetMode.DISABLED))
    venv.reset(seed=0)
    venv.step([0, 0])
    venv.reset(options={"reset_mask": np.array([True, False])})
    with pytest.raises(ResetNeeded, match=r"lanes \[1\]"):
        venv.step([0, 0])
    venv.reset(options={"reset_mask": np.array([False, True])})
    venv.step([0, 0])


def test_what_a_vector_step_returns_belongs_to_the_caller() -> None:
    venv = GymnasiumVectorEnv(VectorEnv(TimeLimit(Lottery(), 1), 3))
    venv.reset(seed=0)
    steps = [venv.step(venv.action_space.sample()) for _ in range(2)]
    for leaf in jax.tree.leaves([steps, [list(step[4]["final_obs"]) for step in steps]]):
        if isinstance(leaf, np.ndarray):
            assert leaf.flags.writeable
            assert leaf.flags.owndata
    observation, final = steps[0][0], steps[0][4]["final_obs"][0]
    before = observation["image"].copy()
    final["image"][:] = 255 - final["image"]
    np.testing.assert_array_equal(observation["image"], before)


def test_lanes_may_have_parameters_of_their_own() -> None:
    gravity = np.array([1.0, 50.0])
    envs = jax.vmap(lambda gravity: CartPole(gravity=gravity))(gravity)
    envs = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (2,)), envs)
    venv = GymnasiumVectorEnv(VectorEnv(envs, 2, env_axis=0), "rgb_array")
    sync = SyncVectorEnv([lambda g=g: GymnasiumEnv(CartPole(gravity=g)) for g in gravity])
    venv.reset(seed=0)
    sync.reset(seed=0)
    for _ in range(3):
        np.testing.assert_allclose(venv.step([1, 0])[0], sync.step([1, 0])[0], rtol=1e-6)
    assert venv.observation_space.shape == (2, 4)
    assert len(venv.render() or ()) == 2


# --- By id ----------------------------------------------------------------------------------------------------------


def test_make_passes_parameters_render_mode_and_time_limit() -> None:
    env = gymnasium.make("jaxenvs/CartPole-v1", gravity=5.0, render_mode="rgb_array", max_episode_steps=3)
    assert env.unwrapped.env == CartPole(gravity=5.0)  # one time limit: Gymnasium's
    assert env.render_mode == "rgb_array"
    env.reset(seed=0)
    assert [env.step(i % 2)[3] for i in range(3)] == [False, False, True]
    assert gymnasium.make("jaxenvs/CartPole-v1").spec.max_episode_steps == 500
    with pytest.raises(TypeError, match="gravityy"):
        gymnasium.make("jaxenvs/CartPole-v1", gravityy=5.0)


def test_the_spec_of_an_environment_survives_json() -> None:
    env = gymnasium.make("jaxenvs/CartPole-v1", gravity=5.0)
    assert json.loads(env.spec.to_json())["kwargs"] == {"env_id": "CartPole-v1", "gravity": 5.0}
    again = gymnasium.make(gymnasium.envs.registration.EnvSpec.from_json(env.spec.to_json()))
    assert again.unwrapped.env == env.unwrapped.env
    assert "jaxenvs/CartPole-v1" in env.spec.pprint(disable_print=True)
    assert env.spec.reward_threshold == 475.0


@pytest.mark.parametrize("mode", [None, "vector_entry_point", "sync"])
def test_make_vec_passes_parameters_and_time_limit(mode: str | None) -> None:
    venv = gymnasium.make_vec(
        "jaxenvs/CartPole-v1", num_envs=8, vectorization_mode=mode, gravity=5.0, max_episode_steps=3
    )
    assert isinstance(venv, SyncVectorEnv if mode == "sync" else GymnasiumVectorEnv)
    assert venv.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP  # as of Gymnasium's own
    venv.reset(seed=0)
    truncated = [venv.step(np.full(8, i % 2))[3] for i in range(5)]
    np.testing.assert_array_equal(np.all(truncated, axis=1), [False, False, True, False, False])
    inner = venv.envs[0].unwrapped.env if mode == "sync" else venv.venv.env.unwrapped
    assert inner.gravity == 5.0


@pytest.mark.parametrize(
    ("limit", "expected"), [({}, 500), ({"max_episode_steps": -1}, None), ({"max_episode_steps": None}, 500)]
)
def test_a_vector_by_id_has_the_time_limit_that_sync_would_have(limit: dict[str, Any], expected: int | None) -> None:
    env = gymnasium.make_vec("jaxenvs/CartPole-v1", num_envs=2, **limit).venv.env
    assert (env.max_steps if isinstance(env, TimeLimit) else None) == expected


def test_make_vec_takes_an_autoreset_mode_by_name() -> None:
    venv = gymnasium.make_vec("jaxenvs/CartPole-v1", num_envs=2, autoreset_mode="SameStep")
    assert venv.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert json.loads(venv.spec.to_json())["kwargs"]["autoreset_mode"] == "SameStep"
    again = gymnasium.make_vec(venv.spec)
    assert again.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert again.num_envs == 2


@pytest.mark.usefixtures("registries")
def test_registering_twice_replaces_without_a_warning() -> None:
    def register() -> None:
        jaxenvs.register("Lottery-v3", Lottery, max_episode_steps=4)
        jaxenvs.register("Lottery-v3", Lottery, max_episode_steps=5)

    assert warnings_of(register) == set()
    assert gymnasium.make("jaxenvs/Lottery-v3").spec.max_episode_steps == 5


@pytest.mark.usefixtures("registries")
@pytest.mark.parametrize(
    ("id", "gymnasium_id"), [("Unversioned", "jaxenvs/Unversioned"), ("mylab/Lottery-v0", "mylab/Lottery-v0")]
)
def test_ids_without_version_and_with_a_namespace_are_known_to_gymnasium(id: str, gymnasium_id: str) -> None:
    jaxenvs.register(id, Lottery, parameters={"bonus": 2.0})
    assert gymnasium.make(gymnasium_id).unwrapped.env == Lottery(bonus=2.0)
    assert gymnasium.make_vec(gymnasium_id, num_envs=2).venv.env == Lottery(bonus=2.0)


@pytest.mark.usefixtures("registries")
def test_someone_elses_environment_is_not_replaced_in_silence() -> None:
    gymnasium.register("theirs/Lottery-v0", entry_point="theirs:Lottery")
    found = warnings_of(lambda: jaxenvs.register("theirs/Lottery-v0", Lottery))
    assert any("Overriding environment theirs/Lottery-v0" in message for message in found)


def test_gymnasiums_wrappers_work_on_both() -> None:
    env = gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make("jaxenvs/CartPole-v1", max_episode_steps=4))
    env.reset(seed=0)
    info = [env.step(i % 2)[4] for i in range(4)][-1]
    assert (info["episode"]["r"], info["episode"]["l"]) == (4.0, 4)

    for mode in AutoresetMode:
        venv = gymnasium.make_vec("jaxenvs/CartPole-v1", num_envs=2, max_episode_steps=4, autoreset_mode=mode)
        venv = gymnasium.wrappers.vector.RecordEpisodeStatistics(venv)
        venv.reset(seed=0)
        infos = [venv.step(np.full(2, i % 2))[4] for i in range(4)][-1]
        np.testing.assert_array_equal(infos["episode"]["r"], [4.0, 4.0])
        np.testing.assert_array_equal(infos["_episode"], [True, True])


def test_importing_registers_and_compiles_nothing() -> None:
    code = """
import gymnasium, jax
compiled = []
jax.monitoring.register_event_duration_secs_listener(lambda name, *_, **__: compiled.append(name))
import jaxenvs, sys
assert "jaxenvs/CartPole-v1" in gymnasium.registry
assert not [name for name in compiled if "compile" in name or "trace" in name], compiled
assert not {"torch", "PIL", "matplotlib", "stable_baselines3"} & set(sys.modules), "heavy imports"
"""
    subprocess.run([sys.executable, "-c", code], check=True)
