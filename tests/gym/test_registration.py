"""Environments by id, in Gymnasium's registry."""

import json
import subprocess
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import jaxenvs
from jaxenvs import CartPole, TimeLimit
from jaxenvs.gym import GymnasiumVectorEnv
from tests.gym.lottery import Lottery, warnings_of


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


@pytest.mark.thorough
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


def test_an_environment_that_computes_its_time_limit_has_it_in_gymnasium_too() -> None:
    env = gymnasium.make("jaxenvs/BitFlipping-v0", n_bits=3)
    env.reset(seed=0)
    assert [env.step(0)[3] for _ in range(3)] == [False, False, True]
    assert gymnasium.make_vec("jaxenvs/BitFlipping-v0", num_envs=2, n_bits=3).venv.env.max_steps == 3


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


@pytest.mark.thorough
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


@pytest.mark.thorough
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
