"""A compiled rollout through SB3's wrappers gives what stepping through them gives, and leaves them where that does."""

import re
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    VecCheckNan,
    VecEnvWrapper,
    VecExtractDictObs,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
    VecTransposeImage,
)

from bridge import JaxVecEnv
from bridge.errors import NotCompilable
from bridge.wrappers import CompiledWrapper, WrappedEnv, register_wrapper, wrapped_env
from jaxenvs import TimeLimit, VectorEnv
from jaxenvs.gym import GymnasiumEnv
from tests.bridge.wrappers.rollouts import assert_same_rollout, compiled
from tests.environments import Counter

pytestmark = pytest.mark.filterwarnings("ignore:.*already wrapped with a `Monitor`")

LENGTHS = np.array([2, 5, 9], np.int32)  # the last one is truncated
STEPS = 13
ACTIONS = np.random.default_rng(0).uniform([-1, -2], [1, 2], (STEPS, 3, 2)).astype(np.float32)


def counters(kind="box"):
    """Three of them, whose episodes end at different times."""
    env = TimeLimit(Counter(LENGTHS, observation_kind=kind, action_kind="box"), np.full(3, 7, np.int32))
    return JaxVecEnv(VectorEnv(env, 3, env_axis=0))


@pytest.mark.thorough(but=["dict-<lambda>2"])
@pytest.mark.parametrize(
    ("kind", "wrap"),
    [
        ("box", lambda env: env),
        ("tuple", lambda env: VecMonitor(env, info_keywords=("count",))),
        ("box", lambda env: VecNormalize(env, gamma=0.9, clip_obs=1.5, clip_reward=0.7)),
        ("box", lambda env: VecNormalize(env, norm_obs=False)),
        ("box", lambda env: VecNormalize(env, norm_reward=False, training=False)),
        ("dict", lambda env: VecTransposeImage(VecNormalize(env, norm_obs_keys=["vector"]))),
        ("box", lambda env: VecNormalize(VecNormalize(env, gamma=0.5, clip_obs=1.0))),
        ("dict", lambda env: VecTransposeImage(env, skip=True)),
        ("box", lambda env: VecFrameStack(env, 3)),
        ("image", lambda env: VecFrameStack(VecTransposeImage(env), 2)),
        ("boxes", lambda env: VecFrameStack(env, 2, {"vector": "first", "image": "last"})),
        ("dict", lambda env: VecFrameStack(VecTransposeImage(VecExtractDictObs(env, "image")), 2)),
        ("box", lambda env: VecMonitor(VecNormalize(VecMonitor(VecFrameStack(VecCheckNan(env), 2))))),
    ],
)
def test_a_rollout_is_what_stepping_through_the_wrappers_is(kind, wrap):
    assert_same_rollout(wrap, lambda: counters(kind), ACTIONS)


@pytest.mark.thorough
def test_64_bits_of_precision_stay_those_of_sb3(x64):
    assert_same_rollout(lambda env: VecMonitor(VecFrameStack(VecNormalize(env), 2)), counters, ACTIONS)


@pytest.mark.thorough
def test_the_log_of_a_monitor_has_a_row_for_each_episode(tmp_path):
    names = iter(["ours", "theirs"])
    wrap = lambda env: VecMonitor(VecNormalize(env), str(tmp_path / next(names)), info_keywords=("count",))  # noqa: E731
    assert_same_rollout(wrap, counters, ACTIONS)
    ours, theirs = ((tmp_path / f"{name}.monitor.csv").read_text().splitlines()[2:] for name in ("ours", "theirs"))
    assert len(ours) == len(theirs) == 9
    for mine, other in zip(ours, theirs):
        (r, length, _, count), expected = mine.split(","), other.split(",")
        assert (length, count) == (expected[1], expected[3])
        assert float(r) == pytest.approx(float(expected[0]), rel=1e-4)


@pytest.mark.thorough
def test_a_normalisation_that_was_never_reset_is_compiled_too():
    env = counters()
    last_obs = env.reset()
    compiled(wrapped := VecNormalize(env), last_obs, ACTIONS)
    assert wrapped.old_obs.shape == last_obs.shape


# --- VecCheckNan ----------------------------------------------------------------------------------------------------


class Bursting(VecEnvWrapper):
    """Wrapper that returns infinity for rewards above 2."""

    def reset(self):
        return self.venv.reset()

    def step_wait(self):
        observations, rewards, dones, infos = self.venv.step_wait()
        return observations, np.where(rewards > 2, np.float32(np.inf), rewards), dones, infos


class CompiledBursting(CompiledWrapper):
    @staticmethod
    def step(state, timestep, action):
        return state, timestep.replace(reward=jnp.where(timestep.reward > 2, jnp.inf, timestep.reward)), ()


BURSTS = ACTIONS / 4
BURSTS[[3, 5], 1] = 1, 2


@pytest.fixture
def checked(monkeypatch):
    """Two environments alike, and what their resets gave."""
    monkeypatch.setattr(wrapped_env, "_COMPILED", wrapped_env._COMPILED | {Bursting: CompiledBursting})

    def make(**settings):
        pair = [VecCheckNan(Bursting(counters()), **settings) for _ in "12"]
        for env in pair:
            env.seed(0)
        ours, theirs = pair
        theirs.reset()
        return ours, theirs, ours.reset()

    return make


@pytest.mark.thorough
def test_what_is_not_a_number_raises_what_sb3_raises_and_the_rollout_did_not_take_place(checked):
    ours, theirs, last_obs = checked(raise_exception=True)
    before = ours.unwrapped.get_state()
    with pytest.raises(ValueError, match="found inf in rewards") as expected:
        [theirs.step(actions) for actions in BURSTS]
    with pytest.raises(ValueError, match="found inf in rewards") as raised:
        compiled(ours, last_obs, BURSTS)
    assert str(raised.value) == str(expected.value)
    np.testing.assert_equal(ours.unwrapped.get_state(), before)


@pytest.mark.thorough
@pytest.mark.parametrize("warn_once", [True, False])
def test_what_is_not_a_number_is_warned_of_as_often_as_by_sb3(warn_once, checked):
    ours, theirs, last_obs = checked(warn_once=warn_once)
    with warnings.catch_warnings(record=True) as expected:
        warnings.simplefilter("always")
        [theirs.step(actions) for actions in BURSTS]
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        compiled(ours, last_obs, BURSTS)
    assert [str(warning.message) for warning in warned] == [str(warning.message) for warning in expected]
    assert len(warned) == (1 if warn_once else 2)


def test_infinity_passes_where_it_may(checked):
    env, _, last_obs = checked(raise_exception=True, check_inf=False)
    assert np.isinf([rewards for _, rewards, _, _ in compiled(env, last_obs, BURSTS)]).sum() == 2


# --- The table ------------------------------------------------------------------------------------------------------


class OwnNormalize(VecNormalize):
    """May do anything."""


def test_of_environments_on_the_host_it_is_said_that_they_are():
    with pytest.raises(NotCompilable, match=r"^A DummyVecEnv steps its environments on the host\.$"):
        WrappedEnv.of(OwnNormalize(VecMonitor(DummyVecEnv([lambda: GymnasiumEnv(Counter())]))))


def test_the_normalisation_is_the_outermost():
    inner = VecNormalize(counters())
    assert WrappedEnv.of(VecMonitor(outer := VecNormalize(inner))).normalize is outer
    assert WrappedEnv.of(VecMonitor(inner)).normalize is inner
    assert WrappedEnv.of(counters()).normalize is None


def test_only_who_changes_infos_wants_all_of_them():
    assert WrappedEnv.of(VecMonitor(counters())).changes_infos
    assert not WrappedEnv.of(VecCheckNan(VecNormalize(VecFrameStack(counters(), 2)))).changes_infos


def test_the_observation_follows_a_setting_that_changes():
    env = VecNormalize(counters("image"))
    wrapped = WrappedEnv.of(env)
    assert wrapped.observation(env.reset()).dtype == np.float32
    env.norm_obs = False
    assert wrapped.observation(env.reset()).dtype == np.uint8


@pytest.mark.parametrize(
    ("arguments", "name"), [((Counter, CompiledWrapper), "sb3_class"), ((VecNormalize, Counter), "compiled_class")]
)
def test_only_wrappers_can_be_registered(arguments, name):
    with pytest.raises(TypeError, match=f"{name} must be a subclass of"):
        register_wrapper(*arguments)


def test_a_wrapper_that_gives_another_state_than_it_got_is_named(monkeypatch):
    class Growing(CompiledWrapper):
        def state(self):
            return np.zeros(2, np.float32)

        @staticmethod
        def step(state, timestep, action):
            return jnp.append(state, 0), timestep, ()

    class Own(VecMonitor):
        pass

    monkeypatch.setattr(wrapped_env, "_COMPILED", wrapped_env._COMPILED | {Own: Growing})
    env = Own(counters())
    with pytest.raises(TypeError, match=r"Growing.step must return.*float32\[2\], got float32\[3\]"):
        WrappedEnv.of(env).observation(env.reset())


# --- The example of the documentation -------------------------------------------------------------------------------


@pytest.mark.thorough
def test_the_wrapper_of_the_documentation_is_compiled(monkeypatch):
    monkeypatch.setattr(wrapped_env, "_COMPILED", dict(wrapped_env._COMPILED))
    (code,) = re.findall(r"```python\n(.*?)```", Path("docs/wrappers.md").read_text(), re.DOTALL)
    names = {}
    exec(code, names)
    assert_same_rollout(lambda env: names["VecClipReward"](env, limit=0.8), counters, ACTIONS)


def test_an_observation_comes_back_in_the_dtypes_of_sb3():
    env = counters("dict")
    last_obs = env.reset()
    observation = WrappedEnv.of(env).observation(last_obs)
    assert observation["number"].dtype == np.int32
    assert wrapped_env.in_dtypes_of(last_obs, observation)["number"].dtype == np.int64
    assert jax.tree.structure(observation) == jax.tree.structure(last_obs)
