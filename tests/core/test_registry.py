"""make, make_vec, register, spec, registered."""

import gymnasium
import pytest

import jaxenvs
from jaxenvs import CartPole, TimeLimit, UnknownEnvironment
from tests.environments import Counter

pytestmark = pytest.mark.usefixtures("registries")


def test_make_applies_limits_and_parameters():
    assert jaxenvs.make("CartPole-v1", gravity=5.0) == TimeLimit(CartPole(gravity=5.0), 500)
    assert jaxenvs.make("CartPole-v0") == TimeLimit(CartPole(), 200)
    assert jaxenvs.make("CartPole-v1", max_episode_steps=7) == TimeLimit(CartPole(), 7)
    assert jaxenvs.make("CartPole-v1", max_episode_steps=-1) == CartPole()
    venv = jaxenvs.make_vec("CartPole-v1", 3, autoreset=jaxenvs.AutoresetMode.DISABLED, gravity=5.0)
    assert (venv.num_envs, venv.autoreset) == (3, jaxenvs.AutoresetMode.DISABLED)
    assert venv.env == TimeLimit(CartPole(gravity=5.0), 500)


def test_limits_and_thresholds_are_those_of_gymnasium():
    for id in set(jaxenvs.registered()) & set(gymnasium.registry):  # an older Gymnasium has not all of them
        ours, theirs = jaxenvs.spec(id), gymnasium.spec(id)
        assert ours.max_episode_steps == theirs.max_episode_steps
        assert ours.reward_threshold == theirs.reward_threshold


def test_an_unknown_id_is_answered_with_the_nearest():
    for call in (jaxenvs.make, jaxenvs.spec):
        with pytest.raises(UnknownEnvironment, match=r"No environment 'Cartpole-v1'\. Did you mean CartPole-v1"):
            call("Cartpole-v1")
    with pytest.raises(KeyError, match=r"The closest ids are (\S+, ){4}\S+; `jaxenvs list` shows all\.$"):
        jaxenvs.make("zzz")


def test_an_unknown_parameter_is_answered_with_the_nearest():
    with pytest.raises(TypeError, match=r"CartPole has no parameter 'gravty'\. Did you mean 'gravity'"):
        jaxenvs.make("CartPole-v1", gravty=5.0)


def test_registered_environments_are_made_by_either_entry_point():
    for entry_point in (Counter, "tests.environments:Counter"):
        jaxenvs.register("Counter-v0", entry_point, max_episode_steps=9, parameters={"length": 4})
        assert "Counter-v0" in jaxenvs.registered()
        assert jaxenvs.make("Counter-v0") == TimeLimit(Counter(length=4), 9)
        assert jaxenvs.make("Counter-v0", length=2).unwrapped == Counter(length=2)
        assert gymnasium.make("jaxenvs/Counter-v0").reset(seed=0)[0][0] == 0


def test_an_environment_that_comes_with_jaxenvs_is_replaced_only_if_asked_for():
    with pytest.raises(ValueError, match=r"id must not be 'CartPole-v1', which comes with jaxenvs: .* override=True"):
        jaxenvs.register("CartPole-v1", Counter)
    assert jaxenvs.make("CartPole-v1").unwrapped == CartPole()
    jaxenvs.register("CartPole-v1", Counter, override=True)
    assert jaxenvs.make("CartPole-v1").unwrapped == Counter()
    jaxenvs.register("CartPole-v1", Counter, max_episode_steps=9)  # which is the user's now, and a cell is run twice
    with pytest.raises(ValueError, match="override must be a bool, got 1"):
        jaxenvs.register("Counter-v0", Counter, override=1)


def test_an_id_that_gymnasium_refuses_is_not_half_registered():
    with pytest.raises(gymnasium.error.Error):
        jaxenvs.register("not an id", Counter)
    assert "not an id" not in jaxenvs.registered()


@pytest.mark.parametrize("limit", [0, -5, 1.5, float("nan"), True, "3", -1])
def test_a_time_limit_that_is_none_is_refused(limit):
    if limit != -1:  # which only `make` takes
        with pytest.raises(ValueError, match="max_episode_steps must be None, -1 for no limit, or a positive int, got"):
            jaxenvs.make("CartPole-v1", max_episode_steps=limit)
    with pytest.raises(ValueError, match="max_episode_steps must be a positive int, got "):
        jaxenvs.register("Counter-v0", Counter, max_episode_steps=limit)
    assert "Counter-v0" not in jaxenvs.registered()


@pytest.mark.parametrize("id", [None, 0, ["CartPole-v1"]])
def test_an_id_that_is_no_text_is_refused(id):
    for call in (jaxenvs.make, jaxenvs.spec, lambda id: jaxenvs.register(id, Counter)):
        with pytest.raises(TypeError, match="id must be a str, got "):
            call(id)


def test_an_entry_point_that_makes_no_environment_is_named():
    jaxenvs.register("Counter-v0", "tests.environments:Nothing")
    with pytest.raises(
        ImportError, match=r"entry point of 'Counter-v0', 'tests.environments:Nothing', cannot be imported"
    ):
        jaxenvs.make("Counter-v0")
    jaxenvs.register("Counter-v0", dict)
    with pytest.raises(
        TypeError, match=r"the entry point of 'Counter-v0' returns must be a jaxenvs\.Environment, got dict"
    ):
        jaxenvs.make("Counter-v0")
    with pytest.raises(ValueError, match="entry_point must be a function or \"module:name\", got 'module'"):
        jaxenvs.register("Counter-v0", "module")
