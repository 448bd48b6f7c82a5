"""What holds of every environment that comes with jaxenvs: contract, spaces, picture, golden rollout."""

from __future__ import annotations

import dataclasses
from typing import Any

import gymnasium
import jax
import numpy as np
import pytest

import jaxenvs
from jaxenvs.envs import SUITES, box2d, toy_text
from tests.envs import golden

pytestmark = pytest.mark.filterwarnings("ignore:.*is out of date")

IDS = [spec.id for suite in SUITES for spec in suite.ENVIRONMENTS]
# Box2D's compile for long, and have tests of their own. What their steps give is held against the reference there.
WITHOUT_BOX2D = [id for id in IDS if id not in {spec.id for spec in box2d.ENVIRONMENTS}]
DRAWN = [id for id in WITHOUT_BOX2D if not id.startswith("MinAtar/")]  # test_minatar.py looks at every pixel


@pytest.mark.thorough(but=["CartPole-v1", "Taxi-v4"])
@pytest.mark.parametrize("id", IDS)
def test_keeps_the_contract_in_float32(id: str) -> None:
    jaxenvs.check_env(jaxenvs.make(id))


@pytest.mark.thorough
@pytest.mark.parametrize("id", [*WITHOUT_BOX2D, "LunarLander-v3"])
def test_keeps_the_contract_in_float64(id: str, x64: None) -> None:
    jaxenvs.check_env(jaxenvs.make(id))


@pytest.mark.parametrize("id", IDS)  # limits and thresholds: tests/core/test_registry.py
def test_spaces_and_speed_of_a_film_are_those_of_gymnasium(id: str) -> None:
    if id not in gymnasium.registry:
        pytest.skip("Gymnasium, or an older version of it, has no such environment")
    if id in {spec.id for spec in box2d.ENVIRONMENTS}:
        pytest.importorskip("Box2D", reason="the reference needs gymnasium[box2d]")
    ours, theirs = jaxenvs.make(id), gymnasium.make(id)
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    assert ours.render_fps == theirs.metadata["render_fps"]


@pytest.mark.parametrize("id", IDS)
def test_flags_are_bools(id: str) -> None:
    env = jaxenvs.make(id).unwrapped
    for field in dataclasses.fields(env):  # type: ignore[arg-type]
        if field.type == "bool":
            with pytest.raises(ValueError, match=f"{field.name} must be a bool, got 1"):
                dataclasses.replace(env, **{field.name: 1})  # type: ignore[type-var]


@jax.jit
def start_and_step(env: Any, key: jax.Array, actions: Any) -> Any:
    start = env.reset(key)[0]
    return start, jax.lax.scan(env.step, start, actions)[0]


@pytest.mark.thorough(
    but=["MountainCarContinuous-v0", "FrozenLake-v1", "CliffWalking-v1", "Taxi-v4", "Blackjack-v1", "ArmReach-v0"]
)
@pytest.mark.parametrize("id", DRAWN)
def test_picture_shows_the_state(id: str) -> None:
    env = jaxenvs.make(id)
    space: Any = env.action_space
    action = 0 if id.startswith("Cliff") else 1  # away from the cliff; down, north, another card
    action = np.full(space.shape, 0.5 if space.dtype.kind == "f" else action, space.dtype)
    start, end = start_and_step(env, jax.random.key(0), np.stack([action] * 3))
    first, last = env.render(start), env.render(end)
    assert first.dtype == np.uint8
    assert first.shape == (*env.render_size, 3)
    assert 0 < (first != last).mean() < 0.8
    assert (first == env.render(start)).all()


@pytest.mark.thorough(but=["CartPole-v1"])
@pytest.mark.parametrize("id", [id for id in golden.load() if id != "platform"])
def test_golden_rollout(id: str) -> None:
    """The same bits where the recorded ones were made; elsewhere the same numbers, roughly."""
    known = golden.load()
    observation, digest = golden.rollout(id)
    np.testing.assert_allclose(observation, known[id]["observation"], rtol=0, atol=1e-3)
    is_rounded = id not in {spec.id for spec in toy_text.ENVIRONMENTS}  # nothing that a platform could change
    if golden.platform() == known["platform"] or not is_rounded:
        assert digest == known[id]["sha256"], "If the change was meant: python tests/envs/golden.py"
